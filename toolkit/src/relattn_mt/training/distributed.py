"""How the processes of a run join and leave: torchrun starts and supervises them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from relattn_mt.config import TrainConfig
from relattn_mt.support.errors import InputError
from relattn_mt.training.stop import Stop
from relattn_mt.training.worker import Worker

_GRACE = 5.0  # seconds in which torchrun ends a process whose partner was lost
_CONNECT = 60.0  # seconds in which torchrun must accept a connection


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
def joined(worker: Worker, train: TrainConfig, stop: Stop) -> Iterator[None]:
    """Join the other processes of the run, if there are several, and leave them at the end.

    An error may have been caused by another process: if one of several is lost, a collective operation fails in all
    others, with an error of gloo or NCCL. So torchrun gets time to end this process before the error is reported. If
    all processes fail, the first one reports it.
    """
    try:
        if worker.world_size > 1:
            stop.switch("kill")  # nothing would be lost, and no other handler runs while this process waits for others
            _require_agent()
        worker.launch()
        if train.threads is not None:
            torch.set_num_threads(train.threads)
        stop.switch("record")
        yield
    except Exception as error:
        if worker.world_size > 1 and (isinstance(error, RuntimeError) or not worker.is_first):
            stop.switch("kill")
            time.sleep(_GRACE)
        raise
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
