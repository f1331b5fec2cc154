"""A call of either operator: its arguments, checked and with every default resolved.

`Call.from_arguments` is the only entry point. It applies the checks of `checks.py` in a fixed order and resolves every
default. A backend gets the result. The fields are also the schema of the registered operators
(`backends/custom_ops.py`).
"""

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from relattn import checks, positions

Beyond = Literal["clip", "zero"]
OutputAndLse = tuple[Tensor, Tensor | None]  # the output of a call, and the log-sum-exp or None
TABLES = "rel_key", "rel_value", "pos_query"


class Call(NamedTuple):
    """Checked arguments. Pairs are labelled by `relations`, or by clip(j − i), where labels == left + right + 1."""

    query: Tensor  # (batch, heads, queries, dim)
    key: Tensor  # (batch, key_heads, keys, dim)
    value: Tensor  # (batch, key_heads, keys, value_dim)
    rel_key: Tensor | None = None  # (labels, rel_dim) or (heads, labels, rel_dim)
    rel_value: Tensor | None = None  # (labels, value_dim) or (heads, labels, value_dim)
    rel_query: Tensor | None = None  # (batch, heads, queries, rel_dim); None: the query, and rel_dim == dim
    pos_query: Tensor | None = None  # (labels, dim) or (heads, labels, dim), multiplied with the keys
    bias: Tensor | None = None  # added to scores, four dimensions that broadcast to (batch, heads, queries, keys)
    relations: Tensor | None = None  # (batch or 1, heads or 1, queries, keys) labels; −1: no relative term
    query_offsets: Tensor | None = None  # (batch,) positions of query 0 on the key axis, if sequences differ
    key_lengths: Tensor | None = None  # (batch,) valid keys
    query_lengths: Tensor | None = None  # (batch,) valid queries
    cu_seqlens: Tensor | None = None  # (sequences + 1,) int64 on the CPU: ends of packed sequences, in a batch of one
    mask: Tensor | None = None  # bool, four dimensions that broadcast to (batch, heads, queries, keys)
    seed: Tensor | None = None  # one int64, the seed of the kernels' dropout; None: a new one
    longest: int = 0  # length of the longest packed sequence
    query_offset: int = 0  # position of query 0, if all sequences have the same
    left: int = 0  # clipping range: distances from −left to right have their own labels
    right: int = 0
    clips: bool = True  # pairs beyond the clipping range take an edge row; False: no relative term
    is_causal: bool = False
    window_left: int | None = None  # keys from i − i mod chunk − window_left on may be attended to; None: from 0 on
    window_right: int | None = None  # keys to i − i mod chunk + window_right may be attended to; None: all
    chunk: int = 1
    dropout_p: float = 0.0
    scale: float = 1.0
    has_bias_gradient: bool = False  # whether the gradient of the bias is needed, which may be large

    @property
    def offset(self) -> int | Tensor:
        """Position of query 0: one integer for all sequences, or (batch,)."""
        return self.query_offset if self.query_offsets is None else self.query_offsets

    def given(self, *names: str) -> dict[str, Any]:
        """Return the fields of these names that are not None."""
        return {name: x for name in names if (x := getattr(self, name)) is not None}

    def tables(self) -> dict[str, Any]:
        """Return the tables by name."""
        return self.given(*TABLES)

    @property
    def labels(self) -> int:
        """Number of rows of the tables; 0 without tables."""
        return next((x.shape[-2] for x in self.tables().values()), 0)

    @classmethod
    def from_arguments(
        cls, query: Tensor, key: Tensor, value: Tensor, rel_key: Tensor | None, rel_value: Tensor | None, *,
        rel_query: Tensor | None, pos_query: Tensor | None, rel_bias: Tensor | None, relations: Tensor | None,
        check: bool | None, clip: Any, beyond: Beyond, query_offset: int | Tensor | None, is_causal: bool, window: Any,
        chunk: Any, lengths: Tensor | None, key_lengths: Tensor | None, query_lengths: Tensor | None,
        mask: Tensor | None, bias: Tensor | None, dropout_p: float, scale: float | None,
        cu_seqlens: Tensor | None = None, longest: int = 0,
    ) -> "Call":  # fmt: skip
        """Check the arguments of an operator, as documented there, and resolve their defaults.

        Raises:
            ValueError, TypeError: The first argument that breaks a rule, in one line.
        """
        # Operands: tensors, their shapes, dtypes and devices.
        operands: dict[str, Any] = {
            "query": query, "key": key, "value": value, "rel_key": rel_key, "rel_value": rel_value,
            "rel_query": rel_query, "pos_query": pos_query, "rel_bias": rel_bias, "bias": bias,
        }  # fmt: skip
        others = {
            "relations": relations, "lengths": lengths, "key_lengths": key_lengths, "query_lengths": query_lengths,
            "mask": mask, "query_offset": query_offset if isinstance(query_offset, Tensor) else None,
        }  # fmt: skip
        tensors = operands | others
        checks.check_tensors(tensors)
        checks.check_shapes(query, key, value)
        checks.check_devices(tensors)
        checks.check_dtypes(operands)
        batch, heads, queries, dim = query.shape
        keys, value_dim = value.shape[2:]
        if isinstance(dim, Tensor):  # torch.jit.trace makes sizes tensors; a traced module keeps them as constants
            batch, heads, queries, dim, keys, value_dim = map(int, (batch, heads, queries, dim, keys, value_dim))
        if cu_seqlens is not None:
            queries = keys = longest

        # Numbers.
        checks.check_flag("is_causal", is_causal)
        dropout_p = checks.as_float(dropout_p)
        scale = checks.as_float(scale)
        checks.check_dropout("dropout_p", dropout_p)
        checks.check_scale(scale)
        scale = dim**-0.5 if scale is None else scale

        # Tables and the labels of pairs, one row per label.
        checks.check_rel_query(rel_query, query, rel_key)
        if rel_query is None:
            checks.check_table("rel_key", rel_key, dim, heads, "; another dim needs a rel_query of that dim")
        else:
            checks.check_table("rel_key", rel_key, rel_query.shape[3], heads)
        checks.check_table("rel_value", rel_value, value_dim, heads)
        checks.check_table("pos_query", pos_query, dim, heads)
        key_table = "rel_key" if rel_bias is None or rel_key is not None else "rel_bias"  # which messages name
        if rel_bias is not None:
            checks.check_rel_bias(rel_bias, rel_key, heads, scale, query.dtype)
            rel_query, rel_key = with_bias(query, rel_query, rel_key, rel_bias, scale)
        tables = {key_table: rel_key, "rel_value": rel_value, "pos_query": pos_query}
        table = next((x for x in tables.values() if x is not None), None)
        rows = 0 if table is None else table.shape[-2]
        left = right = 0
        if relations is None:
            checks.check_beyond(beyond)
            left, right = checks.clipping_range_of_rows(rows) if clip is None else checks.clipping_range(clip)
            checks.check_rows(tables, left + right + 1, clip)
        else:
            relations = checks.check_relations(relations, query, key)
            checks.check_rows(tables, rows, None)
            if table is not None:
                checks.check_labels(relations, rows, check)

        # Padding, positions of the queries, and which pairs may attend.
        if lengths is not None:
            checks.check_self_attention_lengths(queries, keys, key_lengths is not None or query_lengths is not None)
            key_lengths = query_lengths = checks.check_lengths("lengths", lengths, batch, keys, "positions")
        else:
            key_lengths = checks.check_lengths("key_lengths", key_lengths, batch, keys, "keys")
            query_lengths = checks.check_lengths("query_lengths", query_lengths, batch, queries, "queries")
        if query_offset is None:
            has_window = window is not None or chunk is not None
            needs_positions = is_causal or has_window or (table is not None and relations is None)
            if key_lengths is not None and queries != keys and needs_positions:
                raise ValueError(
                    "query_offset must be given with key_lengths if queries ≠ keys, "
                    f"got query {checks.show(query)}, key {checks.show(key)}"
                )
            query_offset = keys - queries
        offset, offsets, offset_limits = checks.check_offset(query_offset, batch)
        mask = checks.check_mask(mask, query, key)
        bias = None if bias is None else checks.with_pair_dimensions("bias", bias, query, key)

        size, window_left, window_right = checks.check_window(window, chunk)

        # A clipping range or a window wider than the sequence costs no more than the sequence: rows of tables that no
        # pair takes are cut off, and so are sides of the window that hide no pair.
        farthest = positions.farthest_pairs(queries, keys, offset_limits, is_causal=is_causal)
        if farthest is not None:
            window_left = None if window_left is None or window_left >= farthest[0] else window_left
            window_right = None if window_right is None or window_right >= farthest[1] + size - 1 else window_right
        window_end = 0 if is_causal else window_right
        reach = positions.reached_range(left, right, farthest, window_left, window_end, size)
        if reach != (left, right):
            kept = slice(left - reach[0], left + reach[1] + 1)
            rel_key, rel_value, pos_query = (
                None if x is None else x[..., kept, :] for x in (rel_key, rel_value, pos_query)
            )
            left, right = reach

        clips = relations is None and beyond == "clip"
        if window_left is not None and window_end is not None:  # whether a pair that attends is beyond the range
            clips = clips and (left < window_left + size - 1 or right < window_end)

        return cls(
            query=query,
            key=key,
            value=value,
            rel_key=rel_key,
            rel_value=rel_value,
            rel_query=rel_query,
            pos_query=pos_query,
            relations=None if table is None else relations,
            query_offsets=offsets,
            key_lengths=key_lengths,
            query_lengths=query_lengths,
            cu_seqlens=cu_seqlens,
            mask=mask,
            bias=bias,
            longest=longest,
            query_offset=offset,
            left=left,
            right=right,
            clips=clips,
            is_causal=bool(is_causal),
            window_left=window_left,
            window_right=window_right,
            chunk=1 if window_left is None and window_right is None else size,
            dropout_p=dropout_p,
            scale=scale,
            has_bias_gradient=bias is not None and bias.requires_grad,
        )


