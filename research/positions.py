"""Teacher forcing: measure how well each token of a reference is predicted from the source and the tokens before it.

Free-running translations beyond the trained length mainly show when the model stops and how its errors accumulate. With
teacher forcing, each position is measured independently. Position p has p target tokens before it. The end of sentence
is counted separately: it shows whether the model knows where a line ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from relattn_mt.data.batching import eval_batches
from relattn_mt.support.errors import InputError
from relattn_mt.text.patterns import has_text
from relattn_mt.translate.translator import Translator

from research.attention import model_of
from research.drawing import aligned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_WIDTH = 1_000_000  # positions per bin
MAX_TOKENS = 4096  # padded tokens of the longer side per batch


class PositionBin(NamedTuple):
    """Predictions of the tokens at a range of target positions."""

    label: str  # "0–9", "7" or "end"
    middle: float | None  # mean position. None for the end of sentence, at any position
    tokens: int
    correct: float  # fraction for which the reference token is the most likely one
    nats: float  # mean of −log p per token


@torch.inference_mode()
def by_position(translator: Translator, pairs: Sequence[tuple[str, str]], *, width: int) -> list[PositionBin]:
    """Return how well the references are predicted, in bins of target positions; the last bin is the end of sentence.

    Pairs with a blank side are left out, because the model does not see blank lines.

    Args:
        translator: Translator with the model and its tokenizer.
        pairs: Source and reference lines.
        width: Number of positions per bin.

    Raises:
        InputError: Width is out of range, no pair has text on both sides, or a line is longer than the model can read
            (the message has its line number, counted from 1).
    """
    if not 1 <= width <= MAX_WIDTH:
        raise InputError(f"width must be at least 1 and at most {MAX_WIDTH:,}, got {width}")
    kept = [(number, pair) for number, pair in enumerate(pairs, start=1) if all(map(has_text, pair))]
    if not kept:
        raise InputError("at least one line must have text on both sides")
    src_ids, tgt_ids = translator.encode_pairs(kept)
    ranges = [range(first, first + width) for first in range(0, max(map(len, tgt_ids)), width)]
    totals = torch.zeros(3, len(ranges) + 1, dtype=torch.float64)  # tokens, correct, nats; the last column: ends
    for batch in eval_batches(src_ids, tgt_ids, MAX_TOKENS, translator.tokenizer.special):
        batch = batch.to(translator.engine.device)
        logits = batch.logits(model_of(translator)).float()  # (rows, tgt_len, vocab)
        nats = F.cross_entropy(logits.transpose(1, 2), batch.tgt_out, reduction="none")
        correct = logits.argmax(-1) == batch.tgt_out
        position, end = torch.arange(nats.shape[1], device=nats.device), batch.tgt_lengths[:, None] - 1
        column = torch.where(position < end, position // width, len(ranges))  # (rows, tgt_len)
        measured = torch.stack([torch.ones_like(nats), correct.float(), nats])[:, position <= end]
        totals.index_add_(1, column[position <= end].cpu(), measured.cpu().double())
    labels = ["–".join(map(str, dict.fromkeys((each[0], each[-1])))) for each in ranges]
    middles = [each.start + (width - 1) / 2 for each in ranges]
    tokens = totals[0]
    figures = tokens.int().tolist(), *(totals[1:] / tokens).tolist()
    return list(starmap(PositionBin, zip([*labels, "end"], [*middles, None], *figures, strict=True)))


def table(bins: Sequence[PositionBin]) -> str:
    """Return the bins as a table of text with a header."""
    rows = [(b.label, str(b.tokens), f"{100 * b.correct:.1f} %", f"{b.nats:.3f}") for b in bins]
    return aligned([("positions", "tokens", "correct", "nats"), *rows])


def draw(axis: Axes, curves: Mapping[str, Sequence[PositionBin]], *, trained: int) -> None:
    """Draw the fraction of correct tokens by position, a curve per name, and a line at the longest trained target."""
    for name, bins in curves.items():
        points = [(b.middle, b.correct) for b in bins if b.middle is not None]
        axis.plot(*zip(*points, strict=True), marker="o", label=name)
    axis.axvline(trained, color="black", linestyle="--", linewidth=1)
    axis.text(trained, 1.02, " longest trained target", transform=axis.get_xaxis_transform(), ha="center")
    axis.set(xlabel="target position (tokens before)", ylabel="correct tokens, given those before", ylim=(-0.03, 1.03))
    axis.legend()
