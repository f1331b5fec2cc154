"""Attention in O(n²) memory, never O(n² · d), made of PyTorch's operations: any device, any dtype, any tracer."""

import torch
import torch.nn.functional as F
from torch import Tensor

from relattn.backends import packed, pairs
from relattn.backends.autograd import has_gradients
from relattn.backends.capabilities import FIELDS, Capabilities
from relattn.backends.dense.attention import differentiable_attention
from relattn.backends.dense.diagonals import Diagonals, diagonals_of
from relattn.call import Call, OutputAndLse, keep_scale
from relattn.checks import is_tracing

CAPABILITIES = Capabilities(FIELDS | {"bias"}, is_exported=True)


@packed.by_runs
def attend(call: Call, return_lse: bool) -> OutputAndLse:
    """Return the output of a call, and the log-sum-exp or None."""
    call = pairs.without_padding(call)
    hidden, live = masks(call)
    kept = None
    if call.dropout_p > 0.0:
        shape = (*call.query.shape[:3], call.key.shape[2])
        device = call.query.device
        kept = torch.empty(shape, dtype=torch.bool, device=device).bernoulli_(1.0 - call.dropout_p)
    call, label, diagonals = labels(call)
    tensors = (
        call.query, call.key, call.value, call.rel_key, call.rel_value, call.rel_query, call.pos_query, call.bias,
        label, hidden, live, kept,
    )  # fmt: skip
    options = (diagonals, keep_scale(call.dropout_p), call.scale, return_lse, has_gradients(tensors))
    output, *rest = differentiable_attention(*tensors, *options)
    return output, rest[0].detach() if return_lse else None


def labels(call: Call) -> tuple[Call, Tensor | None, Diagonals | None]:
    """Return how pairs get rows of the tables, by labels or by diagonals, and the call with these rows.

    Its tables are (heads or 1, labels, dim).
    """
    tables = {name: x[None] if x.dim() == 2 else x for name, x in call.tables().items()}
    queries = call.query.shape[2]
    keys = call.key.shape[2]
    needs_labels = call.relations is not None or call.query_offsets is not None or queries * keys == 0
    if needs_labels or is_tracing():
        tables = {name: F.pad(x, (0, 0, 0, 1)) for name, x in tables.items()}
        return call._replace(**tables), pairs.labels_of_pairs(call), None
    diagonals, rows = diagonals_of(call)
    tables = {name: x[:, rows] for name, x in tables.items()}
    if call.pos_query is not None:  # the labels of the pairs (key, query) are in reverse order
        tables["pos_query"] = tables["pos_query"].flip(1)
    return call._replace(**tables), None, diagonals


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
