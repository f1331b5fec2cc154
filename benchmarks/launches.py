"""Time that Python takes per call of the Triton kernels, without a GPU: Triton's driver does nothing.

Kernels are compiled for Hopper and never run, so results are not written. One head layout, (batch 1, heads 8, dim 64),
bfloat16, both tables with k = 16, in microseconds of processor time: a forward pass without gradients, and both passes,
with plans and without. Parts are measured alone: what a plan does in Python, which finds and launches the kernels; and
what PyTorch does, an autograd function with as many tensors, and its allocations. The latter is a lower limit of both
passes, and "ratio" is the time divided by it. Memory is kept by the allocator, as on a GPU.

First, every launch with a plan is compared with the one without: kernel, grid, stream and arguments.
"""

import ctypes
import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import torch
import triton
from relattn import relative_attention
from relattn.backends import plans
from relattn.backends import triton as backend
from relattn.backends.plans import CallPlan, KernelPlan
from relattn.backends.triton import availability
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from benchmarks import measure
from benchmarks.measure import Row, record
from benchmarks.small_calls import processor_time, several

KEY = ("n", "part", "device")
FLOOR = "PyTorch: autograd function, forward + backward"
HEADS, DIM, CLIP = 8, 64, 16
HOPPER = {"max_shared_mem": 232448, "max_num_regs": 65536, "multiprocessor_count": 132, "warpSize": 32}


class Utils:
    """Functions of a driver that `CompiledKernel` calls."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return HOPPER

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, ...]:
        return 1, zlib.crc32(binary), 32, 0, 1024  # module, function, registers, spills, most threads


class Launcher:
    """A launcher that counts, and keeps launches if it is asked to."""

    launches = 0
    kept: list[Any] | None = None
    memory: list[tuple[int, int]]  # first addresses of the inputs' memory, and those after

    def __init__(self, source: object, metadata: object) -> None:
        pass

    def __call__(self, *arguments: object) -> None:
        Launcher.launches += 1
        if Launcher.kept is not None:
            Launcher.kept.append(as_kept((*arguments[:6], *arguments[9:])))


def as_kept(x: Any) -> Any:
    """Return arguments with addresses, but those of memory that was allocated since, and with values of constants."""
    if isinstance(x, tuple):
        return tuple(map(as_kept, x))
    if isinstance(x, Tensor):
        x = x.data_ptr()
    if isinstance(x, int) and x > 2**32:
        return x if any(first <= x < last for first, last in Launcher.memory) else "result"
    return getattr(x, "value", x)


def launches_of(work: Callable[[], object], inputs: list[Tensor]) -> list[Any]:
    """Return the launches of a function of tensors."""
    Launcher.memory = [(x.data_ptr(), x.data_ptr() + x.untyped_storage().nbytes()) for x in inputs]
    Launcher.kept = []
    work()
    launches, Launcher.kept = Launcher.kept, None
    return launches


def without_plans(work: Callable[[], object]) -> Callable[[], object]:
    """Return a function that does the same without plans."""

    def run() -> object:
        form_of = plans.form_of
        plans.form_of = lambda *_: None
        try:
            return work()
        finally:
            plans.form_of = form_of

    return run


def check_launches(name: str, work: Callable[[], object], inputs: list[Tensor]) -> None:
    """Check that the first call with a plan and the next one launch what the call launches without one."""
    want = launches_of(without_plans(work), inputs)
    for _ in range(2):
        got = launches_of(work, inputs)
        if not want or got != want:
            raise RuntimeError(f"{name} must launch with a plan what it launches without, {want}, got {got}")


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


def keep_memory() -> None:
    """Let the C library keep memory that is freed, instead of returning it to the system. (Linux with glibc.)"""
    library = ctypes.CDLL(None)
    trim_threshold, mmap_threshold = -1, -3  # of mallopt
    for parameter in (trim_threshold, mmap_threshold):
        library.mallopt(parameter, 2**30)


class Floor(torch.autograd.Function):
    """The least that PyTorch does for a call: it saves, allocates and returns as many tensors."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        output = torch.empty_like(inputs[0])
        ctx.save_for_backward(*inputs, output, output.new_empty(output.numel()))
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        *inputs, _, _ = ctx.saved_tensors
        grad.new_empty(grad.numel())
        return tuple(torch.empty_like(x) for x in inputs)


