"""Functions with their own gradient, for autograd and `torch.func`; a second derivative is an error."""

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

    differentiated = inputs

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.results = len(output) - unread
        ctx.options = inputs[tensors:]
        ctx.save_for_backward(*output[unread:], *inputs[:tensors])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    def gradients(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * (tensors + len(ctx.options))
        saved = ctx.saved_tensors
        is_final = torch.compiler.is_compiling() or not torch.is_grad_enabled()  # nobody can differentiate the results
        results = (backward if is_final else final_backward)(grad, *saved, *ctx.options)
        needed = ctx.needs_input_grad[:differentiated]
        input_gradients = (d if needs else None for needs, d in zip(needed, results, strict=True))
        return (*input_gradients, *(None,) * (tensors - differentiated + len(ctx.options)))

    class Compiled(torch.autograd.Function):
        """For `torch.compile`, which refuses a function with `jvp` in a full graph."""

        setup_context = staticmethod(save)
        backward = staticmethod(gradients)

        @staticmethod
        def forward(*arguments: Any) -> tuple[Tensor, ...]:
            return forward(*arguments)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
            return map_by_index(Transformed.apply, info.batch_size, in_dims, arguments)

    class Transformed(Compiled):
        """For `torch.func`, which needs `setup_context`, and for forward mode, which is an error."""

        jvp = staticmethod(refuse_derivative(name))

    class Eager(torch.autograd.Function):
        """For all other calls: without `setup_context`, `apply` takes 20 µs less."""

        backward = staticmethod(gradients)

        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
            output = forward(*arguments)
            save(ctx, arguments, output)
            return output

    def function(*arguments: Any) -> Any:
        leading = arguments[:inputs]
        if torch.compiler.is_compiling():
            return (Compiled.apply if has_gradients(leading) else forward)(*distinct_tensors(arguments))
        if torch._C._is_tracing():  # a traced module cannot be saved with a Python function in it
            return forward(*arguments)
        if is_transformed(leading):
            return Transformed.apply(*arguments)
        return (Eager.apply if has_gradients(leading) else forward)(*arguments)

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


def without_derivative(name: str, function: Function) -> Callable[..., Any]:
    """Return the same function, whose derivative is an error."""

    class Final(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> tuple[Tensor, ...]:
            return function(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        backward = jvp = staticmethod(refuse_derivative(name))

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
            return map_by_index(Final.apply, info.batch_size, in_dims, arguments)

    return Final.apply


def refuse_derivative(name: str) -> Callable[..., Any]:
    """Return a function that raises the error for derivatives that a backend lacks."""

    def refuse(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(
            f"backend must be 'reference' for forward mode (torch.func.jvp, dual tensors) and higher derivatives, got "
            f"{name!r}, which has first derivatives in reverse mode"
        )

    return refuse


def map_by_index(function: Function, size: int, in_dims: tuple[int | None, ...], arguments: tuple[Any, ...]) -> Any:
    """Map a function for `torch.vmap` by one call per index, since the mapped argument may be a table."""
    results = []
    for index in range(size):
        selected = (x if dim is None else x.select(dim, index) for x, dim in zip(arguments, in_dims, strict=True))
        results.append(function(*selected))
    return tuple(torch.stack(outputs) for outputs in zip(*results, strict=True)), (0,) * len(results[0])


def distinct_tensors(arguments: tuple[Any, ...]) -> list[Any]:
    """Return the arguments with repeated tensors replaced by views: Dynamo does not accept a tensor twice."""
    distinct: list[Any] = []
    for x in arguments:
        distinct.append(x.view_as(x) if isinstance(x, Tensor) and any(x is earlier for earlier in distinct) else x)
    return distinct
