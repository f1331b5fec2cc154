"""Attention by loops from the arguments of the public operators, without code of the library: an oracle of backends.

Which pairs attend, their labels and every default are decided here for one pair of positions at a time, from the
documentation of `relative_attention`. PyTorch only adds and multiplies, in float64, so autograd gives gradients.
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
    group = heads // key.shape[1]
    scale = 1.0 / math.sqrt(dim) if scale is None else scale
    size = (batch, heads, queries, keys)
    bias = None if bias is None else bias.expand(size)
    is_hidden = None if bias is None else bias.detach().isinf()
    mask = None if mask is None else mask.expand(size)
    relations = None if relations is None else relations.expand(size)
    tables = [
        None if table is None else table.expand(heads, *table.shape[-dims:])
        for table, dims in ((rel_key, 2), (pos_query, 2), (rel_value, 2), (rel_bias, 1))
    ]
    rows = next((table.shape[1] for table in tables if table is not None), 1)
    left, right = (clip, clip) if isinstance(clip, int) else clip or ((rows - 1) // 2, (rows - 1) // 2)
    ends = [] if cu_seqlens is None else cu_seqlens.tolist()
    outputs, sums = [], []
    for b, h, i in itertools.product(range(batch), range(heads), range(queries)):
        offset = keys - queries if query_offset is None else query_offset
        start = max((end for end in ends if end <= i), default=0)  # of the own sequence, if several are packed
        position = i - start + (int(offset[b]) if isinstance(offset, Tensor) else int(offset))
        attended, labels = [], []
        for j in range(keys):
            kept = mask is None or bool(mask[b, h, i, j])
            kept = kept and (is_hidden is None or not bool(is_hidden[b, h, i, j]))
            for limits, row in ((lengths, i), (lengths, j), (query_lengths, i), (key_lengths, j)):
                kept = kept and (limits is None or row < int(limits[b]))
            place = j - start
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
            if not kept:
                continue
            attended.append(j)
            distance = place - position
            if relations is not None:
                labels.append(int(relations[b, h, i, j]))
            elif distance < -left:
                labels.append(0 if beyond == "clip" else -1)
            elif distance > right:
                labels.append(left + right if beyond == "clip" else -1)
            else:
                labels.append(distance + left)
        if not attended:
            outputs.append(torch.zeros(value.shape[3], dtype=query.dtype))
            sums.append(torch.tensor(-math.inf, dtype=query.dtype))
            continue
        has_label = torch.tensor([float(label >= 0) for label in labels], dtype=query.dtype)
        label = torch.tensor([max(label, 0) for label in labels])
        k, v = key[b, h // group][attended], value[b, h // group][attended]
        of_keys, of_queries, of_values, of_biases = (None if table is None else table[h][label] for table in tables)
        score = k @ query[b, h, i]
        if of_keys is not None:
            score = score + has_label * (of_keys @ (query if rel_query is None else rel_query)[b, h, i])
        if of_queries is not None:
            score = score + has_label * (of_queries * k).sum(1)
        score = scale * score
        if of_biases is not None:
            score = score + has_label * of_biases
        if bias is not None:
            score = score + bias[b, h, i][attended]
        weight = score.softmax(0)
        outputs.append(weight @ (v if of_values is None else v + has_label[:, None] * of_values))
        sums.append(score.detach().logsumexp(0))
    return torch.stack(outputs).view(batch, heads, queries, -1), torch.stack(sums).view(batch, heads, queries)
