"""Teacher forcing: how well each piece of a reference is predicted, given the source and the pieces before it.

What a model writes on its own tells, past the trained length, mostly when it stops and how its mistakes add up. With
the reference given so far, every position is measured by itself. Position p has p target pieces before it. The end of
sentence is predicted too, and counted apart from the pieces: it says whether a model knows where a line ends.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F

from relattn.translation.data.batching import eval_batches
from relattn.translation.drawing import png
from relattn.translation.errors import InputError
from relattn.translation.translate.torch_translator import TorchTranslator

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POSITIONS = 1_000_000  # of a bin
MAX_TOKENS = 4096  # padded pieces of the longer side in a batch


class PositionBin(NamedTuple):
    """How the pieces at some target positions were predicted."""

    positions: range | None  # None for the ends of sentence, wherever they are
    pieces: int
    right: float  # share, from 0 to 1, that the model finds likelier than any other
    nats: float  # −log p of a piece, the mean

    @property
    def middle(self) -> float | None:
        """The mean of its positions, as drawn."""
        return None if self.positions is None else self.positions.start + (len(self.positions) - 1) / 2

    @property
    def label(self) -> str:
        """As printed: "0–9", "7", or "end"."""
        if self.positions is None:
            return "end"
        return "–".join(map(str, dict.fromkeys((self.positions[0], self.positions[-1]))))


@torch.inference_mode()
def by_position(translator: TorchTranslator, pairs: Sequence[tuple[str, str]], *, width: int) -> list[PositionBin]:
    """How well the targets of pairs are predicted by position, in bins; the last entry is of the ends of sentence.

    Pairs with a blank side are left out: a blank line is translated without asking the model.

    Args:
        translator: the model and its tokenizer.
        pairs: source and reference lines.
        width: positions in a bin.

    Raises:
        InputError: width is out of range, no pair has text on both sides, or a line is longer than the model can hold
            (the message has its number, counted from 1).
    """
    if not 1 <= width <= MOST_POSITIONS:
        raise InputError(f"a bin has from 1 to {MOST_POSITIONS:,} positions, got {width}")
    kept = [(number, pair) for number, pair in enumerate(pairs, start=1) if pair[0].strip() and pair[1].strip()]
    if not kept:
        raise InputError("there is nothing to score: no line has text on both sides")
    src_ids, tgt_ids = translator.encode_pairs(kept)
    ranges = [range(first, first + width) for first in range(0, max(map(len, tgt_ids)), width)]
    totals = torch.zeros(3, len(ranges) + 1, dtype=torch.float64)  # pieces, right, nats of each bin, and of the ends
    for batch in eval_batches(src_ids, tgt_ids, MAX_TOKENS, translator.tokenizer.marks):
        batch = batch.to(translator.device)
        logits = translator.model(batch.src, batch.src_lengths, batch.tgt_in).float()  # (rows, tgt_len, vocab)
        nats = F.cross_entropy(logits.transpose(1, 2), batch.tgt_out, reduction="none")
        right = logits.argmax(-1) == batch.tgt_out
        position, end = torch.arange(nats.shape[1], device=nats.device), batch.tgt_lengths[:, None] - 1
        column = torch.where(position < end, position // width, len(ranges))  # (rows, tgt_len)
        measured = torch.stack([torch.ones_like(nats), right.float(), nats])[:, position <= end]
        totals.index_add_(1, column[position <= end].cpu(), measured.cpu().double())
    pieces, right, nats = totals
    columns = zip(
        [*ranges, None], pieces.int().tolist(), (right / pieces).tolist(), (nats / pieces).tolist(), strict=True
    )
    return list(starmap(PositionBin, columns))


def table(bins: Sequence[PositionBin]) -> str:
    """Bins as lines of text, under a header."""
    rows = [(b.label, str(b.pieces), f"{100 * b.right:.1f} %", f"{b.nats:.3f}") for b in bins]
    return aligned([("positions", "pieces", "right", "nats"), *rows])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of as many cells each, as lines of text with their columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def as_csv(bins: Sequence[PositionBin]) -> str:
    """Bins as CSV: first and last position, or "end" twice, pieces, right, nats."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("first", "last", "pieces", "right", "nats"))
    for b in bins:
        first, last = ("end", "end") if b.positions is None else (b.positions[0], b.positions[-1])
        rows.writerow((first, last, b.pieces, f"{b.right:.6f}", f"{b.nats:.6f}"))
    return text.getvalue()


def as_png(curves: Mapping[str, Sequence[PositionBin]], *, trained: int | None) -> bytes:
    """What `draw` draws, as a picture of its own."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    draw(figure.subplots(), curves, trained=trained)
    return png(figure)


def draw(axis: Axes, curves: Mapping[str, Sequence[PositionBin]], *, trained: int | None) -> None:
    """Share of pieces right by position: a curve for each name, and a line at the longest trained target, in pieces."""
    for name, bins in curves.items():
        points = [(b.middle, b.right) for b in bins if b.middle is not None]
        axis.plot(*zip(*points, strict=True), marker="o", label=name)
    if trained is not None:
        axis.axvline(trained, color="black", linestyle="--", linewidth=1)
        axis.text(trained, 1.02, " training ended", transform=axis.get_xaxis_transform(), ha="center")
    axis.set(xlabel="target position (pieces before)", ylabel="pieces right, given those before", ylim=(-0.03, 1.03))
    axis.legend()
