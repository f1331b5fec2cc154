"""Training steps of the toolkit's Transformer, with relative positions and with sinusoids, whose attention is
PyTorch's, with a mask where sentences have lengths.

Every model trains in a process of its own. All are prepared at once, since compiling takes minutes; then the two of
one size take steps in turn.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks.gpu_times import Row, Work, figures, synchronize
from benchmarks.measure import Timing, alternate
from benchmarks.workers import Failure, Worker, close_all

SCHEMES = ("sinusoidal", "relative")
STEP_KEY = ("model", "compiled", "n", "positions")
STEPS, ROUNDS = 4, 7  # training steps at a time, and how many times
PATIENCE = 30.0  # seconds for them

Model = tuple[str, bool]  # a size, and whether torch.compile has it


class Training:
    """The training step that a process holds between calls."""

    step: Work | None = None


def prepare_steps(size: str, scheme: Any, compiles: bool, n: int, tokens: int, device: str) -> Row:
    """Prepares a training step under bfloat16 autocast and warms it up; gives what its row says of the model."""
    from benchmarks import train_step  # and with it the toolkit

    model = train_step.SIZES[size]
    backend = "triton" if device == "cuda" else "auto"  # the kernels under test, at every length
    Training.step = train_step.prepare(model.config(scheme), n, tokens, device, torch.bfloat16, compiles, backend)
    run_steps(3, device)
    if device == "cuda":
        torch.cuda.empty_cache()  # the others prepare theirs
    return {"dim": model.dim, "layers": model.layers, "clip": model.clip}


def run_steps(count: int, device: str) -> float:
    """Seconds per step, on the wall clock: launching is a part of training."""
    assert Training.step is not None
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(count):
        Training.step()
    synchronize(device)
    return (time.perf_counter() - begin) / count


def training_rows(models: Sequence[Model], n: int, tokens: int, device: str, until: float) -> Iterator[list[Row]]:
    """Rows of each model, as they are made. What is not ready by `until`, on the monotonic clock, is left out."""
    workers = {(model, scheme): Worker() for model, scheme in product(models, SCHEMES)}
    try:
        for ((size, compiles), scheme), worker in workers.items():
            worker.send(prepare_steps, size, scheme, compiles, n, tokens, device)
        ready = {key: worker.receive(until - time.monotonic()) for key, worker in workers.items()}
        for model in models:
            mine = {scheme: workers[model, scheme] for scheme in SCHEMES}
            yield rows_of(model, n, tokens, device, mine, {scheme: ready[model, scheme] for scheme in SCHEMES})
            close_all(list(mine.values()))
    finally:
        close_all(list(workers.values()), wait=0.0)


def rows_of(
    model: Model, n: int, tokens: int, device: str, workers: dict[str, Worker], ready: dict[str, Any]
) -> list[Row]:
    notes = {scheme: answer.reason for scheme, answer in ready.items() if isinstance(answer, Failure)}

    def a_few(scheme: str) -> float | None:
        workers[scheme].send(run_steps, STEPS, device)
        seconds = workers[scheme].receive(PATIENCE)
        if isinstance(seconds, Failure):
            notes[scheme] = seconds.reason
            return None
        return float(seconds)

    works: dict[str, Callable[[], float | None]] = {s: partial(a_few, s) for s in SCHEMES if s not in notes}
    times = alternate(works, ROUNDS, clock=lambda few: few())
    return [
        {
            "model": model[0],
            "compiled": model[1],
            "n": n,
            "positions": scheme,
            **figures(times.get(scheme), times.get("sinusoidal")),
            "pieces a second": pieces_a_second(times.get(scheme), tokens),
            "note": notes.get(scheme, ""),
            **(dict.fromkeys(("dim", "layers", "clip"), "") if isinstance(ready[scheme], Failure) else ready[scheme]),
            "dtype": "bfloat16 autocast",
            "tokens": tokens,
            "backend": "triton" if device == "cuda" else "auto",
        }
        for scheme in SCHEMES
    ]


def pieces_a_second(step: Timing | None, tokens: int) -> int | str:
    return "" if step is None else round(tokens / step.median)
