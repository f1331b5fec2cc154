"""The paper's equations, line by line: every other backend is tested against them.

    e_ij = scale · (q_i · k_j + r_i · aK_ij + aQ_ij · k_j) + B_ij
    α_i = softmax_j e_ij        z_i = Σ_j α_ij (v_j + aV_ij)

Here q = x W^Q, k = x W^K and v = x W^V are given; r = q unless a `rel_query` is given; aK_ij, aQ_ij and aV_ij are
gathered for every pair, in n × n × d numbers. B_ij is `bias`, 0 by default. It runs on any device in any floating-point
dtype. It is for reading and for checking, not for speed.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from relattn.backends import packed, pairs
from relattn.backends.capabilities import FIELDS, Capabilities
from relattn.call import Call, OutputAndLse, accumulation_dtype

CAPABILITIES = Capabilities(FIELDS | {"bias"}, is_exported=True)


@packed.by_runs
def attend(call: Call, return_lse: bool) -> OutputAndLse:
    """Return the output of a call, and the log-sum-exp or None."""
    call = pairs.without_padding(call)
    group = call.query.shape[1] // call.key.shape[1]
    label = pairs.labels_of_pairs(call)  # (batch or 1, heads or 1, queries, keys)
    q = call.query
    k = call.key.repeat_interleave(group, dim=1)
    v = call.value.repeat_interleave(group, dim=1)

    e = torch.einsum("bhid,bhjd->bhij", q, k)
    if call.rel_key is not None:
        a_key = vectors_of_pairs(call.rel_key, label)
        r = q if call.rel_query is None else call.rel_query
        e = e + (r[:, :, :, None, :] * a_key).sum(-1)
    if call.pos_query is not None:
        e = e + (k[:, :, None] * vectors_of_pairs(call.pos_query, label)).sum(-1)
    e = call.scale * e

    e = e.to(accumulation_dtype(e.dtype))
    if call.bias is not None:
        e = e + call.bias
    visible = pairs.visible(call)
    empty = None
    if visible is not None:
        e = e.masked_fill(~visible, -torch.inf)
        empty = ~visible.any(-1, keepdim=True)  # queries that attend to nothing: their softmax is NaN
    alpha = e.softmax(-1) if empty is None else e.softmax(-1).masked_fill(empty, 0.0)
    lse = e.detach().logsumexp(-1) if return_lse else None

    alpha = F.dropout(alpha.to(q.dtype), call.dropout_p)
    z = torch.einsum("bhij,bhjd->bhid", alpha, v)
    if call.rel_value is not None:
        a_value = vectors_of_pairs(call.rel_value, label)
        z = z + (alpha[..., None] * a_value).sum(-2)
    if empty is not None:
        z = z.masked_fill(empty, 0.0)  # stops the gradient of these queries, even if it is NaN
    return z, lse


def vectors_of_pairs(table: Tensor, label: Tensor) -> Tensor:
    """Return a_ij of every pair, (batch or 1, heads or 1, queries, keys, dim): table rows, or zeros for label −1."""
    if table.dim() == 2:
        rows = table[label.clamp(min=0)]
    else:
        head = torch.arange(table.shape[0], device=table.device)[:, None, None]
        rows = table[head, label.clamp(min=0)]
    return rows.masked_fill((label < 0)[..., None], 0.0)
