"""Attention in O(n²) memory and never O(n² · d), made of PyTorch's operations: any device, any type, any tracer."""

import torch
import torch.nn.functional as F
from torch import Tensor

from relattn import positions
from relattn.backends.autograd import has_gradients
from relattn.backends.capabilities import Capabilities
from relattn.backends.dense.attention import differentiable_attention
from relattn.backends.dense.diagonals import Window, window_of
from relattn.call import Call, keep_scale

CAPABILITIES = Capabilities(is_exported=True)


def attend(call: Call, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    hidden, live = masking(call)
    kept = None
    if call.dropout_p > 0.0:
        kept = torch.empty(*call.query.shape[:3], call.key.shape[2], dtype=torch.bool, device=call.query.device)
        kept.bernoulli_(1.0 - call.dropout_p)
    tables, label, window = labelled(call)
    tensors = (call.query, call.key, call.value, *tables, call.rel_query, label, hidden, live, kept)
    options = (window, keep_scale(call.dropout_p), call.scale, return_lse, has_gradients(tensors))
    output, *rest = differentiable_attention(*tensors, *options)
    return output, rest[0].detach() if return_lse else None


def labelled(call: Call) -> tuple[list[Tensor | None], Tensor | None, Window | None]:
    """The tables, (heads or 1, labels, dim), and how pairs get their rows: by labels, or by a window of distances."""
    tables = [None if x is None else x[None] if x.dim() == 2 else x for x in (call.rel_key, call.rel_value)]
    queries, keys = call.query.shape[2], call.key.shape[2]
    one_by_one = call.relations is not None or call.query_offsets is not None or queries * keys == 0
    if one_by_one or torch.compiler.is_compiling():
        return [None if x is None else F.pad(x, (0, 0, 0, 1)) for x in tables], positions.labels_of_pairs(call), None
    window, rows = window_of(call)
    return [None if x is None else x[:, rows] for x in tables], None, window


def masking(call: Call) -> tuple[Tensor | None, Tensor | None]:
    """The pairs that may not attend, and the rows that have something to attend to; None for none and for all.

    Both broadcast to (batch, heads, queries, keys). A row with nothing to attend to is left one finite score or
    more, so that its softmax is a number, and its output is to be replaced by zeros, which stops its gradient too.
    """
    if call.is_causal and not hides_later_keys(call):
        call = call._replace(is_causal=False)
    seen = positions.visible(call)
    if seen is None:
        return None, None
    if call.mask is None and call.key_lengths is None and call.query_lengths is None and every_query_sees_itself(call):
        return ~seen, None
    live = seen.any(-1, keepdim=True)
    return ~seen & live, live


def every_query_sees_itself(call: Call) -> bool:
    """Whether causality leaves every query a key, as is known without looking at data."""
    return call.query_offsets is None and call.query_offset >= 0


def hides_later_keys(call: Call) -> bool:
    """Whether causality may hide a key; not from the last position's query, which a decoder asks for."""
    return torch.compiler.is_compiling() or call.query_offsets is not None or call.query_offset < call.key.shape[2] - 1