def inputs_of(n: int) -> list[Tensor]:
    rows = [torch.randn(1, n, HEADS, DIM, dtype=torch.bfloat16).transpose(1, 2) for _ in "qkv"]
    return [*rows, *(torch.randn(2 * CLIP + 1, DIM, dtype=torch.bfloat16) for _ in "kv")]


def both_passes(attend: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], object]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    cotangent = torch.ones_like(inputs[0])
    return lambda: torch.autograd.grad(attend(*leaves), leaves, cotangent)


def allocations(kernels: KernelPlan) -> Callable[[], object]:
    """Return a function that allocates the results of a pass."""
    x = torch.empty(0)
    made = [result for result in kernels.results if result is not None]
    return lambda: [x.new_empty_strided(result.size, result.strides, dtype=result.dtype) for result in made]


def works_of(n: int) -> dict[str, Callable[[], object]]:
    """Return the functions to time by the names of their parts."""
    inputs = inputs_of(n)

    def attend(*x: Tensor) -> Tensor:
        return relative_attention(*x, clip=CLIP, backend="triton")

    def forward() -> Tensor:
        return attend(*inputs)

    both = both_passes(attend, inputs)
    plans.PLANS.clear()
    check_launches("forward", forward, inputs)
    check_launches("forward + backward", both, inputs)
    first, plan = plans.PLANS.values()
    assert isinstance(first, CallPlan)
    assert isinstance(plan, CallPlan)
    assert plan.backward is not None
    backward = plan.backward()
    assert backward is not None
    addresses = [16 * (number + 1) for number in range(len(backward.inputs) + len(backward.results))]
    sources = (*inputs, *[None] * (len(plans.SOURCES) - len(inputs)))
    options = CLIP, "clip", None, False, None, None, 0.0, None, 0, None, "triton", False
    return {
        "forward": forward,
        "forward + backward": both,
        "forward, without a plan": without_plans(forward),
        "forward + backward, without a plan": without_plans(both),
        "form of a call": lambda: plans.PLANS.get(plans.form_of(sources, options)),
        "launch, forward": lambda: first.forward.launch(addresses),
        "launches, backward": lambda: backward.launch(addresses),
        "PyTorch: allocations, forward + backward": allocations(
            backward._replace(results=(*plan.forward.results, *backward.results))
        ),
        FLOOR: both_passes(Floor.apply, inputs),
    }


def main() -> None:
    parser = measure.command("launches", __doc__)
    parser.add_argument("--lengths", nargs="+", type=int, default=[64, 512], help="sequence lengths (%(default)s)")
    parser.add_argument("--repeats", type=int, default=25, help="timed runs (%(default)s)")
    arguments = measure.parse(parser, "launches-cpu.csv", threads=1)
    use_no_gpu()
    keep_memory()
    for n in arguments.lengths:
        works = {part: several(work) for part, work in works_of(n).items()}
        runs = {part: work for part, (work, _) in works.items()}
        times = measure.alternate(runs, arguments.repeats, clock=processor_time)
        rows: list[Row] = []
        floor = times[FLOOR].median / works[FLOOR][1]
        for part, (_, repeated) in works.items():
            Launcher.launches = 0
            runs[part]()
            launches = Launcher.launches / repeated
            seconds = times[part].median / repeated
            row = {"n": n, "part": part, "us": f"{1e6 * seconds:.1f}", "ratio": f"{seconds / floor:.2f}"}
            row["launches"] = round(launches)
            rows.append(row | {"triton": triton.__version__})
        record(arguments, rows, KEY)


if __name__ == "__main__":
    main()
