"""The public operators: their contract, and a call made of what they are given.

    e_ij = scale · (q_i · k_j + r_i · aK_ij)        α_i = softmax_j e_ij        z_i = Σ_j α_ij (v_j + aV_ij)

where r_i is q_i, as in the paper, or a vector of its own, which makes this the attention of a family (docs/family.md).
`relative_attention` takes aK_ij and aV_ij from tables by clip(j − i), key position minus query position (Shaw,
Uszkoreit, Vaswani 2018, section 3.2); `relation_attention` by a label of the caller's for every pair (section 3.1).
"""

import contextlib
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from relattn import backends, checks, positions
from relattn.call import Beyond, Call

Clip = int | tuple[int, int] | None


class Options(TypedDict, total=False):
    """What both operators take by name, as `relative_attention` documents it."""

    rel_query: Tensor | None
    query_offset: int | Tensor | None
    is_causal: bool
    key_lengths: Tensor | None
    query_lengths: Tensor | None
    mask: Tensor | None
    dropout_p: float
    scale: float | None
    backend: str


@overload
def relative_attention(
    query: Tensor, key: Tensor, value: Tensor, rel_key: Tensor | None = None, rel_value: Tensor | None = None, *,
    clip: Clip = None, beyond: Beyond = "clip", return_lse: Literal[False] = False, **options: Unpack[Options],
) -> Tensor: ...  # fmt: skip
@overload
def relative_attention(
    query: Tensor, key: Tensor, value: Tensor, rel_key: Tensor | None = None, rel_value: Tensor | None = None, *,
    clip: Clip = None, beyond: Beyond = "clip", return_lse: Literal[True], **options: Unpack[Options],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def relative_attention(
    query: Tensor, key: Tensor, value: Tensor, rel_key: Tensor | None = None, rel_value: Tensor | None = None, *,
    rel_query: Tensor | None = None, clip: Clip = None, beyond: Beyond = "clip",
    query_offset: int | Tensor | None = None, is_causal: bool = False, key_lengths: Tensor | None = None,
    query_lengths: Tensor | None = None, mask: Tensor | None = None, dropout_p: float = 0.0,
    scale: float | None = None, backend: str = "auto", return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Attention with clipped relative position representations, or without where there are no tables.

    Args:
        query: (batch, heads, queries, dim).
        key: (batch, key_heads, keys, dim), where heads % key_heads == 0: heads of a group share keys.
        value: (batch, key_heads, keys, value_dim).
        rel_key: wK, (labels, dim) for all heads or (heads, labels, dim); row 0 is for keys farthest to the left.
            With a `rel_query`, (labels, rel_dim) or (heads, labels, rel_dim).
        rel_value: wV, (labels, value_dim) or (heads, labels, value_dim).
        rel_query: r, (batch, heads, queries, rel_dim): what a query brings to the relative term, by default itself.
            With q + v, and q + u for a query, scores are Transformer-XL's; with ones of one dim, `rel_key` is a bias.
        clip: k, or (left, right) where the window is lopsided; labels == left + right + 1. By default what the rows
            of the tables say, 2k + 1 of them; a table of one side alone, as causal schemes have, needs (rows − 1, 0).
        beyond: pairs outside the window take the edge row ("clip", the paper) or have no relative term ("zero").
        query_offset: position of the first query on the key axis, one or (batch,) integers. By default the queries are
            the last of the keys. It must be given with `key_lengths` where queries ≠ keys and positions matter.
        is_causal: keys at positions past the query's own are not attended to.
        key_lengths: (batch,) numbers of valid keys of a right-padded batch, and in self-attention (queries == keys, no
            `query_offset` given) of valid queries as well. Padding may hold any numbers of moderate size.
        query_lengths: (batch,) numbers of valid queries of a right-padded batch.
        mask: bool, broadcastable to (batch, heads, queries, keys); True may attend. All masks given are applied.
        dropout_p: share of probabilities dropped, after normalising; the kept ones are scaled up. A caller that
            evaluates passes 0.0.
        scale: multiplies both terms of the score; dim ** -0.5 by default. A bias that is not to be scaled is divided
            by it beforehand.
        backend: "auto", or one of `relattn.backends.NAMES`; one that cannot serve the call is an error. On a GPU "auto"
            tries "triton" first when it meets a new kind of call, and trusts it or not from then on (docs/backends.md).
        return_lse: also return the log-sum-exp of the scores.

    Returns:
        The output (batch, heads, queries, value_dim), or with `return_lse` a pair of it and the log-sum-exp (batch,
        heads, queries): natural logarithm, before dropout, float32 for half types, carrying no gradient. A query that
        is padding or has nothing to attend to gets zeros, −inf, and passes no gradient. First derivatives, by autograd
        or `torch.func.grad`; forward mode and higher derivatives are for backend="reference".

    Raises:
        ValueError, TypeError: shapes, types or options that break a rule above; the message restates them.
    """
    options = {
        "rel_query": rel_query, "query_offset": query_offset, "is_causal": is_causal, "key_lengths": key_lengths,
        "query_lengths": query_lengths, "mask": mask, "dropout_p": dropout_p, "scale": scale, "backend": backend,
    }  # fmt: skip
    return attend(query, key, value, None, rel_key, rel_value, clip, beyond, None, return_lse, options)


@overload
def relation_attention(
    query: Tensor, key: Tensor, value: Tensor, relations: Tensor, rel_key: Tensor | None = None,
    rel_value: Tensor | None = None, *, return_lse: Literal[False] = False, check: bool | None = None,
    **options: Unpack[Options],
) -> Tensor: ...  # fmt: skip
@overload
def relation_attention(
    query: Tensor, key: Tensor, value: Tensor, relations: Tensor, rel_key: Tensor | None = None,
    rel_value: Tensor | None = None, *, return_lse: Literal[True], check: bool | None = None,
    **options: Unpack[Options],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def relation_attention(
    query: Tensor, key: Tensor, value: Tensor, relations: Tensor, rel_key: Tensor | None = None,
    rel_value: Tensor | None = None, *, rel_query: Tensor | None = None,
    query_offset: int | Tensor | None = None, is_causal: bool = False,
    key_lengths: Tensor | None = None, query_lengths: Tensor | None = None, mask: Tensor | None = None,
    dropout_p: float = 0.0, scale: float | None = None, backend: str = "auto", return_lse: bool = False,
    check: bool | None = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Attention over any labelled graph: the pair (i, j) takes row `relations[..., i, j]` of each table.

    Args:
        relations: (batch or 1, heads or 1, queries, keys) integers in [−1, labels); −1 means no relative term.
        check: look for labels out of range. By default on CPU only, since looking waits for a GPU; a compiled or
            exported call never looks. Elsewhere a label out of range is undefined.

    The other arguments, what is returned and what is raised are those of `relative_attention`.
    """
    options = {
        "rel_query": rel_query, "query_offset": query_offset, "is_causal": is_causal, "key_lengths": key_lengths,
        "query_lengths": query_lengths, "mask": mask, "dropout_p": dropout_p, "scale": scale, "backend": backend,
    }  # fmt: skip
    if relations is None:
        raise TypeError("relations is None: it is a tensor of labels; relative_attention labels pairs by position")
    return attend(query, key, value, relations, rel_key, rel_value, 0, "zero", check, return_lse, options)


def attend(
    query: Tensor, key: Tensor, value: Tensor, relations: Tensor | None, rel_key: Tensor | None,
    rel_value: Tensor | None, clip: Clip, beyond: Beyond, check: bool | None, return_lse: bool, options: dict[str, Any],
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Either operator; `relations` says which."""
    others = {"key_lengths": options["key_lengths"], "query_lengths": options["query_lengths"], "mask": options["mask"]}
    others["relations"] = relations
    floats: dict[str, Any] = {"query": query, "key": key, "value": value, "rel_key": rel_key, "rel_value": rel_value}
    floats["rel_query"] = options["rel_query"]
    checks.check_tensors(**floats, **others)
    checks.check_shapes(query, key, value)
    floats = autocast(floats)
    checks.check_types(floats, {**others, "query_offset": options["query_offset"]})
    checks.check_numbers(options["dropout_p"], options["scale"])
    checks.check_rel_query(floats)
    checks.check_tables(floats)
    has_tables = rel_key is not None or rel_value is not None
    labels, because = checks.rows_of(rel_key, rel_value), "the other table makes"
    left = right = 0
    if relations is None:
        checks.check_beyond(beyond)
        left, right = checks.window_of_rows(labels) if clip is None else checks.window(clip)
        if clip is not None:
            because = f"clip {clip} makes"
        checks.check_rows(floats, left + right + 1, because)
    else:
        relations = checks.relations(query, key, relations)
        checks.check_rows(floats, labels, because)
        if has_tables:
            checks.check_labels(relations, labels, check)
    where = checks.where(query, key, options, counts=options["is_causal"] or (has_tables and relations is None))
    call = Call(
        **floats,
        relations=relations if has_tables else None,
        query_offsets=where.offsets,
        key_lengths=where.key_lengths,
        query_lengths=where.query_lengths,
        mask=checks.four_dimensions(options["mask"], query, key),
        query_offset=where.offset,
        left=left,
        right=right,
        clips=beyond == "clip",
        is_causal=bool(options["is_causal"]),
        dropout_p=options["dropout_p"],
        scale=query.shape[3] ** -0.5 if options["scale"] is None else options["scale"],
    )
    call = positions.without_unused_rows(call, where.bounds)
    with without_autocast(query.device.type):  # the type was decided above
        output, lse = backends.choose(options["backend"], call).attend(call, return_lse)
    return output if lse is None else (output, lse)


def autocast(floats: dict[str, Any]) -> dict[str, Any]:
    """Under autocast, the tensors in its type, float64 excepted, as it does for PyTorch's own attention."""
    device = floats["query"].device.type
    if not casts(device):
        return floats
    kind = torch.get_autocast_dtype(device)
    eligible = (torch.float16, torch.bfloat16, torch.float32)
    return {name: x if x is None or x.dtype not in eligible else x.to(kind) for name, x in floats.items()}


def without_autocast(device: str) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast(device, enabled=False) if casts(device) else contextlib.nullcontext()


def casts(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
