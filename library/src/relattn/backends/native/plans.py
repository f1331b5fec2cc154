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
from relattn.backends.autograd import has_gradients, is_transformed, without_derivative
from relattn.backends.custom_ops import PLAIN, new_lse, new_output, new_row_stats, skips_dispatch
from relattn.backends.native import operators
from relattn.backends.native.operators import ROW_STATS, Task
from relattn.call import Call

OTHERS = (
    "rel_query",
    "pos_query",
    "bias",
    "relations",
    "mask",
    "lengths",
    "key_lengths",
    "query_lengths",
    "cu_seqlens",
    "rel_bias",
)
SOURCES = "query", "key", "value", "rel_key", "rel_value", *OTHERS
TABLES = "rel_key", "rel_value", "pos_query"
OPTIONS = "clip", "beyond", "query_offset", "is_causal", "window", "chunk", "dropout_p", "scale", "longest", "check"
MOST_PLANS = 1024  # about 2 kB each
ADDRESS = struct.Struct("P")
ARRAY = struct.Struct(operators.ARRAY)
Sources = tuple[Any, ...]  # tensors of an operator in the order of SOURCES; in a plan without those that are None
Form = tuple[Any, ...]
PLANS: dict[Form, "NativePlan"] = {}


class BackwardPlan(NamedTuple):
    """The backward pass of a call without addresses. Its arguments are at the same offsets as those of the call."""

    run_kernel: Any
    packed: bytes
    grad: int  # offset in `packed`
    row_stats: int  # the same
    results: tuple[tuple[Any, ...], ...]  # offset in `packed`, number of the source, size and strides of its gradient
    skipped: dict[int, int]  # bytes before the first row of a table that a pair takes, by the number of the source

    def run(self, packed: bytearray, sources: Sources, grad: Tensor, row_stats: Tensor) -> list[Tensor | None] | None:
        """Return the gradient of each source, or None if there is no memory."""
        if grad.stride(3) != 1:
            grad = grad.contiguous()
        ARRAY.pack_into(packed, self.grad, grad.data_ptr(), *grad.stride()[:3])
        row_stats = row_stats.contiguous()
        ADDRESS.pack_into(packed, self.row_stats, row_stats.data_ptr())
        results: list[Any] = [None] * len(sources)
        for at, number, size, strides in self.results:
            x = grad.new_zeros(size) if number in self.skipped else grad.new_empty_strided(size, strides)
            ADDRESS.pack_into(packed, at, x.data_ptr() + self.skipped.get(number, 0))
            results[number] = x
        return results if self.run_kernel(bytes(packed)) == 0 else None


class NativePlan(NamedTuple):
    """A call without addresses."""

    run_kernel: Any
    packed: bytes
    addresses: tuple[
        tuple[Any, ...], ...
    ]  # offset in `packed`, number and strides of the source, offset from its address
    lengths: tuple[tuple[Any, ...], ...]  # arguments of `check_lengths`, with the number of the source
    labels: int  # number of labels that relations may have; 0: not checked
    may_skip_rows: bool
    output: tuple[Any, ...]  # size, strides, offset in `packed`
    lse: tuple[Any, ...] | None  # size, dtype and offset, if it is returned
    row_stats: tuple[Any, ...]  # the same, for the backward pass
    backward: BackwardPlan | None
    names: tuple[str, ...]  # of the sources
    options: bytes  # of the operator

    def with_addresses(self, packed: bytes, sources: Sources) -> bytearray | None:
        """Return the arguments of a kernel, or None if a source has no memory or, from a hook, other strides."""
        filled = bytearray(packed)
        for at, number, strides, offset in self.addresses:
            x = sources[number]
            address = x.data_ptr()
            if address == 0 or x.stride() != strides:
                return None
            ADDRESS.pack_into(filled, at, address + offset)
        return filled

    def run(self, sources: Sources) -> Tensor | tuple[Tensor, Tensor] | None:
        """Return the result of the call for other tensors, or None if the operator has to check them."""
        sources = tuple([x for x in sources if x is not None])
        for name, number, *limits in self.lengths:
            checks.check_lengths(name, sources[number], *limits)
        query = sources[0]
        if self.labels:
            checks.check_labels(sources[self.names.index("relations")], self.labels, None)
        if self.may_skip_rows:
            for name, x in zip(self.names, sources, strict=True):
                if name in TABLES and not pairs.is_finite(x):
                    return None
        packed = self.with_addresses(self.packed, sources)
        if packed is None:
            return None
        lse = None
        size, strides, at = self.output
        output = query.new_empty_strided(size, strides)
        ADDRESS.pack_into(packed, at, output.data_ptr())
        if self.lse is not None:
            size, dtype, at = self.lse
            lse = query.new_empty(size, dtype=dtype)
            ADDRESS.pack_into(packed, at, lse.data_ptr())
        row_stats = None
        if self.backward is not None:
            size, dtype, at = self.row_stats
            row_stats = query.new_empty(size, dtype=dtype)
            ADDRESS.pack_into(packed, at, row_stats.data_ptr())
        if self.run_kernel(bytes(packed)) != 0:
            return None
        if row_stats is not None:
            return apply_planned(self, (output, lse, row_stats), *sources)
        return output if lse is None else (output, lse)

    def gradients(self, grad: Tensor, output: Tensor, row_stats: Tensor, *sources: Tensor) -> Any:
        """Return the gradient of each source."""
        if skips_dispatch((grad,)) and self.backward is not None:
            packed = self.with_addresses(self.backward.packed, sources)
            if packed is not None and output.stride() == self.output[1]:
                ADDRESS.pack_into(packed, self.output[2], output.data_ptr())
                results = self.backward.run(packed, sources, grad, row_stats)
                if results is not None:
                    return results
        return self.gradients_by_operator(grad, sources)

    def gradients_by_operator(self, grad: Tensor, sources: Sources) -> list[Tensor | None]:
        """Return the gradient of each source from another call, as under torch.vmap over output gradients."""
        options = dict(zip(OPTIONS, marshal.loads(self.options), strict=False))
        with torch.enable_grad():
            inputs = [x.view_as(x) for x in sources]  # not the same tensor twice
            given = dict.fromkeys(SOURCES) | dict(zip(self.names, inputs, strict=True))
            call = Call.from_arguments(**given, **options)
            output, *_ = operators.attention(*pairs.without_unread_rows(call))
        results = iter(torch.autograd.grad(output, [x for x in inputs if x.requires_grad], grad))
        return [next(results) if x.requires_grad else None for x in inputs]


