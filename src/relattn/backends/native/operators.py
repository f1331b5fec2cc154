"""The kernels as functions of PyTorch tensors, and as operators: `relattn::native` and its way back.

Gradients of the tables are summed over a fixed number of shares of the batch, so that they depend on the numbers given
and not on the number of threads.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relattn.backends.fused import Arguments, new_numbers, register, results, with_contiguous_rows
from relattn.backends.native import library

SHARES = 64  # of the batch's heads, each with gradients of the tables of its own


def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the log-sum-exp (batch, heads, queries), float32, and nothing else of a query."""
    inputs = Inputs(Arguments(*arguments))
    output, lse = results(inputs.query, inputs.value)
    inputs.call.output, inputs.call.lse = library.array(output), library.array(lse)
    library.run(library.KERNELS.relattn_forward, inputs.call)
    return output, lse, new_numbers(lse, 0)


def backward(grad: Tensor, output: Tensor, lse: Tensor, _: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """Gradients of query, key, value, rel_key and rel_value; an empty one for a table that is not there."""
    given = Arguments(*arguments)
    inputs, grad = Inputs(given), with_contiguous_rows(grad)
    call = inputs.call
    d_query, d_key, d_value = (torch.empty_like(x) for x in (inputs.query, inputs.key, inputs.value))
    call.grad, call.output, call.lse = library.array(grad), library.array(output), library.array(lse)
    call.d_query, call.d_key, call.d_value = library.array(d_query), library.array(d_key), library.array(d_value)
    call.chunks = min(SHARES, call.batch * call.key_heads)
    d_rel_key, d_rel_value = (new_shares(table, call.chunks) for table in (inputs.rel_key, inputs.rel_value))
    call.d_rel_key, call.d_rel_value = d_rel_key.data_ptr(), d_rel_value.data_ptr()
    library.run(library.KERNELS.relattn_backward, call)
    tables = in_the_shape_of(given.rel_key, d_rel_key), in_the_shape_of(given.rel_value, d_rel_value)
    return d_query, d_key, d_value, *tables


class Inputs:
    """The arguments as the kernels read them, held while they do."""

    def __init__(self, given: Arguments) -> None:
        query, offsets, lengths, seed = given.query, given.offsets, given.lengths, given.seed
        pairs = (*query.shape[:3], given.key.shape[2])
        self.query, self.key, self.value = (with_contiguous_rows(x) for x in (query, given.key, given.value))
        self.rel_key, self.rel_key_t = both_ways(given.rel_key, given.scale)
        self.rel_value, self.rel_value_t = both_ways(given.rel_value, 1.0)
        self.relations, self.mask = on_pairs(given.relations, pairs), on_pairs(given.mask, pairs)
        self.offsets = torch.full(query.shape[:1], given.offset) if offsets is None else offsets.long().contiguous()
        self.lengths = None if lengths is None else lengths.long().contiguous()
        self.call = library.Call(
            type=library.TYPES[query.dtype],
            clips=given.clips,
            is_causal=given.is_causal,
            threads=torch.get_num_threads(),
            left=given.left,
            right=given.right,
            labels=1,
            key_table_heads=1,
            value_table_heads=1,
            scale=given.scale,
            keep=1.0 - given.dropout_p,
            seed=0 if seed is None else int(seed),
        )
        self.point()

    def point(self) -> None:
        """Sizes and places of the tensors into the call."""
        call = self.call
        call.batch, call.heads, call.queries, call.dim = self.query.shape
        _, call.key_heads, call.keys, call.value_dim = self.value.shape
        call.query, call.key, call.value = library.array(self.query), library.array(self.key), library.array(self.value)
        if self.rel_key is not None and self.rel_key_t is not None:
            call.rel_key, call.rel_key_t = self.rel_key.data_ptr(), self.rel_key_t.data_ptr()
            call.key_table_heads, call.labels = self.rel_key.shape[:2]
        if self.rel_value is not None and self.rel_value_t is not None:
            call.rel_value, call.rel_value_t = self.rel_value.data_ptr(), self.rel_value_t.data_ptr()
            call.value_table_heads, call.labels = self.rel_value.shape[:2]
        if self.relations is not None:
            call.relations, call.label_size = library.array(self.relations), self.relations.element_size()
        if self.mask is not None:
            call.mask = library.array(self.mask)
        call.offsets = self.offsets.data_ptr()
        call.lengths = None if self.lengths is None else self.lengths.data_ptr()


def both_ways(table: Tensor | None, scale: float) -> tuple[Tensor | None, Tensor | None]:
    """A table in float32 as (heads or 1, labels, dim), and `scale` times it as (heads or 1, dim, labels); padded."""
    if table is None:
        return None, None
    table = table.float() if table.dim() == 3 else table.float()[None]
    return padded(table), padded(scale * table.mT)


def padded(x: Tensor) -> Tensor:
    short = -x.shape[-1] % library.PADDING
    return F.pad(x, (0, short)) if short > 0 else x.contiguous()


def on_pairs(x: Tensor | None, pairs: tuple[int, ...]) -> Tensor | None:
    """A mask or labels as (batch, heads, queries, keys): a view of stride 0 where it is broadcast, but for keys."""
    if x is None:
        return None
    if x.dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        x = x.long()
    return with_contiguous_rows(x.expand(*x.shape[:-1], pairs[-1])).expand(pairs)


def new_shares(table: Tensor | None, shares: int) -> Tensor:
    return torch.zeros(0) if table is None else table.new_zeros(shares, *table.shape)


def in_the_shape_of(table: Tensor | None, shares: Tensor) -> Tensor:
    """The sum of the shares, in a table's own shape and type."""
    if table is None:
        return shares
    return shares.sum(0)[..., : table.shape[-1]].reshape(table.shape).to(table.dtype).contiguous()


attention, attention_backward = register("native", forward, backward, kinds=0)
