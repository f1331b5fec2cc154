"""The processes of a run, one a device: how they are started, what they share and how they compute."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import TensorBoardLogger
from lightning.fabric.plugins import MixedPrecision, Precision
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.fabric.strategies import ModelParallelStrategy
from lightning.fabric.utilities.rank_zero import rank_zero_only

from relattn.translation.config import Recipe, TrainConfig
from relattn.translation.errors import InputError
from relattn.translation.training.run_directory import TENSORBOARD
from relattn.translation.training.shards import shard
from relattn.translation.training.together import PARENT

_MIXED: dict[str, Literal["bf16-mixed", "16-mixed"]] = {"bf16-mixed": "bf16-mixed", "fp16-mixed": "16-mixed"}


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
        loggers=TensorBoardLogger(out, name=TENSORBOARD, version="") if known else None,
    )


def _strategy(train: TrainConfig) -> str | ModelParallelStrategy:
    if train.processes == 1:
        return "auto"
    if train.strategy == "ddp":
        return "ddp"
    return ModelParallelStrategy(shard, data_parallel_size=train.processes, tensor_parallel_size=1)


def launch(fabric: Fabric, train: TrainConfig, children: list[subprocess.Popen[bytes]]) -> None:
    """Join the other processes of a run; where nothing else starts them, start those of this machine, as `children`."""
    environment = getattr(fabric.strategy, "cluster_environment", None)
    if environment is not None:
        if not environment.creates_processes_externally:
            shared = {"MASTER_ADDR": environment.main_address, "MASTER_PORT": str(environment.main_port)}
            shared |= {"WORLD_SIZE": str(train.processes), PARENT: str(os.getpid())}
            for rank in range(1, train.devices):
                own = {**os.environ, **shared, "LOCAL_RANK": str(rank)}
                children.append(subprocess.Popen(_own_command(), env=own))
        fabric.strategy._launcher = None  # Lightning's own, which kills this process without a word when another ends
        if train.threads is None and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, torch.get_num_threads() // train.devices))
    if restarted() and environment is not None:
        _join_by_names_of_its_own(fabric.device)
    fabric.launch()
    if train.threads is not None:
        torch.set_num_threads(train.threads)


def _own_command() -> list[str]:
    """The command that this process was started with."""
    module = sys.modules["__main__"].__spec__
    begin = [os.path.abspath(sys.argv[0])] if module is None else ["-m", module.name]
    return [sys.executable, *begin, *sys.argv[1:]]


def restarted() -> bool:
    """Whether torchrun started this process in the place of one that ended too early."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def _join_by_names_of_its_own(device: torch.device) -> None:
    """Join the processes that torchrun started again, before Fabric would.

    Its static rendezvous keeps one store for all starts, in which a process would find the addresses of those that are
    gone; so what this start puts there has its number.
    """
    torch.distributed.init_process_group(
        torch.distributed.get_default_backend_for_device(device),
        store=torch.distributed.PrefixStore(
            f"start {os.environ['TORCHELASTIC_RESTART_COUNT']}",
            torch.distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False),
        ),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=default_pg_timeout,
        device_id=None if device.type == "cpu" else device,
    )
