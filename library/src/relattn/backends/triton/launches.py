"""Plans of the Triton kernels: compiled kernels with their grids and arguments, without addresses.

Both passes run on tensors without memory, and each kernel is compiled instead of launched. The arguments that it would
have got are kept. A later call fills in addresses, and launches the compiled kernels on the current stream. Triton
compiles for addresses that are multiples of 16 separately. A plan is for these, and other calls are launched as usual.
"""

from collections.abc import Callable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relattn.backends.plans import Input, KernelPlan, Passes, Result, input_of
from relattn.backends.triton import availability, operators, plan
from relattn.backends.triton.configs import TileConfig, generation_of
from relattn.backends.triton.pairs import PairOptions
from relattn.call import TABLES, Call

ALIGNMENT = 16  # bytes
READ = {"inputs", *PairOptions._fields, "grad"}  # names of arguments that no kernel writes
Launch = Callable[..., object]
Fill = Callable[[list[int]], Any]  # an argument from addresses


def plan_kernels(call: Call, given: dict[str, Tensor], records: bool, return_lse: bool) -> Passes | None:
    """Return the plans of both passes as `native.plans` does; None if the call reads copies of its arguments."""
    if call.scale < 0.0 or call.cu_seqlens is not None:
        return None
    pairs = call.query.shape[:3] + call.key.shape[2:3]
    inputs: dict[int, Input] = {}
    tensors: dict[str, Any] = {}
    tables: dict[str, Tensor] = {}  # gradients of rows that the call has
    for name, x in call._asdict().items():
        if isinstance(x, Tensor):
            source = input_of(name, x, given)
            if source is None:
                return None
            tensors[name] = without_memory(x.expand(pairs) if name in ("relations", "mask") else x, source.offset)
            inputs[id(tensors[name])] = source
            if name in TABLES:
                before = source.offset // (x.stride(-2) * x.element_size())
                gradient = torch.empty(given[name].shape, dtype=x.dtype, device="meta")
                tables[name] = gradient.narrow(-2, before, x.shape[-2])
    names = list(given)
    if call.dropout_p > 0.0:
        tensors["seed"] = torch.empty((), dtype=torch.int64, device="meta")
        inputs[id(tensors["seed"])] = Input(len(names), 0)
        names.append("seed")
    device = call.query.device
    generation = generation_of(device)
    call = call._replace(**tensors)
    recorder = Recorder(device, call, inputs, [])
    output, lse, row_stats = operators.run_forward(call, recorder.add, generation)
    forward = recorder.kernel_plan({"output": output, "lse": lse if return_lse else None}, {}, [row_stats])

    def backward() -> KernelPlan | None:
        grad = torch.empty_like(output)
        saved = {id(x): Input(len(names) + number, 0) for number, x in enumerate((output, row_stats, grad))}
        recorder = Recorder(device, call, inputs | saved, [])
        problem = operators.Problem(call, generation)
        found = operators.launch_backward(problem, grad, output, row_stats, tables, recorder.add)
        results = {name: found.get(name) for name in names}
        return recorder.kernel_plan(results, given, fill=0.0 if problem.plan.accumulates else None)

    if forward is None:
        return None
    return forward, cache(backward) if records else None


def without_memory(x: Tensor, offset: int) -> Tensor:
    """Return a tensor like `x` without memory, which begins `offset` bytes after an aligned address."""
    start = offset // x.element_size()
    last = start + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return torch.empty(last + 1, dtype=x.dtype, device="meta").as_strided(x.shape, x.stride(), start)


