"""Plans: the checked arguments of a call of the kernels, kept for later calls of the same form.

Checking and packing arguments takes most of the time of a short call. Both follow from shapes, strides, dtypes, devices
and options, apart from the values of lengths and relations. So a later call reads these, and changes addresses only.
"""

import marshal
from collections.abc import Callable
from itertools import chain
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relattn import checks
from relattn.backends import pairs
from relattn.backends.autograd import has_gradients, is_transformed, is_transformed_gradient
from relattn.backends.custom_ops import PLAIN, Operator, skips_dispatch
from relattn.call import TABLES, Call

SOURCES = (  # arguments of the operators that are tensors
    "query", "key", "value", "rel_key", "rel_value", "rel_query", "pos_query", "rel_bias", "bias", "relations", "mask",
    "lengths", "key_lengths", "query_lengths", "cu_seqlens",
)  # fmt: skip
OPERANDS = SOURCES.index("relations")  # number of those that autocast converts
REL_BIAS = SOURCES.index("rel_bias")
OPTIONS = "clip", "beyond", "query_offset", "is_causal", "window", "chunk", "dropout_p", "scale", "longest", "check"
MOST_PLANS = 1024  # about 2 kB each on a CPU, and 20 kB on a GPU
Sources = tuple[Any, ...]  # tensors of an operator in the order of SOURCES; in a plan without those that are None
Form = tuple[Any, ...]
PLANS: dict[Form | None, "CallPlan | None"] = {}  # None: calls of this form have no plan


class Input(NamedTuple):
    """A tensor that kernels read."""

    number: int  # among the tensors of a plan
    offset: int  # bytes from its address to what is read


