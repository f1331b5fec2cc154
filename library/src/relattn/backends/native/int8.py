"""Products of 8-bit integers on CPUs: weights in the form of the kernels, and linear layers."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor, nn

from relattn.backends.native import library
from relattn.checks import show

FLOAT, GENERIC, PAIRS, DOTS = range(4)  # kernels, as in `int8.h`
# inputs are padded to a multiple of the first, outputs to one of at most the second
GROUP = 16
MOST_IN_PANEL = 64
MOST_INPUTS = (2**31 - 1) // 127**2  # of a layer, so that its sums fit in 32 bits
# integers of weights: those that PAIRS supports, and those of 8 bits
LARGEST = 63
LARGEST_WIDE = 127


class Weight(NamedTuple):
    """The weight of a linear layer in 8 bits, for a kernel.

    Attributes:
        panels, sums: Codes in panels, and the number of each output, as `int8.h` describes.
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

    def part(self, start: int, outputs: int) -> Weight:
        """Return some outputs; `start` is a multiple of `MOST_IN_PANEL`."""
        per_output = self.panels.numel() // self.scales.numel()
        return self._replace(
            panels=self.panels[start * per_output :],
            sums=self.sums[start:],
            scales=self.scales[start:],
            outputs=outputs,
        )


def round_rows(weight: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Return a weight (outputs, inputs) in float32 as integers from −largest to largest, and the scale per output."""
    scales = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny * largest) / largest
    return (weight / scales[:, None]).round_().to(torch.int8), scales


def quantize(weight: Tensor, kernel: int) -> Weight:
    """Quantize a weight (outputs, inputs) in float32 per output, in 7 bits for the kernel PAIRS and else in 8."""
    outputs, inputs = weight.shape
    codes, scales = round_rows(weight, LARGEST if kernel == PAIRS else LARGEST_WIDE)
    kernels = library.KERNELS[torch.float32]
    padded = outputs + -outputs % kernels.panel
    panels = torch.empty(padded * (inputs + -inputs % GROUP), dtype=torch.int8, device="cpu")
    sums = torch.empty(padded, dtype=torch.int32, device="cpu")
    addresses = (array.data_ptr() for array in (panels, sums, codes))
    kernels.functions["pack"](*addresses, outputs, inputs)
    return Weight(panels, sums, nn.functional.pad(scales, (0, padded - outputs)), inputs, outputs, kernel)


def linear(x: Tensor, weight: Weight, bias: Tensor | None, factors: Tensor | None, out: Tensor) -> None:
    """Write (x · factors) Wᵀ + b to `out` (rows, outputs), which is contiguous.

    The rows of x · factors, (rows, inputs), are quantized.

    Raises:
        ValueError: `x` or `out` does not have the sizes of the weight.
    """
    kernels = library.KERNELS[torch.float32]
    rows = len(x)
    if x.shape[1] != weight.inputs or out.shape != (rows, weight.outputs):
        expected = f"(rows, {weight.inputs}) and (rows, {weight.outputs})"
        raise ValueError(f"x and out must have shapes {expected}, got {show(x)} and {show(out)}")
    x = x if x.stride(1) == 1 else x.contiguous()
    padded = torch.zeros_like(weight.scales)
    if bias is not None:
        padded[: weight.outputs] = bias
    codes = torch.empty(rows, weight.inputs + -weight.inputs % GROUP, dtype=torch.uint8, device="cpu")
    row_scales = torch.empty(rows, 2, dtype=torch.float32, device="cpu")
    arguments = kernels.types["linear"](
        x=x.data_ptr(),
        to=out.data_ptr(),
        weight=weight.panels.data_ptr(),
        bias=padded.data_ptr(),
        scales=weight.scales.data_ptr(),
        sums=weight.sums.data_ptr(),
        factors=0 if factors is None else factors.data_ptr(),
        codes=codes.data_ptr(),
        row_scales=row_scales.data_ptr(),
        rows=rows,
        x_row=x.stride(0),
        inputs=weight.inputs,
        outputs=weight.outputs,
        kernel=weight.kernel,
        threads=torch.get_num_threads(),
    )
    if kernels.functions["linear"](ctypes.byref(arguments)) != 0:
        raise MemoryError(f"the workspace of a linear layer must fit in memory, got {weight.inputs} inputs")
