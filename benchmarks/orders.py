"""Translate a text in ten orders, with several batch sizes and numbers of threads, and compare the translations.

Each line must have the same translation every time. Lines with different translations are listed, with the difference
of their scores: rounding depends on the order of additions, and can decide between translations of nearly equal score.
"""

import argparse
import random
from itertools import islice
from pathlib import Path

from relattn.translation import load
from relattn.translation.data.text_files import read_lines
from relattn.translation.translate.pipeline import Translation, Translator

SIZES = (1000, 1, 7, 30, 64, 129, 300, 500, 999, 1000)  # lines per call


def translated(translator: Translator, lines: list[str], order: list[int], size: int) -> list[Translation]:
    """Return the best translation of each line, in the original order."""
    found: dict[int, Translation] = {}
    for at in range(0, len(order), size):
        chosen = order[at : at + size]
        best = translator.n_best([lines[i] for i in chosen])
        found.update((i, one) for i, (one,) in zip(chosen, best, strict=True))
    return [found[i] for i in range(len(lines))]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.orders", description=__doc__)
    parser.add_argument("bundles", nargs="+", metavar="BUNDLE", help="model; several form an ensemble")
    parser.add_argument("--text", type=Path, required=True, help="source lines, plain or .gz")
    parser.add_argument("--lines", type=int, default=1000, help="number of distinct lines to translate")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    translators = [load(*arguments.bundles, threads=threads) for threads in range(1, arguments.threads + 1)]
    lines = list(islice(dict.fromkeys(line for line in read_lines(arguments.text) if line.strip()), arguments.lines))
    order = list(range(len(lines)))
    first = translated(translators[0], lines, order, len(lines))
    others: dict[int, float] = {}  # lines with different translations -> largest difference of scores
    for number, size in enumerate(SIZES, start=1):
        random.Random(number).shuffle(order)
        translator = translators[number % arguments.threads]
        again = translated(translator, lines, order, size)
        differ = [i for i, (a, b) in enumerate(zip(first, again, strict=True)) if a.text != b.text]
        for i in differ:
            others[i] = max(others.get(i, 0.0), abs(first[i].score - again[i].score))
        furthest = max(abs(a.score - b.score) for a, b in zip(first, again, strict=True))
        how = f"{size} at a time, {translator.workers} searched at once"
        alike = f"{len(lines) - len(differ)} of {len(lines)} lines alike, scores within {furthest:.1e}"
        print(f"order {number}, {how}: {alike}", flush=True)
    for i, gap in sorted(others.items()):
        print(f"line {i + 1}: its translations are {gap:.1e} apart")


if __name__ == "__main__":
    main()
