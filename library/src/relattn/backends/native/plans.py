"""Plans: the checked arguments of a call of the kernels, kept for later calls of the same form.

Checking and packing arguments takes most of the time of a short call. Both follow from shapes, strides, dtypes and
options, apart from the values of lengths and relations. So a later call reads these, and changes addresses only.
"""

import marshal
import struct
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relattn import checks
from relattn.backends import pairs
from relattn.backends.autograd import has_gradients, is_transformed
from relattn.backends.custom_ops import PLAIN, new_lse, new_output, new_row_stats, skips_dispatch
from relattn.backends.native import operators
from relattn.backends.native.operators import ROW_STATS, Task
from relattn.call import Call

OTHERS = (
    "rel_query", "pos_query", "bias", "relations", "mask", "lengths", "key_lengths", "query_lengths", "cu_seqlens",
    "rel_bias",
)  # fmt: skip
SOURCES = "query", "key", "value", "rel_key", "rel_value", *OTHERS
TABLES = "rel_key", "rel_value", "pos_query"
OPTIONS = "clip", "beyond", "query_offset", "is_causal", "window", "chunk", "dropout_p", "scale", "longest", "check"
MOST_PLANS = 1024  # about 2 kB each
ADDRESS = struct.Struct("P")
Sources = tuple[Any, ...]  # tensors of an operator in the order of SOURCES; in a plan without those that are None
Form = tuple[Any, ...]
PLANS: dict[Form, "NativePlan"] = {}


class KernelPlan(NamedTuple):
    """A call of a kernel without addresses."""

    run_kernel: Any
    packed: bytes
    inputs: tuple[tuple[Any, ...], ...]  # offset in `packed`, number and strides of a tensor, offset from its address
    results: tuple[tuple[Any, ...] | None, ...]  # offset, size, strides, dtype, and bytes before what it writes

    def run(self, tensors: Sources) -> list[Any] | None:
        """Return new results, or None if a tensor has other strides, as a hook may return it, or no memory."""
        packed = bytearray(self.packed)
        for at, number, strides, offset in self.inputs:
            x = tensors[number]
            address = x.data_ptr()
            if address == 0 or x.stride() != strides:
                return None
            ADDRESS.pack_into(packed, at, address + offset)
        results: list[Tensor | None] = [None] * len(self.results)
        for number, result in enumerate(self.results):
            if result is not None:
                at, size, strides, dtype, skipped = result
                x = tensors[0].new_empty_strided(size, strides, dtype=dtype)
                if skipped is not None:
                    x.zero_()
                ADDRESS.pack_into(packed, at, x.data_ptr() + (skipped or 0))
                results[number] = x
        return results if self.run_kernel(bytes(packed)) == 0 else None


class NativePlan(NamedTuple):
    """A call of the operator without tensors."""

    forward: KernelPlan
    backward: KernelPlan | None  # its tensors are also the output, the row statistics and the gradient of the output
    lengths: tuple[tuple[Any, ...], ...]  # arguments of `check_lengths`, with the number of the source
    labels: int  # number of labels that relations may have; 0: not checked
    finite: tuple[int, ...]  # numbers of the tables that must be finite
    names: tuple[str, ...]  # of the sources
    options: bytes

    def run(self, sources: Sources) -> Tensor | tuple[Tensor, Tensor] | None:
        """Return the result of the call for other tensors, or None if the operator has to check them."""
        sources = tuple([x for x in sources if x is not None])
        for name, number, *limits in self.lengths:
            checks.check_lengths(name, sources[number], *limits)
        if self.labels:
            checks.check_labels(sources[self.names.index("relations")], self.labels, None)
        for number in self.finite:
            if not pairs.is_finite(sources[number]):
                return None
        results = self.forward.run(sources)
        if results is None:
            return None
        if self.backward is not None:
            return apply_planned(self, results, *sources)
        return results[0] if len(results) == 1 else (results[0], results[1])

    def differentiate(self, grad: Tensor, saved: Sources) -> list[Tensor | None]:
        """Return the gradient of each source, from the sources, the output and the row statistics."""
        *sources, output, _ = saved
        has_graph = torch.is_grad_enabled()
        if self.backward is not None and not has_graph and skips_dispatch((grad,)):
            if grad.stride() != output.stride():
                grad = torch.empty_like(output).copy_(grad)
            results = self.backward.run((*saved, grad))
            if results is not None:
                return results
        options = dict(zip(OPTIONS, marshal.loads(self.options), strict=False))
        with torch.enable_grad():
            inputs = [x.view_as(x) for x in sources]  # not the same tensor twice
            given: dict[str, Any] = dict.fromkeys(SOURCES) | dict(zip(self.names, inputs, strict=True))
            call = Call.from_arguments(**given, **options)
            output, *_ = operators.attention(*pairs.without_unread_rows(call))
        needed = [x for x in inputs if x.requires_grad]
        found = iter(torch.autograd.grad(output, needed, grad, create_graph=has_graph))
        return [next(found) if x.requires_grad else None for x in inputs]


