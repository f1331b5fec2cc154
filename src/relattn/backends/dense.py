"""Attention in O(n²) work space and never O(n² · d): every feature of the contract, on any device.

The pairs (i, j) with one j − i form a diagonal, and share a row of each table. So the relative score q_i · aK_ij is
made for every diagonal by one matrix product with the table spread along them, (diagonals, dim), and *skewed* onto
the pairs, which is a view (Huang et al. 2018); the probabilities go the other way, onto the diagonals, for
Σ_j α_ij aV_ij. A causal mask rides along as −∞ in the first product; other masks are added on the way.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relattn import positions
from relattn.call import Attended, Call, RelationCall, RelativeCall


def unsupported(call: Call) -> str | None:
    return None


def relative_attention(call: RelativeCall) -> Attended:
    if call.rel_key is None and call.rel_value is None:
        return attend(call, None, None)
    queries, keys = call.query.shape[2], call.key.shape[2]
    distance = positions.diagonals(queries, keys, call.query_offset, call.query.device)
    label = positions.labels(distance, call.left, call.right, call.beyond)  # (diagonals,) or (batch, diagonals)
    ragged = label.dim() == 2

    relative_scores, relative_output, causal_done = None, None, False
    if call.rel_key is not None:
        table = spread(call.rel_key, label)
        bias = None
        if call.is_causal and every_query_sees_itself(call):
            bias = torch.zeros_like(distance, dtype=table.dtype).masked_fill(distance > 0, -torch.inf)
            causal_done = True
        relative_scores = Skew.apply(times_table(call.query, table.mT * call.scale, ragged, bias), keys)
    if call.rel_value is not None:
        value_table = spread(call.rel_value, label)

        def relative_output(probabilities: Tensor) -> Tensor:
            return times_table(Unskew.apply(probabilities), value_table, ragged)

    return attend(call, relative_scores, relative_output, causal_done)


def relation_attention(call: RelationCall) -> Attended:
    pairs = (*call.query.shape[:3], call.key.shape[2])
    relative_scores, relative_output = None, None
    if call.rel_key is not None:
        by_label = times_table(call.query, with_zero_row(call.rel_key).mT * call.scale)
        relative_scores = Gather.apply(by_label, slots(call.relations, call.rel_key).expand(pairs))
    if call.rel_value is not None:
        value_table = with_zero_row(call.rel_value)
        slot = slots(call.relations, call.rel_value).expand(pairs)

        def relative_output(probabilities: Tensor) -> Tensor:
            return times_table(BucketSum.apply(probabilities, slot, value_table.shape[-2]), value_table)

    return attend(call, relative_scores, relative_output)


def attend(
    call: Call,
    relative_scores: Tensor | None,
    relative_output: Callable[[Tensor], Tensor] | None,
    causal_done: bool = False,
) -> Attended:
    """Plain attention, with scores to add before the softmax and a share of the output made of the probabilities."""
    batch, heads, queries, dim = call.query.shape
    key_heads, keys, value_dim = call.key.shape[1], call.key.shape[2], call.value.shape[3]
    stacked = (batch * key_heads, (heads // key_heads) * queries)  # heads that share keys are queries of one product
    query = call.query.reshape(*stacked, dim)
    key = call.key.reshape(batch * key_heads, keys, dim)
    value = call.value.reshape(batch * key_heads, keys, value_dim)

    bias, live = masking(call, causal_done)
    if relative_scores is None:
        scores = (query * call.scale) @ key.mT
        if bias is not None:
            scores = (scores.view(batch, heads, queries, keys) + bias).view(*stacked, keys)
    elif bias is None:
        scores = torch.baddbmm(relative_scores.reshape(*stacked, keys), query, key.mT, alpha=call.scale)
    else:
        scores = (relative_scores + bias).reshape(*stacked, keys).baddbmm_(query, key.mT, alpha=call.scale)

    lse = None
    exact = torch.float32 if scores.dtype in (torch.float16, torch.bfloat16) else scores.dtype
    if call.return_lse:
        lse = scores.detach().to(exact).logsumexp(-1).view(batch, heads, queries)
        lse = lse if live is None else lse.masked_fill(~live.squeeze(-1), -torch.inf)
    probabilities = scores.softmax(-1, dtype=exact).to(scores.dtype)
    if call.dropout_p > 0.0:
        probabilities = F.dropout(probabilities, call.dropout_p)

    output = (probabilities @ value).view(batch, heads, queries, value_dim)
    if relative_output is not None:
        output = output + relative_output(probabilities.view(batch, heads, queries, keys))
    return Attended(output if live is None else output.masked_fill(~live, 0.0), lse)


def every_query_sees_itself(call: Call) -> bool:
    """Whether a causal mask leaves every query something, as is known without looking at data."""
    return call.mask is None and isinstance(call.query_offset, int) and call.query_offset >= 0


def masking(call: Call, causal_done: bool) -> tuple[Tensor | None, Tensor | None]:
    """What to add to the scores, and the rows that have something to attend to; None for nothing and for all.

    Both broadcast to (batch, heads, queries, keys). A row with nothing to attend to is left one finite score or
    more, so that its softmax is a number, and its output is to be replaced by zeros, which stops its gradient too.
    """
    keys, device = call.key.shape[2], call.query.device
    if call.mask is None and (causal_done or not call.is_causal):
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


def spread(table: Tensor, label: Tensor) -> Tensor:
    """A table's rows along the diagonals: ((batch,) (heads,) diagonals, dim), each of the two where it has its own."""
    if table.dim() == 2:
        return F.embedding(slots(label, table), with_zero_row(table))
    heads, rows, dim = table.shape
    by_row = with_zero_row(table).transpose(0, 1).reshape(rows + 1, heads * dim)
    return F.embedding(slots(label, table), by_row).unflatten(-1, (heads, dim)).transpose(-2, -3)


