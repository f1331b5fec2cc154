"""The public operators: the contract, its checks, and the choice of a backend.

    e_ij = scale · q_i · (k_j + aK_ij)        α_i = softmax_j e_ij        z_i = Σ_j α_ij (v_j + aV_ij)

`relative_attention` takes aK_ij and aV_ij from tables by clip(j − i), key position minus query position (Shaw,
Uszkoreit, Vaswani 2018, section 3.2); `relation_attention` by a label of the caller's for every pair (section 3.1).
"""

import contextlib
from typing import Any

import torch
from torch import Tensor

from relattn import backends
from relattn.call import Attended, Beyond, Call, RelationCall, RelativeCall


def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rel_key: Tensor | None = None,
    rel_value: Tensor | None = None,
    *,
    clip: int | tuple[int, int],
    beyond: Beyond = "clip",
    query_offset: int | Tensor | None = None,
    is_causal: bool = False,
    key_lengths: Tensor | None = None,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention with clipped relative position representations.

    Args:
        query: (batch, heads, queries, dim).
        key: (batch, key_heads, keys, dim), where heads % key_heads == 0: heads of a group share keys.
        value: (batch, key_heads, keys, value_dim).
        rel_key: wK, (labels, dim) for all heads or (heads, labels, dim); row 0 is for keys farthest to the left.
        rel_value: wV, (labels, value_dim) or (heads, labels, value_dim).
        clip: k, or (left, right) where the window is lopsided; labels == left + right + 1.
        beyond: pairs outside the window take the edge row ("clip", the paper) or have no relative term ("zero").
        query_offset: position of the first query on the key axis, one or (batch,) integers. By default the queries
            are the last of the keys (0 for self-attention). With `key_lengths` and queries ≠ keys it must be given.
        is_causal: keys at positions past the query's own are not attended to.
        key_lengths: (batch,) numbers of valid keys of a right-padded batch, in [0, keys]. A query whose own position
            is at or past its sequence's length is padding too. Padding may hold any numbers of moderate size.
        mask: bool, broadcastable to (batch, heads, queries, keys); True may attend. All masks given are applied.
        dropout_p: share of probabilities dropped, after normalising; the kept ones are scaled up. A caller that
            evaluates passes 0.0.
        scale: multiplies both terms of the score; dim ** -0.5 by default.
        backend: "auto", or the name of one: "native", "triton", "dense", "merged", "reference". One that cannot serve
            the call is an error. On a GPU "auto" tries "triton" first when it meets a new kind of call, and trusts it
            or not from then on (docs/backends.md).
        return_lse: also return the log-sum-exp of the scores.

    Returns:
        The output (batch, heads, queries, value_dim), or with `return_lse` a pair of it and the log-sum-exp (batch,
        heads, queries): natural logarithm, before dropout, float32 for half types, carrying no gradient. A query that
        is padding or has nothing to attend to gets zeros, −inf, and passes no gradient.

    Raises:
        ValueError: shapes, types or options that break a rule above; the message restates them.
    """
    left, right = window(clip)
    if beyond not in ("clip", "zero"):
        raise ValueError(f"beyond is {beyond!r}; it is 'clip' or 'zero'")
    check_tables(query, value, rel_key, rel_value, left + right + 1, f"clip {clip} makes")
    shared = common(query, key, value, rel_key, rel_value, query_offset, is_causal, key_lengths, mask, dropout_p, scale)
    call = RelativeCall(**shared, return_lse=return_lse, left=left, right=right, beyond=beyond)
    with without_autocast(call):
        return unpack(backends.choose(backend, call).relative_attention(call))


def relation_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relations: Tensor,
    rel_key: Tensor | None = None,
    rel_value: Tensor | None = None,
    *,
    is_causal: bool = False,
    query_offset: int | Tensor | None = None,
    key_lengths: Tensor | None = None,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
    check: bool | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over any labelled graph: the pair (i, j) takes row `relations[..., i, j]` of each table.

    Args:
        relations: (batch or 1, heads or 1, queries, keys) integers in [−1, labels); −1 means no relative term.
        check: look for labels out of range. By default on CPU only, since looking waits for a GPU; a compiled or
            exported call never looks. Elsewhere a label out of range is undefined.

    The other arguments, what is returned and what is raised are those of `relative_attention`.
    """
    check_relations(query, key, relations)
    labels = label_count(rel_key, rel_value)
    if labels is not None:
        check_tables(query, value, rel_key, rel_value, labels, "the other table makes")
        check_labels(relations, labels, check)
    shared = common(query, key, value, rel_key, rel_value, query_offset, is_causal, key_lengths, mask, dropout_p, scale)
    call = RelationCall(**shared, return_lse=return_lse, relations=relations)
    with without_autocast(call):
        return unpack(backends.choose(backend, call).relation_attention(call))