class Planned(torch.autograd.Function):
    """The results of a plan, whose gradients are those of the plan."""

    @staticmethod
    def forward(ctx: Any, plan: NativePlan, results: list[Tensor], *sources: Tensor) -> Any:
        output, row_stats, *lse = results
        ctx.plan = plan
        ctx.save_for_backward(*sources, output, row_stats)
        ctx.mark_non_differentiable(*lse)
        ctx.set_materialize_grads(False)
        return (output, *lse) if lse else output

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * (2 + len(ctx.plan.names))
        return None, None, *ctx.plan.differentiate(grad, ctx.saved_tensors)


apply_planned = super(torch.autograd.Function, Planned).apply  # what `Planned.apply` calls without transforms


def form_of(sources: Sources, options: tuple[Any, ...]) -> Form | None:
    """Return what a plan depends on, or None for a call that cannot have one, as with a `rel_bias`."""
    if not skips_dispatch(()) or torch.is_autocast_enabled("cpu"):
        return None
    if sources[-1] is not None or is_transformed(sources):
        return None
    form: list[Any] = [torch.get_num_threads()]
    records = torch.is_grad_enabled()
    try:
        form.append(marshal.dumps(options, 2))  # tells 1 from True and 1.0, and refuses tensors
        for x in sources:
            if x is None:
                form.append(None)
            elif type(x) not in PLAIN or not x.is_cpu:
                return None
            else:
                form += x.shape, x.stride(), x.dtype, records and x.requires_grad
    except (ValueError, RuntimeError):  # an option of another type; a nested or sparse tensor
        return None
    return tuple(form)


def add(form: Form, sources: Sources, call: Call, check: bool | None, return_lse: bool) -> NativePlan | None:
    """Keep and return the plan of a call, unless it has dropout, reads copies, or has the gradient of a bias."""
    options = marshal.loads(form[1])
    values = chain.from_iterable(x if isinstance(x, tuple) else (x,) for x in options)
    has_bytes = any(isinstance(x, bytes) for x in values)  # of a number of NumPy, which are written without its type
    records = has_gradients(sources)
    if call.dropout_p > 0.0 or has_bytes or (records and call.has_bias_gradient):
        return None
    given = {name: x for name, x in zip(SOURCES, sources, strict=True) if x is not None}
    names = tuple(given)
    task = Task(call)
    lengths = []
    batch, _, queries, _ = call.query.shape
    keys = call.key.shape[2]
    for name, x in task.tensors.items():
        own = source_of(name, given)
        if own is None or given[own].numel() == 0 or not is_view(x, given[own]):
            return None
        if name in TABLES and given[own].stride(-2) == 0:  # which rows `call` has does not follow from an address
            return None
        if name.endswith("_lengths"):
            positions = {"lengths": (keys, "positions"), "key_lengths": (keys, "keys")}
            lengths.append((own, names.index(own), batch, *positions.get(own, (queries, "queries"))))
    count = len(task.tensors)
    output = new_output(call)
    row_stats = new_row_stats(call, ROW_STATS)
    task.set_array("output", output, *output.stride()[:3])
    if records:
        task.set_array("row_stats", row_stats)
    if return_lse:
        lse = new_lse(call)
        task.set_array("lse", lse, *lse.stride())
    forward = kernel_plan("forward", task, given, list(task.tensors)[count:])
    backward = None
    if records:
        task = operators.backward_task(call, output, output, row_stats)
        saved = given | {"output": output, "row_stats": row_stats, "grad": output}
        backward = kernel_plan("backward", task, saved, [f"d_{name}" for name in names])
    if len(PLANS) >= MOST_PLANS:
        PLANS.clear()
    table = next((x for x in (call.rel_key, call.rel_value, call.pos_query) if x is not None), None)
    PLANS[form] = plan = NativePlan(
        forward,
        backward,
        tuple(lengths),
        0 if call.relations is None or table is None or check is False else table.shape[-2],
        tuple(names.index(name) for name in names if name in TABLES and pairs.may_skip_rows(call)),
        names,
        form[1],
    )
    return plan


def kernel_plan(kernel: str, task: Task, given: dict[str, Tensor], results: list[str]) -> KernelPlan:
    """Return the plan of a kernel: the tensors of its task are views of the given ones, or results of these names."""
    inputs = []
    outputs: list[tuple[Any, ...] | None] = []
    for name, x in task.tensors.items():
        own = source_of(name, given)
        if own is not None:
            distance = x.data_ptr() - given[own].data_ptr()
            inputs.append((8 * task.layout.positions[name], list(given).index(own), given[own].stride(), distance))
    for name in results:
        if name not in task.tensors:
            outputs.append(None)
            continue
        x = task.tensors[name]
        skipped = None
        own = name.removeprefix("d_")
        table = given.get(own, x)
        if x.shape != table.shape:  # rows that no pair takes were cut off
            skipped = (task.tensors[own].data_ptr() - table.data_ptr()) // table.stride(-2) * table.shape[-1]
            x = table.new_empty(table.shape)
            task.set_tables(**{name: x})
        outputs.append((8 * task.layout.positions[name], x.shape, x.stride(), x.dtype, skipped))
    return KernelPlan(task.kernels.functions[kernel], task.layout.pack(task.values), tuple(inputs), tuple(outputs))


def source_of(name: str, given: dict[str, Tensor]) -> str | None:
    """Return the name of the argument that a tensor of a task is a view of."""
    own = "lengths" if name.endswith("_lengths") and "lengths" in given else name
    return own if own in given else None


def is_view(x: Tensor, source: Tensor) -> bool:
    return x.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
