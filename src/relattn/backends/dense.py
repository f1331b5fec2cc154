"""Attention in O(n²) work space and never O(n² · d): every feature of the contract, on any device.

A score is q_i · k_j + q_i · aK_ij, and its second term depends on the pair's label alone: one product of queries and
table makes it for every label, and it is then *added* onto the pairs. The probabilities go the other way: they are
*collected* by label, for one product with the other table, Σ_j α_ij aV_ij. The gradients take the same two ways back.
On CPU a few heads are worked at a time, so that arrays of pairs stay in the cache.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relattn import positions
from relattn.backends.window import Window, window_of
from relattn.call import Attended, Call, RelationCall, RelativeCall

PAIRS_AT_A_TIME = 2**19  # for each thread: two megabytes of float32
EVERY = slice(None)


def unsupported(call: Call) -> str | None:
    return None


def relative_attention(call: RelativeCall) -> Attended:
    queries, keys, offset = call.query.shape[2], call.key.shape[2], call.query_offset
    if torch.compiler.is_compiling() or isinstance(offset, Tensor) or queries * keys == 0:
        distance = positions.distances(queries, keys, offset, call.query.device)
        label = positions.labels(distance, call.left, call.right, call.beyond)
        return by_labels(call, label[:, None] if label.dim() == 3 else label[None, None])
    window, rows = window_of(call, offset)
    tables = (None if x is None else with_heads(x)[:, rows] for x in (call.rel_key, call.rel_value))
    return attend(call, window, *tables)


def relation_attention(call: RelationCall) -> Attended:
    return by_labels(call, call.relations)


def by_labels(call: Call, label: Tensor) -> Attended:
    """Attention over pairs labelled by `label` (batch or 1, heads or 1, queries, keys)."""
    tables = (None if x is None else with_heads(F.pad(x, (0, 0, 0, 1))) for x in (call.rel_key, call.rel_value))
    return attend(call, Labels(label), *tables)


def with_heads(table: Tensor) -> Tensor:
    """(heads or 1, labels, dim)."""
    return table[None] if table.dim() == 2 else table


@dataclass(frozen=True)
class Labels:
    """Labels of pairs, as the caller gives them; −1 stands for the zero row after a table's last."""

    label: Tensor  # (batch or 1, heads or 1, queries, keys)

    def part(self, sentences: slice, heads: slice) -> "Labels":
        return Labels(cut(self.label, sentences, heads))

    def add(self, pairs: Tensor, by_label: Tensor) -> None:
        pairs += by_label.gather(-1, self.slots(pairs, by_label.shape[-1]))

    def collect(self, pairs: Tensor, labels: int) -> Tensor:
        return bucket_sum(pairs, self.slots(pairs, labels), labels)

    def slots(self, pairs: Tensor, labels: int) -> Tensor:
        return self.label.long().remainder(labels).expand(pairs.shape)


def attend(
    call: Call,
    where: Window | Labels,
    key_table: Tensor | None,
    value_table: Tensor | None,
) -> Attended:
    """Attention whose pairs take the table rows of their labels in `where`."""
    bias, live = masking(call)
    kept, rise = None, 1.0
    if call.dropout_p > 0.0:
        kept = torch.empty(*call.query.shape[:3], call.key.shape[2], dtype=torch.bool, device=call.query.device)
        kept.bernoulli_(1.0 - call.dropout_p)
        rise = 1.0 / (1.0 - call.dropout_p) if call.dropout_p < 1.0 else 0.0
    terms = Terms(where, bias, live, kept, rise, call.scale, call.return_lse)
    tensors = (call.query, call.key, call.value, key_table, value_table)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        return Attended(*Attention.apply(*tensors, terms))
    return Attended(*attention(*tensors, terms))


@dataclass(frozen=True)
class Terms:
    """What an attention is made of besides the tensors with gradients. Masks are (batch or 1, heads or 1, …)."""

    where: Window | Labels
    bias: Tensor | None  # (…, queries or 1, keys): 0, or −∞ where a query may not attend
    live: Tensor | None  # (…, queries, 1): False for queries whose output is zeros
    kept: Tensor | None  # (…, queries, keys): False for probabilities that are dropped
    rise: float  # the factor on those that are kept
    scale: float
    lse: bool

    def part(self, sentences: slice, heads: slice) -> "Terms":
        bias, live, kept = (cut(mask, sentences, heads) for mask in (self.bias, self.live, self.kept))
        where = self.where if isinstance(self.where, Window) else self.where.part(sentences, heads)
        return Terms(where, bias, live, kept, self.rise, self.scale, self.lse)