def window(clip: int | tuple[int, int]) -> tuple[int, int]:
    """A clipping distance, or one each way, as (left, right); ValueError where it is neither."""
    sides = clip if isinstance(clip, tuple | list) else (clip, clip)
    whole = all(isinstance(side, int) and not isinstance(side, bool) for side in sides)
    if len(sides) != 2 or not whole or min(sides) < 0:
        raise ValueError(f"clip is {clip!r}; it is one integer >= 0, or a pair of them (left, right)")
    return sides[0], sides[1]


def common(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rel_key: Tensor | None,
    rel_value: Tensor | None,
    query_offset: int | Tensor | None,
    is_causal: bool,
    key_lengths: Tensor | None,
    mask: Tensor | None,
    dropout_p: float,
    scale: float | None,
) -> dict[str, Any]:
    """The fields of `Call` that both operators share, checked, with defaults resolved and autocast applied."""
    check_shapes(query, key, value)
    check_masks(query, key, query_offset, key_lengths, mask)
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p is {dropout_p}; it is a probability, in [0, 1]")
    floats = autocast(query=query, key=key, value=value, rel_key=rel_key, rel_value=rel_value)
    check_types(floats, query_offset=query_offset, key_lengths=key_lengths, mask=mask)
    return {
        **floats,
        "query_offset": key.shape[2] - query.shape[2] if query_offset is None else query_offset,
        "is_causal": is_causal,
        "key_lengths": key_lengths,
        "mask": mask,
        "dropout_p": dropout_p,
        "scale": query.shape[3] ** -0.5 if scale is None else scale,
    }


def check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    broken = None
    if not query.dim() == key.dim() == value.dim() == 4:
        broken = "each has four dimensions, (batch, heads, length, dim)"
    elif not query.shape[0] == key.shape[0] == value.shape[0]:
        broken = "all have the same batch, dimension 0"
    elif key.shape[1] != value.shape[1] or key.shape[2] != value.shape[2]:
        broken = "key and value have the same heads and length, dimensions 1 and 2"
    elif key.shape[1] == 0 or query.shape[1] % key.shape[1] != 0:
        broken = "heads of the query are a multiple of heads of the key, dimension 1"
    elif query.shape[3] != key.shape[3] or query.shape[3] == 0:
        broken = "query and key have the same dim >= 1, dimension 3"
    if broken is not None:
        raise ValueError(f"query {show(query)}, key {show(key)}, value {show(value)}: {broken}")


def check_tables(
    query: Tensor, value: Tensor, rel_key: Tensor | None, rel_value: Tensor | None, labels: int, because: str
) -> None:
    if query.dim() != 4 or value.dim() != 4:
        return  # `check_shapes` has the better message
    heads = query.shape[1]
    for name, table, dim in (("rel_key", rel_key, query.shape[3]), ("rel_value", rel_value, value.shape[3])):
        if table is None:
            continue
        if table.dim() not in (2, 3) or table.shape[-1] != dim or (table.dim() == 3 and table.shape[0] != heads):
            rule = f"it is (labels, {dim}), or ({heads}, labels, {dim}) for a table a head"
            raise ValueError(f"{name} {show(table)} with query {show(query)} and value {show(value)}: {rule}")
        if table.shape[-2] != labels:
            raise ValueError(f"{name} {show(table)} has {table.shape[-2]} rows; {because} {labels} labels")


def check_masks(
    query: Tensor, key: Tensor, query_offset: int | Tensor | None, key_lengths: Tensor | None, mask: Tensor | None
) -> None:
    batch, heads, queries = query.shape[:3]
    keys = key.shape[2]
    each = "it is an integer, or (batch,) integers, one a sequence"
    if isinstance(query_offset, Tensor):
        if query_offset.shape != (batch,):
            raise ValueError(f"query_offset {show(query_offset)}, batch {batch}: {each}")
    elif query_offset is not None and not isinstance(query_offset, int | torch.SymInt):
        raise ValueError(f"query_offset is {query_offset!r}: {each}")
    if key_lengths is not None:
        if key_lengths.shape != (batch,):
            raise ValueError(f"key_lengths {show(key_lengths)}: it is ({batch},), one length a sequence")
        if query_offset is None and queries != keys:
            shapes = f"query {show(query)}, key {show(key)}"
            raise ValueError(f"{shapes} with key_lengths: query_offset must be given where queries ≠ keys")
        if may_look(key_lengths) and key_lengths.numel() > 0:
            least, most = (int(x) for x in key_lengths.aminmax())
            if least < 0 or most > keys:
                raise ValueError(f"key_lengths from {least} to {most}: they are in [0, {keys}], the number of keys")
    if mask is not None:
        full = (batch, heads, queries, keys)
        fits = mask.dim() <= 4 and all(
            have == 1 or have == want for have, want in zip(mask.shape[::-1], full[::-1], strict=False)
        )
        if not fits:
            raise ValueError(f"mask {show(mask)}: it broadcasts to (batch, heads, queries, keys), here {full}")