def with_bias(
    query: Tensor, rel_query: Tensor | None, rel_key: Tensor | None, rel_bias: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return a relative query and its table, so that their products include a bias per label.

    The table has more columns, each the bias, and the query more components, which add up to 1 / scale. One is exact
    enough in float32 and float64; half types need two. Without a table, the query is a view of these numbers. So no
    backend needs code for this bias.
    """
    rest = 1.0 / scale
    factors = []
    for _ in range(2 if accumulation_dtype(query.dtype) != query.dtype else 1):
        factors.append(torch.full((1, 1, 1, 1), rest, dtype=query.dtype, device=query.device))
        rest -= rounded(rest, query.dtype)
    column = rel_bias[..., None].expand(*rel_bias.shape, len(factors))
    component = torch.cat(factors, dim=-1).expand(*query.shape[:3], len(factors))
    if rel_key is None:
        return component, column
    if rel_key.dim() != column.dim():
        heads = query.shape[1]
        rel_key, column = (table.expand(heads, *table.shape[-2:]) for table in (rel_key, column))
    rows = query if rel_query is None else rel_query
    return torch.cat((rows, component), dim=-1), torch.cat((rel_key, column), dim=-1)


def rounded(value: float, dtype: torch.dtype) -> float:
    """Return the nearest number of a half type, found without reading a tensor, so that tracers see a constant."""
    digits = {torch.bfloat16: 8, torch.float16: 11}.get(dtype)
    if digits is None:
        return value
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(math.ldexp(mantissa, digits)), exponent - digits)


def autocast(x: Any, device: str) -> Any:
    """Return a floating-point tensor in the dtype of autocast, as PyTorch's own attention does, except float64."""
    eligible = (torch.float16, torch.bfloat16, torch.float32)
    return x.to(torch.get_autocast_dtype(device)) if isinstance(x, Tensor) and x.dtype in eligible else x


# devices that have autocast; torch 2.11 cannot trace the question for others
AUTOCAST = frozenset(name for name in ("cpu", "cuda", "mps", "xpu", "mtia") if torch.amp.is_autocast_available(name))


def casts(device: str) -> bool:
    """Return whether autocast is on for a type of device."""
    if device in AUTOCAST:
        return torch.is_autocast_enabled(device)
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


DRAWS = 2**24  # range of the random numbers for dropout, as in `kernels/attention/strips.h` and `triton/pairs.py`


def keep_threshold(dropout_p: float) -> int:
    """Return the bound that the random numbers of kept pairs are below: one integer, so that all kernels agree."""
    return int((1.0 - dropout_p) * DRAWS)


def keep_scale(dropout_p: float) -> float:
    """Return the factor on kept probabilities; 0 if none is kept."""
    return 1.0 / (1.0 - dropout_p) if dropout_p < 1.0 else 0.0


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of softmax and log-sum-exp: float32 for half types, else the dtype itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
