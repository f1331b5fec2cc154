"""A function with a gradient of its own, as autograd and `torch.func` take it; its second derivative is an error."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

INPUTS = 6  # arguments with gradients, which come first: query, key, value, rel_key, rel_value and rel_query

Function = Callable[..., tuple[Tensor, ...]]


def differentiable(
    name: str, forward: Function, backward: Function, *, tensors: int, unread: int = 0
) -> Callable[..., Any]:
    """`forward` with gradients.

    Args:
        name: of the backend, for messages.
        forward: of arguments whose first `tensors` are tensors or None; its first result alone has a gradient.
        backward: of that result's gradient, the results but the first `unread`, and all arguments, gives the gradients
            of the first `INPUTS` arguments; any tensor for one that is None.
    """
    last = without_derivative(name, backward)

    class Forward(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> tuple[Tensor, ...]:
            return forward(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            ctx.results, ctx.options = len(output) - unread, inputs[tensors:]
            ctx.save_for_backward(*output[unread:], *inputs[:tensors])
            ctx.mark_non_differentiable(*output[1:])
            ctx.set_materialize_grads(False)  # of the other results

        @staticmethod
        def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
            if grad is None:
                return (None,) * (tensors + len(ctx.options))
            saved = ctx.saved_tensors
            gradients = backward if torch.compiler.is_compiling() else last
            found = gradients(grad, *saved, *ctx.options)
            inputs = saved[ctx.results : ctx.results + INPUTS]
            needed = (None if x is None else d for x, d in zip(inputs, found, strict=True))
            return (*needed, *(None,) * (tensors - INPUTS + len(ctx.options)))

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Any, Any]:
            return one_by_one(Eager.apply, info.batch_size, in_dims, given)

    class Eager(Forward):
        """With a word on forward mode, which `torch.compile` would not take whole."""

        jvp = staticmethod(refusal(name))

    def function(*arguments: Any) -> Any:
        inputs = arguments[:INPUTS]
        if torch.compiler.is_compiling():
            return (Forward.apply if has_gradients(inputs) else forward)(*apart(arguments))
        return (Eager.apply if has_gradients(inputs) or is_transformed(inputs) else forward)(*arguments)

    return function


def has_gradients(tensors: Iterable[Tensor | None]) -> bool:
    """Whether autograd will want the gradient of any."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def is_transformed(inputs: Iterable[Tensor | None]) -> bool:
    """Whether a transform of `torch.func` or forward mode is under way; without, `apply`, of 40 µs, can be spared."""
    if torch._C._are_functorch_transforms_active():
        return True
    return any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in inputs)


def without_derivative(name: str, function: Function) -> Callable[..., Any]:
    """The same function, whose derivative is an error."""

    class Last(torch.autograd.Function):
        @staticmethod
        def forward(*given: Any) -> tuple[Tensor, ...]:
            return function(*given)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        backward = jvp = staticmethod(refusal(name))

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Any, Any]:
            return one_by_one(Last.apply, info.batch_size, in_dims, given)

    return Last.apply


def refusal(name: str) -> Callable[..., Any]:
    def refuse(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(
            f"{name}: it gives first derivatives, by reverse mode; forward mode (torch.func.jvp, dual tensors) and "
            "higher derivatives are for backend='reference'"
        )

    return refuse


def one_by_one(function: Function, size: int, in_dims: tuple[int | None, ...], given: tuple[Any, ...]) -> Any:
    """How `torch.vmap` maps a function here: a call for each of `size`, since what is mapped may be a table as well."""
    results = []
    for number in range(size):
        each = (x if dim is None else x.select(dim, number) for x, dim in zip(given, in_dims, strict=True))
        results.append(function(*each))
    return tuple(torch.stack(found) for found in zip(*results, strict=True)), (0,) * len(results[0])


def apart(arguments: tuple[Any, ...]) -> list[Any]:
    """A tensor that is there twice as a view of itself: Dynamo takes none twice."""
    found: list[Any] = []
    for x in arguments:
        found.append(x.view_as(x) if isinstance(x, Tensor) and any(x is other for other in found) else x)
    return found
