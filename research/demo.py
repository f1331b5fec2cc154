"""Demo: train on the built-in corpus, measure and show the results, without a download.

Position schemes are trained one after the other with equal steps, batches and seed. Each model then translates lines as
long as those it was trained on (`test`), and predicts the tokens of lines that are more than twice as long (`long`).
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from relattn_mt import bundle
from relattn_mt.config import SCHEMES, Positions
from relattn_mt.support.errors import Diverged
from relattn_mt.support.files import as_csv, write_atomically
from relattn_mt.tokens.text_files import ParallelFiles

from research import corpus
from research.drawing import aligned, png
from research.positions import PositionBin, draw
from research.reproduce import train_row
from research.rows import Row
from research.table_norms import draw_norms, table_norms
from research.tables import SCALES, Entry

SAMPLES = 4  # translations to print
_log = logging.getLogger(__name__)
Results = dict[Positions, Row]
Cells = list[tuple[str, ...]]


def demo(out: Path, schemes: Sequence[Positions], *, steps: int, seed: int, src_lang: str, tgt_lang: str) -> None:
    """Train each position scheme, or continue its run, and print and draw the results.

    Args:
        out: Directory for the corpus, the runs, results.csv and demo.png.
        schemes: Position schemes. Translations and tables of the first one are shown.
        steps: Optimizer steps per scheme.
        seed: Random seed of weights, batches and dropout.
        src_lang: Source locale.
        tgt_lang: Target locale.

    Raises:
        InputError: a locale is not supported, or `out` has other files.
        Diverged: a training diverged.
    """
    texts = out / "corpus"
    corpus.write_files(texts, src_lang=src_lang, tgt_lang=tgt_lang)
    test, long = (
        list(ParallelFiles(texts / f"{split}.{src_lang}", texts / f"{split}.{tgt_lang}")) for split in ("test", "long")
    )
    base, results = SCALES["demo"].recipe, Results()
    paths: dict[str, Any] = {
        f"{split}_{side}": str(texts / f"{split}.{language}")
        for split in ("train", "valid")
        for side, language in (("src", src_lang), ("tgt", tgt_lang))
    }
    data = replace(base.data, src_lang=src_lang, tgt_lang=tgt_lang, **paths)
    recipe = replace(base, seed=seed, data=data, train=replace(base.train, steps=steps, threads=None))
    for scheme in schemes:
        _log.info("%s → %s, %s positions: training for %d steps", src_lang, tgt_lang, scheme, steps)
        model = Entry(scheme, scheme, {"clip": 8} if "clip" in SCHEMES[scheme].options else {}).model(base.model)
        run = replace(recipe, out=str(out / scheme), model=model)
        results[scheme] = row = train_row(run, {"test": test}, long, has_items=True)
        if row.fault:
            raise Diverged(row.fault)
    _show(out, results, test, len(long))


def _show(out: Path, results: Results, test: list[tuple[str, str]], lines: int) -> None:
    """Print the results, and write the table and the picture. Bins with less than a token per line are left out."""
    first, row = next(iter(results.items()))
    long = {name: [PositionBin(**b) for b in row.positions if b["tokens"] >= lines] for name, row in results.items()}
    on_test: Cells = [("positions", "items correct", "lines correct", "BLEU", "training")]
    on_long: Cells = [("positions", *(b.label for b in long[first]))]
    for name, result in results.items():
        scores = result.scores["test"]
        shares = f"{100 * scores['items']:.1f} %", f"{100 * scores['lines']:.1f} %"
        on_test.append((name, *shares, f"{scores['bleu']:.1f}", f"{result.figures['seconds']:.0f} s"))
        on_long.append((name, *(f"{100 * b.correct:.0f} %" for b in long[name])))
    signature, trained = row.scores["test"]["bleu_signature"], row.figures["longest"]
    header, *cells = [(*one, *other[1:]) for one, other in zip(on_test, on_long, strict=True)]
    table = as_csv([(*header, "signature"), *((*line, signature) for line in cells)])
    write_atomically(out / "results.csv", table.encode())
    print(
        f"\ntest: translations of {len(test)} lines as long as in training\n\n{aligned(on_test)}\nBLEU: {signature}\n"
    )
    for (source, reference), translation in list(zip(test, row.translations["test"], strict=True))[:SAMPLES]:
        is_correct = translation == reference
        print(f"  src.  {source}\n  {'right' if is_correct else 'WRONG'} {translation}")
        print("" if is_correct else f"  ref.  {reference}\n")
    print(f"long: {lines} lines, more than twice as long. Tokens of the references predicted correctly, by position:\n")
    print(f"{aligned(on_long)}\n(the longest training target has {trained} tokens)\n")
    _draw(out, long, trained)
    program = os.path.relpath(Path(sys.executable).with_name("relattn-mt"))
    command = f"{shlex.quote(program)} translate {shlex.quote(str(out / first / 'bundle'))}"
    print(f"The picture is {out / 'demo.png'}. Translate a line of your own:\n")
    print(f"    echo {shlex.quote(test[0][0])} | {command}\n")


def _draw(out: Path, long: dict[Positions, list[PositionBin]], trained: int) -> None:
    """Draw the accuracy on long by position, and the norms of the first scheme's table rows by distance."""
    from matplotlib.figure import Figure

    tables = table_norms(bundle.read_bundle(out / next(iter(long)) / "bundle").make_model())
    figure = Figure(figsize=(6 + 4 * len(tables), 4), layout="constrained")
    curves, *heatmaps = figure.subplots(1, 1 + len(tables), squeeze=False)[0]
    draw(curves, long, trained=trained)
    draw_norms(dict(zip(tables, heatmaps, strict=True)), tables)
    write_atomically(out / "demo.png", png(figure))
