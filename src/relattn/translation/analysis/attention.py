"""What attention reads: the content part and the relative part of every score, head by head, over one sentence.

A score is a sum, for Shaw's relative positions q_i · k_j / √d + q_i · aK_(j−i) / √d: the first part knows what stands
at j, the second only how far away it is. Both are read off a model as it reads a sentence and its translation, and with
them what each distance is worth to each head, on average over the sentence's queries. Schemes of the same form
(Transformer-XL, T5, ALiBi) have both parts too; those whose positions are in the embeddings have the first alone;
rotations and what takes attention's place cannot be taken apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from relattn import RelativeAttention
from relattn.nn import SelfAttention
from relattn.positions import distances as distances_of_pairs
from relattn.positions import labels
from relattn.translation.config import Part
from relattn.translation.data.batching import collate
from relattn.translation.drawing import png
from relattn.translation.errors import InputError, require
from relattn.translation.model.attention import CrossAttention, PlainAttention
from relattn.translation.model.positions.distance_terms import DistanceAttention
from relattn.translation.model.transformer import Transformer
from relattn.translation.translate.options import DEFAULTS, TranslateOptions
from relattn.translation.translate.torch_translator import TorchTranslator

DIGITS = 4  # of numbers that are written


@dataclass(frozen=True)
class SelfView:
    """One layer's self-attention over a sequence of n pieces.

    Attributes:
        content: (heads, n, n), query by key: what of a score depends on what stands there.
        relative: (heads, n, n): what depends on the distance; None where the scheme has no such part.
        weights: (heads, n, n): the softmax of their sum, over what a query may see.
        distances: that a table has a row for, or that there are in the sequence.
        by_distance: (heads, distances): the relative part of each, on average over queries; None without one.
    """

    content: Tensor
    relative: Tensor | None
    weights: Tensor
    distances: list[int]
    by_distance: Tensor | None


@dataclass(frozen=True)
class Inspection:
    """A model's attention over a sentence and its translation.

    Attributes:
        source: pieces, and the marks around them.
        target: pieces that the decoder reads: the begin, and the translation's.
        written: pieces that it writes: the translation's, and the end.
        translation: as text.
        encoder: self-attention, a layer each.
        decoder: self-attention, a layer each.
        cross: attention to the source, a layer each: (heads, target, source).
    """

    source: list[str]
    target: list[str]
    written: list[str]
    translation: str
    encoder: list[SelfView]
    decoder: list[SelfView]
    cross: list[Tensor]


@torch.inference_mode()
def inspect(
    translator: TorchTranslator, line: str, options: TranslateOptions = DEFAULTS, *, longest: int = 1000
) -> Inspection:
    """The attention of a translator's model over a line and its best translation.

    Args:
        translator: with one model.
        line: to be translated.
        options: options of the translation.
        longest: pieces that a line may have.

    Raises:
        InputError: the model is an ensemble, its scheme has no scores to be taken apart, or the line is blank or too
            long.
    """
    model = translator.model
    if not isinstance(model, Transformer):
        raise InputError("an ensemble has no attention of its own: look at its members one by one")
    require(bool(line.strip()), "there is nothing in the line to look at")
    tokenizer, marks = translator.tokenizer, translator.tokenizer.marks
    src_ids = tokenizer.encode(line)
    require(len(src_ids) <= longest, f"a sentence of {len(src_ids):,} pieces: at most {longest:,} are looked at")
    ((best,),) = translator.n_best([line], options)
    batch = collate([src_ids], [best.tokens], marks).to(translator.device)
    found: dict[nn.Module, Any] = {}
    here = get_ident()

    def look(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if get_ident() != here:  # a search in another thread
            return
        if isinstance(module, SelfAttention):
            found[module] = view(module, arguments[0])
        elif isinstance(module, CrossAttention):
            found[module] = module.weights(*arguments)[0]

    layers: dict[str, list[Any]] = {
        "encoder": [layer.self_attention for layer in model.encoder],
        "decoder": [layer.self_attention for layer in model.decoder],
        "cross": [layer.cross_attention for layer in model.decoder],
    }
    for module in layers["encoder"] + layers["decoder"]:
        if not isinstance(module, SelfAttention) or not _is_taken_apart(module.attention):
            raise InputError(f"positions: {model.config.positions} have no part of their own in attention's scores")
    hooks = [module.register_forward_pre_hook(look) for modules in layers.values() for module in modules]
    try:
        model(batch.src, batch.src_lengths, batch.tgt_in)
    finally:
        for hook in hooks:
            hook.remove()
    source, target = tokenizer.vocabularies
    written = [target[i] for i in batch.tgt_out[0].tolist()]
    return Inspection(
        [source[i] for i in batch.src[0].tolist()],
        [target[i] for i in batch.tgt_in[0].tolist()],
        written,
        best.text,
        *([found[module] for module in layers[part]] for part in ("encoder", "decoder", "cross")),
    )


def _is_taken_apart(attention: nn.Module) -> bool:
    return isinstance(attention, RelativeAttention | DistanceAttention | PlainAttention)


def view(layer: SelfAttention, x: Tensor) -> SelfView:
    """A layer's attention over the first of (1, n, dim) sequences."""
    heads = (layer.num_heads, layer.head_dim)
    query, key = (project(x).unflatten(-1, heads).transpose(1, 2)[0] for project in (layer.query, layer.key))
    n, scale = x.shape[1], layer.head_dim**-0.5
    pairs = distances_of_pairs(n, n, 0, x.device)  # (n, n)
    attention = layer.attention
    relative = by_distance = None
    each: list[int] = []
    content = query
    if isinstance(attention, RelativeAttention) and attention.rel_key is not None:
        left, right = attention.clip
        each = list(range(-left, right + 1))
        of_pairs = labels(pairs, left, right, clips=attention.beyond == "clip")
        per_label = query @ attention.rel_key().to(query.dtype).mT * scale  # (heads, n, labels)
        relative = per_label.gather(2, of_pairs.clamp(min=0).expand(len(query), -1, -1)) * (of_pairs >= 0)
        by_distance = per_label.mean(1)
    elif isinstance(attention, DistanceAttention):
        each = list(range(1 - n, n))
        content, rel_query, table = (
            part.reshape(-1, *part.shape[-2:])
            for part in attention.terms(query[None], torch.tensor(each, device=x.device))
        )
        per_label = rel_query @ table.mT * scale
        relative = per_label.gather(2, (pairs + n - 1).expand(len(query), -1, -1))
        by_distance = per_label.mean(1)
    of_content = content @ key.mT * scale
    scores = of_content if relative is None else of_content + relative
    if layer.is_causal:
        scores = scores.masked_fill(pairs > 0, float("-inf"))
    return SelfView(of_content, relative, scores.float().softmax(-1), each, by_distance)


