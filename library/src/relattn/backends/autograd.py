"""Functions with their own gradient for autograd; other derivatives and transforms of `torch.func` are errors."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

INPUTS = 8  # leading fields of a call that may have gradients: from query to bias

Function = Callable[..., tuple[Tensor, ...]]


def differentiable(
    name: str, forward: Function, backward: Function, *, tensors: int, inputs: int = INPUTS, unread: int = 0
) -> Callable[..., Any]:
    """Return `forward` as a differentiable function.

    Args:
        name: Name of the backend, for messages.
        forward: Function whose first `tensors` arguments are tensors or None. Only its first result has a gradient.
        backward: Function of the gradient of that result, the results from number `unread` on, and all arguments. It
            returns the gradients of the first `inputs` arguments, and any tensor for an argument that is None.
        tensors: Number of leading arguments that are tensors or None.
        inputs: Number of leading arguments that have gradients.
        unread: Number of leading results that `backward` does not read.
    """
    final_backward = without_derivative(name, backward)

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
            output = forward(*arguments)
            ctx.options = arguments[tensors:]
            ctx.save_for_backward(*output[unread:], *arguments[:tensors])
            ctx.mark_non_differentiable(*output[1:])
            ctx.set_materialize_grads(False)
            return output

        @staticmethod
        def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
            if grad is None:
                return (None,) * (tensors + len(ctx.options))
            if not torch.compiler.is_compiling() and is_transformed_gradient(grad):
                raise derivative_error(name)
            saved = ctx.saved_tensors
            # without a graph, nobody can differentiate the results
            is_final = torch.compiler.is_compiling() or not torch.is_grad_enabled()
            results = (backward if is_final else final_backward)(grad, *saved, *ctx.options)
            needed = ctx.needs_input_grad[:inputs]
            input_gradients = (d if needs else None for needs, d in zip(needed, results, strict=True))
            return (*input_gradients, *(None,) * (tensors - inputs + len(ctx.options)))

    def function(*arguments: Any) -> Any:
        leading = arguments[:inputs]
        run = Differentiable.apply if has_gradients(leading) else forward
        if torch.compiler.is_compiling():
            return run(*distinct_tensors(arguments))
        if torch._C._is_tracing():  # a traced module cannot be saved with a Python function in it
            return forward(*arguments)
        if is_transformed(leading):
            raise derivative_error(name)
        return run(*arguments)

    return function


def has_gradients(tensors: Iterable[Tensor | None]) -> bool:
    """Return whether autograd needs the gradient of any of the tensors."""
    if torch.is_grad_enabled():
        for x in tensors:  # `any` takes twice as long
            if x is not None and x.requires_grad:
                return True
    return False


def is_transformed(inputs: Iterable[Any]) -> bool:
    """Return whether a `torch.func` transform or forward mode is active."""
    if torch._C._are_functorch_transforms_active():
        return True
    if getattr(forward_ad, "_current_level", 0) < 0:  # a private name, which saves asking each tensor
        return False
    return any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in inputs)


def is_transformed_gradient(grad: Tensor) -> bool:
    """Return whether a transform is active in a backward pass. `is_grads_batched` has its own kind of tensors."""
    return is_transformed((grad,)) or torch._C._functorch.is_legacy_batchedtensor(grad)


def without_derivative(name: str, function: Function) -> Callable[..., Any]:
    """Return the same function, whose derivative is an error."""

    class Final(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
            return function(*arguments)

        @staticmethod
        def backward(ctx: Any, *_: Any) -> Any:
            raise derivative_error(name)

    return Final.apply


def derivative_error(name: str) -> NotImplementedError:
    """Return the error for derivatives that a backend lacks."""
    return NotImplementedError(
        "backend must be 'reference' for torch.func, forward mode (dual tensors), batched gradients "
        f"and higher derivatives, got {name!r}"
    )


def distinct_tensors(arguments: tuple[Any, ...]) -> list[Any]:
    """Return the arguments with repeated tensors replaced by views: Dynamo does not accept a tensor twice."""
    distinct: list[Any] = []
    for x in arguments:
        distinct.append(x.view_as(x) if isinstance(x, Tensor) and any(x is earlier for earlier in distinct) else x)
    return distinct
