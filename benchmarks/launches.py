"""Time that Python takes per call of the Triton kernels, without a GPU: Triton's driver does nothing.

Kernels are compiled for Hopper and never run, so results are not written. One head layout, (batch 1, heads 8, dim 64),
bfloat16, both tables with k = 16, in microseconds of processor time: a forward pass without gradients, and both passes.
Parts of the forward pass are measured alone: the checks of arguments, the allocation of results, Triton's launch with
named arguments, a launch of the compiled kernel, and PyTorch's part of an autograd function with as many arguments.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import triton
from relattn import relative_attention
from relattn.backends import triton as backend
from relattn.backends.triton import availability, operators
from relattn.call import Call
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from benchmarks import measure
from benchmarks.measure import Row, record
from benchmarks.small_calls import processor_time, several

KEY = ("n", "part", "device")
HEADS, DIM, CLIP = 8, 64, 16
HOPPER = {"max_shared_mem": 232448, "max_num_regs": 65536, "multiprocessor_count": 132, "warpSize": 32}


class Utils:
    """Functions of a driver that `CompiledKernel` calls."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return HOPPER

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, ...]:
        return 1, 2, 32, 0, 1024  # module, function, registers, spills, most threads


class Launcher:
    """A launcher that counts."""

    launches = 0
    last: tuple[Any, ...] = ()

    def __init__(self, source: object, metadata: object) -> None:
        pass

    def __call__(self, *arguments: object) -> None:
        Launcher.launches += 1
        Launcher.last = arguments


class Driver:
    """A driver for a GPU that is not there."""

    utils = Utils()
    launcher_cls = Launcher

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def use_no_gpu() -> None:
    """Let tensors of the CPU be those of a Hopper GPU whose kernels do nothing."""
    driver.set_active(Driver())
    backend.CAPABILITIES = dataclasses.replace(backend.CAPABILITIES, devices=("cuda", "cpu"))
    availability.is_hopper = lambda device: True


class Identity(torch.autograd.Function):
    """PyTorch's part of a call with gradients."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        return torch.empty_like(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors)


def inputs_of(n: int) -> list[Tensor]:
    rows = [torch.randn(1, n, HEADS, DIM, dtype=torch.bfloat16).transpose(1, 2) for _ in "qkv"]
    return [*rows, *(torch.randn(2 * CLIP + 1, DIM, dtype=torch.bfloat16) for _ in "kv")]


def both_passes(attend: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], object]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    cotangent = torch.ones_like(inputs[0])
    return lambda: torch.autograd.grad(attend(*leaves), leaves, cotangent)


def works_of(n: int) -> dict[str, Callable[[], object]]:
    """Return the timed functions by the name of their part."""
    inputs = inputs_of(n)

    def attend(*x: Tensor) -> Tensor:
        return relative_attention(*x, clip=CLIP, backend="triton")

    attend(*inputs)
    _, _, _, stream, function, metadata, _, _, _, *arguments = Launcher.last
    others = (
        "rel_query", "pos_query", "rel_bias", "relations", "check", "query_offset", "window", "chunk", "lengths",
        "key_lengths", "query_lengths", "mask", "bias", "scale",
    )  # fmt: skip
    options: dict[str, Any] = dict.fromkeys(others) | {
        "clip": CLIP,
        "beyond": "clip",
        "is_causal": False,
        "dropout_p": 0.0,
    }
    call = Call.from_arguments(*inputs, **options)
    launched: list[Any] = []
    operators.run_forward(call, launch=lambda *given, **named: launched.append((given, named)))
    (kernel, programs, tiles, device), named = launched[0]
    launcher = Launcher(None, None)
    return {
        "forward": lambda: attend(*inputs),
        "forward + backward": both_passes(attend, inputs),
        "checks of arguments": lambda: Call.from_arguments(*inputs, **options),
        "plan, arrays and results": lambda: operators.run_forward(call, launch=lambda *given, **named: None),
        "launch by names": lambda: operators.launch(kernel, programs, tiles, device, **named),
        "launch of the compiled kernel": lambda: launcher(
            programs, 1, 1, stream, function, metadata, None, None, None, *arguments
        ),
        "PyTorch: autograd function, forward + backward": both_passes(Identity.apply, inputs),
    }


def main() -> None:
    parser = measure.command("launches", __doc__)
    parser.add_argument("--lengths", nargs="+", type=int, default=[64, 512], help="sequence lengths (%(default)s)")
    parser.add_argument("--repeats", type=int, default=25, help="timed runs (%(default)s)")
    arguments = measure.parse(parser, "launches-cpu.csv", threads=1)
    use_no_gpu()
    for n in arguments.lengths:
        works = {part: several(work) for part, work in works_of(n).items()}
        runs = {part: work for part, (work, _) in works.items()}
        times = measure.alternate(runs, arguments.repeats, clock=processor_time)
        rows: list[Row] = []
        for part, (_, repeated) in works.items():
            Launcher.launches = 0
            runs[part]()
            launches = Launcher.launches / repeated
            us = 1e6 * times[part].median / repeated
            row = {"n": n, "part": part, "us": f"{us:.3g}", "launches": round(launches)}
            rows.append(row | {"triton": triton.__version__})
        record(arguments, rows, KEY)


if __name__ == "__main__":
    main()
