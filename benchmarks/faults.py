"""Count the warnings about good translations, and about the same ones with a planted fault.

    python -m benchmarks.faults toolkit/src/relattn_mt/models/everyday-en-de TEXT --name valid

TEXT is a folder with NAME.LANGUAGE, with or without .gz. The translations are its references. Of each that has one, a
capitalized word of both sides becomes another one of the text, a number of both sides another one, and each with ten
words loses its end, of 60 % of the words. Nothing is translated.
"""

import argparse
import random
import re
from collections import Counter
from pathlib import Path

from relattn_mt.bundle import read_bundle
from relattn_mt.hub import resolve
from relattn_mt.text.plausibility import implausibilities
from relattn_mt.translate.translation import Translation, check_language
from relattn_mt.translate.translator import Translator

from benchmarks.alignment import lines_of

NAME = re.compile(r"(?<=[\w,] )[A-Z][a-z]{2,}\b")
NUMBER = re.compile(r"\b\d+\b")


def warnings_of(translator: Translator, source: str, translation: str) -> tuple[str, ...]:
    capitals, pieces = translator.preparation.names
    return implausibilities(source, translation, pieces(source), pieces(translation), capitals, pieces)


def common(pattern: re.Pattern[str], source: str, translation: str) -> list[str]:
    """Return what a pattern finds in both texts, once in the translation."""
    found = dict.fromkeys(pattern.findall(source))
    return [word for word in found if len(re.findall(rf"\b{word}\b", translation)) == 1]


def with_fault(fault: str, source: str, translation: str, names: list[str], draw: random.Random) -> str:
    """Return a translation with a fault; the same if it cannot have it."""
    if fault == "length":
        words = translation.split(" ")
        return " ".join(words[: round(0.4 * len(words))]) if len(words) >= 10 else translation
    for word in common(NAME if fault == "names" else NUMBER, source, translation)[:1]:
        other = draw.choice(names) if fault == "names" else str(int(word) + draw.randint(1, 50))
        return re.sub(rf"\b{word}\b", other, translation)
    return translation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="bundle")
    parser.add_argument("text", type=Path, help="folder of texts")
    parser.add_argument("--name", default="valid", help="name of the text (%(default)s)")
    given = parser.parse_args()
    translator = read_bundle(resolve(given.model)).translator()
    for languages in translator.pairs:
        direction = translator.with_languages(*languages)
        sides = [lines_of(given.text, given.name, language) for language in languages]
        names = [name for line in sides[0] for name in NAME.findall(line)]
        counts: Counter[str] = Counter()
        draw = random.Random(1)
        for source, translation in zip(*sides, strict=True):
            alarms = warnings_of(direction, source, translation)
            (checked,) = check_language(source, [Translation(translation, 0.0, [], warnings=alarms)], languages)
            counts += Counter(["lines", *alarms, *["alarms"] * bool(checked.warnings)])
            for fault in ("names", "numbers", "length"):
                wrong = with_fault(fault, source, translation, names, draw)
                if wrong != translation and fault not in alarms:
                    is_found = fault in warnings_of(direction, source, wrong)
                    counts += Counter([f"planted {fault}", *[f"found {fault}"] * is_found])
        print(" to ".join(languages), dict(sorted(counts.items())), flush=True)


if __name__ == "__main__":
    main()
