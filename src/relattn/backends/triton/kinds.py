"""What tells calls apart that are served by different kernels once these are compiled, as far as a trial goes."""

from typing import NamedTuple

import torch
from torch import Tensor

from relattn.call import Call, RelationCall


class Kind(NamedTuple):
    dtype: torch.dtype
    dim: int  # of query and key, padded
    value_dim: int  # padded
    relations: bool  # labels of the caller's, not positions
    mask: bool
    dropout: bool
    tf32: bool  # products of float32 are made of tensor floats

    def __str__(self) -> str:
        dtype = "float32 as tf32" if self.tf32 else str(self.dtype).removeprefix("torch.")
        traits = "relations" if self.relations else "positions"
        traits += ", mask" * self.mask + ", dropout" * self.dropout
        return f"{dtype}, dim {self.dim}, value_dim {self.value_dim}, {traits}"


def kind_of(query: Tensor, value: Tensor, *, relations: bool, mask: bool, dropout: bool) -> Kind:
    tf32 = query.dtype == torch.float32 and tensor_floats()
    return Kind(query.dtype, padded(query.shape[3]), padded(value.shape[3]), relations, mask, dropout, tf32)


def kind_of_call(call: Call) -> Kind:
    relations = isinstance(call, RelationCall) and (call.rel_key is not None or call.rel_value is not None)
    dropout = False
    if call.dropout_p > 0.0:  # a comparison is a symbol to `torch.compile` until something hangs on it
        dropout = True
    return kind_of(call.query, call.value, relations=relations, mask=call.mask is not None, dropout=dropout)


def padded(size: int) -> int:
    """What a head dim is padded to. Found by comparing, so that `torch.compile` keeps a size open within its width."""
    for width in (16, 32, 64, 128):
        if size <= width:
            return width
    return 256


@torch.compiler.assume_constant_result
def tensor_floats() -> bool:
    """Whether PyTorch's setting allows tf32 in products of float32 on GPUs, by either of the ways to set it."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"
