"""Describe the heads of a model in a sentence each, and collect what a page shows of a layer.

A sentence about self-attention starts from the mean relative term of each distance. Its softmax says how a query would
divide its attention over the distances if the content had no influence. Whether a head really attends to the distance
that it prefers is then read from its attention weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from relattn_mt.analysis import Part
from relattn_mt.analysis.attention import Inspection, SelfView, numbers, view_as_data
from relattn_mt.data.tokenizer import BYTE, SPACE_MARK

SMALL = 1.0  # a range of relative terms, in nats, below which distance is said to matter little
LONGEST_RANGE = 5  # distances that are named as a range, such as "two to four pieces back"
_BYTES = re.compile(f"(?:{BYTE.pattern})+")
_COUNTS = ("", "one piece", "two pieces", "three pieces")


def describe_self(view: SelfView, head: int, *, is_causal: bool) -> str:
    """Return a sentence about where a head of self-attention looks.

    Args:
        view: Attention of a layer over a sequence.
        head: Index of the head.
        is_causal: Whether queries attend to earlier positions only.
    """
    weights = view.weights[head]
    if view.by_distance is None:
        return describe_cross(weights)
    n = len(weights)
    first, last = view.distances[0], view.distances[-1]
    terms = {
        distance: term
        for distance, term in zip(view.distances, view.by_distance[head].tolist(), strict=True)
        if abs(distance) < n and not (is_causal and distance > 0)
    }
    if max(terms.values()) - min(terms.values()) < SMALL:
        return "Distance matters little; the content decides."
    total = sum(map(math.exp, terms.values()))
    preference = {distance: math.exp(term) / total for distance, term in terms.items()}
    best = max(preference, key=preference.__getitem__)
    if preference[best] >= 0.5:
        # The outermost rows of clipped distances stand for all distances beyond them.
        or_more = best != 0 and best in (first, last) and abs(best) < n - 1
        share = _share(weights, best, or_more)
        place = _place(best, or_more)
        if share >= 0.5:
            return f"Mostly looks {place} ({_percent(share)} of its attention)."
        return f"Distance favours looking {place}, but the content often overrides it ({_percent(share)} goes there)."
    low = high = best  # distances around the best whose preference is at least half of its own
    while preference.get(low - 1, 0.0) >= preference[best] / 2:
        low -= 1
    while preference.get(high + 1, 0.0) >= preference[best] / 2:
        high += 1
    if high - low < LONGEST_RANGE:
        return f"Distance somewhat favours looking {_range(low, high)}."
    back = sum(share for distance, share in preference.items() if distance < 0)
    ahead = sum(share for distance, share in preference.items() if distance > 0)
    if not is_causal and max(back, ahead) >= 0.7:
        return f"Distance favours what comes {'before' if back > ahead else 'after'}."
    return "Distance has some influence, without a clear favourite."


def describe_cross(weights: Tensor) -> str:
    """Return a sentence about how many keys the queries attend to, given weights of shape (queries, keys)."""
    at_end = float(weights[:, -1].mean())
    if at_end >= 0.5:
        return f"Mostly rests on the end of the sentence ({_percent(at_end)} of its attention)."
    entropy = -(weights * weights.clamp(min=1e-9).log()).sum(-1).mean()  # its exponential is a number of keys
    pieces = math.exp(float(entropy))
    return "Looks at about one piece at a time." if pieces < 1.5 else f"Looks at about {pieces:.0f} pieces at a time."


def _share(weights: Tensor, distance: int, or_more: bool) -> float:
    """Return the mean attention to a distance, or beyond it too, over the queries that have a key there."""
    n = len(weights)
    if or_more:
        part = weights.tril(distance) if distance < 0 else weights.triu(distance)
        shares = part.sum(-1)[-distance:] if distance < 0 else part.sum(-1)[: n - distance]
        return float(shares.mean())
    return float(weights.diagonal(distance).mean())


def _percent(share: float) -> str:
    return f"{100 * share:.0f}\u00a0%"


def _place(distance: int, or_more: bool) -> str:
    if distance == 0:
        return "at the piece itself"
    count = abs(distance)
    pieces = f"{count} or more pieces" if or_more else _COUNTS[count] if count < len(_COUNTS) else f"{count} pieces"
    return f"{pieces} {'back' if distance < 0 else 'ahead'}"


def _range(low: int, high: int) -> str:
    if low == high:
        return _place(low, False)
    if low < 0 < high:
        return f"from {_place(low, False)} to {_place(high, False)}"
    nearest, farthest = sorted((abs(low), abs(high)))
    return f"{nearest} to {farthest} pieces {'back' if low < 0 else 'ahead'}"


def as_data(inspection: Inspection) -> dict[str, Any]:
    """Return what the page of an inspection shows: all layers of each part, and the pieces and words of their sides."""
    before, after, given = inspection.special
    source, target = _side(inspection.source, before, after), _side(inspection.target, given, 0)
    sides: dict[Part, tuple[Any, Any]] = {
        "encoder": (source, source), "decoder": (target, target), "cross": (source, _side(inspection.written, 0, 1))
    }  # fmt: skip
    return {
        "translation": inspection.translation,
        "parts": {
            part: {"across": across, "down": down, "layers": [_layer(each, part) for each in getattr(inspection, part)]}
            for part, (across, down) in sides.items()
        },
    }


def _layer(layer: SelfView | Tensor, part: Part) -> dict[str, Any]:
    if isinstance(layer, SelfView):
        heads = range(len(layer.weights))
        summaries = [describe_self(layer, head, is_causal=part == "decoder") for head in heads]
        return {"summaries": summaries, **view_as_data(layer)}
    return {"summaries": list(map(describe_cross, layer)), "weights": numbers(layer)}


def _side(pieces: Sequence[str], before: int, after: int) -> dict[str, Any]:
    """Return the pieces of a sequence, and its words, each with its range of pieces.

    Args:
        pieces: Pieces of the sequence.
        before: Number of special tokens at its beginning.
        after: Number of special tokens at its end.
    """
    end = len(pieces) - after
    words: list[dict[str, Any]] = []
    for i, piece in enumerate(pieces):
        special = not before <= i < end
        if special or not words or words[-1]["special"] or piece.startswith(SPACE_MARK):
            words.append({"begin": i, "special": special})
        words[-1]["end"] = i + 1
    for word in words:
        text = "".join(pieces[word["begin"] : word["end"]])
        word["text"] = text if word["special"] else _BYTES.sub(_decoded, text).strip(SPACE_MARK) or text
    return {"pieces": pieces, "words": words}


def _decoded(match: re.Match[str]) -> str:
    return bytes.fromhex(re.sub("[<>]|0x", "", match[0])).decode(errors="replace")
