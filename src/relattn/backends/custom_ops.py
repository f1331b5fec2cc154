"""What backends with kernels of their own share: PyTorch operators around them, opaque to `torch.compile`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from relattn.backends.autograd import INPUTS, differentiable
from relattn.call import Call, accumulation_dtype

KINDS = {Tensor: "Tensor", Tensor | None: "Tensor?", int: "SymInt", bool: "bool", float: "float"}
ARGUMENTS = ", ".join(f"{KINDS[kind]} {name}" for name, kind in Call.__annotations__.items())
TENSORS = ARGUMENTS.count("Tensor")

Attended = tuple[Tensor, Tensor, Tensor]  # the output, the log-sum-exp and other statistics of each query
Operator = Callable[..., Any]


def register(
    name: str, forward: Callable[[Call], Attended], backward: Callable[..., tuple[Tensor, ...]], row_stats: int
) -> tuple[Operator, Operator, Operator]:
    """A backend's two functions of a call as operators, `relattn::NAME` and `relattn::NAME_backward`.

    Args:
        forward: of a call, gives the output, the log-sum-exp (batch, heads, queries), natural, and what else the
            backward pass reads of each query: so many `row_stats` of it, as `new_row_stats` has room for.
        backward: of a call, the output's gradient and those three, gives the gradients of query, key, value, rel_key,
            rel_value and rel_query; an empty tensor for one that is not there.

    Returns:
        The first with gradients, and the two, all of a call's fields.
    """
    saved = "Tensor grad, Tensor output, Tensor lse, Tensor stats"

    @torch.library.custom_op(f"relattn::{name}", mutates_args=(), schema=f"({ARGUMENTS}) -> (Tensor, Tensor, Tensor)")
    def run(*fields: Any) -> Attended:
        return forward(Call(*fields))

    @torch.library.custom_op(
        f"relattn::{name}_backward",
        mutates_args=(),
        schema=f"({saved}, {ARGUMENTS}) -> ({', '.join(['Tensor'] * INPUTS)})",
    )
    def run_backward(grad: Tensor, output: Tensor, lse: Tensor, left: Tensor, *fields: Any) -> tuple[Tensor, ...]:
        return backward(Call(*fields), grad, output, lse, left)

    @run.register_fake
    def _(*fields: Any) -> Attended:
        output, lse = new_results(Call(*fields))
        return output, lse, new_row_stats(lse, row_stats)

    @run_backward.register_fake
    def _(grad: Tensor, output: Tensor, lse: Tensor, left: Tensor, *fields: Any) -> tuple[Tensor, ...]:
        return tuple(new_gradient(x, grad) for x in fields[:INPUTS])

    plain, backward_of_it = (getattr(torch.ops.relattn, found).default for found in (name, f"{name}_backward"))
    return differentiable(name, plain, backward_of_it, tensors=TENSORS), plain, backward_of_it


def attend(call: Call, operator: Operator, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    """A backend's answer to a call by its operator with gradients."""
    if call.dropout_p > 0.0 and call.seed is None:
        call = call._replace(seed=torch.randint(2**63 - 1, (), device=call.query.device))
    output, lse, _ = operator(*call)
    return output, lse.detach() if return_lse else None


def new_results(call: Call) -> tuple[Tensor, Tensor]:
    """Room for the output, laid out (batch, queries, heads, value_dim) as layers join heads, and the log-sum-exp."""
    query = call.query
    batch, heads, queries, _ = query.shape
    output = query.new_empty(batch, queries, heads, call.value.shape[3]).transpose(1, 2)
    return output, query.new_empty(batch, heads, queries, dtype=accumulation_dtype(query.dtype))


def new_row_stats(lse: Tensor, row_stats: int) -> Tensor:
    """Allocate statistics of each query, (row_stats, batch, heads, queries rounded up to a multiple of 16)."""
    batch, heads, queries = lse.shape
    return lse.new_empty(row_stats, batch, heads, (queries + 15) // 16 * 16)


def new_gradient(x: Tensor | None, grad: Tensor) -> Tensor:
    """Room for the gradient of an argument: laid out as the argument is, tables without gaps; empty for none."""
    if x is None:
        return grad.new_empty(0)
    return torch.empty_like(with_contiguous_rows(x)) if x.dim() == 4 else x.new_empty(x.shape)


def with_contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
