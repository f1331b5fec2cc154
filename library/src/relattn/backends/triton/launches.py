"""Plans of the Triton kernels: compiled kernels with their grids and arguments, without addresses.

Both passes run on tensors without memory, and each kernel is compiled instead of launched. The arguments that it would
have got are kept. A later call fills in addresses, and launches the compiled kernels on the current stream. Triton
compiles for addresses that are multiples of 16 separately. A plan is for these, and other calls are launched as usual.
"""

from collections.abc import Callable
from functools import cache, partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from relattn.backends.custom_ops import new_results, new_row_stats
from relattn.backends.plans import TABLES, Input, KernelPlan, Result, input_of
from relattn.backends.triton import availability, operators, plan
from relattn.backends.triton.arrays import Array
from relattn.backends.triton.configs import TileConfig, generation_of
from relattn.backends.triton.pairs import PairOptions
from relattn.backends.triton.row_stats import FORWARD_STATS
from relattn.call import Call

ALIGNMENT = 16  # bytes
READ = {*Call._fields, *PairOptions._fields, "grad"}  # names of arguments that no kernel writes
Launch = Callable[..., object]
Fill = Callable[[list[int]], Any]  # an argument from addresses


class Launches(NamedTuple):
    """The launches of a pass.

    Attributes:
        device: Device of the tensors.
        tensor_floats: The setting that float32 kernels were compiled for, or None.
        launches: Compiled kernels with their arguments in order, and functions that make those with addresses.
        gradients: Numbers of tables' gradients and of their parts among the results, and functions of the parts.
    """

    device: torch.device
    tensor_floats: bool | None
    launches: list[tuple[Launch, list[Any], list[tuple[int, Fill]]]]
    gradients: list[tuple[int, int, Callable[[Tensor], Tensor]]]

    def run(self, addresses: list[int], results: list[Any]) -> bool:
        """Launch the kernels, unless the setting has changed."""
        if self.tensor_floats is not None and self.tensor_floats != plan.tensor_floats():
            return False
        with availability.device_of(self.device):
            for launch, constants, fills in self.launches:
                arguments = constants.copy()
                for index, fill in fills:
                    arguments[index] = fill(addresses)
                launch(*arguments)
        for number, parts, gradient in self.gradients:
            results[number] = gradient(results[parts])
        return True


def plan_kernels(call: Call, given: dict[str, Tensor], records: bool, return_lse: bool) -> Any:
    """Return the plans of both passes as `native.plans` does; None if the call reads copies of its arguments."""
    if call.scale < 0.0 or call.cu_seqlens is not None:
        return None
    pairs = call.query.shape[:3] + call.key.shape[2:3]
    inputs: dict[str, Input] = {}
    tensors: dict[str, Any] = {}
    for name, x in call._asdict().items():
        if isinstance(x, Tensor):
            source = input_of(name, x, given)
            if source is None:
                return None
            inputs[name] = source
            tensors[name] = without_memory(x.expand(pairs) if name in ("relations", "mask") else x, source.offset)
    if call.dropout_p > 0.0:
        inputs["seed"] = Input(len(given), 0)
        tensors["seed"] = torch.empty((), dtype=torch.int64, device="meta")
    rows = {name: x.shape[-2] if name in TABLES else 0 for name, x in given.items()}
    recorder = Recorder(call.query.device, call._replace(**tensors), inputs, rows)
    forward = recorder.forward()
    if forward is None:
        return None
    return forward, cache(recorder.backward) if records else None


def without_memory(x: Tensor, offset: int) -> Tensor:
    """Return a tensor like `x` without memory, which begins `offset` bytes after an aligned address."""
    start = offset // x.element_size()
    last = start + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return torch.empty(last + 1, dtype=x.dtype, device="meta").as_strided(x.shape, x.stride(), start)


