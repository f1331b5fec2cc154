"""Calls of the operator in place of attention classes of other packages (docs/reference/packages.md)."""

from typing import Any

import torch
from relattn import relative_attention
from torch import Tensor


def espnet(attention: Any, x: Tensor, pos_emb: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Replace the attention of ESPnet, FunASR and NeMo.

    With `zero_triu`, later keys have no relative term: use `table[:, :n]`, `clip=(n - 1, 0)` and `beyond="zero"`.

    Args:
        attention: Module of the package.
        x: (batch, n, dim).
        pos_emb: (1, 2n − 1, dim).
        lengths: (batch,) numbers of valid positions, in place of the mask.
    """
    query, key, value = attention.forward_qkv(x, x, x)  # (batch, heads, n, d_k)
    table = attention.linear_pos(pos_emb[0]).unflatten(-1, (attention.h, -1)).transpose(0, 1)
    out = relative_attention(
        query + attention.pos_bias_u[:, None],
        key,
        value,
        table,
        rel_query=query + attention.pos_bias_v[:, None],
        clip=x.shape[1] - 1,
        dropout_p=attention.dropout.p if attention.training else 0.0,
        key_lengths=lengths,
    )
    return attention.linear_out(out.transpose(1, 2).flatten(2))


def speechbrain(attention: Any, x: Tensor, pos_embs: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Replace the attention of SpeechBrain, whose scale is dim^−1/2.

    `is_causal=True` replaces a causal `attn_mask`, `chunk=(size, left_chunks)` that of dynamic chunk training.

    Args:
        attention: Module of the package.
        x: (batch, n, dim).
        pos_embs: (1, 2n − 1, dim).
        lengths: (batch,) numbers of valid positions, in place of the mask.
    """
    heads = attention.num_heads
    projected = torch.nn.functional.linear(x, attention.in_proj_weight)
    query, key, value = projected.unflatten(-1, (heads, -1)).transpose(1, 2).chunk(3, dim=-1)
    if attention.vbias is not None:
        value = value + attention.value_bias_weight.view(heads, 1, -1)
    out = relative_attention(
        query + attention.pos_bias_u.view(heads, 1, -1),
        key,
        value,
        attention.linear_pos(pos_embs[0]).unflatten(-1, (heads, -1)).transpose(0, 1),
        rel_query=query + attention.pos_bias_v.view(heads, 1, -1),
        clip=x.shape[1] - 1,
        scale=attention.scale,
        dropout_p=attention.dropout if attention.training else 0.0,
        key_lengths=lengths,
    )
    return attention.out_proj(out.transpose(1, 2).flatten(2))


def x_transformers(
    rel_pos: Any, query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """Replace the attention of x-transformers.

    Args:
        rel_pos: `rel_pos` of an `Encoder` or `Decoder`, whose layers share its bias (heads, rows).
        query: (batch, heads, n, dim_head), and so are key and value.
        lengths: (batch,) numbers of valid positions.
        is_causal: Whether this is a decoder.
    """
    n = key.shape[2]
    rows = min(n, getattr(rel_pos, "max_distance", n) + 1)  # T5's buckets end there
    bias = rel_pos(1 if is_causal else rows, rows)
    parts = [bias[:, -1]]  # the last query: distances 1 - rows to 0
    if not is_causal:
        parts.append(bias[:, 0, 1:])  # the first query: distances 1 to rows - 1
    rel_bias = torch.cat(parts, dim=-1)
    clip = (rows - 1, 0 if is_causal else rows - 1)
    return relative_attention(query, key, value, rel_bias=rel_bias, clip=clip, is_causal=is_causal, key_lengths=lengths)


def fairseq2(sdpa: Any, seqs: Tensor, keys: Tensor, values: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Replace the attention of fairseq2 and WeNet, whose module holds the tables.

    Args:
        sdpa: Module of the package.
        seqs: Projected queries (batch, heads, n, head_dim), and so are keys and values.
        lengths: (batch,) numbers of valid positions.
    """
    rel_v_embed = getattr(sdpa, "rel_v_embed", None)  # WeNet has none
    return relative_attention(
        seqs,
        keys,
        values,
        sdpa.rel_k_embed.weight,
        None if rel_v_embed is None else rel_v_embed.weight,
        clip=(sdpa.max_left_rel_pos, sdpa.max_right_rel_pos),
        key_lengths=lengths,
    )


def rvc(attention: Any, x: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Replace the attention of RVC, so-vits-svc and Piper.

    Args:
        attention: Module of the package.
        x: (batch, channels, n).
        lengths: (batch,) numbers of valid positions.
    """
    query, key, value = (
        projection(x).unflatten(1, (attention.n_heads, -1)).mT
        for projection in (attention.conv_q, attention.conv_k, attention.conv_v)
    )
    tables = attention.emb_rel_k.squeeze(0), attention.emb_rel_v.squeeze(0)
    dropped = attention.drop.p if attention.training else 0.0
    out = relative_attention(query, key, value, *tables, beyond="zero", dropout_p=dropped, key_lengths=lengths)
    return attention.conv_o(out.mT.flatten(1, 2))
