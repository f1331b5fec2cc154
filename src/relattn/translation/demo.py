"""A translation job with nothing to fetch: train on the embedded corpus, measure, show.

Each position scheme trains in turn at equal steps, batches and seed, then translates lines as long as those it was
trained on (`test`) and lines more than twice as long (`long`), which are reported as they come out.
"""

from __future__ import annotations

import csv
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from relattn.translation import bundle
from relattn.translation.config import DataConfig, ModelConfig, Positions, Recipe, TrainConfig
from relattn.translation.data.embedded import embedded
from relattn.translation.evaluation import Scores, item_accuracy, score
from relattn.translation.search.translator import Translator
from relattn.translation.training.journal import read_log
from relattn.translation.training.run import train

SPLITS = {"test": 400, "long": 100}  # lines of each
BIN = 10  # source pieces in one step of the picture's line
SAMPLES = 4


def recipe(out: Path, positions: Positions, *, steps: int, seed: int, src_lang: str, tgt_lang: str) -> Recipe:
    """A model small enough for minutes on two CPU cores."""
    return Recipe(
        out=str(out),
        seed=seed,
        model=ModelConfig(
            dim=128,
            heads=4,
            feed_forward_dim=256,
            encoder_layers=2,
            decoder_layers=2,
            dropout=0.0,
            attention_dropout=0.0,
            positions=positions,
            clip=8,
        ),
        data=DataConfig(src_lang=src_lang, tgt_lang=tgt_lang, vocab_size=1000, max_tokens=1200),
        train=TrainConfig(
            steps=steps, warmup_steps=600, log_every=200, valid_every=500, valid_bleu_lines=50, checkpoint_every=100
        ),
    )


