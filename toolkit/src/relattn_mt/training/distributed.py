"""Processes of a run, one per device: how they are started and supervised, and how they compute.

If torchrun, SLURM or MPI started this process, it joins the others. Otherwise `launch` starts all processes of this
machine with torchrun's elastic agent, which ends the others if one is lost.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import TensorBoardLogger
from lightning.fabric.plugins import MixedPrecision, Precision
from lightning.fabric.utilities.rank_zero import rank_zero_only

from relattn_mt.config import TrainConfig, dump
from relattn_mt.support.console import is_quiet, log_level
from relattn_mt.support.errors import Interrupted, LostProcess, require
from relattn_mt.training.run_directory import TENSORBOARD, RunDirectory
from relattn_mt.training.stop import Stop

_GRACE = 5.0  # seconds in which the agent ends a process whose partner was lost
_SHUTDOWN = "120"  # seconds that a process has to finish its step and write a checkpoint
_USER_ERROR = 2  # exit code
_AGENT = "RELATTN_MT_AGENT"  # environment variable with the process number of the agent that `launch` runs


def is_first_process() -> bool:
    """Return whether this is the process that writes files. Processes that torchrun will start do not count."""
    return rank_zero_only.rank == 0  # type: ignore[attr-defined]


def restarts() -> int:
    """Return how often torchrun has restarted the processes of this run."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def precision_of(train: TrainConfig) -> Precision:
    """Return Fabric's plug-in for a precision. By name, Fabric would use bfloat16 for float16 on a CPU."""
    if train.precision == "fp32":
        return Precision()
    device = None if train.accelerator == "cpu" else torch.accelerator.current_accelerator()
    kind = "cpu" if device is None else device.type
    return MixedPrecision("16-mixed" if train.precision == "fp16-mixed" else "bf16-mixed", kind)


def fabric_of(directory: RunDirectory) -> Fabric:
    """Return a Fabric with the devices, strategy and precision of a run, which logs to TensorBoard if it is installed.

    Raises:
        InputError: There are fewer GPUs than devices, nothing starts processes on several machines, or other processes
            were started than the recipe has.
    """
    train, gpus = directory.recipe.train, torch.cuda.device_count()
    on_gpus = train.accelerator == "gpu" or (train.accelerator == "auto" and gpus > 0)
    enough = train.devices <= gpus or not on_gpus
    require(enough, f"devices must be at most the number of GPUs, {gpus}, got {train.devices}")
    has_starter = any(name in os.environ for name in ("TORCHELASTIC_RUN_ID", "SLURM_NTASKS"))
    require(train.nodes == 1 or has_starter, f"with nodes {train.nodes}, torchrun or srun must start the processes")
    started, got = int(os.environ.get("WORLD_SIZE", train.processes)), f"{train.devices} × {train.nodes}"
    require(started == train.processes, f"devices × nodes must be {started}, the processes started, got {got}")
    tensorboard = any(importlib.util.find_spec(name) for name in ("tensorboard", "tensorboardX"))
    return Fabric(
        accelerator=train.accelerator,
        devices=train.devices,
        num_nodes=train.nodes,
        strategy="ddp" if train.processes > 1 else "auto",
        plugins=precision_of(train),
        loggers=_TensorBoard(directory.path.absolute(), name=TENSORBOARD, version="") if tensorboard else None,
    )


class _TensorBoard(TensorBoardLogger):
    """TensorBoard's log in the directory of a run, whose name may contain `~` or `$`, which Lightning would expand."""

    @property
    def log_dir(self) -> str:
        return str(Path(self.root_dir) / self.name)


def must_launch(fabric: Fabric) -> bool:
    """Return whether a run needs several processes that nothing has started yet."""
    environment = getattr(fabric.strategy, "cluster_environment", None)  # a single device has none
    return environment is not None and not environment.creates_processes_externally


