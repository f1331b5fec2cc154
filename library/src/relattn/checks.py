"""Single checks of what the operators are given; `Call.from_arguments` lists them in their order.

Each check assumes that the checks before it passed. A check that fails raises one line: what must hold, then what was
given.
"""

import operator
import sys
from itertools import pairwise
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

SIGNED = {torch.uint8: torch.int16, torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}
FARTHEST = 2**62  # positions farther from zero than this could overflow 64 bits when they are subtracted
WIDEST = 2**29  # windows and chunks wider than this could overflow 32 bits when they are added to positions


def check_tensors(arguments: dict[str, Any]) -> None:
    """Check that each argument is a dense tensor or None; the operands query, key and value must be given."""
    for name, x in arguments.items():
        if isinstance(x, Tensor):
            if x.is_nested:
                raise TypeError(f"{name} must be a padded tensor, got a nested tensor; pad it and pass its lengths")
            if x.layout != torch.strided:
                raise TypeError(f"{name} must be a dense tensor, got layout {x.layout}; pass its to_dense()")
        elif x is not None or name in ("query", "key", "value"):
            hint = "; pass its weight" if isinstance(x, torch.nn.Module) else ""
            raise TypeError(f"{name} must be a tensor, got {'None' if x is None else type(x).__name__}{hint}")


def present(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that are not None."""
    return {name: x for name, x in arguments.items() if x is not None}


def check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check the shapes of query, key and value against each other."""
    rule = None
    shapes = query.shape, key.shape, value.shape
    if not len(shapes[0]) == len(shapes[1]) == len(shapes[2]) == 4:
        rule = "query, key and value must have four dimensions (batch, heads, length, dim)"
    else:
        (batch, heads, _, dim), (key_batch, key_heads, keys, key_dim), (*of_value, value_dim) = shapes
        if not batch == key_batch == of_value[0]:
            rule = "query, key and value must have the same batch size (dimension 0)"
        elif [key_heads, keys] != of_value[1:]:
            rule = "key and value must have the same heads and length (dimensions 1 and 2)"
        elif key_heads == 0 or heads == 0 or heads % key_heads != 0:
            rule = "the heads of query must be a multiple, at least 1, of the heads of key (dimension 1)"
        elif dim != key_dim or dim == 0:
            rule = "query and key must have the same dim, at least 1 (dimension 3)"
        elif value_dim == 0:
            rule = "value must have a dim of at least 1 (dimension 3)"
    if rule is not None:
        raise ValueError(f"{rule}, got query {show(query)}, key {show(key)}, value {show(value)}")


def check_dtypes(operands: dict[str, Any]) -> None:
    """Check that all tensors given have one floating-point dtype."""
    dtype = operands["query"].dtype
    given = present(operands)
    if any(x.dtype != dtype for x in given.values()) or not dtype.is_floating_point:
        listed = ", ".join(f"{name} {str(x.dtype).removeprefix('torch.')}" for name, x in given.items())
        raise ValueError(f"{', '.join(given)} must have one floating-point dtype, got {listed}")


def check_devices(arguments: dict[str, Any]) -> None:
    """Check that all tensors given are on one device."""
    device = arguments["query"].device
    given = present(arguments)
    if any(x.device != device for x in given.values()):
        listed = ", ".join(f"{name} on {x.device}" for name, x in given.items())
        raise ValueError(f"all tensors must be on one device, got {listed}")


def check_dropout(name: str, probability: Any) -> None:
    """Check a dropout probability."""
    probability = as_float(probability)
    if not isinstance(probability, float | int) or not 0.0 <= probability <= 1.0:
        raise ValueError(f"{name} must be a probability in [0, 1], got {probability!r}")


def check_flag(name: str, value: Any) -> None:
    """Check a switch."""
    if not isinstance(value, bool | torch.SymBool):
        given = f"a tensor of shape {show(value)}" if isinstance(value, Tensor) else repr(value)
        raise ValueError(f"{name} must be True or False, got {given}")


def check_scale(scale: Any) -> None:
    """Check the factor on the scores; None stands for the default."""
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, float | int | torch.SymFloat)):
        hint = "; pass scale.item(), or multiply query by it if it is learned" if isinstance(scale, Tensor) else ""
        raise ValueError(f"scale must be a number, got {scale!r}{hint}")
    if isinstance(scale, float | int) and not abs(scale) <= sys.float_info.max:
        raise ValueError(f"scale must be finite, got {scale}")