def as_json(found: Inspection) -> str:
    """All of it: lists of numbers with `DIGITS` digits behind the point."""
    return json.dumps(as_data(found), ensure_ascii=False)


def as_data(found: Inspection) -> dict[str, Any]:
    """All of it as dictionaries and lists."""
    return {
        "source": found.source,
        "target": found.target,
        "written": found.written,
        "translation": found.translation,
        "encoder": [view_as_data(one) for one in found.encoder],
        "decoder": [view_as_data(one) for one in found.decoder],
        "cross": [numbers(one) for one in found.cross],
    }


def view_as_data(one: SelfView) -> dict[str, Any]:
    """A layer's, as dictionaries and lists."""
    return {
        "content": numbers(one.content),
        "relative": numbers(one.relative),
        "weights": numbers(one.weights),
        "distances": one.distances,
        "by_distance": numbers(one.by_distance),
    }


def numbers(x: Tensor | None) -> Any:
    """A tensor as lists."""
    return None if x is None else torch.round(x.double(), decimals=DIGITS).tolist()


def as_png(found: Inspection, part: Part, layer: int) -> bytes:
    """A picture of one layer: of self-attention a row a head, content, relative part, weights and distances.

    Args:
        found: as `inspect` gives it.
        part: "encoder", "decoder" or "cross".
        layer: counted from 1.

    Raises:
        InputError: there is no such layer.
    """
    layers: Sequence[Any] = getattr(found, part)
    require(1 <= layer <= len(layers), f"layer must be at least 1 and at most {len(layers)}, got {layer}")
    one = layers[layer - 1]
    if part == "cross":
        return _cross_picture(found, one, f"attention to the source, layer {layer}")
    return _self_picture(found.source if part == "encoder" else found.target, one, f"{part}, layer {layer}")


def _self_picture(pieces: list[str], one: SelfView, title: str) -> bytes:
    """A row a head: content, relative part, weights, and the relative part by distance."""
    from matplotlib.figure import Figure

    heads, side = len(one.weights), max(2.0, 0.2 * len(pieces))
    columns = [("content", one.content), ("relative", one.relative), ("weights", one.weights)]
    shown = [(name, matrices) for name, matrices in columns if matrices is not None]
    panels = len(shown) + (one.by_distance is not None)
    figure = Figure(figsize=(panels * side + 1.5, heads * side + 0.8), layout="constrained")
    figure.suptitle(title)
    for head, row in enumerate(figure.subplots(heads, panels, squeeze=False)):
        for (name, matrices), axis in zip(shown, row, strict=False):
            _draw(axis, matrices[head], pieces, pieces, signed=name != "weights")
            axis.set_title(f"head {head + 1}: {name}", fontsize="small")
        if one.by_distance is not None:
            row[-1].axhline(0.0, color="black", linewidth=0.5)
            row[-1].plot(one.distances, one.by_distance[head].tolist(), ".-")
            row[-1].set_title(f"head {head + 1}: relative, by distance", fontsize="small")
    return png(figure)


def _cross_picture(found: Inspection, weights: Tensor, title: str) -> bytes:
    """A panel a head: from which source pieces each piece was written."""
    from matplotlib.figure import Figure

    heads = len(weights)
    columns = min(4, heads)
    rows = -(-heads // columns)
    wide, high = max(2.0, 0.2 * len(found.source)), max(2.0, 0.2 * len(found.written))
    figure = Figure(figsize=(columns * wide + 1.5, rows * high + 0.8), layout="constrained")
    figure.suptitle(title)
    for head, axis in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        axis.set_visible(head < heads)
        if head < heads:
            _draw(axis, weights[head], found.source, found.written, signed=False)
            axis.set_title(f"head {head + 1}", fontsize="small")
    return png(figure)


def _draw(axis: Any, matrix: Tensor, across: list[str], down: list[str], *, signed: bool) -> None:
    largest = float(matrix.abs().max()) if signed else 1.0
    colours = (
        {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest} if signed else {"cmap": "Greys", "vmin": 0, "vmax": 1}
    )
    axis.imshow(matrix.tolist(), aspect="auto", **colours)
    plain = {"parse_math": False, "fontsize": "x-small"}
    axis.set_xticks(range(len(across)), across, rotation=90, **plain)
    axis.set_yticks(range(len(down)), down, **plain)
