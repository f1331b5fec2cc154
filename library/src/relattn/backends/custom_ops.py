"""PyTorch operators around the kernels of a backend, opaque to `torch.compile`: shared by native and triton."""

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from relattn.backends.autograd import INPUTS, differentiable
from relattn.call import Call, OutputAndLse, accumulation_dtype
from relattn.checks import is_tracing

TYPES = {
    Tensor: "Tensor", Tensor | None: "Tensor?", int: "SymInt", int | None: "SymInt?", bool: "bool", float: "float",
}  # fmt: skip
ARGUMENTS = ", ".join(f"{TYPES[annotation]} {name}" for name, annotation in Call.__annotations__.items())
TENSORS = ARGUMENTS.count("Tensor")

PLAIN = (Tensor, torch.nn.Parameter)  # types of tensors without Python code of their own
Attended = tuple[Tensor, Tensor, Tensor]  # the output, the log-sum-exp and other statistics of each query
Operator = Callable[..., Any]


def register(
    name: str, forward: Callable[[Call], Attended], backward: Callable[..., tuple[Tensor, ...]], row_stats: int
) -> Operator:
    """Register the two functions of a backend as operators, `relattn::NAME` and `relattn::NAME_backward`.

    Args:
        name: Name of the backend.
        forward: Function of a call. It returns the output, the natural log-sum-exp (batch, heads, queries), and the
            other statistics of each query that the backward pass reads.
        backward: Function of a call, the gradient of the output, and the three results of `forward`. It returns the
            gradients of query, key, value, rel_key, rel_value, rel_query, pos_query and bias; an empty tensor for an
            absent argument, and for a bias without `has_bias_gradient`.
        row_stats: Number of these statistics.

    Returns:
        The differentiable operator, a function of a call's fields.
    """

    def run_forward(*fields: Any) -> Attended:
        return forward(Call(*fields))

    def run_backward(*arguments: Any) -> tuple[Tensor, ...]:
        return backward(Call(*arguments[4:]), *arguments[:4])

    def fake_forward(*fields: Any) -> Attended:
        call = Call(*fields)
        return *new_results(call), new_row_stats(call, row_stats)

    def fake_backward(grad: Tensor, output: Tensor, lse: Tensor, stats: Tensor, *fields: Any) -> tuple[Tensor, ...]:
        *others, bias = fields[:INPUTS]
        d_bias = grad.new_empty(bias.shape if Call(*fields).has_bias_gradient else 0)
        return *(new_gradient(x, grad) for x in others), d_bias

    arguments = f"Tensor grad, Tensor output, Tensor lse, Tensor stats, {ARGUMENTS}"
    gradients = ", ".join(["Tensor"] * INPUTS)
    forward_op = define(name, f"({ARGUMENTS}) -> (Tensor, Tensor, Tensor)", run_forward, fake_forward, TENSORS)
    backward_op = define(
        f"{name}_backward", f"({arguments}) -> ({gradients})", run_backward, fake_backward, 4 + TENSORS
    )
    return differentiable(name, forward_op, backward_op, tensors=TENSORS)


def skips_dispatch(tensors: Iterable[Tensor | None]) -> bool:
    """Return whether nothing has to see an operator of these tensors: no tracer, transform, mode, subclass or profiler.

    PyTorch's dispatcher takes as long as a short call. It also resolves the negative bit (`Tensor.is_neg`).
    """
    if is_tracing() or torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    for x in tensors:  # `all` takes twice as long
        if x is not None and (type(x) not in PLAIN or x.is_neg()):
            return False
    return not torch.autograd._profiler_enabled()


def define(name: str, schema: str, function: Operator, fake: Operator, tensors: int) -> Operator:
    """Register an operator that Dynamo does not trace, and return a function that skips PyTorch's dispatcher if it may.

    `torch.library.custom_op` would add its own autograd function, which costs 5 µs per call. `torch.compiler.disable`
    would import Dynamo, which takes over a second.

    Args:
        name: Name of the operator.
        schema: Its schema.
        function: Function that computes it.
        fake: Function that returns results without values.
        tensors: Number of leading arguments that are tensors or None.
    """
    untraced = functools.cache(lambda: torch.compiler.disable(function))

    def run(*arguments: Any) -> Any:
        return (untraced() if "torch._dynamo" in sys.modules else function)(*arguments)

    torch.library.define(f"relattn::{name}", schema)
    torch.library.impl(f"relattn::{name}", "CompositeExplicitAutograd", run)
    torch.library.register_fake(f"relattn::{name}", fake)
    operator = getattr(torch.ops.relattn, name).default

    def call_operator(*arguments: Any) -> Any:
        return function(*arguments) if skips_dispatch(arguments[:tensors]) else operator(*arguments)

    return call_operator


def attend(call: Call, operator: Operator, return_lse: bool) -> OutputAndLse:
    """Return the output of a call by a backend's differentiable operator, and the log-sum-exp or None."""
    output, lse, _ = operator(*with_seed(call))
    return output, lse.detach() if return_lse else None


def with_seed(call: Call) -> Call:
    """Return a call with a seed if it has dropout."""
    if call.dropout_p > 0.0 and call.seed is None:
        return call._replace(seed=torch.randint(2**63 - 1, (), device=call.query.device))
    return call


def new_results(call: Call) -> tuple[Tensor, Tensor]:
    """Allocate the output and the log-sum-exp."""
    return new_output(call), new_lse(call)


def new_output(call: Call) -> Tensor:
    """Allocate the output, in memory (batch, queries, heads, value_dim) as layers join heads."""
    batch, heads, queries, _ = call.query.shape
    width = call.value.shape[3]
    # not a transposed tensor: autograd refuses in-place changes to a view that a function returns
    strides = (queries * heads * width, width, heads * width, 1)
    return call.query.new_empty_strided((batch, heads, queries, width), strides)


def new_lse(call: Call) -> Tensor:
    """Allocate the log-sum-exp, (batch, heads, queries)."""
    return call.query.new_empty(call.query.shape[:3], dtype=accumulation_dtype(call.query.dtype))


def new_row_stats(call: Call, row_stats: int) -> Tensor:
    """Allocate statistics of each query, (row_stats, batch, heads, queries rounded up to a multiple of 16).

    Of packed sequences, each begins at a multiple of 16, as `relattn.h` says.
    """
    batch, heads, queries = call.query.shape[:3]
    padded = (queries + 15) // 16 * 16 if call.cu_seqlens is None else queries // 16 * 16 + 16 * count_sequences(call)
    dtype = accumulation_dtype(call.query.dtype)
    return call.query.new_empty((row_stats, batch, heads, padded), dtype=dtype)


def count_sequences(call: Call) -> int:
    """Return the number of sequences, which may be packed in a batch of one."""
    return call.query.shape[0] if call.cu_seqlens is None else call.cu_seqlens.shape[0] - 1


def new_gradient(x: Tensor | None, grad: Tensor) -> Tensor:
    """Allocate the gradient of an argument, with the argument's memory layout; tables contiguous, None empty."""
    if x is None:
        return grad.new_empty(0)
    return torch.empty_like(with_contiguous_rows(x)) if x.dim() == 4 else x.new_empty(x.shape)


def with_contiguous_rows(x: Tensor) -> Tensor:
    """Return a tensor whose last dimension is contiguous, copied only if it is not."""
    return x if x.stride(-1) == 1 else x.contiguous()