def launch(directory: RunDirectory, *, resume: bool) -> None:
    """Run `relattn-mt train` in one process per device of this machine, under torchrun's elastic agent.

    Raises:
        Interrupted: A signal ended the run. The first process has printed the message.
        LostProcess: A process was killed or failed.
        SystemExit: A process ended with a user error, which it has printed.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    train = directory.recipe.train
    threads = max(1, torch.get_num_threads() // train.devices)  # torchrun's default would be 1
    defaults = {"OMP_NUM_THREADS": str(threads), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": _SHUTDOWN, _AGENT: str(os.getpid())}
    with tempfile.TemporaryDirectory() as temporary, _agent_settings(defaults) as signals:
        path = Path(temporary) / "recipe.yaml"
        path.write_text(dump(directory.recipe), encoding="utf-8")
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=train.devices,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=train.max_restarts,
            logs_specs=DefaultLogsSpecs(log_dir=temporary, redirects=Std.OUT),  # this process prints the result
            signals_to_handle=",".join(signals),
        )
        flags = [*(["--resume"] if resume else []), *(["--quiet"] if is_quiet() else [])]
        command = ["-m", "relattn_mt", "train", str(path), *flags]
        try:
            elastic_launch(config, sys.executable)(*command)
        except SignalException as error:
            raise Interrupted("", error.sigval) from error
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            code = failure.exitcode
            if code == _USER_ERROR:
                raise SystemExit(code) from error
            if code > 128:
                raise Interrupted("", code - 128) from error
            how = f"was killed by {failure.signal_name()}" if code < 0 else f"failed with exit code {code}"
            message = f"process {rank + 1} of {train.devices} {how}{directory.describe_progress()}"
            raise LostProcess(message) from error


@contextmanager
def _agent_settings(defaults: dict[str, str]) -> Iterator[list[str]]:
    """Set environment variables that are not set yet, silence the agent's log, and restore everything at the end.

    Yield the names of the signals that the agent should handle: those that this process does not ignore.
    """
    loggers = [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]
    in_main_thread = threading.current_thread() is threading.main_thread()
    names_of_signals = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if in_main_thread else ()
    numbers = [getattr(signal, name) for name in names_of_signals if hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in numbers}  # the agent does not restore them
    handled = [number.name for number, handler in handlers.items() if handler is not signal.SIG_IGN]
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        with log_level(logging.CRITICAL, *loggers):
            yield handled
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for name in added:
            del os.environ[name]


def join_restarted(device: torch.device) -> None:
    """Join the process group of restarted processes, which Fabric then uses.

    torchrun keeps one store for all starts, unless TORCH_DISABLE_SHARE_RDZV_TCP_STORE is set. It has the addresses of
    processes that are gone, so each restart needs another prefix.
    """
    if restarts() == 0 or os.environ["TORCHELASTIC_USE_AGENT_STORE"] != "True":
        return
    store = torch.distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    torch.distributed.init_process_group(
        torch.distributed.get_default_backend_for_device(device),
        store=torch.distributed.PrefixStore(f"restart {restarts()}", store),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        device_id=None if device.type == "cpu" else device,
    )


def stop_with_agent() -> None:
    """Send SIGTERM to this process when the agent that started it is gone, which would otherwise leave an orphan."""
    parent = int(os.environ.get(_AGENT, os.getppid()))  # it may be gone already

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    if "TORCHELASTIC_RUN_ID" in os.environ:
        threading.Thread(target=watch, daemon=True).start()


@contextmanager
def joined(fabric: Fabric, train: TrainConfig, stop: Stop) -> Iterator[None]:
    """Join the other processes of the run, if there are several, and leave them at the end.

    An error may have been caused by another process: if one of several is lost, a collective operation fails in all
    others, with an error of gloo or NCCL. So the agent gets time to end this process before the error is reported. If
    all processes fail, the first one reports it.
    """
    try:
        if train.processes > 1:
            stop.switch("kill")  # nothing would be lost, and no other handler runs while this process waits for others
            join_restarted(fabric.device)
        fabric.launch()
        if train.threads is not None:
            torch.set_num_threads(train.threads)
        stop.switch("record")
        yield
    except Exception as error:
        if train.processes > 1 and (isinstance(error, RuntimeError) or not is_first_process()):
            stop.switch("kill")
            time.sleep(_GRACE)
        raise
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
