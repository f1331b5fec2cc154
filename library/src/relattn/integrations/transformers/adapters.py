"""Conversions between the tensors and masks of transformers models and the arguments of the operator."""

from __future__ import annotations

import threading
import weakref
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.integrations import is_deepspeed_zero3_enabled, is_fsdp_managed_module

from relattn import relative_attention
from relattn.checks import check_window
from relattn.functional import Chunk, Window
from relattn.integrations.transformers.int8 import shared_input
from relattn.positions import is_valid

LEAST_PADDING = 0.1  # share of a batch from which packing is worth its copies
_last_mask = threading.local()  # of `mask_options`, since the layers of a model share one: reading it waits for a GPU


def rows_of(embedding: nn.Embedding, first: int, last: int, states: Tensor) -> Tensor:
    """Return the rows `first` … `last` of an embedding, in reverse order if `last` is less, as a table for `states`.

    The embedding is called, not its weight read: where weights are offloaded, a hook of the module loads them.
    """
    step = 1 if last >= first else -1
    rows = torch.arange(first, last + step, step, device=states.device)
    table: Tensor = embedding(rows)
    return table.to(states.dtype)


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """Reshape (batch, length, heads · head_dim) to (batch, heads, length, head_dim)."""
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def project(x: Tensor, head_dim: int, *projections: nn.Module) -> tuple[Tensor, ...]:
    """Apply each projection to `x`, (batch, length, dim), and split the heads: (batch, heads, length, head_dim)."""
    with nullcontext() if torch.compiler.is_compiling() else shared_input(*projections):
        return tuple(split_heads(projection(x), head_dim) for projection in projections)


def join_heads(x: Tensor) -> Tensor:
    """Reshape (batch, heads, length, head_dim) to (batch, length, heads · head_dim)."""
    return x.transpose(1, 2).flatten(2)


def mask_options(mask: Tensor | None, batch: int) -> dict[str, Any] | None:
    """Convert the attention mask of a model to options of the operator.

    Right padding becomes `key_lengths`, so no mask is stored. Queries in padding still attend, as in the models.

    Args:
        mask: (batch or 1, heads or 1, queries or 1, keys). A boolean mask is True where a query attends to a key. A
            floating-point mask is 0 there, and a large negative number elsewhere. Or the ends of packed sequences.
        batch: Number of sequences.

    Returns:
        Keyword arguments for `relative_attention`, or None if `mask` is a bias that is added to the scores. While a
        model is compiled, every floating-point mask counts as one, and padding stays a mask.
    """
    if mask is None:
        return {}
    if mask.dim() == 1:
        return {"cu_seqlens": mask}
    if torch.compiler.is_compiling():  # a graph cannot depend on the values of a mask
        return {"mask": mask} if mask.dtype == torch.bool else None
    if mask.is_inference():  # it has no version, which would show that it was changed in place
        return options_of(mask, batch)
    last, version, sequences, options = getattr(_last_mask, "read", (None, 0, 0, None))
    if last is None or last() is not mask or (version, sequences) != (mask._version, batch):
        options = options_of(mask, batch)
        if options is None or "mask" not in options:  # a mask would keep its memory
            _last_mask.read = weakref.ref(mask), mask._version, batch, options
    return None if options is None else {**options}


def options_of(mask: Tensor, batch: int) -> dict[str, Any] | None:
    """Return what `mask_options` returns, from the values of the mask."""
    if mask.dtype == torch.bool:
        allowed = mask
    else:
        allowed = mask == 0
        if bool((~allowed & (mask > torch.finfo(mask.dtype).min / 4)).any()):
            return None
    row = allowed[:, :1, :1]  # (batch, 1, 1, keys)
    if not bool((allowed == row).all()):
        return {"mask": allowed}
    lengths = row.sum(-1).flatten()
    if not bool((row.squeeze((1, 2)) == is_valid(row.shape[-1], lengths)).all()):
        return {"mask": row}
    if bool((lengths == row.shape[-1]).all()):
        return {}
    return {"key_lengths": lengths.expand(batch)}