class Attention(torch.autograd.Function):
    """`attention`, with its gradient from the probabilities."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor | None]:
        query, key, value, key_table, value_table, terms = arguments
        ctx.terms, ctx.parts = terms, list(parts(query, key))
        saved: list[Tensor | None] = []
        output, lse = attention(query, key, value, key_table, value_table, terms, saved)
        ctx.save_for_backward(query, key, value, key_table, value_table, *saved)
        if lse is not None:
            ctx.mark_non_differentiable(lse)
        return output, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        query, key, value, key_table, value_table, *saved = ctx.saved_tensors
        d_query, d_key, d_value = (x.new_empty(x.shape) for x in (query, key, value))
        d_tables = [None if x is None else torch.zeros_like(x) for x in (key_table, value_table)]
        for number, (sentences, heads, key_heads) in enumerate(ctx.parts):
            part = ctx.terms.part(sentences, heads)
            q, k, v = query[sentences, heads], key[sentences, key_heads], value[sentences, key_heads]
            out = d_query[sentences, heads], d_key[sentences, key_heads], d_value[sentences, key_heads]
            own = cut(key_table, heads), cut(value_table, heads)
            probabilities, by_label = saved[2 * number : 2 * number + 2]
            d_part = gradients_of_part(out, grad[sentences, heads], q, k, v, *own, probabilities, by_label, part)
            for whole, share in zip(d_tables, d_part, strict=True):
                if whole is not None:
                    cut(whole, heads).add_(share)
        return d_query, d_key, d_value, *d_tables, None


def attention(
    query: Tensor,  # (batch, heads, queries, dim)
    key: Tensor,  # (batch, key_heads, keys, dim)
    value: Tensor,  # (batch, key_heads, keys, value_dim)
    key_table: Tensor | None,  # (heads or 1, labels, dim)
    value_table: Tensor | None,  # (heads or 1, labels, value_dim)
    terms: Terms,
    saved: list[Tensor | None] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Outputs and log-sum-exps; `saved` receives the probabilities of each part, and these by label."""
    output = query.new_empty(*query.shape[:3], value.shape[3])
    exact = torch.float32 if query.dtype in (torch.float16, torch.bfloat16) else query.dtype
    lse = query.new_empty(query.shape[:3], dtype=exact) if terms.lse else None
    for sentences, heads, key_heads in parts(query, key):
        part = terms.part(sentences, heads)
        q, k, v = query[sentences, heads], key[sentences, key_heads], value[sentences, key_heads]
        pairs = scores(q, k, cut(key_table, heads), part)
        if lse is not None:
            part_lse = pairs.to(exact).logsumexp(-1, keepdim=True)
            part_lse = part_lse if part.live is None else part_lse.masked_fill(~part.live, -torch.inf)
            lse[sentences, heads] = part_lse.squeeze(-1)
        probabilities = torch.softmax(pairs, -1, out=pairs)
        dropped = probabilities
        if part.kept is not None:
            dropped = probabilities * part.kept
        by_label = None if value_table is None else part.where.collect(dropped, value_table.shape[1])
        out = output[sentences, heads]
        weigh(out, dropped, v, by_label, cut(value_table, heads), part.rise)
        if part.live is not None:
            out.masked_fill_(~part.live, 0.0)
        if saved is not None:
            saved += [probabilities, by_label]
    return output, lse


def scores(query: Tensor, key: Tensor, table: Tensor | None, terms: Terms) -> Tensor:
    """(batch, heads, queries, keys)."""
    pairs = query.new_empty(*query.shape[:3], key.shape[2])
    if terms.bias is not None:
        pairs.copy_(terms.bias.expand(pairs.shape))
    flat = stacked(pairs, key)
    beta = 0 if terms.bias is None else 1
    flat.baddbmm_(stacked(query, key), stacked(key, key).mT, beta=beta, alpha=terms.scale)
    if table is not None:
        terms.where.add(pairs, times_table(query, table.mT * terms.scale))
    return pairs