def with_zero_row(table: Tensor) -> Tensor:
    """The table and, after its last row, the zeros that pairs with no term take."""
    return F.pad(table, (0, 0, 0, 1))


def slots(label: Tensor, table: Tensor) -> Tensor:
    """Rows of `with_zero_row(table)` for labels in which −1 means no term."""
    return label.long().remainder(table.shape[-2] + 1)


def times_table(rows: Tensor, table: Tensor, ragged: bool = False, bias: Tensor | None = None) -> Tensor:
    """(batch, heads, n, a) @ ((batch,) (heads,) a, b) -> (batch, heads, n, b), in one matrix product.

    `ragged` says that the table has a batch dimension; four dimensions are both. `bias` (b,) is for tables without.
    """
    batch, heads, n, inner = rows.shape
    outer = table.shape[-1]
    if table.dim() == 2:
        flat = rows.flatten().view(batch * heads * n, inner)
        product = flat @ table if bias is None else torch.addmm(bias, flat, table)
        return product.view(batch, heads, n, outer)
    if table.dim() == 4:
        return rows @ table
    if ragged:
        return (rows.flatten().view(batch, heads * n, inner) @ table).view(batch, heads, n, outer)
    flat = rows.transpose(0, 1).flatten().view(heads, batch * n, inner)
    product = flat @ table if bias is None else torch.baddbmm(bias, flat, table)
    return product.view(heads, batch, n, outer).transpose(0, 1)


def onto_pairs(on_diagonals: Tensor, keys: int) -> Tensor:
    """(…, queries, diagonals) -> (…, queries, keys), a view: pair (r, c) is entry c − r + queries of row r."""
    queries, width = on_diagonals.shape[-2:]
    return on_diagonals.flatten(-2)[..., queries:].unflatten(-1, (queries, width - 1))[..., :keys]


def onto_diagonals(on_pairs: Tensor) -> Tensor:
    """(…, queries, keys) -> (…, queries, diagonals): the way back, zeros where a row has no such pair."""
    *lead, queries, keys = on_pairs.shape
    on_diagonals = on_pairs.new_zeros(*lead, queries, queries + keys + 1)
    onto_pairs(on_diagonals, keys).copy_(on_pairs)
    return on_diagonals


class Skew(torch.autograd.Function):
    """`onto_pairs` with `onto_diagonals` for its gradient: one copy, where autograd would pad twice."""

    @staticmethod
    def forward(ctx: Any, on_diagonals: Tensor, keys: int) -> Tensor:
        return onto_pairs(on_diagonals, keys)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return onto_diagonals(grad), None


class Unskew(torch.autograd.Function):
    """`onto_diagonals` with `onto_pairs` for its gradient."""

    @staticmethod
    def forward(ctx: Any, on_pairs: Tensor) -> Tensor:
        ctx.keys = on_pairs.shape[-1]
        return onto_diagonals(on_pairs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return onto_pairs(grad, ctx.keys)


def bucket_sum(on_pairs: Tensor, slot: Tensor, buckets: int) -> Tensor:
    """Sums of (…, keys) over the keys of each slot: (…, buckets)."""
    if on_pairs.device.type == "cpu":
        return on_pairs.new_zeros(*on_pairs.shape[:-1], buckets).scatter_add(-1, slot, on_pairs)
    return bucket_sum_by_passes(on_pairs, slot, buckets)


def bucket_sum_by_passes(on_pairs: Tensor, slot: Tensor, buckets: int) -> Tensor:
    """A pass over the pairs for each bucket: elsewhere a scatter adds with atomics, in another order every time."""
    return torch.stack([on_pairs.masked_fill(slot != bucket, 0.0).sum(-1) for bucket in range(buckets)], dim=-1)


class Gather(torch.autograd.Function):
    """A score for every pair out of the scores by label, with a deterministic gradient on every device."""

    @staticmethod
    def forward(ctx: Any, by_label: Tensor, slot: Tensor) -> Tensor:
        ctx.save_for_backward(slot)
        ctx.buckets = by_label.shape[-1]
        return by_label.gather(-1, slot)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (slot,) = ctx.saved_tensors
        return bucket_sum(grad, slot, ctx.buckets), None


class BucketSum(torch.autograd.Function):
    """`bucket_sum`, whose gradient is a gather."""

    @staticmethod
    def forward(ctx: Any, on_pairs: Tensor, slot: Tensor, buckets: int) -> Tensor:
        ctx.save_for_backward(slot)
        return bucket_sum(on_pairs, slot, buckets)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (slot,) = ctx.saved_tensors
        return grad.gather(-1, slot), None, None