def check_beyond(beyond: Any) -> None:
    """Check what pairs beyond the clipping range get."""
    if beyond not in ("clip", "zero"):
        raise ValueError(f"beyond must be 'clip' or 'zero', got {beyond!r}")


def clipping_range(clip: Any) -> tuple[int, int]:
    """Return the clipping range (left, right) of a clipping distance k or a pair of them."""
    sides = [as_integer(side) for side in clip] if isinstance(clip, tuple | list) else [as_integer(clip)] * 2
    if len(sides) != 2 or None in sides or min(sides) < 0:
        raise ValueError(f"clip must be an integer >= 0, or a pair (left, right) of them, got {clip!r}")
    return sides[0], sides[1]


def clipping_range_of_rows(rows: int) -> tuple[int, int]:
    """Return the clipping range (k, k) of tables with 2k + 1 rows; (0, 0) without tables."""
    if rows > 0 and rows % 2 == 0:
        raise ValueError(f"clip must be given as (left, right) for tables of an even number of rows, got {rows} rows")
    return rows // 2, rows // 2


def check_window(window: Any, chunk: Any) -> tuple[int, int | None, int | None]:
    """Return the size of a chunk, and the limits before and after its first position.

    A sliding window (left, right) is that of chunks of one position. A limit is None if there is none.
    """
    left = right = None
    if window is not None:
        if not isinstance(window, tuple | list) or len(window) != 2 or not all(map(is_limit, window)):
            raise ValueError(f"window must be a pair (left, right) of integers in [0, 2^29] or None, got {window!r}")
        left, right = map(as_integer, window)
    return (1, left, right) if chunk is None else check_chunk(chunk, window)


def check_chunk(chunk: Any, window: Any) -> tuple[int, int | None, int | None]:
    """Return the size of a chunk, and how many positions before and after its first one it attends to; None: all."""
    is_sequence = isinstance(chunk, tuple | list) and len(chunk) in (2, 3)
    if not is_sequence or not is_width(chunk[0], 1) or not all(map(is_limit, chunk[1:])):
        raise ValueError(
            "chunk must be (size, left_chunks) or (size, left_chunks, right_chunks), "
            f"a size >= 1 and numbers >= 0 or None, each at most 2^29, got {chunk!r}"
        )
    if window is not None:
        raise ValueError(f"chunk must be given without window, got chunk={chunk!r} and window={window!r}")
    size = as_integer(chunk[0])
    before, after = map(as_integer, (*chunk[1:], 0)[:2])
    before = None if before is None else before * size
    after = None if after is None else after * size + size - 1
    if not is_limit(before) or not is_limit(after):
        raise ValueError(f"chunk must span at most 2^29 positions on either side, got {chunk!r}")
    return size, before, after


def is_limit(x: Any) -> bool:
    """Return whether `x` is a width, or None for no limit."""
    return x is None or is_width(x)


def is_width(x: Any, least: int = 0) -> bool:
    """Return whether `x` is an integer that windows and chunks may have as a width."""
    width = as_integer(x)
    return width is not None and (isinstance(width, torch.SymInt) or least <= width <= WIDEST)


def check_rel_query(rel_query: Tensor | None, query: Tensor, rel_key: Tensor | None) -> None:
    """Check the query of the relative term against the query."""
    if rel_query is None:
        return
    if rel_query.dim() != 4 or rel_query.shape[:3] != query.shape[:3] or rel_query.shape[3] == 0:
        batch, heads, queries = query.shape[:3]
        raise ValueError(
            f"rel_query must have shape ({batch}, {heads}, {queries}, rel_dim) with rel_dim >= 1, "
            f"got {show(rel_query)} with query {show(query)}"
        )
    if rel_key is None:
        raise ValueError(f"rel_query must come with rel_key, whose rows it multiplies, got rel_query {show(rel_query)}")


