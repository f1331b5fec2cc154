"""Blocks of queries, and the tile of pairs that each has with the keys near it.

A tile's C rows meet W = C + b − a keys: the near pairs, a <= j − i <= b, which are diagonals of the tile and so a view
of it, and two corners of far ones, whose relative terms are constants of the row. No gather, no scatter.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from relattn.backends import flash, operators
from relattn.call import RelativeCall

BLOCK = (128, 512)  # fewest and most queries in a block, which is a quarter of the keys between: docs/backends.md
TILE = 2**19  # numbers of a tile worked on at a time: what stays in a core's cache
LOG_2 = math.log(2.0)  # a tile's scores are to the base 2: exp2 is a third of exp's time, which stumbles over HIDDEN
HIDDEN = -flash.NEVER  # score of a pair that may not attend, finite so that a row of them is still a number


@dataclass(frozen=True)
class Near:
    """The distances a <= j − i <= b whose labels are looked up one by one; labels[0] is that of a."""

    a: int
    b: int
    labels: slice
    far: bool  # whether the keys beyond have labels, the first and the last
    causal: bool

    @property
    def count(self) -> int:
        return self.b - self.a + 1

    @property
    def lopsided(self) -> bool:
        """Whether both far sets have masses, so that the sum over all labels does not give them away."""
        return self.far and not self.causal


def near_distances(queries: int, keys: int, offset: int, call: RelativeCall) -> Near:
    """The window less its edges (under "zero" with them), less what no pair of the call has; one distance at least."""
    left, right = call.left, call.right
    a, b = (-left, right) if call.beyond == "zero" else (min(0, 1 - left), max(0, right - 1))
    if call.is_causal:
        b = 0
    a = min(max(a, 1 - queries - offset), b)
    b = max(min(b, keys - 1 - offset), a)
    return Near(a, b, slice(a + left, b + left + 1), call.beyond == "clip", call.is_causal)


@dataclass(frozen=True)
class Block:
    rows: slice  # of the queries
    window: slice  # of the keys that are near to one of the rows or between two that are; may reach past both ends
    left: slice  # of the keys far to the left of all rows, and to the right
    right: slice


def blocks(queries: int, keys: int, offset: int, near: Near) -> Iterator[Block]:
    fewest, most = BLOCK
    size = min(max(keys // 4, fewest), most)
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        first, last = offset + start + near.a, offset + stop + near.b
        left, right = min(max(first, 0), keys), keys if near.causal else min(max(last, 0), keys)
        yield Block(slice(start, stop), slice(first, last), slice(0, left), slice(right, keys))


@dataclass(frozen=True)
class Problem:
    """A call's tensors as the pieces want them: one width, no type narrower than `exact` in tables and tiles."""

    query: Tensor
    key: Tensor
    value: Tensor
    rel_key: Tensor | None  # scale · log2 e · wK: what it makes of a query is a relative score, to the base 2
    rel_value: Tensor | None
    bias: Tensor | None  # (batch, 1, 1, keys), 0 or −inf, where there are key_lengths
    padding: Tensor | None  # (batch, 1, queries), True for queries past key_lengths
    value_dim: int  # before it was widened
    scale: float
    near: Near
    blocks: list[Block]

    @property
    def group(self) -> int:
        return self.query.shape[1] // self.key.shape[1]

    @property
    def exact(self) -> torch.dtype:
        return operators.exact(self.query.dtype)


def prepare(call: RelativeCall) -> Problem:
    query, key, value, rel_key, rel_value = call.query, call.key, call.value, call.rel_key, call.rel_value
    queries, keys, width = query.shape[2], key.shape[2], max(query.shape[3], value.shape[3])
    assert isinstance(call.query_offset, int)
    exact, bias, padding = operators.exact(query.dtype), None, None
    if call.key_lengths is not None:
        position = torch.arange(max(queries, keys), device=query.device)
        past = position[:keys] >= call.key_lengths[:, None]
        bias = query.new_zeros(past.shape).masked_fill_(past, -torch.inf)[:, None, None]
        padding = (position[:queries] + call.query_offset >= call.key_lengths[:, None])[:, None]
    near = near_distances(queries, keys, call.query_offset, call)
    return Problem(
        query=widened(query, width),
        key=widened(key, width),
        value=widened(value, width),
        rel_key=None if rel_key is None else widened(rel_key.to(exact), width) * (call.scale / LOG_2),
        rel_value=None if rel_value is None else widened(rel_value.to(exact), width),
        bias=bias,
        padding=padding,
        value_dim=value.shape[3],
        scale=call.scale,
        near=near,
        blocks=list(blocks(queries, keys, call.query_offset, near)),
    )


def widened(x: Tensor, width: int) -> Tensor:
    """Zeros after the last dimension, up to the one width that kernels want; its numbers stand side by side."""
    x = F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x
    return x if x.stride(-1) == 1 else x.contiguous()


