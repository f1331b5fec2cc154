"""Quality by sentence length: what models make of sentences longer than any they were trained on.

Each bundle translates the same text; its BLEU is computed for every bucket of source lengths, in words, printed as a
table and drawn with a mark where training ended.
"""

import argparse
from pathlib import Path

from relattn.translation import load
from relattn.translation.data.text_files import read_parallel
from relattn.translation.evaluation import LengthBucket, by_length, score


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
