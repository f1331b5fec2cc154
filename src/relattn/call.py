"""A call of either operator, checked and with every default resolved: what a backend is asked.

The fields are written down here once; a registered operator's schema is made of them (`backends/custom_ops.py`).
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Beyond = Literal["clip", "zero"]


class Call(NamedTuple):
    """Where `relations` are given they label the pairs; otherwise clip(j − i) does, and labels == left + right + 1."""

    query: Tensor  # (batch, heads, queries, dim)
    key: Tensor  # (batch, key_heads, keys, dim)
    value: Tensor  # (batch, key_heads, keys, value_dim)
    rel_key: Tensor | None = None  # (labels, rel_dim) or (heads, labels, rel_dim)
    rel_value: Tensor | None = None  # (labels, value_dim) or (heads, labels, value_dim)
    rel_query: Tensor | None = None  # (batch, heads, queries, rel_dim); the query where there is none, rel_dim == dim
    relations: Tensor | None = None  # (batch or 1, heads or 1, queries, keys) labels; −1 says that a pair has no term
    query_offsets: Tensor | None = None  # (batch,) positions of query 0 on the key axis, where sequences have their own
    key_lengths: Tensor | None = None  # (batch,) valid keys
    query_lengths: Tensor | None = None  # (batch,) valid queries
    mask: Tensor | None = None  # bool, four dimensions that broadcast to (batch, heads, queries, keys)
    seed: Tensor | None = None  # one int64 that the kernels' dropout is drawn from; a new one where there is none
    query_offset: int = 0  # position of query 0, where all sequences have the same
    left: int = 0
    right: int = 0
    clips: bool = True  # pairs outside the window take the edge's row, beyond == "clip"; or have no term
    is_causal: bool = False
    dropout_p: float = 0.0
    scale: float = 1.0

    @property
    def offset(self) -> int | Tensor:
        """Position of query 0: one for all sequences, or (batch,)."""
        return self.query_offset if self.query_offsets is None else self.query_offsets


DRAWS = 2**24  # numbers that the kernels' dropout draws from, as in `native/strips.h` and `triton/pairs.py`


def keep_threshold(dropout_p: float) -> int:
    """The draws of pairs that dropout keeps are below it: one number, so that all kernels drop the same pairs."""
    return int((1.0 - dropout_p) * DRAWS)


def keep_scale(dropout_p: float) -> float:
    """What kept probabilities are multiplied by; 0 where none is kept."""
    return 1.0 / (1.0 - dropout_p) if dropout_p < 1.0 else 0.0


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of log-sum-exps: float32 for half types."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
