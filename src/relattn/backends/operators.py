"""A backend's forward and backward as operators of PyTorch: opaque to `torch.compile`, known to autograd.

A backend with gradients of its own gives two functions of a call; `register` makes them `relattn::NAME` and
`relattn::NAME_backward`, with shapes for tracing, and returns the function that serves calls.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from relattn.call import Attended, RelativeCall

TENSORS = "Tensor query, Tensor key, Tensor value, Tensor? rel_key, Tensor? rel_value, Tensor? key_lengths"
OPTIONS = "SymInt query_offset, bool is_causal, float scale, SymInt left, SymInt right, str beyond"
NAMES = [argument.split()[-1] for argument in f"{TENSORS}, {OPTIONS}".split(", ")]  # fields of a call

Forward = Callable[[RelativeCall], tuple[Tensor, Tensor, Tensor]]
Backward = Callable[[Tensor, Tensor, Tensor, Tensor, RelativeCall], tuple[Tensor, ...]]


def exact(dtype: torch.dtype) -> torch.dtype:
    """The type of log-sum-exps and of sums over many rows: float32 for half types."""
    return torch.promote_types(dtype, torch.float32)


def call_of(arguments: tuple[Any, ...]) -> RelativeCall:
    return RelativeCall(**dict(zip(NAMES, arguments, strict=True)), mask=None, dropout_p=0.0, return_lse=True)


def register(
    name: str, forward: Forward, backward: Backward, kept_width: Callable[[RelativeCall], int]
) -> Callable[[RelativeCall], Attended]:
    """Registers a backend's two functions.

    Args:
        forward: gives the output, the log-sum-exp, and what the backward wants kept, (batch, heads, queries, width).
        backward: of the output's gradient and those three, the gradients of query, key, value, rel_key and rel_value;
            of a table not given, an empty tensor.
        kept_width: the last size of what is kept.
    """
    schema = f"({TENSORS}, {OPTIONS}) -> (Tensor, Tensor, Tensor)"
    given = "Tensor grad, Tensor output, Tensor lse, Tensor kept"
    schema_backward = f"({given}, {TENSORS}, {OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"

    @torch.library.custom_op(f"relattn::{name}", mutates_args=(), schema=schema)
    def run(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        return forward(call_of(arguments))

    @torch.library.custom_op(f"relattn::{name}_backward", mutates_args=(), schema=schema_backward)
    def run_backward(grad: Tensor, output: Tensor, lse: Tensor, kept: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        return backward(grad, output, lse, kept, call_of(arguments))

    def empty(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        call = call_of(arguments)
        query, rows, kind = call.query, call.query.shape[:3], exact(call.query.dtype)
        return (
            query.new_empty(*rows, call.value.shape[3]),
            query.new_empty(rows, dtype=kind),
            query.new_empty(*rows, kept_width(call), dtype=kind),
        )

    def empty_gradients(grad: Tensor, output: Tensor, lse: Tensor, kept: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        return tuple(grad.new_empty(0 if x is None else x.shape) for x in arguments[:5])

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*output, *inputs[:6])
        ctx.options = inputs[6:]
        ctx.set_materialize_grads(False)

    def gradients(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * (6 + len(ctx.options))
        found = run_backward(grad, *ctx.saved_tensors, *ctx.options)
        wanted = [x if needed else None for x, needed in zip(found, ctx.needs_input_grad, strict=False)]
        return (*wanted, None, *(None for _ in ctx.options))

    run.register_fake(empty)
    run_backward.register_fake(empty_gradients)
    run.register_autograd(gradients, setup_context=keep)

    def relative_attention(call: RelativeCall) -> Attended:
        output, lse, _ = run(*(getattr(call, name) for name in NAMES))
        return Attended(output, lse.detach() if call.return_lse else None)

    return relative_attention
