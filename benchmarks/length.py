"""Quality by sentence length: what models make of sentences longer than any they were trained on.

Each bundle translates the same text; its BLEU is computed for every bucket of source lengths, in words, printed as a
table and drawn with a mark where training ended.
"""

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from relattn.translation import load
from relattn.translation.data.corpora import read_parallel
from relattn.translation.errors import InputError
from relattn.translation.evaluation import require_pairs, score


class LengthBucket(NamedTuple):
    """BLEU of the sentences of some lengths."""

    label: str
    sentences: int
    bleu: float


def by_length(
    hypotheses: Sequence[str], references: Sequence[str], lengths: Sequence[int], edges: Sequence[int]
) -> list[LengthBucket]:
    """BLEU of each length bucket, computed as `score` does, with its signature. Buckets without sentences are left out.

    Args:
        hypotheses: translations.
        references: one each.
        lengths: of each sentence, in any unit, at least 1 (commonly: words of the source).
        edges: the last length of each bucket but the open one at the end: [10, 20] makes 1–10, 11–20 and 21+.

    Raises:
        InputError: different numbers of each, none, lengths below 1, or edges that do not rise from at least 1.
    """
    require_pairs(hypotheses, references)
    if len(lengths) != len(references):
        raise InputError(f"there are {len(lengths)} lengths for {len(references)} references")
    if min(lengths) < 1:
        raise InputError(f"lengths start at 1, but there is one of {min(lengths)}")
    bounds = [0, *edges]
    if any(low >= high for low, high in pairwise(bounds)):
        raise InputError(f"length edges must rise, from at least 1, got {list(edges)}")
    buckets = []
    for low, high in pairwise([*bounds, max(*lengths, bounds[-1]) + 1]):
        chosen = [i for i, length in enumerate(lengths) if low < length <= high]
        if chosen:
            label = f"{low + 1}+" if low == bounds[-1] else f"{low + 1}–{high}"
            bleu = score([hypotheses[i] for i in chosen], [references[i] for i in chosen]).bleu
            buckets.append(LengthBucket(label, len(chosen), bleu))
    return buckets


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.length", description=__doc__)
    parser.add_argument("bundles", nargs="+", metavar="NAME=BUNDLE", help="models to compare, each with a name")
    parser.add_argument("--src", required=True, help="source text")
    parser.add_argument("--ref", required=True, help="references")
    parser.add_argument(
        "--edges", type=int, nargs="+", default=[8, 10, 12, 14, 16, 20], help="last length of each bucket"
    )
    parser.add_argument("--trained", type=int, required=True, help="words in the longest training sentence")
    parser.add_argument("--out", type=Path, required=True, help="the picture, a PNG")
    arguments = parser.parse_args()
    if arguments.trained not in arguments.edges:
        parser.error(f"--trained {arguments.trained} must be one of the --edges {arguments.edges}")

    pairs = list(read_parallel(arguments.src, arguments.ref))
    sources, references = [src for src, _ in pairs], [ref for _, ref in pairs]
    words = [len(source.split()) for source in sources]
    measured: dict[str, list[LengthBucket]] = {}
    for argument in arguments.bundles:
        name, _, bundle = argument.partition("=")
        translations = load(bundle).translate(sources)
        measured[name] = by_length(translations, references, words, arguments.edges)
        scores = score(translations, references)
        ratio = sum(len(t.split()) for t in translations) / sum(len(r.split()) for r in references)
        print(f"{name}: {scores.bleu:.2f} on all {scores.sentences} lines, length ratio {ratio:.3f}")
    print(f"BLEU {scores.bleu_signature}\n")
    print("| source words | sentences | " + " | ".join(measured) + " |")
    print("|---" * (2 + len(measured)) + "|")
    for row in zip(*measured.values(), strict=True):
        print(f"| {row[0].label} | {row[0].sentences} | " + " | ".join(f"{bucket.bleu:.1f}" for bucket in row) + " |")
    draw(arguments.out, measured, arguments.edges, arguments.trained)


def draw(path: Path, measured: dict[str, list[LengthBucket]], edges: list[int], trained: int) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, buckets in measured.items():
        axis.plot([bucket.label for bucket in buckets], [bucket.bleu for bucket in buckets], marker="o", label=name)
    axis.axvline(edges.index(trained) + 0.5, color="black", linestyle="--", linewidth=1)
    axis.text(edges.index(trained) + 0.5, 1.02, "training ended", transform=axis.get_xaxis_transform(), ha="center")
    axis.set(xlabel="source length (words)", ylabel="BLEU", ylim=(0, None))
    axis.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