def check_rel_bias(rel_bias: Tensor, rel_key: Tensor | None, heads: int, scale: Any, dtype: torch.dtype) -> None:
    """Check the shape of a bias per label, and that the scale can be inverted in the dtype of the query."""
    labels = "labels" if rel_key is None else rel_key.shape[-2]
    fits = rel_bias.dim() in (1, 2) and rel_bias.shape[-1] > 0 and rel_bias.shape[:-1] in ((), (heads,))
    if not fits or (rel_key is not None and rel_bias.shape[-1] != labels):
        raise ValueError(
            f"rel_bias must have shape ({labels},), or ({heads}, {labels}) for one bias per head, "
            f"got {show(rel_bias)}{'' if rel_key is None else f' with rel_key {show(rel_key)}'}"
        )
    if not abs(scale) * torch.finfo(dtype).max >= 1.0:
        raise ValueError(f"scale must not be 0 with rel_bias, and 1 / scale must be finite in {dtype}, got {scale}")


def check_table(name: str, table: Tensor | None, dim: int, heads: int, hint: str = "") -> None:
    """Check the shape of a table whose rows have `dim` numbers."""
    if table is None:
        return
    if table.dim() not in (2, 3) or table.shape[-1] != dim or table.shape[:-2] not in ((), (heads,)):
        raise ValueError(
            f"{name} must have shape (labels, {dim}), or ({heads}, labels, {dim}) for one table per head, "
            f"got {show(table)}{hint}"
        )
    if table.shape[-2] == 0:
        raise ValueError(f"{name} must have at least one row, got {show(table)}")


def check_rows(tables: dict[str, Tensor | None], labels: int, clip: Any) -> None:
    """Check that each table has one row per label; `clip` is what labels follow from, None for the tables' own rows."""
    for name, table in tables.items():
        if table is not None and table.shape[-2] != labels:
            rule = "as many as the other table" if clip is None else f"left + right + 1 for clip={clip}"
            raise ValueError(f"{name} must have {labels} rows, {rule}, got {table.shape[-2]} rows in {show(table)}")


def check_relations(relations: Any, query: Tensor, key: Tensor) -> Tensor:
    """Check the labels of pairs, apart from their values, and return them in a signed dtype."""
    batch, heads, queries = query.shape[:3]
    keys = key.shape[2]
    fits = relations.dim() == 4 and relations.shape[2:] == (queries, keys)
    if not fits or relations.shape[0] not in (1, batch) or relations.shape[1] not in (1, heads):
        raise ValueError(
            f"relations must have shape ({batch} or 1, {heads} or 1, {queries}, {keys}), got {show(relations)}"
        )
    return as_signed("relations", relations)


def check_labels(relations: Tensor, labels: int, check: bool | None) -> None:
    """Check the values of labels: always with `check`, where they can be read without waiting by default."""
    if not (can_read(relations) if check is None else check and not is_tracing()):
        return
    least, most = bounds(relations)
    if least < -1 or most >= labels:
        raise ValueError(f"relations must be in [-1, {labels}), one label per row, got values from {least} to {most}")


def check_lengths(name: str, lengths: Tensor | None, batch: int, most: int, what: str) -> Tensor | None:
    """Check the numbers of valid positions of right-padded sequences, and return them in a signed dtype."""
    if lengths is None:
        return None
    if lengths.shape != (batch,):
        raise ValueError(f"{name} must have shape ({batch},), one length per sequence, got {show(lengths)}")
    lengths = as_signed(name, lengths)
    if can_read(lengths):
        low, high = bounds(lengths)
        if low < 0 or high > most:
            raise ValueError(f"{name} must be in [0, {most}], the number of {what}, got values from {low} to {high}")
    return lengths


def check_self_attention_lengths(queries: int, keys: int, given: bool) -> None:
    """Check that `lengths` is used for self-attention, and alone."""
    if given:
        raise ValueError("lengths must be given without key_lengths and query_lengths, got both; it sets the two")
    if queries != keys:
        raise ValueError(
            "lengths must be used with as many queries as keys, "
            f"got {queries} queries and {keys} keys; pass key_lengths and query_lengths"
        )


def check_packed(cu_seqlens: Any, rows: dict[str, Tensor | None], options: dict[str, Any]) -> tuple[Tensor, int]:
    """Check the cumulative lengths of packed sequences, and return them as int64 on the CPU, and the longest length."""
    check_tensors({"cu_seqlens": cu_seqlens, **rows})
    if given := present(options):
        raise ValueError(f"cu_seqlens must be given without {', '.join(given)}")
    shapes = {name: x.shape for name, x in present(rows).items()}
    if not all(len(shape) == 4 and shape[::2] == (1, shapes["query"][2]) for shape in shapes.values()):
        listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(f"cu_seqlens must be used with a batch of 1 and as many queries as keys, got {listed}")
    ends = as_signed("cu_seqlens", cu_seqlens).flatten().tolist()
    length = shapes["query"][2]
    lengths = [end - start for start, end in pairwise(ends)]
    if not lengths or ends[0] != 0 or ends[-1] != length or min(lengths) < 0:
        raise ValueError(f"cu_seqlens must increase from 0 to {length}, the number of positions, got {ends}")
    return torch.tensor(ends, device="cpu"), max(lengths)