def weigh(
    out: Tensor, probabilities: Tensor, value: Tensor, by_label: Tensor | None, table: Tensor | None, rise: float
) -> None:
    """Writes rise · Σ_j p_ij (v_j + aV_ij) to `out`, (batch, heads, queries, value_dim)."""
    beta = 0.0
    if by_label is not None and table is not None:
        write_times_table(out, by_label, table)
        beta = rise
    stacked(out, value).baddbmm_(stacked(probabilities, value), stacked(value, value), beta=beta, alpha=rise)


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
        grad = grad * terms.rise
    queries, keys, grads = stacked(query, key), stacked(key, key), stacked(grad, key)

    pairs = query.new_empty(*query.shape[:3], key.shape[2])
    flat = stacked(pairs, key)
    flat.baddbmm_(grads, stacked(value, key).mT, beta=0)
    if value_table is not None:
        terms.where.add(pairs, times_table(grad, value_table.mT))
    dropped = probabilities
    if terms.kept is not None:
        dropped = probabilities * terms.kept
        pairs *= terms.kept
    d_value.baddbmm_(stacked(dropped, key).mT, grads, beta=0)
    torch._softmax_backward_data(pairs, probabilities, -1, pairs.dtype, grad_input=pairs)

    d_key.baddbmm_(flat.mT, queries, beta=0, alpha=terms.scale)
    d_key_table = d_value_table = None
    beta = 0.0
    if key_table is not None:
        d_by_label = terms.where.collect(pairs, key_table.shape[1])
        write_times_table(out[0], d_by_label, key_table)
        beta = terms.scale
        d_key_table = table_gradient(d_by_label, query, key_table) * terms.scale
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


def cut(x: Tensor | None, *where: slice) -> Any:
    """A part of the first dimensions; one of size 1 is for all parts."""
    return (
        None
        if x is None
        else x[tuple(here if size != 1 else EVERY for here, size in zip(where, x.shape, strict=False))]
    )


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


def every_query_sees_itself(call: Call) -> bool:
    """Whether a causal mask leaves every query something, as is known without looking at data."""
    return call.mask is None and isinstance(call.query_offset, int) and call.query_offset >= 0


def hides_later_keys(call: Call) -> bool:
    """Whether a causal mask may hide a key; not from the last position's query, which a decoder asks for."""
    offset = call.query_offset
    last = not torch.compiler.is_compiling() and isinstance(offset, int) and offset >= call.key.shape[2] - 1
    return call.is_causal and not last


def masking(call: Call) -> tuple[Tensor | None, Tensor | None]:
    """What to add to the scores, and the rows that have something to attend to; None for nothing and for all.

    Both broadcast to (batch, heads, queries, keys). A row with nothing to attend to is left one finite score or
    more, so that its softmax is a number, and its output is to be replaced by zeros, which stops its gradient too.
    """
    keys, device = call.key.shape[2], call.query.device
    if call.mask is None and not hides_later_keys(call):
        if call.key_lengths is None:
            return None, None
        length = call.key_lengths[:, None, None, None]
        allowed = torch.arange(keys, device=device) < length.clamp(min=1)
        live = positions.live_queries(call) & (length > 0)
    else:
        seen = positions.visible(call)
        assert seen is not None
        if call.key_lengths is None and every_query_sees_itself(call):
            allowed, live = seen, None
        else:
            live = seen.any(-1, keepdim=True)
            allowed = seen | ~live
    bias = torch.zeros_like(allowed, dtype=call.query.dtype).masked_fill(~allowed, -torch.inf)
    return bias, live


def bucket_sum(on_pairs: Tensor, slot: Tensor, buckets: int) -> Tensor:
    """Sums of (…, keys) over the keys of each slot: (…, buckets)."""
    if on_pairs.device.type == "cpu":
        return on_pairs.new_zeros(*on_pairs.shape[:-1], buckets).scatter_add(-1, slot, on_pairs)
    return bucket_sum_by_passes(on_pairs, slot, buckets)


def bucket_sum_by_passes(on_pairs: Tensor, slot: Tensor, buckets: int) -> Tensor:
    """A pass over the pairs for each bucket: elsewhere a scatter adds with atomics, in another order every time."""
    return torch.stack([on_pairs.masked_fill(slot != bucket, 0.0).sum(-1) for bucket in range(buckets)], dim=-1)
