"""Kinds of calls: those of one kind run much the same machine code, and are tried together (`trial.py`)."""

from typing import NamedTuple

import torch

from relattn.call import Call


class Kind(NamedTuple):
    dtype: torch.dtype
    dim: int  # of query and key, padded
    value_dim: int  # padded
    relations: bool  # pairs are labelled by the caller, not by position
    mask: bool
    dropout: bool
    tf32: bool  # products of float32 are rounded to it
    rel_dim: int | None = None  # of rel_query, padded; None where there is none

    def __str__(self) -> str:
        dtype = "float32 as tf32" if self.tf32 else str(self.dtype).removeprefix("torch.")
        traits = "relations" if self.relations else "positions"
        traits += ", mask" * self.mask + ", dropout" * self.dropout
        dims = f"dim {self.dim}, value_dim {self.value_dim}"
        if self.rel_dim is not None:
            dims += f", rel_dim {self.rel_dim}"
        return f"{dtype}, {dims}, {traits}"


def kind_of_call(call: Call) -> Kind:
    dtype, rel_query, dropout = call.query.dtype, call.rel_query, False
    if call.dropout_p > 0.0:  # a comparison is a symbol to `torch.compile` until something hangs on it
        dropout = True
    return Kind(
        dtype,
        dim=padded(call.query.shape[3]),
        value_dim=padded(call.value.shape[3]),
        relations=call.relations is not None,
        mask=call.mask is not None,
        dropout=dropout,
        tf32=dtype == torch.float32 and tensor_floats(),
        rel_dim=None if rel_query is None else padded(rel_query.shape[3]),
    )


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
