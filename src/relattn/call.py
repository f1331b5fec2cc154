"""What a backend is asked: the arguments of the public operators after checking.

`functional` fills these in once, with every default resolved, so that no backend checks or guesses anything.
Shapes are those of the public docstrings: (batch, heads, queries, dim) and so on.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Beyond = Literal["clip", "zero"]


@dataclass(frozen=True, kw_only=True)
class Call:
    query: Tensor
    key: Tensor
    value: Tensor
    rel_key: Tensor | None
    rel_value: Tensor | None
    query_offset: int | Tensor  # position of query 0 on the key axis: one for all, or (batch,)
    is_causal: bool
    key_lengths: Tensor | None
    mask: Tensor | None
    dropout_p: float
    scale: float
    return_lse: bool


@dataclass(frozen=True, kw_only=True)
class RelativeCall(Call):
    """Pairs are labelled by clip(j − i); labels == left + right + 1."""

    left: int
    right: int
    beyond: Beyond


@dataclass(frozen=True, kw_only=True)
class RelationCall(Call):
    """Pairs are labelled by the caller; −1 says no term."""

    relations: Tensor  # (batch or 1, heads or 1, queries, keys)


@dataclass(frozen=True)
class Attended:
    output: Tensor  # (batch, heads, queries, value_dim)
    lse: Tensor | None  # (batch, heads, queries), where asked for
