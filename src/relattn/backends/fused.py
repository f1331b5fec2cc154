"""What backends with kernels of their own share: PyTorch operators around them, and a call as those take it.

A backend gives two functions of `Arguments`; `register` makes them `relattn::NAME` and `relattn::NAME_backward`, opaque
to `torch.compile`, with shapes for tracing and with autograd. Shapes are those of the public operators. `offsets`
(batch,), where given, and `offset` otherwise, are positions of query 0; `seed` is one int64, there where probabilities
are dropped. Without `relations`, labels are clipped positions; with them `left` and `right` mean nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relattn.call import Attended, Call, RelationCall, RelativeCall


class Arguments(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    rel_key: Tensor | None
    rel_value: Tensor | None
    relations: Tensor | None
    offsets: Tensor | None
    lengths: Tensor | None
    mask: Tensor | None
    seed: Tensor | None
    offset: int
    left: int
    right: int
    clips: bool
    is_causal: bool
    dropout_p: float
    scale: float


KINDS = {Tensor: "Tensor", Tensor | None: "Tensor?", int: "SymInt", bool: "bool", float: "float"}
ARGUMENTS = ", ".join(f"{KINDS[kind]} {name}" for name, kind in Arguments.__annotations__.items())
TENSORS = ARGUMENTS.count("Tensor")
Operator = Callable[..., tuple[Tensor, Tensor, Tensor]]


def register(
    name: str,
    forward: Callable[..., tuple[Tensor, Tensor, Tensor]],
    backward: Callable[..., tuple[Tensor, ...]],
    kinds: int,
) -> tuple[Any, Any]:
    """The two functions of a backend as operators.

    Args:
        forward: of `Arguments`, gives the output, the log-sum-exp (batch, heads, queries), and what else the backward
            pass reads of each query: `kinds` numbers, as `new_numbers` has room for. Both are float32.
        backward: of the output's gradient, those three and `Arguments`, gives the gradients of query, key, value,
            rel_key and rel_value; an empty tensor for a table that is not there.
    """
    schema = f"({ARGUMENTS}) -> (Tensor, Tensor, Tensor)"
    saved = "Tensor grad, Tensor output, Tensor lse, Tensor numbers"
    back = f"({saved}, {ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
    run = torch.library.custom_op(f"relattn::{name}", forward, mutates_args=(), schema=schema)
    run_backward = torch.library.custom_op(f"relattn::{name}_backward", backward, mutates_args=(), schema=back)

    def fake(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        output, lse = results(query, value)
        return output, lse, new_numbers(lse, kinds)

    def fake_backward(
        grad: Tensor, output: Tensor, lse: Tensor, numbers: Tensor, *arguments: Any
    ) -> tuple[Tensor, ...]:
        given = tuple(torch.empty_like(with_contiguous_rows(x)) for x in arguments[:3])
        return (*given, *(grad.new_empty(0) if x is None else x.new_empty(x.shape) for x in arguments[3:5]))

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.options = inputs[TENSORS:]
        ctx.save_for_backward(*output, *inputs[:TENSORS])
        ctx.mark_non_differentiable(*output[1:])

    def gradients(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        output, lse, numbers, *inputs = ctx.saved_tensors
        found = run_backward(grad, output, lse, numbers, *inputs, *ctx.options)
        tables = (None if table is None else x for table, x in zip(inputs[3:5], found[3:], strict=True))
        rest = len(inputs) + len(ctx.options) - 5
        return (*found[:3], *tables, *(None,) * rest)

    run.register_fake(fake)
    run_backward.register_fake(fake_backward)
    run.register_autograd(gradients, setup_context=keep)
    return run, run_backward


def results(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Room for the output, laid out (batch, queries, heads, value_dim) as layers join heads, and the log-sum-exp."""
    batch, heads, queries, _ = query.shape
    output = query.new_empty(batch, queries, heads, value.shape[3]).transpose(1, 2)
    return output, query.new_empty(batch, heads, queries, dtype=torch.float32)


def new_numbers(lse: Tensor, kinds: int) -> Tensor:
    """Room for some kinds of numbers of each query: (kinds, batch, heads, a multiple of 16 that queries fit in)."""
    batch, heads, queries = lse.shape
    return lse.new_empty(kinds, batch, heads, (queries + 15) // 16 * 16)


def with_contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def relative_attention(call: RelativeCall, operator: Operator) -> Attended:
    right = 0 if call.is_causal else call.right  # rows for later keys, which nothing sees, stay outside
    rows = slice(call.left + right + 1)
    rel_key, rel_value = (None if table is None else table[..., rows, :] for table in (call.rel_key, call.rel_value))
    return attend(call, operator, rel_key, rel_value, None, call.left, right, call.beyond == "clip")


def relation_attention(call: RelationCall, operator: Operator) -> Attended:
    relations = None if call.rel_key is None and call.rel_value is None else call.relations
    return attend(call, operator, call.rel_key, call.rel_value, relations, 0, 0, False)


def attend(
    call: Call,
    operator: Operator,
    rel_key: Tensor | None,
    rel_value: Tensor | None,
    relations: Tensor | None,
    left: int,
    right: int,
    clips: bool,
) -> Attended:
    offset, offsets = 0, None
    if isinstance(call.query_offset, Tensor):
        offsets = call.query_offset
    else:
        offset = call.query_offset
    arguments = Arguments(
        query=call.query,
        key=call.key,
        value=call.value,
        rel_key=rel_key,
        rel_value=rel_value,
        relations=relations,
        offsets=offsets,
        lengths=call.key_lengths,
        mask=None if call.mask is None else call.mask[(None,) * (4 - call.mask.dim())],
        seed=torch.randint(2**63 - 1, (), device=call.query.device) if call.dropout_p > 0.0 else None,
        offset=offset,
        left=left,
        right=right,
        clips=clips,
        is_causal=call.is_causal,
        dropout_p=call.dropout_p,
        scale=call.scale,
    )
    output, lse, _ = operator(*arguments)
    return Attended(output, lse.detach() if call.return_lse else None)
