"""Capabilities of a backend, as it declares them: the choice, the messages, the documents and the tests read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from relattn.call import Call

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
FIELDS = frozenset({  # fields of `Call` that every backend computes; a new field is refused until a backend lists it
    "query", "key", "value", "rel_key", "rel_value", "rel_query", "pos_query", "relations", "query_offsets",
    "key_lengths", "query_lengths", "cu_seqlens", "mask", "seed", "longest", "query_offset", "left", "right", "clips",
    "is_causal", "window_left", "window_right", "chunk", "dropout_p", "scale", "has_bias_gradient",
})  # fmt: skip


@dataclass(frozen=True)
class Capabilities:
    """Arguments, devices, dtypes and sizes that a backend supports.

    Attributes:
        fields: Names of the fields of `Call` that it computes. Calls that set another field are refused.
        devices: Types of devices; empty: any.
        dtypes: Dtypes of the operands.
        head_dims: Largest head dimension; None: any.
        is_exported: Whether `torch.export` can trace it, which takes plain PyTorch operations.
        unavailable_reason: Return why this installation cannot run a call, or None if it can.
        installation: Return one line about this installation.
    """

    fields: frozenset[str] = FIELDS
    devices: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = DTYPES
    head_dims: int | None = None
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
        elif is_exporting() and not self.is_exported:
            reason = "torch.export supports plain PyTorch operations only"
        elif unknown := [name for name in Call._fields if name not in self.fields and is_set(call, name)]:
            reason = f"{', '.join(unknown)} is not supported"
        else:
            return self.unavailable_reason(call)
        return reason

    def listed_dtypes(self) -> str:
        """Return the names of the dtypes, separated by commas."""
        return ", ".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)

    def __str__(self) -> str:
        devices = " and ".join(self.devices) if self.devices else "any device"
        dims = "" if self.head_dims is None else f", head dims to {self.head_dims}"
        more = "".join(f"; {name}" for name in sorted(self.fields - FIELDS))
        more += "; torch.export" if self.is_exported else ""
        return f"{devices}; {self.listed_dtypes()}{dims}{more}"


def is_exporting() -> bool:
    """Return whether `torch.export` is tracing. The public function is the constant True in Dynamo of torch 2.11."""
    return torch.compiler._is_exporting_flag


def is_set(call: Call, name: str) -> bool:
    """Return whether a field of a call has another value than its default."""
    value = getattr(call, name)
    default = call._field_defaults.get(name)
    return value is not default and (isinstance(value, torch.Tensor) or bool(value != default))


def head_dims(call: Call) -> dict[str, int]:
    """Return the dimensions of a call's heads, by name."""
    dims = {"dim": call.query.shape[3], "value_dim": call.value.shape[3]}
    if call.rel_query is not None:
        dims["rel_dim"] = call.rel_query.shape[3]
    return dims
