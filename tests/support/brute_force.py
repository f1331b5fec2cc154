"""Attention by loops from the arguments of the public operators, without code of the library: an oracle of backends.

Which pairs attend, their labels and every default are decided here for one pair of positions at a time, from the
documentation of `relative_attention`. PyTorch only adds and multiplies, in float64, so autograd gives gradients.
A row of a table is gathered for each pair, and pairs that do not attend are left out at the end.
"""

import itertools
import math
from typing import Any

import torch
from torch import Tensor


def attention(
    query: Tensor, key: Tensor, value: Tensor, rel_key: Tensor | None = None, rel_value: Tensor | None = None, *,
    relations: Tensor | None = None, rel_query: Tensor | None = None, pos_query: Tensor | None = None,
    rel_bias: Tensor | None = None, clip: Any = None, beyond: str = "clip", cu_seqlens: Tensor | None = None,
    query_offset: Any = None, is_causal: bool = False, window: Any = None, chunk: Any = None,
    lengths: Tensor | None = None, key_lengths: Tensor | None = None, query_lengths: Tensor | None = None,
    mask: Tensor | None = None, bias: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the output, (batch, heads, queries, value_dim), and the log-sum-exp of the scores, without gradient."""
    batch, heads, queries, dim = query.shape
    keys = key.shape[2]
    scale = 1.0 / math.sqrt(dim) if scale is None else scale
    key, value = (x.repeat_interleave(heads // key.shape[1], dim=1) for x in (key, value))
    of_keys, of_queries, of_values, of_biases = (
        None if table is None else table.expand(heads, *table.shape[-dims:])
        for table, dims in ((rel_key, 2), (pos_query, 2), (rel_value, 2), (rel_bias, 1))
    )
    tables = [table for table in (of_keys, of_queries, of_values, of_biases) if table is not None]
    rows = tables[0].shape[1] if tables else 1
    left, right = (clip, clip) if isinstance(clip, int) else clip or ((rows - 1) // 2, (rows - 1) // 2)
    ends = [] if cu_seqlens is None else cu_seqlens.tolist()
    limits = [None if x is None else x.tolist() for x in (lengths, query_lengths, key_lengths)]
    offsets = query_offset.tolist() if isinstance(query_offset, Tensor) else [query_offset] * batch
    pairs, labels = [], []
    for b, i, j in itertools.product(range(batch), range(queries), range(keys)):
        start = max((end for end in ends if end <= i), default=0)  # of the own sequence, if several are packed
        position = i - start + (keys - queries if offsets[b] is None else offsets[b])
        place = j - start
        valid, valid_queries, valid_keys = (None if each is None else each[b] for each in limits)
        kept = valid is None or (i < valid and j < valid)
        kept = kept and (valid_queries is None or i < valid_queries)
        kept = kept and (valid_keys is None or j < valid_keys)
        kept = kept and not (is_causal and place > position)
        if window is not None:
            kept = kept and (window[0] is None or place >= position - window[0])
            kept = kept and (window[1] is None or place <= position + window[1])
        if chunk is not None:
            ahead = math.floor(place / chunk[0]) - math.floor(position / chunk[0])
            after = chunk[2] if len(chunk) == 3 else 0
            kept = kept and (chunk[1] is None or -ahead <= chunk[1]) and (after is None or ahead <= after)
        if ends:
            kept = kept and sum(end <= i for end in ends) == sum(end <= j for end in ends)
        pairs.append(kept)
        distance = place - position
        if distance < -left:
            labels.append(0 if beyond == "clip" else -1)
        elif distance > right:
            labels.append(left + right if beyond == "clip" else -1)
        else:
            labels.append(distance + left)
    is_kept = torch.tensor(pairs).view(batch, 1, queries, keys)
    label = torch.tensor(labels).view(batch, 1, queries, keys)
    size = (batch, heads, queries, keys)
    is_kept = (is_kept if mask is None else is_kept & mask).expand(size)
    label = (label if relations is None else relations.long()).expand(size)
    if bias is not None:
        is_hidden = bias.isinf().expand(size)
        is_kept = is_kept & ~is_hidden
        bias = bias.expand(size).masked_fill(is_hidden, 0.0)
    head = torch.arange(heads)[:, None, None]
    has_label = (label >= 0).to(query.dtype)
    label = label.clamp(min=0)
    score = query @ key.mT
    if of_keys is not None:
        rel_query = query if rel_query is None else rel_query
        score = score + has_label * (of_keys[head, label] * rel_query[:, :, :, None]).sum(-1)
    if of_queries is not None:
        score = score + has_label * (of_queries[head, label] * key[:, :, None]).sum(-1)
    score = scale * score
    if of_biases is not None:
        score = score + has_label * of_biases[head, label]
    if bias is not None:
        score = score + bias
    has_key = is_kept.any(-1, keepdim=True)
    score = score.masked_fill(~is_kept & has_key, -math.inf)
    weight = score.softmax(-1) * has_key
    output = weight @ value
    if of_values is not None:
        output = output + ((weight * has_label)[..., None] * of_values[head, label]).sum(3)
    return output, score.detach().masked_fill(~is_kept, -math.inf).logsumexp(-1)
