"""Processes of a run, one per device, which torchrun starts and supervises: how they join and compute."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision, Precision

from relattn_mt.config import TrainConfig
from relattn_mt.support.errors import InputError, require
from relattn_mt.training.run_directory import RunDirectory
from relattn_mt.training.stop import Stop

_GRACE = 5.0  # seconds in which torchrun ends a process whose partner was lost
_CONNECT = 60.0  # seconds in which torchrun must accept a connection


def is_first_process() -> bool:
    """Return whether this is the process that writes files."""
    return _started("RANK", 0) == 0


def _started(variable: str, otherwise: int = 1) -> int:
    """Return a number that torchrun has set, or another one if it has not started this process."""
    return int(os.environ[variable]) if "TORCHELASTIC_RUN_ID" in os.environ else otherwise


def precision_of(train: TrainConfig) -> Precision:
    """Return Fabric's plug-in for a precision. By name, Fabric would use bfloat16 for float16 on a CPU."""
    if train.precision == "fp32":
        return Precision()
    device = None if train.accelerator == "cpu" else torch.accelerator.current_accelerator()
    kind = "cpu" if device is None else device.type
    return MixedPrecision("16-mixed" if train.precision == "fp16-mixed" else "bf16-mixed", kind)


def fabric_of(directory: RunDirectory) -> Fabric:
    """Return a Fabric with the devices, strategy and precision of a run.

    Raises:
        InputError: There are fewer GPUs than processes, or the micro-batches of a step cannot be divided among them.
    """
    train, gpus = directory.recipe.train, torch.cuda.device_count()
    processes, local = _started("WORLD_SIZE"), _started("LOCAL_WORLD_SIZE")
    on_gpus = train.accelerator == "gpu" or (train.accelerator == "auto" and gpus > 0)
    enough = local <= gpus or not on_gpus
    require(enough, f"there must be a GPU per process, got {gpus} for {local}; see --train.accelerator")
    fits = train.accumulate % processes == 0
    require(fits, f"accumulate must be a multiple of {processes}, the number of processes, got {train.accumulate}")
    return Fabric(
        accelerator=train.accelerator,
        devices=local,
        num_nodes=processes // local,
        strategy="ddp" if processes > 1 else "auto",
        plugins=precision_of(train),
    )


def _require_agent() -> None:
    """Require the agent of torchrun, which has the addresses of the others: joining would wait 30 minutes for it."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    try:
        socket.create_connection(address, timeout=_CONNECT).close()
    except OSError as error:
        raise InputError(f"torchrun must accept connections on {address[0]}:{address[1]}, got {error}") from error


@contextmanager
def joined(fabric: Fabric, train: TrainConfig, stop: Stop) -> Iterator[None]:
    """Join the other processes of the run, if there are several, and leave them at the end.

    An error may have been caused by another process: if one of several is lost, a collective operation fails in all
    others, with an error of gloo or NCCL. So torchrun gets time to end this process before the error is reported. If
    all processes fail, the first one reports it.
    """
    try:
        if fabric.world_size > 1:
            stop.switch("kill")  # nothing would be lost, and no other handler runs while this process waits for others
            _require_agent()
        fabric.launch()
        if train.threads is not None:
            torch.set_num_threads(train.threads)
        stop.switch("record")
        yield
    except Exception as error:
        if fabric.world_size > 1 and (isinstance(error, RuntimeError) or not is_first_process()):
            stop.switch("kill")
            time.sleep(_GRACE)
        raise
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
