"""Attention in O(n²) work space and never O(n² · d): every feature of the contract, on any device.

A score is q_i · k_j + q_i · aK_ij, and its second term depends on the pair's label alone: one product of queries and
table makes it for every label, and it is then *added* onto the pairs. The probabilities go the other way: they are
*collected* by label, for one product with the other table, Σ_j α_ij aV_ij. The gradients take the same two ways back.
On CPU a few heads are worked at a time, so that arrays of pairs stay in the cache.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from relattn.backends.dense.labels import Labels, cut
from relattn.backends.dense.window import Window
from relattn.backends.derivatives import differentiable
from relattn.call import exact

PAIRS_AT_A_TIME = 2**19  # for each thread: two megabytes of float32
EVERY = slice(None)


@dataclass(frozen=True)
class Terms:
    """What an attention is made of besides the tensors with gradients. Masks are (batch or 1, heads or 1, …)."""

    where: Window | Labels
    hidden: Tensor | None  # (…, queries or 1, keys): True where a query may not attend
    live: Tensor | None  # (…, queries, 1): False for queries whose output is zeros
    kept: Tensor | None  # (…, queries, keys): False for probabilities that are dropped
    keep_scale: float  # the factor on those that are kept
    scale: float
    return_lse: bool

    def part(self, sentences: slice, heads: slice) -> "Terms":
        hidden, live, kept = (cut(mask, sentences, heads) for mask in (self.hidden, self.live, self.kept))
        where = self.where if isinstance(self.where, Window) else self.where.part(sentences, heads)
        return replace(self, where=where, hidden=hidden, live=live, kept=kept)


def forward(
    query: Tensor,  # (batch, heads, queries, dim)
    key: Tensor,  # (batch, key_heads, keys, dim)
    value: Tensor,  # (batch, key_heads, keys, value_dim)
    key_table: Tensor | None,  # (heads or 1, labels, dim)
    value_table: Tensor | None,  # (heads or 1, labels, value_dim)
    terms: Terms,
) -> tuple[Tensor, ...]:
    """The output; the log-sum-exp, where it is asked for; and for the gradients, of each part, the probabilities and,
    where values have a table, these by label."""
    output = query.new_empty(*query.shape[:3], value.shape[3])
    lse = query.new_empty(query.shape[:3], dtype=exact(query.dtype)) if terms.return_lse else None
    left: list[Tensor] = []
    for sentences, heads, key_heads in parts(query, key):
        part = terms.part(sentences, heads)
        q, k, v = query[sentences, heads], key[sentences, key_heads], value[sentences, key_heads]
        pairs = scores(q, k, cut(key_table, heads), part)
        if lse is not None:
            part_lse = pairs.to(lse.dtype).logsumexp(-1, keepdim=True)
            part_lse = part_lse if part.live is None else part_lse.masked_fill(~part.live, -torch.inf)
            lse[sentences, heads] = part_lse.squeeze(-1)
        probabilities = torch.softmax(pairs, -1, out=pairs)
        left.append(probabilities)
        dropped = probabilities if part.kept is None else probabilities * part.kept
        by_label = None
        if value_table is not None:
            by_label = part.where.collect(dropped, value_table.shape[1])
            left.append(by_label)
        out = output[sentences, heads]
        weigh(out, dropped, v, by_label, cut(value_table, heads), part.keep_scale)
        if part.live is not None:
            out.masked_fill_(~part.live, 0.0)
    return (output, *left) if lse is None else (output, lse, *left)


def backward(grad: Tensor, *given: Any) -> tuple[Tensor, ...]:
    """Gradients of query, key, value and tables, from what `forward` gave and was given; an empty one for no table."""
    *results, query, key, value, key_table, value_table, terms = given
    left = results[2 if terms.return_lse else 1 :]
    d_query, d_key, d_value = (x.new_empty(x.shape) for x in (query, key, value))
    d_tables = [query.new_empty(0) if x is None else torch.zeros_like(x) for x in (key_table, value_table)]
    for sentences, heads, key_heads in parts(query, key):
        part = terms.part(sentences, heads)
        q, k, v = query[sentences, heads], key[sentences, key_heads], value[sentences, key_heads]
        out = d_query[sentences, heads], d_key[sentences, key_heads], d_value[sentences, key_heads]
        tables = cut(key_table, heads), cut(value_table, heads)
        probabilities, by_label = left.pop(0), None if value_table is None else left.pop(0)
        d_part = gradients_of_part(out, grad[sentences, heads], q, k, v, *tables, probabilities, by_label, part)
        for whole, share in zip(d_tables, d_part, strict=True):
            if share is not None:
                cut(whole, heads).add_(share)
    return d_query, d_key, d_value, *d_tables


differentiable_attention = differentiable("dense", forward, backward, tensors=5)


def scores(query: Tensor, key: Tensor, table: Tensor | None, terms: Terms) -> Tensor:
    """(batch, heads, queries, keys)."""
    pairs = query.new_empty(*query.shape[:3], key.shape[2])
    stacked(pairs, key).baddbmm_(stacked(query, key), stacked(key, key).mT, beta=0, alpha=terms.scale)
    if table is not None:
        terms.where.add(pairs, times_table(query, table.mT * terms.scale))
    return pairs if terms.hidden is None else pairs.masked_fill_(terms.hidden, -torch.inf)


def weigh(
    out: Tensor, probabilities: Tensor, value: Tensor, by_label: Tensor | None, table: Tensor | None, keep_scale: float
) -> None:
    """Writes keep_scale · Σ_j p_ij (v_j + aV_ij) to `out`, (batch, heads, queries, value_dim)."""
    beta = 0.0
    if by_label is not None and table is not None:
        write_times_table(out, by_label, table)
        beta = keep_scale
    stacked(out, value).baddbmm_(stacked(probabilities, value), stacked(value, value), beta=beta, alpha=keep_scale)


def gradients_of_part(
    out: tuple[Tensor, Tensor, Tensor],
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_table: Tensor | None,
    value_table: Tensor | None,
    probabilities: Tensor,
    by_label: Tensor | None,
    terms: Terms,
) -> tuple[Tensor | None, Tensor | None]:
    """Writes the gradients of query, key and value to `out`, and returns those of the tables."""
    d_query, d_key, d_value = (stacked(x, key) for x in out)
    if terms.live is not None:
        grad = grad.masked_fill(~terms.live, 0.0)
    if terms.kept is not None:
        grad = grad * terms.keep_scale
    queries, keys, grads = stacked(query, key), stacked(key, key), stacked(grad, key)

    ds = query.new_empty(*query.shape[:3], key.shape[2])  # first dp, the gradient of the probabilities
    flat = stacked(ds, key)
    flat.baddbmm_(grads, stacked(value, key).mT, beta=0)
    if value_table is not None:
        terms.where.add(ds, times_table(grad, value_table.mT))
    dropped = probabilities
    if terms.kept is not None:
        dropped = probabilities * terms.kept
        ds *= terms.kept
    d_value.baddbmm_(stacked(dropped, key).mT, grads, beta=0)
    torch._softmax_backward_data(ds, probabilities, -1, ds.dtype, grad_input=ds)

    d_key.baddbmm_(flat.mT, queries, beta=0, alpha=terms.scale)
    d_key_table = d_value_table = None
    beta = 0.0
    if key_table is not None:
        ds_by_label = terms.where.collect(ds, key_table.shape[1])
        write_times_table(out[0], ds_by_label, key_table)
        beta = terms.scale
        d_key_table = table_gradient(ds_by_label, query, key_table) * terms.scale
    d_query.baddbmm_(flat, keys, beta=beta, alpha=terms.scale)
    if value_table is not None and by_label is not None:
        d_value_table = table_gradient(by_label, grad, value_table)
    return d_key_table, d_value_table


def parts(query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice, slice]]:
    """Sentences, heads and heads of keys with few enough pairs to stay in the cache; all at once where none is."""
    if query.device.type != "cpu" or torch.compiler.is_compiling():
        yield EVERY, EVERY, EVERY
        return
    batch, heads, queries, _ = query.shape
    _, key_heads, keys, _ = key.shape
    group = heads // key_heads
    fitting = max(1, PAIRS_AT_A_TIME * torch.get_num_threads() // max(1, group * queries * keys))
    sentences, several = max(1, fitting // key_heads), min(fitting, key_heads)
    for row in range(0, batch, sentences):
        for head in range(0, key_heads, several):
            stop = min(head + several, key_heads)
            yield slice(row, row + sentences), slice(group * head, group * stop), slice(head, stop)


def stacked(x: Tensor, key: Tensor) -> Tensor:
    """(batch, heads, n, a) -> (batch · key_heads, group · n, a): heads that share keys are rows of one product."""
    batch, heads, n, width = x.shape
    return x.reshape(batch * key.shape[1], heads // key.shape[1] * n, width)


def times_table(rows: Tensor, table: Tensor) -> Tensor:
    """(batch, heads, n, a) @ (heads or 1, a, b) -> (batch, heads, n, b), in one matrix product for one table."""
    if table.shape[0] != 1:
        return rows @ table
    batch, heads, n, inner = rows.shape
    return (rows.reshape(batch * heads * n, inner) @ table[0]).view(batch, heads, n, table.shape[2])


def write_times_table(out: Tensor, rows: Tensor, table: Tensor) -> None:
    if table.shape[0] != 1:
        out.copy_(rows @ table)
    else:
        out.view(-1, table.shape[2]).addmm_(rows.flatten(0, 2), table[0], beta=0)


def table_gradient(by_label: Tensor, rows: Tensor, table: Tensor) -> Tensor:
    """Σ by_labelᵀ @ rows over sentences, and over heads that share a table: (heads or 1, labels, dim)."""
    if table.shape[0] != 1:
        return (by_label.mT @ rows).sum(0)
    return (by_label.flatten(0, 2).mT @ rows.flatten(0, 2))[None]
