"""A translation job with nothing to fetch: train on the built-in corpus, measure, show.

Each position scheme trains in turn at equal steps, batches and seed. It then translates lines as long as those it was
trained on (`test`), and predicts each piece of lines more than twice as long (`long`), given those before it.
"""

from __future__ import annotations

import csv
import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relattn.translation import bundle
from relattn.translation.analysis.positions import PositionBin, aligned, by_position, draw
from relattn.translation.analysis.table_norms import draw_norms, table_norms
from relattn.translation.config import OPTIONS, DataConfig, ModelConfig, Positions, Recipe, TrainConfig
from relattn.translation.data.builtin import builtin
from relattn.translation.data.imported_tokenizer import AnyTokenizer
from relattn.translation.evaluation import item_accuracy, score
from relattn.translation.training.journal import read_log
from relattn.translation.training.train import train
from relattn.translation.translate.torch_translator import TorchTranslator

LINES = 400  # of each split
WIDTH = 15  # target positions in a bin of the table and the picture
SAMPLES = 4
_log = logging.getLogger(__name__)


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
        ).with_positions(positions, **({"clip": 8} if "clip" in OPTIONS.get(positions, {}) else {})),
        data=DataConfig(src_lang=src_lang, tgt_lang=tgt_lang, vocab_size=1000, max_tokens=1200),
        train=TrainConfig(
            steps=steps, warmup_steps=600, log_every=200, valid_every=500, valid_bleu_lines=50, checkpoint_every=100
        ),
    )


@dataclass(frozen=True)
class Result:
    """What one scheme made of the two splits."""

    scheme: str
    translator: TorchTranslator
    seconds: float  # of training, validation and saving not counted
    pairs: list[tuple[str, str]]  # of test
    translations: list[str]  # of their sources
    long: list[PositionBin]  # where long has one piece a line at least, and the ends of sentence


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
    for scheme in schemes:
        run = out / scheme
        wanted = recipe(run, scheme, steps=steps, seed=seed, src_lang=src_lang, tgt_lang=tgt_lang)
        _log.info("%s → %s, %s positions: training for %d steps", src_lang, tgt_lang, scheme, steps)
        path = train(wanted, resume=(run / "recipe.yaml").exists(), again="the same command")
        translator = bundle.read_bundle(path).translator()
        results.append(_measure(scheme, translator, read_log(run / "log.csv")[-1].seconds, src_lang, tgt_lang))
    trained = _longest_target(wanted.data, translator.tokenizer)
    on_test, signature, on_long = _rows(results)
    _write_rows(out / "results.csv", on_test, signature, on_long)
    print(f"\ntest: {LINES} lines as long as those trained on, translated\n\n{aligned(on_test)}\nBLEU: {signature}\n")
    print("\n".join(_samples(results[0])))
    print(f"long: {LINES} lines, more than twice as long. Of their pieces, by position, each given those before it:\n")
    print(f"{aligned(on_long)}\n(share predicted right; the longest target trained on has {trained} pieces)\n")
    _draw(out / "demo.png", results, trained)
    own = shlex.quote(results[0].pairs[0][0])
    print(f"The picture is {out / 'demo.png'}. Translate a line of your own:\n")
    print(f"    echo {own} | {shlex.quote(sys.argv[0])} translate {shlex.quote(str(out / schemes[0] / 'bundle'))}\n")


def _measure(scheme: str, translator: TorchTranslator, seconds: float, src_lang: str, tgt_lang: str) -> Result:
    test, long = (builtin(split, src_lang=src_lang, tgt_lang=tgt_lang, lines=LINES) for split in ("test", "long"))
    bins = [b for b in by_position(translator, long, width=WIDTH) if b.pieces >= LINES]
    return Result(scheme, translator, seconds, test, translator.translate([src for src, _ in test]), bins)


def _longest_target(data: DataConfig, tokenizer: AnyTokenizer) -> int:
    """Pieces of the longest target trained on."""
    pairs = builtin("train", src_lang=data.src_lang, tgt_lang=data.tgt_lang, lines=data.builtin_lines)
    return max(len(tokenizer.encode(tgt)) for _, tgt in pairs)


Rows = list[tuple[str, ...]]


def _rows(results: list[Result]) -> tuple[Rows, str, Rows]:
    """The table of test and the signature of its BLEU; the table of long."""
    on_test: Rows = [("positions", "items right", "lines right", "BLEU", "training")]
    on_long: Rows = [("positions", *(b.label for b in results[0].long))]
    for result in results:
        references = [reference for _, reference in result.pairs]
        scores, accuracy = score(result.translations, references), item_accuracy(result.translations, references)
        shares = f"{100 * accuracy.items:.1f} %", f"{100 * accuracy.lines:.1f} %"
        on_test.append((result.scheme, *shares, f"{scores.bleu:.1f}", f"{result.seconds:.0f} s"))
        on_long.append((result.scheme, *(f"{100 * b.right:.0f} %" for b in result.long)))
    return on_test, scores.bleu_signature, on_long


def _write_rows(path: Path, on_test: Rows, signature: str, on_long: Rows) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        header, *rows = [(*test, *long[1:]) for test, long in zip(on_test, on_long, strict=True)]
        csv.writer(file).writerows([(*header, "signature"), *((*row, signature) for row in rows)])


def _samples(result: Result) -> list[str]:
    """The first translations, with the reference where they differ from it."""
    lines = []
    for (source, reference), translation in list(zip(result.pairs, result.translations, strict=True))[:SAMPLES]:
        right = translation == reference
        lines += [f"  src.  {source}", f"  {'right' if right else 'WRONG'} {translation}"]
        lines += [""] if right else [f"  ref.  {reference}", ""]
    return lines


def _draw(path: Path, results: list[Result], trained: int) -> None:
    """Pieces of long right by position, and how long the vectors of the first scheme's tables are, by distance."""
    from matplotlib.figure import Figure

    tables = table_norms(results[0].translator.model)
    figure = Figure(figsize=(6 + 4 * len(tables), 4), layout="constrained")
    curves, *heatmaps = figure.subplots(1, 1 + len(tables), squeeze=False)[0]
    draw(curves, {result.scheme: result.long for result in results}, trained=trained)
    draw_norms(dict(zip(tables, heatmaps, strict=True)), tables)
    figure.savefig(path, dpi=110)
