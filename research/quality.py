"""Measures of a model of English and German: names, numbers, set phrases, words, and text in the target language."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from random import Random

import sacrebleu
from relattn_mt.loading import load
from relattn_mt.translate.translator import Translator

from research.everyday import Maker, written_pairs

# None of them is in the text that everyday-en-de was trained on.
NEW_NAMES = (
    "Gwendolyn Thaddeus Ottilie Marisol Tuomas Przemek Ravindra Yevgenia Oluwaseun Hjalmar Leocadia "
    "Bartholomew Xiomara Wilhelmina Anatol Dorothea Tamsin Cosima Ignatius Rosalind Vukan Henrike Torvald "
    "Saskia Lisbeth Ewald Gundula Hedwig Ludmilla Perpetua Quirin Roswitha Siegbert Tilman Undine Volkmar "
    "Waltraud Xaver Yannick Zita"
)
NAMES = 100  # sentences per direction
NUMBERS = 400
AS_WRITTEN = 300  # pairs per direction
_SHORT = 2  # words; which language a text of so few words is in is not always clear
_DIRECTIONS = ("en", "de"), ("de", "en")

Failures = list[tuple[str, str]]  # source, translation


def measure(bundle: str, english: Path, german: Path, *, show: int) -> None:
    """Print a row per measure, and at most `show` failures of each."""
    text = {
        language: path.read_text(encoding="utf-8").splitlines()
        for language, path in (("en", english), ("de", german))
    }  # fmt: skip
    translators = {(source, target): load(bundle, src_lang=source, tgt_lang=target) for source, target in _DIRECTIONS}
    for direction, translator in translators.items():
        _print_scores(translator, direction, text[direction[0]], text[direction[1]])
    pairs = list(zip(text["en"], text["de"], strict=True))
    for direction, translator in translators.items():
        maker = Maker(Random(17))
        typed = [maker.typed(pair, _column(direction)) for pair in pairs]
        sides = dict(zip(("en", "de"), zip(*typed, strict=True), strict=True))
        print("typed on a phone, ", end="")
        _print_scores(translator, direction, sides[direction[0]], sides[direction[1]])
    for direction, translator in translators.items():
        _print_row(
            f"{direction[1]} to {direction[1]}, unchanged", *_kept_language(translator, text[direction[1]]), show
        )
    for direction, translator in translators.items():
        _print_row(f"{'-'.join(direction)} changed", *_translated(translator, text[direction[0]]), show)
    for direction, translator in translators.items():
        _print_row(f"{'-'.join(direction)} names", *_kept_names(translator, text[direction[0]]), show)
    for direction, translator in translators.items():
        _print_row(f"{'-'.join(direction)} numbers", *_right_numbers(translator, direction), show)
    for direction, translator in translators.items():
        _print_row(
            f"{'-'.join(direction)} set phrases as written", *_as_written(translator, direction, "phrases"), show
        )
    for direction, translator in translators.items():
        _print_row(f"{'-'.join(direction)} words as written", *_as_written(translator, direction, "words"), show)


def _print_scores(
    translator: Translator, direction: tuple[str, str], lines: Sequence[str], references: Sequence[str]
) -> None:
    translations = translator.translate(lines)
    bleu = sacrebleu.corpus_bleu(translations, [list(references)]).score
    chrf = sacrebleu.corpus_chrf(translations, [list(references)]).score
    print(f"{'-'.join(direction)}: BLEU {bleu:.1f}, chrF {chrf:.1f}", flush=True)


def _print_row(name: str, failures: Failures, count: int, show: int) -> None:
    print(f"{name}: {count - len(failures)} of {count}", flush=True)
    for source, translation in failures[:show]:
        print(f"    {source} → {translation}")


def _kept_language(translator: Translator, lines: Sequence[str]) -> tuple[Failures, int]:
    """Translate lines that are in the target language already."""
    long = [line for line in lines if len(line.split()) > _SHORT]
    pairs = zip(long, translator.translate(long), strict=True)
    return [pair for pair in pairs if pair[0] != pair[1]], len(long)


def _translated(translator: Translator, lines: Sequence[str]) -> tuple[Failures, int]:
    """Translate lines that are in the source language, and must not stay as they are."""
    long = [line for line in lines if len(line.split()) > _SHORT]
    pairs = zip(long, translator.translate(long), strict=True)
    return [pair for pair in pairs if pair[0] == pair[1]], len(long)


def _kept_names(translator: Translator, lines: Sequence[str]) -> tuple[Failures, int]:
    """Translate lines whose name was replaced by one that the model has not seen."""
    random = Random(5)
    with_name = [line for line in lines if len(re.findall(r"\bTom\b", line)) == 1 and not re.search(r"\bTom'?s", line)]
    drawn = random.sample(with_name, min(NAMES, len(with_name)))
    names = [random.choice(NEW_NAMES.split()) for _ in drawn]
    sources = [re.sub(r"\bTom\b", name, line) for line, name in zip(drawn, names, strict=True)]
    triples = zip(sources, translator.translate(sources), names, strict=True)
    failures = [
        (source, translation)
        for source, translation, name in triples
        if not re.search(rf"\b{name}\b", translation)
    ]  # fmt: skip
    return failures, len(sources)


def _right_numbers(translator: Translator, direction: tuple[str, str]) -> tuple[Failures, int]:
    """Translate items of the built-in corpus whose values were not trained on. Every digit and sign of them counts.

    A text without letters, such as 21:40:06, may also stay as it is.
    """
    maker = Maker(Random(11))
    is_english = direction[0] == "en"
    drawn = (item for item, english in maker.items("test", seed=1000) if english == is_english)
    items = list(islice(drawn, NUMBERS // 2))
    sources = [maker.carried(item, is_english)[not is_english] for item in items]
    triples = zip(sources, translator.translate(sources), items, strict=True)
    failures = []
    for source, text, item in triples:
        stays = text == source and not re.search(r"[^\W\d_]", source)
        if item.tgt not in text and not stays:
            failures.append((source, text))
    return failures, len(items)


def _as_written(translator: Translator, direction: tuple[str, str], name: str) -> tuple[Failures, int]:
    """Translate pairs of recipes/everyday-NAME.tsv. A translation must be one that the file has for the source."""
    column = _column(direction)
    rows = written_pairs(name)
    expected = {(pair[column], pair[1 - column]) for pair in rows}
    sources = [pair[column] for pair in Random(13).sample(rows, min(AS_WRITTEN, len(rows)))]
    pairs = zip(sources, translator.translate(sources), strict=True)
    return [pair for pair in pairs if pair not in expected], len(sources)


def _column(direction: tuple[str, str]) -> int:
    return ("en", "de").index(direction[0])
