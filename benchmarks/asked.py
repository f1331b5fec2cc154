"""Measure tags, glossaries and confidences on test lines.

Tags: each line gets a tag around a word, or an address or "%s" after it, in turn. "Whole" is the share of translations
that contain every part exactly once. "Beside" is the share in which the tag stands at the translation of the word,
among lines for which a dictionary has that translation. BLEU is computed without the tags. The dictionary comes from
the training text and not from the model: pairs of words that occur together (Dice coefficient above 0.6), if exactly
one word of the line fits.

Glossary: the 100 most certain words of the dictionary are terms for all lines. "Whole" is the share of terms whose
translations occur.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.measure import conditions, keep
from relattn.translation import load
from relattn.translation.data.text_files import read_parallel
from relattn.translation.evaluation import score, sentence_chrf
from relattn.translation.translate.glossary import Glossary
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.pipeline import Translator

RESULTS = Path(__file__).parent / "results" / "asked-multi30k.csv"
KINDS: tuple[tuple[str, str], ...] = (("<b>", "</b>"), ("", " https://example.org/a?b=1"), ("", " %s"))
SURE, OFTEN = 0.6, 5
TERMS = 100

_AROUND = ".,;:!?\"'()"  # words

Dictionary = Callable[[str, str], float]


def bare_word(word: str) -> str:
    return word.strip(_AROUND).lower()


def dictionary(pairs: Sequence[tuple[str, str]]) -> tuple[Dictionary, list[tuple[str, str]]]:
    """Return the Dice coefficient as a function of two words, and the pairs above SURE, highest first."""
    source, target, both = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    written = Counter[str]()
    for pair in pairs:
        left, right = ({bare_word(word) for word in line.split()} - {""} for line in pair)
        source.update(left)
        target.update(right)
        both.update((one, other) for one in left for other in right)
        written.update(word.strip(_AROUND) for word in pair[1].split())

    def dice(one: str, other: str) -> float:
        one, other = bare_word(one), bare_word(other)
        together = both[one, other]
        return 2 * together / (source[one] + target[other]) if together >= OFTEN else 0.0

    commonest: dict[str, str] = {}
    for word, _ in written.most_common():
        commonest.setdefault(word.lower(), word)
    sure = [words for words, count in both.items() if count >= OFTEN and dice(*words) > SURE]
    sure.sort(key=lambda words: -dice(*words))
    return dice, [(one, commonest[other]) for one, other in sure]


def partner(word: str, others: Sequence[str], dice: Dictionary) -> int | None:
    """Return the place of the only word of a line that fits a word, or None."""
    fits = [dice(word, other) for other in others]
    best = max(fits, default=0.0)
    return fits.index(best) if best > SURE and fits.count(best) == 1 else None


def with_tags(lines: Sequence[str]) -> list[tuple[str, int, tuple[str, str]]]:
    """Return lines with a tag each, the place of its word, and the tag."""
    source, found = random.Random(1), []
    for number, line in enumerate(lines):
        words, kind = line.split(" "), KINDS[number % len(KINDS)]
        at = source.randrange(len(words) - 1) if len(words) > 1 else 0
        words[at] = f"{kind[0]}{words[at]}{kind[1]}"
        found.append((" ".join(words), at, kind))
    return found


def tags(
    translator: Translator, options: TranslateOptions, src: list[str], references: list[str], dice: Dictionary
) -> dict[str, str]:
    """Measure what becomes of tags, with `keep_tags` or without."""
    tagged = with_tags(src)
    found = translator.translate([line for line, _, _ in tagged], options)
    whole = beside = sure = 0
    rest = []
    for line, text, (_, at, kind) in zip(src, found, tagged, strict=True):
        parts = [part.strip() for part in kind if part]
        pieces = text
        for part in parts:
            pieces = pieces.replace(part, f" {part} ")
        words = [word for word in pieces.split() if word not in parts]
        rest.append(" ".join(words))
        if any(text.count(part) != 1 for part in parts):
            continue
        whole += 1
        place = partner(line.split(" ")[at], words, dice)
        if place is None:
            continue
        sure += 1
        first, last = (pieces.split().index(part) for part in (parts[0], parts[-1]))
        beside += first <= place <= last - 2 if len(parts) == 2 else place in (first - 1, first)
    bleu = score(rest, references).bleu
    row = {"lines": str(len(src)), "whole": f"{whole / len(src):.3f}", "beside": f"{beside / max(1, sure):.3f}"}
    return row | {"of": str(sure), "bleu": f"{bleu:.2f}"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.asked", description=__doc__)
    parser.add_argument("bundle", help="the model, calibrated")
    parser.add_argument("--data", type=Path, default=Path("data/multi30k"))
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    data = arguments.data
    pairs = list(read_parallel(data / "test2016.en", data / "test2016.de"))[: arguments.lines]
    src, references = [a for a, _ in pairs], [b for _, b in pairs]
    dice, sure = dictionary(list(read_parallel(data / "train.en.gz", data / "train.de.gz")))
    translator = load(arguments.bundle)
    plain = [best for (best,) in translator.n_best(src)]
    rows: list[dict[str, str]] = []

    def row(what: str, **values: str) -> None:
        rows.append(dict.fromkeys(("what", "lines", "whole", "beside", "of", "bleu", "pearson", "spearman"), ""))
        rows[-1] |= {"what": what} | values
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items() if value), flush=True)

    row("no tags", lines=str(len(src)), bleu=f"{score([best.text for best in plain], references).bleu:.2f}")
    for name, keep_tags in (("tags, left to the model", False), ("tags, kept", True)):
        row(name, **tags(translator, TranslateOptions(keep_tags=keep_tags), src, references, dice))

    partners = dict(reversed(sure))  # the surest of each
    glossary = Glossary((number, *words) for number, words in enumerate(list(partners.items())[-TERMS:], start=1))
    asked = [set(glossary.find(line)) for line in src]
    for name, used in (("terms, without the glossary", None), ("terms, with it", glossary)):
        found = translator.translate(src, TranslateOptions(glossary=used))
        kept = [
            bool(re.search(rf"(?<!\w){re.escape(term)}(?!\w)", text))
            for text, wanted in zip(found, asked, strict=True)
            for term in wanted
        ]
        share, bleu = sum(kept) / len(kept), score(found, references).bleu
        row(name, lines=str(len(src)), whole=f"{share:.3f}", of=str(len(kept)), bleu=f"{bleu:.2f}")

    chrf = sentence_chrf([best.text for best in plain], references)
    pairs_of = np.array([[best.confidence for best in plain], chrf])
    ranks = pairs_of.argsort(1, kind="stable").argsort(1, kind="stable")
    pearson, spearman = (float(np.asarray(np.corrcoef(values))[0, 1]) for values in (pairs_of, ranks))
    row("confidence and chrF", lines=str(len(src)), pearson=f"{pearson:.3f}", spearman=f"{spearman:.3f}")
    keep(arguments.out, [{**one, **conditions()} for one in rows], ("what",))


if __name__ == "__main__":
    main()