def check_offset(query_offset: Any, batch: int) -> tuple[int, Tensor | None, tuple[int, int] | None]:
    """Check the position of the first query.

    Returns:
        The position, 0 if sequences have their own; these, or None; the least and the largest position, or None where
        they are not known, as while tracing.
    """

    def refuse(got: Any) -> ValueError:
        rule = f"query_offset must be an integer, or ({batch},) integers, one per sequence, within 2^62 of zero"
        return ValueError(f"{rule}, got {got}")

    if isinstance(query_offset, Tensor) and query_offset.dim() > 0:
        if query_offset.shape != (batch,):
            raise refuse(show(query_offset))
        offsets = as_signed("query_offset", query_offset)
        limits = bounds(offsets) if can_read(offsets) else None
        if limits is not None and max(-limits[0], limits[1]) > FARTHEST:
            raise refuse(f"values from {limits[0]} to {limits[1]}")
        return 0, offsets, limits
    offset = as_integer(query_offset)
    if offset is None or (not is_tracing() and abs(offset) > FARTHEST):
        raise refuse(repr(query_offset))
    return offset, None, None if is_tracing() else (offset, offset)


def check_mask(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Check a mask, and return it with the four dimensions (batch, heads, queries, keys), each of which may be 1."""
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must have dtype torch.bool (True: the pair may attend), got {mask.dtype}")
    return with_pair_dimensions("mask", mask, query, key)


def with_pair_dimensions(name: str, x: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return a tensor with the four dimensions (batch, heads, queries, keys), each of which may be 1."""
    full = (*query.shape[:3], key.shape[2])
    sizes = zip(x.shape[::-1], full[::-1], strict=False)
    if x.dim() > 4 or not all(size == 1 or size == wanted for size, wanted in sizes):
        raise ValueError(f"{name} must broadcast to (batch, heads, queries, keys) = {full}, got {show(x)}")
    return x[(None,) * (4 - x.dim())]


def as_signed(name: str, x: Tensor) -> Tensor:
    """Return a tensor of integers in a signed dtype."""
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise ValueError(f"{name} must have an integer dtype, got {x.dtype}")
    return x.to(SIGNED[x.dtype]) if x.dtype in SIGNED else x


def as_int64(name: str, x: Any) -> Tensor:
    """Return a tensor of integers as int64, to which numbers can be added without overflow."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    return as_signed(name, x).long()


def as_integer(x: Any) -> Any:
    """Return an integer as a Python integer, and None for anything else."""
    if isinstance(x, int | torch.SymInt):
        return None if isinstance(x, bool) else x
    return operator.index(x) if hasattr(x, "__index__") and not isinstance(x, Tensor) else None


def as_float(x: Any) -> Any:
    """Return a number that is not Python's, such as NumPy's, as a float, and anything else as it is."""
    return float(x) if isinstance(x, Real) and not isinstance(x, float | int) else x


def bounds(x: Tensor) -> tuple[int, int]:
    """Return the least and the largest value of a tensor; zeros for an empty one."""
    if x.numel() == 0:
        return 0, 0
    least, most = x.aminmax()
    return int(least), int(most)


def can_read(x: Tensor) -> bool:
    """Return whether a tensor has values that can be read without waiting for a device or breaking a trace."""
    has_values = x.device.type == "cpu" and not isinstance(x, FakeTensor)
    return has_values and not (is_tracing() or torch._C._are_functorch_transforms_active())


def is_tracing() -> bool:
    """Return whether a call is compiled, exported or traced: what holds for its sizes may not hold later."""
    return torch.compiler.is_compiling() or torch._C._is_tracing()  # which torch.jit.is_tracing wraps twice


def show(x: Tensor) -> str:
    """Return a tensor's shape as text."""
    return f"({', '.join(str(size) for size in x.shape)}{',' if x.dim() == 1 else ''})"
