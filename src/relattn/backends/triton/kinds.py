"""Kinds of calls: those of one kind run much the same machine code, and are tried together (`trial.py`)."""

from typing import NamedTuple

import torch
from torch import Tensor

from relattn.call import Call


class Kind(NamedTuple):
    dtype: torch.dtype
    dim: int  # of query and key, padded
    value_dim: int  # padded
    relations: bool  # pairs are labelled by the caller, not by position
    mask: bool
    dropout: bool
    tf32: bool  # products of float32 are rounded to it

    def __str__(self) -> str:
        dtype = "float32 as tf32" if self.tf32 else str(self.dtype).removeprefix("torch.")
        traits = "relations" if self.relations else "positions"
        traits += ", mask" * self.mask + ", dropout" * self.dropout
        return f"{dtype}, dim {self.dim}, value_dim {self.value_dim}, {traits}"


def kind_of(query: Tensor, value: Tensor, *, relations: bool, mask: bool, dropout: bool) -> Kind:
    tf32 = query.dtype == torch.float32 and tensor_floats()
    return Kind(query.dtype, padded(query.shape[3]), padded(value.shape[3]), relations, mask, dropout, tf32)


def kind_of_call(call: Call) -> Kind:
    dropout = False
    if call.dropout_p > 0.0:  # a comparison is a symbol to `torch.compile` until something hangs on it
        dropout = True
    relations, mask = call.relations is not None, call.mask is not None
    return kind_of(call.query, call.value, relations=relations, mask=mask, dropout=dropout)


def padded(size: int) -> int:
    """The power of two that a dimension is padded to, 16 at least. Found by comparisons, so that a graph of
    `torch.compile` with a symbolic size serves all sizes that are padded to the same."""
    width = 16
    while width < size:
        width *= 2
    return width


@torch.compiler.assume_constant_result
def tensor_floats() -> bool:
    """Whether PyTorch's setting allows tf32 in products of float32 on GPUs, by either of the ways to set it."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"
