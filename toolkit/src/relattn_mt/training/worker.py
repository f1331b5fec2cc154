"""The processes of a run, one per device, which torchrun starts: their devices, ranks and precision."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from relattn_mt.config import TrainConfig
from relattn_mt.support.errors import require

_DTYPES = {"fp32": torch.float32, "bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}


def is_first_process() -> bool:
    """Return whether this is the process that writes files."""
    return _started("RANK", 0) == 0


def _started(variable: str, otherwise: int = 1) -> int:
    """Return a number that torchrun has set, or another one if it has not started this process."""
    return int(os.environ[variable]) if "TORCHELASTIC_RUN_ID" in os.environ else otherwise


@dataclass(eq=False)
class Worker:
    """A process of a run: its device, its rank among all processes, and the precision of its forward passes.

    Attributes:
        device: Device that it computes on.
        rank: Rank of the process, counted from 0 over all machines.
        world_size: Number of processes.
        dtype: dtype of matrix products in forward passes, while weights stay in float32.
        scaler: Scales losses, so that gradients in float16 do not vanish. It does nothing for other dtypes.
    """

    device: torch.device
    rank: int
    world_size: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def launch(self) -> None:
        """Join the other processes, if there are any, with the address that torchrun has set."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.world_size > 1:
            torch.distributed.init_process_group("nccl" if self.device.type == "cuda" else "gloo")

    def wrap(self, module: nn.Module) -> nn.Module:
        """Move a module to the device. With several processes, return one that averages gradients over them."""
        module.to(self.device)
        if self.world_size == 1:
            return module
        return DistributedDataParallel(module, device_ids=None if self.device.type == "cpu" else [self.device])

    def no_exchange(self, module: nn.Module) -> AbstractContextManager[None]:
        """Return a context in which backward passes do not exchange the gradients of a wrapped module."""
        return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()

    def autocast(self) -> torch.autocast:
        """Return the context of a forward pass."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def sum(self, numbers: Tensor) -> Tensor:
        """Return the sum over all processes of a tensor, which is changed."""
        if self.world_size > 1:
            torch.distributed.all_reduce(numbers)
        return numbers


def worker_of(train: TrainConfig) -> Worker:
    """Return this process as a worker of a run.

    Raises:
        InputError: There are fewer GPUs than processes, or the micro-batches of a step cannot be divided among them.
    """
    gpus = torch.accelerator.device_count()
    processes = _started("WORLD_SIZE")
    local = _started("LOCAL_WORLD_SIZE")
    on_gpus = train.accelerator == "gpu" or (train.accelerator == "auto" and gpus > 0)
    enough = local <= gpus or not on_gpus
    require(enough, f"there must be a GPU per process, got {gpus} for {local}; see --train.accelerator")
    fits = train.accumulate % processes == 0
    require(fits, f"accumulate must be a multiple of {processes}, the number of processes, got {train.accumulate}")
    gpu = torch.accelerator.current_accelerator() if on_gpus else None
    device = torch.device("cpu") if gpu is None else torch.device(gpu.type, _started("LOCAL_RANK", 0))
    return Worker(device, _started("RANK", 0), processes, _DTYPES[train.precision])