class Planned(torch.autograd.Function):
    """The results of a plan, whose gradients are those of the plan."""

    @staticmethod
    def forward(ctx: Any, plan: NativePlan, results: tuple[Any, ...], *sources: Any) -> Any:
        output, lse, row_stats = results
        ctx.plan = plan
        ctx.save_for_backward(output, row_stats, *sources)
        ctx.set_materialize_grads(False)
        if lse is None:
            return output
        ctx.mark_non_differentiable(lse)
        return output, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        compute = final_gradients if torch.is_grad_enabled() else NativePlan.gradients
        return None, None, *compute(ctx.plan, grad, *ctx.saved_tensors)


apply_planned = super(torch.autograd.Function, Planned).apply  # what `Planned.apply` calls without transforms
final_gradients = without_derivative("native", lambda *arguments: tuple(NativePlan.gradients(*arguments)))


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
    """Keep and return the plan of a call, unless it has dropout or reads copies of its arguments."""
    options = marshal.loads(form[1])
    values = chain.from_iterable(x if isinstance(x, tuple) else (x,) for x in options)
    has_bytes = any(isinstance(x, bytes) for x in values)  # of a number of NumPy, which are written without its type
    if call.dropout_p > 0.0 or has_bytes or (torch.is_grad_enabled() and call.has_bias_gradient):
        return None
    task = Task(call)
    addresses = []
    lengths = []
    names = tuple(name for name, x in zip(SOURCES, sources, strict=True) if x is not None)
    batch, _, queries, _ = call.query.shape
    keys = call.key.shape[2]
    for name, x in task.tensors.items():
        own = "lengths" if name.endswith("_lengths") and sources[10] is not None else name
        source = sources[SOURCES.index(own)] if own in SOURCES else None
        if source is None or source.numel() == 0 or not is_view(x, source):
            return None
        if name in TABLES and source.stride(-2) == 0:  # from an address does not follow which rows `call` has
            return None
        at = 8 * task.layout.positions[name]
        number = names.index(own)
        addresses.append((at, number, source.stride(), x.data_ptr() - source.data_ptr()))
        if name.endswith("_lengths"):
            positions = {"lengths": (keys, "positions"), "key_lengths": (keys, "keys")}
            lengths.append((own, number, batch, *positions.get(own, (queries, "queries"))))
    output = new_output(call)
    lse = new_lse(call)
    task.set_array("output", output, *output.stride()[:3])
    if return_lse:
        task.set_array("lse", lse, *lse.stride())
    row_stats = new_row_stats(call, ROW_STATS)
    given = dict(zip(names, (x for x in sources if x is not None), strict=True))
    backward = backward_plan(call, given, output, row_stats) if has_gradients(sources) else None
    if len(PLANS) >= MOST_PLANS:
        PLANS.clear()
    table = next((x for x in (call.rel_key, call.rel_value, call.pos_query) if x is not None), None)
    PLANS[form] = plan = NativePlan(
        task.kernels.functions["forward"],
        task.layout.pack(task.values),
        tuple(addresses),
        tuple(lengths),
        0 if call.relations is None or table is None or check is False else table.shape[-2],
        pairs.may_skip_rows(call),
        (output.shape, output.stride(), 8 * task.layout.positions["output"]),
        (lse.shape, lse.dtype, 8 * task.layout.positions["lse"]) if return_lse else None,
        (row_stats.shape, row_stats.dtype, 8 * task.layout.positions["row_stats"]),
        backward,
        names,
        form[1],
    )
    return plan


def backward_plan(call: Call, sources: dict[str, Tensor], output: Tensor, row_stats: Tensor) -> BackwardPlan:
    """Return the plan of the backward pass of a call, whose arguments are views of the sources."""
    task = operators.backward_task(call, output, output, row_stats)
    results = []
    skipped = {}
    for number, (name, source) in enumerate(sources.items()):
        x = task.tensors.get(f"d_{name}")
        if x is not None:
            if x.shape != source.shape:  # rows of a table that no pair takes were cut off
                row = (getattr(call, name).data_ptr() - source.data_ptr()) // source.element_size() // source.stride(-2)
                skipped[number] = row * source.shape[-1] * source.element_size()
                x = source.new_empty(source.shape)
                task.set_tables(**{f"d_{name}": x})
            results.append((8 * task.layout.positions[f"d_{name}"], number, x.shape, x.stride()))
    grad, stats = (8 * task.layout.positions[name] for name in ("grad", "row_stats"))
    run_kernel = task.kernels.functions["backward"]
    return BackwardPlan(run_kernel, task.layout.pack(task.values), grad, stats, tuple(results), skipped)


def is_view(x: Tensor, source: Tensor) -> bool:
    return x.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
