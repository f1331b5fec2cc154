"""Demo: train on the built-in corpus, measure and show the results, without a download.

Position schemes are trained one after the other with equal steps, batches and seed. Each model then translates lines as
long as those it was trained on (`test`), and predicts the tokens of lines that are more than twice as long (`long`).
"""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relattn.translation import bundle
from relattn.translation.analysis.positions import PositionBin, aligned, by_position, draw
from relattn.translation.analysis.table_norms import draw_norms, table_norms
from relattn.translation.config import SCHEMES, DataConfig, ModelConfig, Positions, Recipe, TrainConfig
from relattn.translation.console import shows_progress
from relattn.translation.data.builtin import builtin
from relattn.translation.data.encode import ENCODED
from relattn.translation.data.storage import open_pairs
from relattn.translation.drawing import png
from relattn.translation.evaluation import item_accuracy, score
from relattn.translation.files import as_csv, write_atomically
from relattn.translation.training.journal import read_log
from relattn.translation.training.train import train
from relattn.translation.translate.torch_translator import TorchTranslator

LINES = 400  # per split
WIDTH = 15  # target positions per bin of the table and the picture
SAMPLES = 4  # translations to print
_log = logging.getLogger(__name__)


def recipe(out: Path, positions: Positions, *, steps: int, seed: int, src_lang: str, tgt_lang: str) -> Recipe:
    """Return a recipe whose model trains within minutes on two CPU cores."""
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
        ).with_positions(positions, **({"clip": 8} if "clip" in SCHEMES[positions].options else {})),
        data=DataConfig(src_lang=src_lang, tgt_lang=tgt_lang, vocab_size=1000, max_tokens=1200),
        train=TrainConfig(
            steps=steps, warmup_steps=600, log_every=200, valid_every=500, valid_bleu_lines=50, checkpoint_every=100
        ),
    )


@dataclass(frozen=True)
class Result:
    """Results of a position scheme."""

    scheme: str
    translator: TorchTranslator
    seconds: float  # of training, without validation and saving
    pairs: list[tuple[str, str]]  # of test
    translations: list[str]  # of the sources of test
    long: list[PositionBin]  # bins of long with at least one token per line


def demo(out: Path, schemes: Sequence[Positions], *, steps: int, seed: int, src_lang: str, tgt_lang: str) -> None:
    """Train each position scheme, or continue its run, and print and draw the results.

    Args:
        out: directory for the runs, results.csv and demo.png.
        schemes: position schemes. Translations and tables of the first one are shown.
        steps: optimizer steps per scheme.
        seed: random seed of weights, batches and dropout.
        src_lang: source locale.
        tgt_lang: target locale.

    Raises:
        InputError: a locale is not supported, or `out` has other files.
    """
    results: list[Result] = []
    for scheme in schemes:
        run = out / scheme
        _log.info("%s → %s, %s positions: training for %d steps", src_lang, tgt_lang, scheme, steps)
        path = train(
            recipe(run, scheme, steps=steps, seed=seed, src_lang=src_lang, tgt_lang=tgt_lang),
            resume=(run / "recipe.yaml").exists(),
            again="the same command",
        )
        translator = bundle.read_bundle(path).translator()
        test, long = (builtin(split, src_lang=src_lang, tgt_lang=tgt_lang, lines=LINES) for split in ("test", "long"))
        _log.info("measuring the model on %d lines of test and %d of long", len(test), len(long))
        translations = translator.translate([src for src, _ in test], progress=shows_progress())
        bins = [b for b in by_position(translator, long, width=WIDTH) if b.tokens >= LINES]
        results.append(Result(scheme, translator, read_log(run / "log.csv")[-1].seconds, test, translations, bins))
    trained = int(open_pairs(run / ENCODED).tgt.lengths().max())
    on_test, signature, on_long = _tables(results)
    header, *rows = [(*test, *long[1:]) for test, long in zip(on_test, on_long, strict=True)]
    table = as_csv([(*header, "signature"), *((*row, signature) for row in rows)])
    write_atomically(out / "results.csv", table.encode())
    print(f"\ntest: translations of {LINES} lines as long as in training\n\n{aligned(on_test)}\nBLEU: {signature}\n")
    print("\n".join(_samples(results[0])))
    print(f"long: {LINES} lines, more than twice as long. Tokens of the references predicted correctly, by position:\n")
    print(f"{aligned(on_long)}\n(the longest training target has {trained} tokens)\n")
    _draw(out / "demo.png", results, trained)
    example = shlex.quote(results[0].pairs[0][0])
    command = f"{shlex.quote(sys.argv[0])} translate {shlex.quote(str(out / schemes[0] / 'bundle'))}"
    print(f"The picture is {out / 'demo.png'}. Translate a line of your own:\n\n    echo {example} | {command}\n")


Rows = list[tuple[str, ...]]


def _tables(results: list[Result]) -> tuple[Rows, str, Rows]:
    """Return the table of test, the signature of its BLEU and the table of long."""
    on_test: Rows = [("positions", "items correct", "lines correct", "BLEU", "training")]
    on_long: Rows = [("positions", *(b.label for b in results[0].long))]
    for result in results:
        references = [reference for _, reference in result.pairs]
        scores, accuracy = score(result.translations, references), item_accuracy(result.translations, references)
        shares = f"{100 * accuracy.items:.1f} %", f"{100 * accuracy.lines:.1f} %"
        on_test.append((result.scheme, *shares, f"{scores.bleu:.1f}", f"{result.seconds:.0f} s"))
        on_long.append((result.scheme, *(f"{100 * b.correct:.0f} %" for b in result.long)))
    return on_test, scores.bleu_signature, on_long


def _samples(result: Result) -> list[str]:
    """Return the first translations, with the references of those that differ."""
    lines = []
    for (source, reference), translation in list(zip(result.pairs, result.translations, strict=True))[:SAMPLES]:
        correct = translation == reference
        lines += [f"  src.  {source}", f"  {'right' if correct else 'WRONG'} {translation}"]
        lines += [""] if correct else [f"  ref.  {reference}", ""]
    return lines


def _draw(path: Path, results: list[Result], trained: int) -> None:
    """Draw the accuracy on long by position, and the norms of the first scheme's table rows by distance."""
    from matplotlib.figure import Figure

    tables = table_norms(results[0].translator.model)
    figure = Figure(figsize=(6 + 4 * len(tables), 4), layout="constrained")
    curves, *heatmaps = figure.subplots(1, 1 + len(tables), squeeze=False)[0]
    draw(curves, {result.scheme: result.long for result in results}, trained=trained)
    draw_norms(dict(zip(tables, heatmaps, strict=True)), tables)
    write_atomically(path, png(figure))