class Tile:
    """The window of a block: pairs of its C rows with W = C + b − a keys, for all batches and heads.

    The tensors here have batch and key heads in one dimension, and a group's query heads beside their rows.
    """

    def __init__(self, problem: Problem, block: Block):
        self.problem, self.near, self.window = problem, problem.near, block.window
        batch, heads, keys = problem.query.shape[0], problem.key.shape[1], problem.key.shape[2]
        self.lead, self.group = batch * heads, problem.group
        self.C = block.rows.stop - block.rows.start
        self.W = block.window.stop - block.window.start
        self.inside = slice(min(max(block.window.start, 0), keys), min(max(block.window.stop, 0), keys))

        device, exact = problem.query.device, problem.exact
        step = torch.arange(self.W, device=device) - torch.arange(self.C, device=device)[:, None]  # j − i − a
        self.triangle = (step < 0).to(exact)  # the corner of far left keys
        self.right_triangle = (step >= self.near.count)[:, -self.C :].to(exact)
        self.corner = torch.zeros_like(self.triangle)
        if self.near.causal:
            self.corner.masked_fill_(step >= self.near.count, HIDDEN)
        self.columns = None
        if problem.bias is not None or self.inside.stop - self.inside.start < self.W:
            self.columns = problem.query.new_full((batch, 1, 1, self.W), HIDDEN, dtype=exact)
            seen = 0.0 if problem.bias is None else problem.bias[..., self.inside].to(exact).clamp(min=HIDDEN)
            self.columns[..., self.into] = seen
            self.columns = self.columns.repeat_interleave(heads, 0)

    @property
    def into(self) -> slice:
        """Where in the window the keys are that exist."""
        return slice(self.inside.start - self.window.start, self.inside.stop - self.window.start)

    def keys(self, x: Tensor) -> Tensor:
        """(batch, key_heads, keys, dim) -> (lead, W, dim), zeros past the ends."""
        part = x[:, :, self.inside].to(self.problem.exact)
        if part.shape[2] < self.W:
            whole = part.new_zeros(*x.shape[:2], self.W, x.shape[3])
            whole[:, :, self.into] = part
            part = whole
        return part.flatten(0, 1)

    def rows(self, x: Tensor) -> Tensor:
        """(batch, heads, C, …) -> (lead, group, C, …)."""
        return x.to(self.problem.exact).reshape(self.lead, self.group, *x.shape[2:])

    def chunks(self) -> Iterator[slice]:
        step = max(1, TILE // (self.group * self.C * self.W))
        return (slice(start, min(start + step, self.lead)) for start in range(0, self.lead, step))

    def diagonals(self, pairs: Tensor) -> Tensor:
        """(n, group, C, W) -> (n, group, C, near.count), a view: the near pairs by their distance."""
        row, column = pairs.stride()[-2:]
        return pairs.as_strided((*pairs.shape[:-1], self.near.count), (*pairs.stride()[:-2], row + column, column))

    def relative(self, by_label: Tensor | None, count: int) -> Tensor:
        """(n, group, C, labels) terms by label -> (n, group, C, W) terms of pairs, less `base` of the row."""
        pairs = self.triangle.new_empty(count, self.group, self.C, self.W)
        if by_label is None:
            return pairs.copy_(self.corner)
        base = self.base(by_label)
        if self.near.lopsided:
            torch.mul(by_label[..., :1] - base, self.triangle, out=pairs)
        else:
            pairs.copy_(self.corner)
        torch.sub(by_label[..., self.near.labels], base, out=self.diagonals(pairs))
        return pairs

    def base(self, by_label: Tensor) -> Tensor:
        """The term of far right keys, or where only the left ones have any, of those: (…, 1)."""
        if not self.near.far:
            return torch.zeros_like(by_label[..., :1])
        return by_label[..., -1:] if self.near.lopsided else by_label[..., :1]

    def scores(self, query: Tensor, key: Tensor, by_label: Tensor | None, chunk: slice) -> Tensor:
        """Scores to the base 2, less `base`, HIDDEN where pairs may not attend: (n, group, C, W)."""
        count = chunk.stop - chunk.start
        pairs = self.relative(None if by_label is None else by_label[chunk], count)
        if self.columns is not None:
            pairs += self.columns[chunk]
        flat = pairs.view(count, self.group * self.C, self.W)
        flat.baddbmm_(query[chunk].flatten(1, 2), key[chunk].mT, alpha=self.problem.scale / LOG_2)
        return pairs

    def masses(self, pairs: Tensor, sums: Tensor) -> None:
        """Fills in `sums` by label, (n, group, C, labels): of near pairs and of the corners of far ones."""
        sums.zero_()
        sums[..., self.near.labels] = self.diagonals(pairs)
        if self.near.far:
            sums[..., 0] += (pairs[..., : self.C] * self.triangle[:, : self.C]).sum(-1)
        if self.near.lopsided:
            sums[..., -1] += (pairs[..., -self.C :] * self.right_triangle).sum(-1)
