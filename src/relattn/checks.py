"""What the public operators are given, held to the contract: each check takes for granted what those before it found.

Messages restate what was given and the rule it breaks, in one line.
"""

import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

WIDER = {torch.uint8: torch.int16, torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}
FURTHEST = 2**62  # a position further off would not be within 64 bits of another


def check_tensors(**given: Any) -> None:
    for name, x in given.items():
        if x is not None and not isinstance(x, Tensor):
            hint = ": pass its weight" if isinstance(x, torch.nn.Module) else ""
            raise TypeError(f"{name} is a {type(x).__name__}, and not a tensor{hint}")


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
    elif value.shape[3] == 0:
        broken = "value has a dim >= 1, dimension 3"
    if broken is not None:
        raise ValueError(f"query {show(query)}, key {show(key)}, value {show(value)}: {broken}")


def check_numbers(dropout_p: Any, scale: Any) -> None:
    if not isinstance(dropout_p, float | int) or not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p is {dropout_p!r}; it is a probability, in [0, 1]")
    if scale is not None and not isinstance(scale, float | int | torch.SymFloat):
        raise ValueError(f"scale is {scale!r}; it is a number")


def check_types(floats: dict[str, Tensor], others: dict[str, Any]) -> None:
    """One floating type among `floats`, a bool mask, one device for all."""
    kinds = {name: tensor.dtype for name, tensor in floats.items() if tensor is not None}
    if len(set(kinds.values())) > 1 or not kinds["query"].is_floating_point:
        listed = ", ".join(f"{name} {str(kind).removeprefix('torch.')}" for name, kind in kinds.items())
        raise ValueError(f"{listed}: all have one floating-point type")
    mask = others["mask"]
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask has type {mask.dtype}: it is torch.bool, True where a pair may attend")
    tensors = {name: tensor for name, tensor in {**floats, **others}.items() if isinstance(tensor, Tensor)}
    if len({tensor.device for tensor in tensors.values()}) > 1:
        raise ValueError(", ".join(f"{name} on {x.device}" for name, x in tensors.items()) + ": all are on one device")


def check_beyond(beyond: Any) -> None:
    if beyond not in ("clip", "zero"):
        raise ValueError(f"beyond is {beyond!r}; it is 'clip' or 'zero'")


def window_of_rows(rows: int) -> tuple[int, int]:
    """The window, as (left, right), that so many rows of a table say; none for no rows, which are of no table."""
    if rows > 0 and rows % 2 == 0:
        raise ValueError(f"clip is not given, and {rows} rows per table are no 2 · clip + 1: give it as (left, right)")
    return rows // 2, rows // 2


def window(clip: Any) -> tuple[int, int]:
    """A clipping distance, or one each way, as (left, right)."""
    sides = [whole(side) for side in (clip if isinstance(clip, tuple | list) else (clip, clip))]
    if len(sides) != 2 or any(side is None or side < 0 for side in sides):
        raise ValueError(f"clip is {clip!r}; it is one integer >= 0, or a pair of them (left, right)")
    return sides[0], sides[1]


def rows_of(rel_key: Tensor | None, rel_value: Tensor | None) -> int:
    """Labels that the tables have rows for, by the first that is there; 0 where none is."""
    table = rel_key if rel_key is not None else rel_value
    return 0 if table is None else table.shape[-2]


def check_rel_query(floats: dict[str, Tensor]) -> None:
    rel_query, query = floats["rel_query"], floats["query"]
    if rel_query is None:
        return
    if rel_query.dim() != 4 or rel_query.shape[:3] != query.shape[:3] or rel_query.shape[3] == 0:
        batch, heads, queries = query.shape[:3]
        rule = f"it is ({batch}, {heads}, {queries}, rel_dim), as the query but for a dim >= 1 of its own"
        raise ValueError(f"rel_query {show(rel_query)} with query {show(query)}: {rule}")
    if floats["rel_key"] is None:
        raise ValueError(f"rel_query {show(rel_query)} without rel_key: it is what rows of rel_key are multiplied by")


def check_tables(floats: dict[str, Tensor]) -> None:
    query, value = floats["query"], floats["value"]
    asks = "query" if floats["rel_query"] is None else "rel_query"
    heads = query.shape[1]
    for name, dim in (("rel_key", floats[asks].shape[3]), ("rel_value", value.shape[3])):
        table = floats[name]
        if table is None:
            continue
        if table.dim() not in (2, 3) or table.shape[-1] != dim or (table.dim() == 3 and table.shape[0] != heads):
            rule = f"it is (labels, {dim}), or ({heads}, labels, {dim}) for one table per head"
            if name == "rel_key" and asks == "query":
                rule += "; another dim needs a rel_query of that dim"
            beside = f"{asks} {show(floats[asks])} and value {show(value)}"
            raise ValueError(f"{name} {show(table)} with {beside}: {rule}")
        if table.shape[-2] == 0:
            raise ValueError(f"{name} {show(table)} has no rows: it has one for every label")


def check_rows(floats: dict[str, Tensor], labels: int, because: str) -> None:
    for name in ("rel_key", "rel_value"):
        table = floats[name]
        if table is not None and table.shape[-2] != labels:
            raise ValueError(f"{name} {show(table)} has {table.shape[-2]} rows; {because} {labels} labels")