class Recorder(NamedTuple):
    """Records the launches of a pass, whose tensors have no memory.

    Attributes:
        device: Device of the call.
        call: The call.
        inputs: Where tensors that the pass reads are among those of the plan, by `id`.
        launches: Functions that launch a kernel with its arguments in order, and these by name.
    """

    device: torch.device
    call: Call
    inputs: dict[int, Input]
    launches: list[tuple[Launch | None, dict[str, Any]]]

    def add(self, kernel: Any, programs: int, tiles: TileConfig | None, _: torch.device, **arguments: Any) -> None:
        """Add a launch; `operators.launch` has the arguments."""
        named = operators.launch_arguments(tiles, arguments)
        with availability.compiling(kernel, self.device):
            launch = compiled(kernel, programs, named)
        self.launches.append((launch, {name: named[name] for name in kernel.arg_names}))

    def kernel_plan(
        self,
        results: dict[str, Tensor | None],
        given: dict[str, Tensor],
        stored: Sequence[Tensor] = (),
        fill: float | None = None,
    ) -> KernelPlan | None:
        """Return the plan of the recorded launches; None if they read another tensor than the inputs.

        Args:
            results: The first results. One buffer is the next result: it has all else that kernels write.
            given: Tensors whose shapes the results of the same names have. Rows that are not computed are zeros.
            stored: Tensors at the start of the buffer.
            fill: Initial value of the buffer; None leaves it uninitialized.
        """
        lengths = {"key_lengths": self.call.key.shape[2], "query_lengths": self.call.query.shape[2]}
        places = {key: (number, 0) for number, key in enumerate(self.inputs)}
        made: list[Result | None] = []
        for name, x in results.items():
            result = None
            if x is not None:
                shape = given.get(name, x).shape
                zero = None if shape == x.shape else 0.0
                result = Result(shape, x.stride(), x.dtype, zero, int(x.storage_offset()) * x.element_size())
                places[id(x)] = len(places), 0
            made.append(result)
        buffer = len(places)
        filled = []
        size = 0
        written = [("", x) for x in stored]
        for _, arguments in self.launches:
            for name, x in arguments.items():
                written += tensors_of(name, x)
        for name, x in written:
            if id(x) in places:
                continue
            if name in lengths and getattr(self.call, name) is None:  # `lengths_of` has made it
                filled.append(Result(x.shape, x.stride(), x.dtype, lengths[name]))
                places[id(x)] = buffer + len(filled), 0
            elif name in READ:
                return None
            else:
                places[id(x)] = buffer, size * x.element_size()
                size += -(-x.numel() // ALIGNMENT) * ALIGNMENT
        made += [Result((size,), (1,), torch.float32, fill), *filled]
        launches = []
        for launch, arguments in self.launches:
            arguments_of = fill_of(tuple(arguments.values()), places)
            if launch is None or arguments_of is None:
                return None
            launches.append((launch, arguments_of))
        is_float = self.call.query.dtype == torch.float32
        tensor_floats = plan.tensor_floats()

        def run(addresses: list[int]) -> bool:
            if is_float and tensor_floats != plan.tensor_floats():  # kernels were compiled for the other setting
                return False
            with availability.device_of(self.device):
                for launch, arguments_of in launches:
                    launch(*arguments_of(addresses))
            return True

        return KernelPlan(run, tuple(self.inputs.values()), tuple(made), ALIGNMENT)


def compiled(kernel: Any, programs: int, arguments: dict[str, Any]) -> Launch | None:
    """Return a function that launches a kernel with its arguments in order; None if it is interpreted."""
    made = kernel.warmup(grid=(programs,), **arguments)
    return None if made is None else made[(programs, 1, 1)]


def tensors_of(name: str, x: Any) -> list[tuple[str, Tensor]]:
    """Return the tensors in an argument of a kernel, with the name of the argument or of the option."""
    if isinstance(x, Tensor):
        return [(name, x)]
    found: list[tuple[str, Tensor]] = []
    if isinstance(x, tuple):
        names = x._fields if isinstance(x, PairOptions) else [name] * len(x)
        for part_name, part in zip(names, x, strict=True):
            found += tensors_of(part_name, part)
    return found


def fill_of(x: Any, places: dict[int, tuple[int, int]]) -> Fill | None:
    """Return a function that makes an argument from addresses; None without a tensor.

    Args:
        x: The argument, a tensor or a tuple of such arguments.
        places: Numbers of the addresses of tensors, and bytes from these addresses to the tensors.
    """
    if isinstance(x, Tensor):
        number, offset = places[id(x)]
        return (lambda addresses: addresses[number] + offset) if offset else itemgetter(number)
    if not isinstance(x, tuple):
        return None
    fills = [(index, fill) for index, part in enumerate(x) if (fill := fill_of(part, places)) is not None]
    if not fills:
        return None

    def filled(addresses: list[int]) -> tuple[Any, ...]:
        parts = list(x)
        for index, fill in fills:
            parts[index] = fill(addresses)
        return tuple(parts)

    return filled