class Recorder(NamedTuple):
    """Makes the plans of a call, whose tensors have no memory.

    Attributes:
        device: Device of the call.
        call: The call.
        inputs: Its tensors among the sources.
        rows: Rows of each source that is a table, by the names of the sources.
    """

    device: torch.device
    call: Call
    inputs: dict[str, Input]
    rows: dict[str, int]

    def forward(self) -> KernelPlan | None:
        recording = Recording(self.device)
        results = operators.run_forward(self.call, recording.add, generation=generation_of(self.device))
        for x in results:
            recording.add_result(x)
        return self.kernel_plan(recording, self.inputs, self.call._asdict(), [])

    def backward(self) -> KernelPlan | None:
        recording = Recording(self.device)
        problem = operators.Problem(self.call, plan.tiles_of, generation_of(self.device))
        output, _ = new_results(self.call)
        row_stats = new_row_stats(self.call, FORWARD_STATS.value)
        saved = {"output": output, "row_stats": row_stats, "grad": torch.empty_like(output)}
        found = operators.launch_backward(problem, saved["grad"], output, row_stats, recording.add)
        for name in self.rows:
            recording.add_result(None if name in TABLES else found.get(name))
        inputs = dict(self.inputs)
        sources = len(self.rows)
        if "seed" in inputs:
            recording.add_result(None)
            sources += 1
        for number, name in enumerate(saved):
            inputs[name] = Input(sources + number, 0)
        gradients = []
        for number, name in enumerate(self.rows):
            if name in TABLES:
                gradients.append((number, len(recording.results), partial(self.gradient, problem, name)))
                recording.add_result(found[name], 0.0 if problem.plan.accumulates else None)
        return self.kernel_plan(recording, inputs, self.call._asdict() | saved, gradients)

    def gradient(self, problem: operators.Problem, name: str, parts: Tensor) -> Tensor:
        """Return the gradient of a table, with zeros for the rows that no pair takes, which the call does not have."""
        gradient = problem.gradient(name, parts)
        missing = self.rows[name] - gradient.shape[-2]
        if missing == 0:
            return gradient
        table = getattr(self.call, name)
        before = self.inputs[name].offset // (table.stride(-2) * table.element_size())
        return F.pad(gradient, (0, 0, before, missing - before))

    def kernel_plan(
        self, recording: "Recording", inputs: dict[str, Input], tensors: dict[str, Any], gradients: list[Any]
    ) -> KernelPlan | None:
        """Return the plan of the recorded launches; None if they read another tensor than the inputs."""
        numbers = {id(tensors[name]): number for number, name in enumerate(inputs)}
        lengths = {"key_lengths": self.call.key.shape[2], "query_lengths": self.call.query.shape[2]}
        lengths = {name: most for name, most in lengths.items() if tensors[name] is None}  # what `lengths_of` returns
        known = {*numbers, *map(id, recording.results)}
        for _, arguments in recording.launches:
            for name, x in tensors_of(arguments):
                if id(x) in known:
                    continue
                if name in READ and name not in lengths:
                    return None
                recording.add_result(x, lengths.get(name))
                known.add(id(x))
        for result in recording.results:
            if result is not None:
                numbers[id(result)] = len(numbers)
        launches = []
        for launch, arguments in recording.launches:
            if launch is None:
                return None
            fills = [(index, fill_of(x, numbers)) for index, x in enumerate(arguments.values())]
            launches.append(
                (launch, list(arguments.values()), [(index, fill) for index, fill in fills if fill is not None])
            )
        results = [
            None if x is None else Result(x.shape, x.stride(), x.dtype, fill)
            for x, fill in zip(recording.results, recording.values, strict=True)
        ]
        is_float = self.call.query.dtype == torch.float32
        made = Launches(self.device, plan.tensor_floats() if is_float else None, launches, gradients)
        return KernelPlan(made.run, tuple(inputs.values()), tuple(results), ALIGNMENT)


class Recording:
    """Launches of kernels, and their results with the values that these are filled with."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.launches: list[tuple[Launch | None, dict[str, Any]]] = []
        self.results: list[Tensor | None] = []
        self.values: list[float | None] = []

    def add(self, kernel: Any, programs: int, tiles: TileConfig | None, _: torch.device, **arguments: Any) -> None:
        """Add a launch; `operators.launch` has the arguments."""
        named = operators.launch_arguments(tiles, arguments)
        with availability.compiling(kernel, self.device):
            launch = compiled(kernel, programs, named)
        self.launches.append((launch, {name: named[name] for name in kernel.arg_names}))

    def add_result(self, x: Tensor | None, value: float | None = None) -> None:
        self.results.append(x)
        self.values.append(value)


def compiled(kernel: Any, programs: int, arguments: dict[str, Any]) -> Launch | None:
    """Return a function that launches a kernel with its arguments in order; None if it is interpreted."""
    made = kernel.warmup(grid=(programs,), **arguments)
    return None if made is None else made[(programs, 1, 1)]


def tensors_of(arguments: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """Return the tensors in arguments of a kernel, with the name of the argument or of the option."""
    found: list[tuple[str, Tensor]] = []
    for name, x in arguments.items():
        if isinstance(x, Tensor):
            found.append((name, x))
        elif isinstance(x, PairOptions):
            found += tensors_of(x._asdict())
        elif isinstance(x, Array):
            found.append((name, x.data))
    return found


def fill_of(x: Any, numbers: dict[int, int]) -> Fill | None:
    """Return a function that makes an argument from addresses, which have these numbers; None without a tensor."""
    if isinstance(x, Tensor):
        return itemgetter(numbers[id(x)])
    if not isinstance(x, tuple):
        return None
    fills = [fill_of(part, numbers) for part in x]
    first, *others = fills
    if not any(others):
        rest = x[1:]
        return None if first is None else lambda addresses: (first(addresses), *rest)
    return lambda addresses: tuple(
        [part if fill is None else fill(addresses) for part, fill in zip(x, fills, strict=True)]
    )
