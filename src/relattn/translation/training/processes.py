"""The processes of a run, one a device: how they are started, how they compute, and that all end when one does."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import TensorBoardLogger
from lightning.fabric.plugins import MixedPrecision, Precision
from lightning.fabric.strategies import ModelParallelStrategy
from lightning.fabric.utilities.rank_zero import rank_zero_only

from relattn.translation.config import Recipe, TrainConfig
from relattn.translation.errors import InputError
from relattn.translation.training.shards import shard

_MIXED: dict[str, Literal["bf16-mixed", "16-mixed"]] = {"bf16-mixed": "bf16-mixed", "fp16-mixed": "16-mixed"}
_PARENT = "RELATTN_FIRST_PROCESS"  # in the environment of processes that it starts


def first_process() -> bool:
    """Whether this is the one training process that writes files, which is so before others are started too."""
    return rank_zero_only.rank == 0  # type: ignore[attr-defined]


def require_devices(train: TrainConfig) -> None:
    """Refuse, by an InputError, a run of more devices than there are, or of machines that nobody starts."""
    gpus = torch.cuda.device_count()
    on_gpus = train.accelerator == "gpu" or (train.accelerator == "auto" and gpus > 0)
    if on_gpus and train.devices > gpus:
        raise InputError(f"devices is {train.devices}, but the GPUs here are {gpus} (accelerator {train.accelerator})")
    if train.nodes > 1 and not any(name in os.environ for name in ("TORCHELASTIC_RUN_ID", "SLURM_NTASKS")):
        raise InputError(f"nodes is {train.nodes}: start the processes on all of them by torchrun or srun")


def precision_of(train: TrainConfig) -> Precision:
    """A recipe's precision as Fabric's plug-in: by name, Fabric has bfloat16 in the place of float16 on a CPU."""
    if train.precision == "fp32":
        return Precision()
    found = None if train.accelerator == "cpu" else torch.accelerator.current_accelerator()
    return MixedPrecision(_MIXED[train.precision], "cpu" if found is None else found.type)


def fabric_of(recipe: Recipe, out: Path) -> Fabric:
    """The devices, ranks and precision that a recipe asks for, and where its log goes besides."""
    train = recipe.train
    started = int(os.environ.get("WORLD_SIZE", train.processes))  # by torchrun
    if started != train.processes:
        raise InputError(f"devices is {train.devices} and nodes {train.nodes}, but {started} processes were started")
    known = any(importlib.util.find_spec(name) for name in ("tensorboard", "tensorboardX"))
    return Fabric(
        accelerator=train.accelerator,
        devices=train.devices,
        num_nodes=train.nodes,
        strategy=_strategy(train),
        plugins=precision_of(train),
        loggers=TensorBoardLogger(out, name="tensorboard", version="") if known else None,
    )


def _strategy(train: TrainConfig) -> str | ModelParallelStrategy:
    if train.processes == 1:
        return "auto"
    if train.strategy == "ddp":
        return "ddp"
    return ModelParallelStrategy(shard, data_parallel_size=train.processes, tensor_parallel_size=1)


def launch(fabric: Fabric, train: TrainConfig) -> None:
    """Join the other processes; the first one starts them where nothing else did."""
    if first_process():
        os.environ[_PARENT] = str(os.getpid())
    fabric.launch()
    if train.threads is not None:
        torch.set_num_threads(train.threads)


@contextmanager
def children_ended(fabric: Fabric) -> Iterator[None]:
    """End the processes that this one started when it fails: they would wait for it."""
    try:
        yield
    except BaseException:
        for process in getattr(fabric.strategy.launcher, "procs", ()):
            process.kill()
        raise
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def end_with_parent() -> None:
    """Let a process that the first one started end when that one is gone: it would wait for it, for half an hour."""
    parent = os.environ.get(_PARENT)

    def watch() -> None:
        while str(os.getppid()) == parent:
            time.sleep(0.5)
        os._exit(1)

    if parent is not None:
        threading.Thread(target=watch, daemon=True).start()
