"""Attention in O(n²) memory, never O(n² · d), made of PyTorch's operations: any device, any dtype, any tracer."""

import torch
import torch.nn.functional as F
from torch import Tensor

from relattn.backends import packed, pairs
from relattn.backends.autograd import has_gradients
from relattn.backends.capabilities import FIELDS, Capabilities
from relattn.backends.dense.attention import differentiable_attention
from relattn.backends.dense.diagonals import Diagonals, diagonals_of
from relattn.call import Call, keep_scale
from relattn.checks import is_tracing

CAPABILITIES = Capabilities(FIELDS | {"bias"}, is_exported=True)


@packed.by_runs
def attend(call: Call, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    """Return the output of a call, and the log-sum-exp or None."""
    call = pairs.without_padding(call)
    hidden, live = masks(call)
    kept = None
    if call.dropout_p > 0.0:
        shape = (*call.query.shape[:3], call.key.shape[2])
        device = call.query.device
        kept = torch.empty(shape, dtype=torch.bool, device=device).bernoulli_(1.0 - call.dropout_p)
    tables, label, diagonals = labels(call)
    rel_key, rel_value, pos_query = tables
    tensors = (
        call.query, call.key, call.value, rel_key, rel_value, call.rel_query, pos_query, call.bias, label, hidden, live,
        kept,
    )  # fmt: skip
    options = (diagonals, keep_scale(call.dropout_p), call.scale, return_lse, has_gradients(tensors))
    output, *rest = differentiable_attention(*tensors, *options)
    return output, rest[0].detach() if return_lse else None


def labels(call: Call) -> tuple[list[Tensor | None], Tensor | None, Diagonals | None]:
    """Return the tables, (heads or 1, labels, dim), and how pairs get their rows: by labels, or by diagonals."""
    given = (call.rel_key, call.rel_value, call.pos_query)
    tables = [None if x is None else x[None] if x.dim() == 2 else x for x in given]
    queries = call.query.shape[2]
    keys = call.key.shape[2]
    needs_labels = call.relations is not None or call.query_offsets is not None or queries * keys == 0
    if needs_labels or is_tracing():
        return [None if x is None else F.pad(x, (0, 0, 0, 1)) for x in tables], pairs.labels_of_pairs(call), None
    diagonals, rows = diagonals_of(call)
    rel_key, rel_value, pos_query = (None if x is None else x[:, rows] for x in tables)
    # the labels of the pairs (key, query) are in reverse order
    return [rel_key, rel_value, None if pos_query is None else pos_query.flip(1)], None, diagonals


def masks(call: Call) -> tuple[Tensor | None, Tensor | None]:
    """Return the pairs that may not attend, and the queries that have something to attend to; None: no pairs, all.

    Both broadcast to (batch, heads, queries, keys). A query with nothing to attend to keeps some finite scores, so that
    its softmax is not NaN. Its output is replaced by zeros later, which stops its gradient too.
    """
    has_offsets = call.query_offsets is not None
    if call.is_causal and not is_tracing() and not has_offsets and call.query_offset >= call.key.shape[2] - 1:
        call = call._replace(is_causal=False)  # the last position's query sees all keys, as in decoding
    visible = pairs.visible(call)
    if visible is None:
        return None, None
    given = (call.mask, call.bias, call.key_lengths, call.query_lengths)
    has_window = call.window_left is not None or call.window_right is not None
    sees_itself = not has_offsets and call.query_offset >= 0 and not has_window  # every query of a causal call
    if sees_itself and all(x is None for x in given):
        return ~visible, None
    live = visible.any(-1, keepdim=True)
    return ~visible & live, live