def relations(query: Tensor, key: Tensor, given: Tensor) -> Tensor:
    """Labels of pairs, checked but for their numbers."""
    batch, heads, queries = query.shape[:3]
    keys = key.shape[2]
    fits = given.dim() == 4 and given.shape[2:] == (queries, keys)
    if not fits or given.shape[0] not in (1, batch) or given.shape[1] not in (1, heads):
        raise ValueError(f"relations {show(given)}: it is ({batch} or 1, {heads} or 1, {queries}, {keys})")
    return integers("relations", given)


def check_labels(relations: Tensor, labels: int, check: bool | None) -> None:
    if not (may_look(relations) if check is None else check and not torch.compiler.is_compiling()):
        return
    least, most = bounds_of(relations)
    if least < -1 or most >= labels:
        raise ValueError(f"relations from {least} to {most}: labels are in [−1, {labels}), {labels} rows per table")


def integers(name: str, x: Tensor) -> Tensor:
    """A tensor of integers in a signed type."""
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise ValueError(f"{name} has type {x.dtype}: it holds integers")
    return x.to(WIDER[x.dtype]) if x.dtype in WIDER else x


def lengths(name: str, x: Tensor | None, batch: int, most: int, of: str) -> Tensor | None:
    """Numbers of valid `of` (queries or keys), checked."""
    if x is None:
        return None
    if x.shape != (batch,):
        raise ValueError(f"{name} {show(x)}: it is ({batch},), one length for each sequence")
    x = integers(name, x)
    if may_look(x):
        low, high = bounds_of(x)
        if low < 0 or high > most:
            raise ValueError(f"{name} from {low} to {high}: they are in [0, {most}], the number of {of}")
    return x


class Where(NamedTuple):
    """Where queries and keys stand, and which of them are valid."""

    offset: int  # position of query 0
    offsets: Tensor | None  # where each sequence has its own
    bounds: tuple[int, int] | None  # the least and the largest of these, where they are known
    key_lengths: Tensor | None
    query_lengths: Tensor | None


def where(query: Tensor, key: Tensor, options: Any, *, counts: bool) -> Where:
    """From options, of which defaults are resolved; `counts` says whether positions make a difference."""
    batch, _, queries, _ = query.shape
    keys, given = key.shape[2], options["query_offset"]
    key_lengths = lengths("key_lengths", options["key_lengths"], batch, keys, "keys")
    query_lengths = lengths("query_lengths", options["query_lengths"], batch, queries, "queries")
    if given is None:
        if key_lengths is not None and queries != keys and counts:
            shapes = f"query {show(query)}, key {show(key)}"
            raise ValueError(f"{shapes} with key_lengths: query_offset must be given where queries ≠ keys")
        if query_lengths is None and queries == keys:
            query_lengths = key_lengths
        given = keys - queries
    if isinstance(given, Tensor):
        if given.shape != (batch,):
            raise ValueError(f"query_offset {show(given)}: {rule_of_offset(batch)}")
        given = integers("query_offset", given)
        bounds = bounds_of(given) if may_look(given) else None
        if bounds is not None and max(-bounds[0], bounds[1]) > FURTHEST:
            raise ValueError(f"query_offset from {bounds[0]} to {bounds[1]}: {rule_of_offset(batch)}")
        return Where(0, given, bounds, key_lengths, query_lengths)
    one = whole(given)
    traced = torch.compiler.is_compiling()
    if one is None or (not traced and abs(one) > FURTHEST):
        raise ValueError(f"query_offset is {given!r}: {rule_of_offset(batch)}")
    return Where(one, None, None if traced else (one, one), key_lengths, query_lengths)


def rule_of_offset(batch: int) -> str:
    return f"it is an integer, or ({batch},) integers, one for each sequence, within 2^62 of zero"


def four_dimensions(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """A mask that broadcasts to (batch, heads, queries, keys), with all four."""
    if mask is None:
        return None
    full = (*query.shape[:3], key.shape[2])
    fits = mask.dim() <= 4 and all(
        have == 1 or have == want for have, want in zip(mask.shape[::-1], full[::-1], strict=False)
    )
    if not fits:
        raise ValueError(f"mask {show(mask)}: it broadcasts to (batch, heads, queries, keys), here {full}")
    return mask[(None,) * (4 - mask.dim())]


def whole(x: Any) -> Any:
    """An integral number as a Python integer; None where it is none."""
    if isinstance(x, int | torch.SymInt):
        return None if isinstance(x, bool) else x
    return operator.index(x) if hasattr(x, "__index__") and not isinstance(x, Tensor) else None


def bounds_of(x: Tensor) -> tuple[int, int]:
    """The least and the largest; zeros of nothing."""
    if x.numel() == 0:
        return 0, 0
    least, most = x.aminmax()
    return int(least), int(most)


def may_look(tensor: Tensor) -> bool:
    """Whether values can be read at no wait for a device, and breaking no trace or `torch.vmap`; a fake has none."""
    if tensor.device.type != "cpu" or torch.compiler.is_compiling() or isinstance(tensor, FakeTensor):
        return False
    return not torch._C._functorch.is_batchedtensor(tensor)


def show(tensor: Tensor) -> str:
    return f"({', '.join(str(size) for size in tensor.shape)}{',' if tensor.dim() == 1 else ''})"