def check_types(floats: dict[str, Tensor | None], **others: Any) -> None:
    """One floating type among `floats`, integers and a bool mask among `others`, one device for all."""
    kinds = {name: tensor.dtype for name, tensor in floats.items() if tensor is not None}
    if len(set(kinds.values())) > 1 or not floats["query"].is_floating_point():  # type: ignore[union-attr]
        listed = ", ".join(f"{name} {str(kind).removeprefix('torch.')}" for name, kind in kinds.items())
        raise ValueError(f"{listed}: all have one floating-point type")
    mask = others["mask"]
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask has type {mask.dtype}: it is torch.bool, True where a pair may attend")
    for name in ("query_offset", "key_lengths"):
        if isinstance(others[name], Tensor) and not is_integer(others[name]):
            raise ValueError(f"{name} has type {others[name].dtype}: it holds integers")
    tensors = {name: tensor for name, tensor in {**floats, **others}.items() if isinstance(tensor, Tensor)}
    if len({tensor.device for tensor in tensors.values()}) > 1:
        raise ValueError(", ".join(f"{name} on {x.device}" for name, x in tensors.items()) + ": all are on one device")


def check_relations(query: Tensor, key: Tensor, relations: Tensor) -> None:
    if not is_integer(relations):
        raise ValueError(f"relations has type {relations.dtype}: it holds integers")
    if query.dim() != 4 or key.dim() != 4:
        return  # `check_shapes` has the better message
    batch, heads, queries = query.shape[:3]
    keys = key.shape[2]
    fits = relations.dim() == 4 and relations.shape[2:] == (queries, keys)
    if not fits or relations.shape[0] not in (1, batch) or relations.shape[1] not in (1, heads):
        raise ValueError(f"relations {show(relations)}: it is ({batch} or 1, {heads} or 1, {queries}, {keys})")
    if relations.device != query.device:
        raise ValueError(f"relations on {relations.device}, query on {query.device}: all are on one device")


def check_labels(relations: Tensor, labels: int, check: bool | None) -> None:
    wanted = relations.device.type == "cpu" if check is None else check
    if not wanted or torch.compiler.is_compiling() or relations.numel() == 0:
        return
    least, most = (int(x) for x in relations.aminmax())
    if least < -1 or most >= labels:
        raise ValueError(f"relations from {least} to {most}: labels are in [−1, {labels}), {labels} rows a table")


def label_count(rel_key: Tensor | None, rel_value: Tensor | None) -> int | None:
    table = rel_key if rel_key is not None else rel_value
    return None if table is None or table.dim() < 2 else table.shape[-2]


def may_look(tensor: Tensor) -> bool:
    """Whether reading values costs no wait for a device and breaks no trace."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def show(tensor: Tensor) -> str:
    return f"({', '.join(str(size) for size in tensor.shape)}{',' if tensor.dim() == 1 else ''})"


def autocast(**floats: Tensor | None) -> dict[str, Tensor | None]:
    """Under autocast, the tensors in its type, float64 excepted, as it does for PyTorch's own attention."""
    query = floats["query"]
    assert query is not None
    device = query.device.type
    if not torch.is_autocast_enabled(device):
        return floats
    kind = torch.get_autocast_dtype(device)
    eligible = (torch.float16, torch.bfloat16, torch.float32)
    return {name: x.to(kind) if x is not None and x.dtype in eligible else x for name, x in floats.items()}


def without_autocast(call: Call) -> contextlib.AbstractContextManager[Any]:
    """The type was decided once, in `common`; inside a backend autocast is off."""
    device = call.query.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else contextlib.nullcontext()


def unpack(attended: Attended) -> Tensor | tuple[Tensor, Tensor]:
    return attended.output if attended.lse is None else (attended.output, attended.lse)
