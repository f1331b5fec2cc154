"""Capabilities of a backend, as it declares them: the choice, the messages, the documents and the tests read them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from relattn.call import Call

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Capabilities:
    """Devices, dtypes and sizes that a backend supports. Only `bias` is an option that some lack.

    Attributes:
        devices: Types of devices; empty: any.
        dtypes: Dtypes of the operands.
        head_dims: Largest head dimension; None: any.
        has_bias: Whether it supports `bias`, whose gradient is an array of queries × keys.
        is_exported: Whether `torch.export` can trace it, which takes plain PyTorch operations.
        unavailable_reason: Return why this installation cannot run a call, or None if it can.
        installation: Return one line about this installation.
    """

    devices: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = DTYPES
    head_dims: int | None = None
    has_bias: bool = False
    is_exported: bool = False
    unavailable_reason: Callable[[Call], str | None] = lambda call: None
    installation: Callable[[], str] = lambda: "needs nothing"

    def refusal_reason(self, call: Call) -> str | None:
        """Return why a call is refused, or None if it is supported."""
        query = call.query
        if self.devices and query.device.type not in self.devices:
            reason = f"tensors must be on {' or '.join(self.devices)}, got {query.device}"
        elif query.dtype not in self.dtypes:
            reason = f"dtype must be one of {self.listed_dtypes()}, got {query.dtype}"
        elif self.head_dims is not None and not all(1 <= dim <= self.head_dims for dim in head_dims(call).values()):
            listed = ", ".join(f"{name} {dim}" for name, dim in head_dims(call).items())
            reason = f"head dims must be from 1 to {self.head_dims}, got {listed}"
        elif torch.compiler.is_exporting() and not self.is_exported:
            reason = "torch.export supports plain PyTorch operations only"
        elif call.bias is not None and not self.has_bias:
            reason = "bias, one number per pair, is not supported"
        else:
            return self.unavailable_reason(call)
        return f"{reason}; use dense"

    def listed_dtypes(self) -> str:
        """Return the names of the dtypes, separated by commas."""
        return ", ".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)

    def __str__(self) -> str:
        devices = " and ".join(self.devices) if self.devices else "any device"
        dims = "" if self.head_dims is None else f", head dims to {self.head_dims}"
        more = ("; bias" if self.has_bias else "") + ("; torch.export" if self.is_exported else "")
        return f"{devices}; {self.listed_dtypes()}{dims}{more}"


def head_dims(call: Call) -> dict[str, int]:
    """Return the dimensions of a call's heads, by name."""
    dims = {"dim": call.query.shape[3], "value_dim": call.value.shape[3]}
    if call.rel_query is not None:
        dims["rel_dim"] = call.rel_query.shape[3]
    return dims
