"""What a backend serves, as it declares it: read by the choice, the messages, the documents and the tests."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from relattn.call import Call

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Capabilities:
    """Every option of both operators is served by every backend; these differ."""

    devices: tuple[str, ...] = ()  # their types; none named: any
    dtypes: tuple[torch.dtype, ...] = DTYPES
    head_dims: int | None = None  # the largest
    is_exported: bool = False  # by torch.export, which takes plain PyTorch operations
    unavailable_reason: Callable[[Call], str | None] = lambda call: None  # why this installation cannot do such a call
    installation: Callable[[], str] = lambda: "needs nothing"  # a line about this installation

    def refusal_reason(self, call: Call) -> str | None:
        """Why a call cannot be served, or None where it can."""
        query, dims = call.query, {"dim": call.query.shape[3], "value_dim": call.value.shape[3]}
        if call.rel_query is not None:
            dims["rel_dim"] = call.rel_query.shape[3]
        reason = None
        if self.devices and query.device.type not in self.devices:
            reason = f"query is on {query.device}, and it runs on {' and '.join(self.devices)}"
        elif query.dtype not in self.dtypes:
            reason = f"query has type {query.dtype}, and it takes {self.listed_dtypes()}"
        elif self.head_dims is not None and not all(1 <= dim <= self.head_dims for dim in dims.values()):
            listed = " and ".join(f"{name} {dim}" for name, dim in dims.items())
            reason = f"{listed}: they are from 1 to {self.head_dims}"
        elif torch.compiler.is_exporting() and not self.is_exported:
            reason = "torch.export takes plain PyTorch operations"
        return self.unavailable_reason(call) if reason is None else f"{reason}; use dense"

    def listed_dtypes(self) -> str:
        return ", ".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)

    def __str__(self) -> str:
        devices = " and ".join(self.devices) if self.devices else "any device"
        dims = "" if self.head_dims is None else f", head dims to {self.head_dims}"
        return f"{devices}; {self.listed_dtypes()}{dims}{'; torch.export' if self.is_exported else ''}"