@dataclass(frozen=True)
class Result:
    """What one scheme made of one split."""

    scheme: str
    split: str
    pairs: list[tuple[str, str]]
    translations: list[str]
    lengths: list[int]  # source pieces
    seconds: float  # of training, validation and saving not counted

    @property
    def references(self) -> list[str]:
        return [reference for _, reference in self.pairs]

    @cached_property
    def scores(self) -> Scores:
        return score(self.translations, self.references)

    def by_length(self) -> list[tuple[float, float]]:
        """(middle of a bin of source lengths, item accuracy there)."""
        bins: dict[int, list[int]] = {}
        for i, length in enumerate(self.lengths):
            bins.setdefault(length // BIN, []).append(i)
        return [
            (
                BIN * (number + 0.5),
                item_accuracy([self.translations[i] for i in lines], [self.references[i] for i in lines]).items,
            )
            for number, lines in sorted(bins.items())
        ]


def demo(out: Path, schemes: Sequence[Positions], *, steps: int, seed: int, src_lang: str, tgt_lang: str) -> None:
    """Train each scheme, or go on with it where it was left, and print and draw what was learned.

    Args:
        out: directory for the runs, results.csv and demo.png.
        schemes: position schemes; the first one's translations and tables are shown.
        steps: optimiser steps of each.
        seed: of weights, batches and dropout.
        src_lang: source locale.
        tgt_lang: target locale.

    Raises:
        InputError: the locales are not spoken, or `out` holds something else.
    """
    results: list[Result] = []
    translators: dict[str, Translator] = {}
    for scheme in schemes:
        run = out / scheme
        wanted = recipe(run, scheme, steps=steps, seed=seed, src_lang=src_lang, tgt_lang=tgt_lang)
        print(f"\n{src_lang} → {tgt_lang}, {scheme} positions: training for {steps} steps", file=sys.stderr)
        path = train(wanted, resume=(run / "recipe.yaml").exists())
        seconds = read_log(run / "log.csv")[-1].seconds
        translators[scheme] = bundle.load(path)
        results += _measure(scheme, translators[scheme], seconds, src_lang, tgt_lang)
    rows = _rows(results)
    _write_table(out / "results.csv", rows, results[0].scores.bleu_signature)
    print(_table(rows, results[0].scores.bleu_signature))
    print(_samples(results))
    draw(out / "demo.png", results, translators[schemes[0]])
    own = shlex.quote(results[0].pairs[0][0])
    print(f"The picture is {out / 'demo.png'}. Translate a line of your own:\n")
    print(f"    echo {own} | {shlex.quote(sys.argv[0])} translate {shlex.quote(str(out / schemes[0] / 'bundle'))}\n")


def _measure(scheme: str, translator: Translator, seconds: float, src_lang: str, tgt_lang: str) -> list[Result]:
    results = []
    for split, lines in SPLITS.items():
        pairs = embedded(split, src_lang=src_lang, tgt_lang=tgt_lang, lines=lines)
        sources = [src for src, _ in pairs]
        lengths = [len(pieces) for pieces in translator.tokenizer.encode_lines(sources)]
        results.append(Result(scheme, split, pairs, translator.translate(sources), lengths, seconds))
    return results


HEADER = ("positions", "split", "lines", "items right", "lines right", "BLEU", "training")


def _rows(results: list[Result]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for result in results:
        accuracy = item_accuracy(result.translations, result.references)
        shares = f"{100 * accuracy.items:.1f} %", f"{100 * accuracy.lines:.1f} %"
        seconds = f"{result.seconds:.0f} s"
        rows.append(
            (result.scheme, result.split, str(len(result.pairs)), *shares, f"{result.scores.bleu:.1f}", seconds)
        )
    return rows


def _table(rows: list[tuple[str, ...]], signature: str) -> str:
    rows = [HEADER, *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(["", *lines, f"BLEU: {signature}", ""])


def _write_table(path: Path, rows: list[tuple[str, ...]], signature: str) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*HEADER, "signature"])
        writer.writerows([*row, signature] for row in rows)


def _samples(results: list[Result]) -> str:
    lines = []
    for result in results[: len(SPLITS)]:
        count = SAMPLES if result.split == "test" else 1
        for (source, reference), translation in list(zip(result.pairs, result.translations, strict=True))[:count]:
            mark = "right" if translation == reference else "WRONG"
            lines += [f"  {result.split:5} {source}", f"  {mark:5} {translation}", f"  ref.  {reference}", ""]
    return "\n".join(lines)


def draw(path: Path, results: list[Result], translator: Translator) -> None:
    """Item accuracy by line length, and how long the vectors of the first scheme's tables are, by distance."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tables = _table_norms(translator)
    figure, axes = plt.subplots(1, 1 + len(tables), figsize=(6 + 4 * len(tables), 4), layout="constrained")
    by_length, *heatmaps = [axes] if not tables else list(axes)
    for scheme in dict.fromkeys(result.scheme for result in results):
        points = sorted(point for result in results if result.scheme == scheme for point in result.by_length())
        by_length.plot(*zip(*points, strict=True), marker="o", label=scheme)
    trained = max(length for result in results if result.split == "test" for length in result.lengths)
    by_length.axvline(trained, color="black", linestyle="--", linewidth=1)
    by_length.text(trained, 1.02, " training ended", transform=by_length.get_xaxis_transform(), ha="center")
    by_length.set(xlabel="source length (pieces)", ylabel="items right", ylim=(-0.03, 1.03))
    by_length.legend()
    for axis, (name, (labels, rows)) in zip(heatmaps, tables.items(), strict=True):
        left, right = translator.model.config.window
        image = axis.imshow(rows, aspect="auto", extent=(-left - 0.5, right + 0.5, len(rows) - 0.5, -0.5))
        axis.set(title=f"length of the {name} vectors", xlabel="key position − query position")
        axis.set_yticks(range(len(rows)), labels)
        axis.xaxis.get_major_locator().set_params(integer=True)
        figure.colorbar(image, ax=axis)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _table_norms(translator: Translator) -> dict[str, tuple[list[str], list[list[float]]]]:
    """For aK and aV: the layers that have a table, and the norm of each row (the mean over heads, a table each)."""
    found: dict[str, tuple[list[str], list[list[float]]]] = {}
    for name, parameter in translator.model.named_parameters():
        stack, _, rest = name.partition(".")
        for table, symbol in (("rel_key", "aK"), ("rel_value", "aV")):
            if f".{table}." in name:
                labels, rows = found.setdefault(symbol, ([], []))
                labels.append(f"{stack} {int(rest.partition('.')[0]) + 1}")
                rows.append(parameter.detach().norm(dim=-1).reshape(-1, parameter.shape[-2]).mean(0).tolist())
    return found