class ValidPositions(NamedTuple):
    """Valid positions of a padded batch, so that layers compute these only. Default: all positions.

    Attributes:
        places: (valid positions,) their numbers in the flattened batch.
        cu_seqlens: (batch + 1,) cumulative lengths, as in `relative_attention`, in the place of an attention mask.
        batch, length: Sizes of the batch.
    """

    places: Tensor | None = None
    cu_seqlens: Tensor | None = None
    batch: int = 0
    length: int = 0

    def pack(self, states: Tensor) -> Tensor:
        """Return the valid positions of (batch, length, dim) as (1, positions, dim)."""
        return states if self.places is None else states.flatten(0, 1).index_select(0, self.places)[None]

    def unpack(self, packed: Tensor) -> Tensor:
        """Return (batch, length, dim) with zeros at padding."""
        if self.places is None:
            return packed
        padded = packed.new_zeros(self.batch * self.length, packed.shape[-1]).index_copy(0, self.places, packed[0])
        return padded.unflatten(0, (self.batch, self.length))


def packing_of(mask: Tensor | None, batch: int, unpad: bool) -> ValidPositions:
    """Return the packing of a batch by its mask, as in `mask_options`, with texts of the same length side by side.

    Returns:
        All positions if a text is empty, since models read its first position, or if there is little padding.
    """
    lengths = (mask_options(mask, batch) or {}).get("key_lengths") if unpad else None
    if mask is None or lengths is None:
        return ValidPositions()
    length = mask.shape[-1]
    shortest, tokens = torch.stack([lengths.amin(), lengths.sum()]).tolist()
    if shortest == 0 or tokens > (1 - LEAST_PADDING) * batch * length:
        return ValidPositions()
    lengths, order = lengths.sort()
    places = torch.arange(batch * length, device=mask.device).view(batch, length)[order]
    ends = nn.functional.pad(lengths.cumsum(0), (1, 0))
    return ValidPositions(places[is_valid(length, lengths)], ends, batch, length)


def run_layers(module: Any, states: Tensor, layerdrop: float, **options: Any) -> Tensor:
    """Run the layers of an encoder. In training, each layer is skipped with the probability `layerdrop`.

    Where processes share the parameters of a layer, all of them run it: they would wait for each other otherwise.
    """
    may_skip = module.training and layerdrop > 0.0
    is_sharded = may_skip and (is_deepspeed_zero3_enabled() or is_fsdp_managed_module(module))
    for layer in module.layers:
        is_skipped = may_skip and float(torch.rand([], dtype=torch.float32, device="cpu")) < layerdrop
        if not is_skipped or is_sharded:
            states = layer(states, **options)
    return states


def farthest_distance(keys: int, window: Window, chunk: Chunk = None) -> int:
    """Return the largest distance |i − j| of a query and a key that may attend, for queries among the keys."""
    size, left, right = check_window(window, chunk)
    if left is None or right is None:
        return keys - 1
    return min(keys - 1, max(left + size - 1, right))


def transformer_xl(
    query: Tensor,  # (batch, heads, queries, head_dim); these are the last positions of the keys
    key: Tensor,  # (batch, heads or fewer, keys, head_dim)
    value: Tensor,  # (batch, heads or fewer, keys, head_dim)
    *,
    content_bias: Tensor,  # (heads, head_dim)
    position_bias: Tensor,  # (heads, head_dim)
    positions: Tensor,  # (2 · m + 1, dim), embeddings of i − j from m down to −m
    project_positions: nn.Module,  # dim -> heads · head_dim
    window: Window = None,
    chunk: Chunk = None,
    **options: Any,
) -> Tensor:
    """Compute the attention of Transformer-XL (Dai et al. 2019).

        e_ij = ((q_i + u) · k_j + (q_i + v) · R_(i−j)) · scale

    u is `content_bias`, v is `position_bias` and R is the projection of `positions`. q + u becomes the query of the
    operator, q + v its `rel_query`, and R its `rel_key`. Nothing is clipped, because R has one row for each distance.
    `positions` needs the distances that attend, and others are not projected.

    Args:
        options: Further keyword arguments for `relative_attention`.

    Returns:
        (batch, heads, queries, head_dim).
    """
    farthest = farthest_distance(key.shape[2], window, chunk)
    center = len(positions) // 2
    projected = project_positions(positions[center - farthest : center + farthest + 1])
    table = projected.unflatten(-1, (-1, query.shape[-1])).transpose(0, 1)  # (heads, 2 · farthest + 1, head_dim)
    return relative_attention(
        query + content_bias[:, None],
        key,
        value,
        table,
        rel_query=query + position_bias[:, None],
        clip=(farthest, farthest),
        window=window,
        chunk=chunk,
        query_offset=key.shape[2] - query.shape[2],  # the operator requires it together with key_lengths
        **options,
    )