class Result(NamedTuple):
    """A tensor that kernels write."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    fill: float | None = None  # value of all numbers before
    offset: int = 0  # bytes from its address to what is written


class KernelPlan(NamedTuple):
    """A pass of a call without addresses.

    Attributes:
        launch: Function that runs the kernels for the addresses of inputs and results. It returns whether it did.
        alignment: Addresses of tensors must be multiples of this.
    """

    launch: Callable[[list[int]], bool]
    inputs: tuple[Input, ...]
    results: tuple[Result | None, ...]
    alignment: int = 1

    def run(self, tensors: Sources) -> list[Any] | None:
        """Return new results, or None if the memory of a tensor was freed or has another alignment."""
        addresses = []
        bits = 0
        for number, offset in self.inputs:
            address = tensors[number].data_ptr()
            if address == 0:
                return None
            bits |= address
            addresses.append(address + offset)
        if bits % self.alignment:
            return None
        results: list[Any] = [None] * len(self.results)
        for number, result in enumerate(self.results):
            if result is not None:
                size, strides, dtype, fill, offset = result
                x = tensors[0].new_empty_strided(size, strides, dtype=dtype)
                if fill is not None:
                    x.fill_(fill)
                addresses.append(x.data_ptr() + offset)
                results[number] = x
        return results if self.launch(addresses) else None


Backward = Callable[[], KernelPlan | None]  # is called once the backward pass runs
Passes = tuple[KernelPlan, Backward | None]  # forward, and backward if the call has gradients


class CallPlan(NamedTuple):
    """A call of the operator without tensors.

    Attributes:
        forward: The forward pass. Its first results are the output, the log-sum-exp and the row statistics.
        backward: Function that returns the backward pass, or None without gradients. Its tensors are also the output,
            the row statistics and the gradient of the output, and its first results the gradients of the sources.
        attention: The operator, for derivatives of the backward pass.
        lengths: Arguments of `check_lengths`, with the number of the source.
        labels: Number of labels that relations may have; 0: not checked.
        finite: Numbers of the tables that must be finite.
        names: Names of the sources; the last one is the seed if the call has dropout.
        strides: Strides of the saved tensors, which a hook may change: sources, output and row statistics.
    """

    forward: KernelPlan
    backward: Backward | None
    attention: Operator
    lengths: list[tuple[Any, ...]]
    labels: int
    finite: list[int]
    names: tuple[str, ...]
    strides: list[tuple[int, ...]]
    options: bytes
    returns_lse: bool

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
        if len(self.names) > len(sources):
            sources = *sources, torch.randint(2**63 - 1, (), device=sources[0].device)
        results = self.forward.run(sources)
        if results is None:
            return None
        if self.backward is not None:
            return apply_planned(self, results, *sources)
        return (results[0], results[1]) if self.returns_lse else results[0]

    def differentiate(self, grad: Tensor, saved: Sources) -> list[Tensor | None]:
        """Return the gradient of each source, from the sources, the output and the row statistics."""
        *sources, output, _ = saved
        has_graph = torch.is_grad_enabled()
        is_same = [x.stride() for x in saved] == self.strides
        is_plain = skips_dispatch((grad,)) and not is_transformed_gradient(grad)
        if self.backward is not None and is_same and not has_graph and is_plain:
            if grad.stride() != output.stride():
                grad = torch.empty_like(output).copy_(grad)
            backward = self.backward()
            results = None if backward is None else backward.run((*saved, grad))
            if results is not None:
                return results[: len(sources)]
        options = dict(zip(OPTIONS, marshal.loads(self.options), strict=False))
        with torch.enable_grad():
            inputs = [x.view_as(x) for x in sources]  # not the same tensor twice
            given: dict[str, Any] = dict.fromkeys(SOURCES) | dict(zip(self.names, inputs, strict=True))
            seed = given.pop("seed", None)
            call = pairs.without_unread_rows(Call.from_arguments(**given, **options))
            output, *_ = self.attention(*call._replace(seed=seed))
        needed = [x for x in inputs if x.requires_grad]
        found = iter(torch.autograd.grad(output, needed, grad, create_graph=has_graph))
        return [next(found) if x.requires_grad else None for x in inputs]


class Planned(torch.autograd.Function):
    """The results of a plan, whose gradients are those of the plan."""

    @staticmethod
    def forward(ctx: Any, plan: CallPlan, results: list[Tensor], *sources: Tensor) -> Any:
        output, lse, row_stats, *_ = results
        ctx.plan = plan
        ctx.save_for_backward(*sources, output, row_stats)
        ctx.set_materialize_grads(False)
        if not plan.returns_lse:
            return output
        ctx.mark_non_differentiable(lse)
        return output, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * (2 + len(ctx.plan.names))
        return None, None, *ctx.plan.differentiate(grad, ctx.saved_tensors)


apply_planned = super(torch.autograd.Function, Planned).apply  # what `Planned.apply` calls without transforms


def form_of(sources: Sources, options: tuple[Any, ...]) -> Form | None:
    """Return what a plan depends on, or None for a call that cannot have one, as with a `rel_bias`."""
    if sources[REL_BIAS] is not None or not skips_dispatch(()) or is_transformed(sources):
        return None
    form: list[Any] = [torch.get_num_threads()]
    records = torch.is_grad_enabled()
    try:
        form.append(marshal.dumps(options, 2))  # tells 1 from True and 1.0, and refuses tensors
        for x in sources:
            if x is None:
                form.append(None)
            elif type(x) not in PLAIN or x.is_neg():
                return None
            else:
                form += x.shape, x.stride(), x.dtype, x.device, records and x.requires_grad
    except (ValueError, RuntimeError):  # an option of another type; a nested or sparse tensor
        return None
    return tuple(form)


def add(
    form: Form, sources: Sources, call: Call, check: bool | None, return_lse: bool, backend: ModuleType
) -> CallPlan | None:
    """Keep and return the plan of a call, or None if there is none."""
    if len(PLANS) >= MOST_PLANS:
        PLANS.clear()
    PLANS[form] = plan = plan_of(form[1], sources, call, check, return_lse, backend)
    return plan


def plan_of(
    options: bytes, sources: Sources, call: Call, check: bool | None, return_lse: bool, backend: ModuleType
) -> CallPlan | None:
    """Return the plan of a call on a backend, or None as with the gradient of a bias."""
    values = chain.from_iterable(x if isinstance(x, tuple) else (x,) for x in marshal.loads(options))
    has_bytes = any(isinstance(x, bytes) for x in values)  # of a number of NumPy, which are written without its type
    records = has_gradients(sources)
    if not hasattr(backend, "plan_kernels") or has_bytes or (records and call.has_bias_gradient):
        return None
    given = {name: x for name, x in zip(SOURCES, sources, strict=True) if x is not None}
    kernels = backend.plan_kernels(call, given, records, return_lse)
    if kernels is None:
        return None
    batch, _, queries, _ = call.query.shape
    keys = call.key.shape[2]
    limits = ("lengths", keys, "positions"), ("key_lengths", keys, "keys"), ("query_lengths", queries, "queries")
    names = tuple(given)
    lengths = [(name, names.index(name), batch, most, what) for name, most, what in limits if name in given]
    can_read = checks.can_read(call.query)
    finite = []
    if can_read and pairs.may_skip_rows(call):
        finite = [names.index(name) for name in call.tables()]
    checks_labels = call.relations is not None and can_read and check is not False
    forward, backward = kernels
    strides = [x.stride() for x in given.values()]
    if call.dropout_p > 0.0:
        names = *names, "seed"
        strides.append(())
    if records:
        strides += [forward.results[number].strides for number in (0, 2)]
    return CallPlan(
        forward,
        backward,
        backend.operators.attention,
        lengths,
        call.labels if checks_labels else 0,
        finite,
        names,
        strides,
        options,
        return_lse,
    )


def input_of(name: str, x: Tensor, given: dict[str, Tensor]) -> Input | None:
    """Return how to find a tensor of a call in its arguments, or None if its address does not follow from theirs."""
    own = "lengths" if name.endswith("_lengths") and "lengths" in given else name
    source = given.get(own)
    if source is None or source.numel() == 0:
        return None
    if x.untyped_storage().data_ptr() != source.untyped_storage().data_ptr():  # a copy
        return None
    if name in TABLES and source.stride(-2) == 0:  # which rows a call has does not follow from an address
        return None
    return Input(list(given).index(own), x.data_ptr() - source.data_ptr())
