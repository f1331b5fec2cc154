"""Products of 8-bit integers on CPUs: weights in the form of the kernels, and linear layers."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor, nn

from relattn.backends.native import library
from relattn.extension.int8 import GROUP, LARGEST, LARGEST_IMPORTED, PAIRS, panel_of


def pack(codes: Tensor, panel: int, kernel: int) -> tuple[Tensor, Tensor]:
    """Return codes (outputs, inputs) in panels, and the numbers for each output or panel, as `int8.h` describes."""
    outputs, inputs = codes.shape
    codes = nn.functional.pad(codes, (0, -inputs % GROUP, 0, -outputs % panel))
    return _pairs(codes, panel) if kernel == PAIRS else (_panels(codes, panel), _offset_sums(codes))


def _panels(codes: Tensor, panel: int) -> Tensor:
    """Return codes (outputs, inputs) in panels, (outputs / panel, inputs / 8, bytes)."""
    grouped = codes.view(torch.int32).unflatten(0, (-1, panel))  # (panels, panel, inputs / 4)
    return grouped.mT.contiguous().view(torch.int8).unflatten(1, (-1, 2)).flatten(2)


def _pairs(codes: Tensor, panel: int) -> tuple[Tensor, Tensor]:
    """Return the panels of the kernel PAIRS with their offsets, and the largest sum of squares of each panel."""
    pairs = codes.view(torch.int16)
    low, high = pairs << 8 >> 8, pairs >> 8
    sums, squares = ((low + high).unflatten(1, (-1, 2, 2, 2)), (low * low + high * high).unflatten(1, (-1, 4, 2)))
    offsets = 128 * sums.sum(3, dtype=torch.int16).cumsum(2, dtype=torch.int16)  # (outputs, inputs / 16, 2, 2)
    offsets = offsets.flatten(1, 2).unflatten(0, (-1, panel)).transpose(1, 2).contiguous()
    largest = squares.sum(2, dtype=torch.int16).flatten(1).amax(1).unflatten(0, (-1, panel)).amax(1)
    panels = torch.cat([_panels(codes, panel), offsets.view(torch.int8).flatten(2)], dim=2)
    return panels, largest.int()


def _offset_sums(codes: Tensor) -> Tensor:
    """Return -128 times the sum of the codes of each output. Sums in float32 are fast, and exact up to 2^24."""
    ones = torch.ones(codes.shape[1])
    return torch.cat([part.float() @ ones for part in codes.split(4096)]).int() * -128


class Weight(NamedTuple):
    """The weight of a linear layer in 8 bits, for a kernel.

    Attributes:
        panels, sums: What `pack` returns.
        scales: Scale of each output, up to the end of the last panel.
        inputs, outputs: Sizes of the layer.
        kernel: The kernel.
    """

    panels: Tensor
    sums: Tensor
    scales: Tensor
    inputs: int
    outputs: int
    kernel: int


def quantize(weight: Tensor, kernel: int) -> Weight:
    """Quantize a weight (outputs, inputs) in float32 per output, in 7 bits for the kernel PAIRS and else in 8."""
    largest, panel = LARGEST if kernel == PAIRS else LARGEST_IMPORTED, panel_of(library.KERNELS[torch.float32])
    outputs, inputs = weight.shape
    scales = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny * largest) / largest
    panels, sums = pack((weight / scales[:, None]).round_().to(torch.int8), panel, kernel)
    return Weight(panels, sums, nn.functional.pad(scales, (0, -outputs % panel)), inputs, outputs, kernel)


def linear(x: Tensor, weight: Weight, bias: Tensor | None, out: Tensor) -> None:
    """Write x Wᵀ + b to `out` (rows, outputs), which is contiguous. The rows of x (rows, inputs) are quantized."""
    kernels, rows = library.KERNELS[torch.float32], len(x)
    x = x if x.stride(1) == 1 else x.contiguous()
    padded = torch.zeros_like(weight.scales)
    if bias is not None:
        padded[: weight.outputs] = bias
    codes = torch.empty(rows, weight.inputs + -weight.inputs % GROUP, dtype=torch.uint8)
    row_scales = torch.empty(rows, 2)
    arguments = kernels.structures["linear"](
        x=x.data_ptr(),
        to=out.data_ptr(),
        weight=weight.panels.data_ptr(),
        bias=padded.data_ptr(),
        scales=weight.scales.data_ptr(),
        sums=weight.sums.data_ptr(),
        codes=codes.data_ptr(),
        row_scales=row_scales.data_ptr(),
        rows=rows,
        x_row=x.stride(0),
        inputs=weight.inputs,
        outputs=weight.outputs,
        kernel=weight.kernel,
        threads=torch.get_num_threads(),
    )
    kernels.library.relattn_linear(ctypes.byref(arguments))
