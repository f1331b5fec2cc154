"""Kill small training runs at random moments, resume them, and compare them with a run that was never killed.

    python -m benchmarks.kills --kills 20

Runs of one process and of two are killed (SIGKILL, to any one of their processes, the supervising one included), up to
four times each, at any moment: during imports, while a vocabulary is learned, between steps, while a checkpoint is
written. Weights, state of the optimizer and log, except for times, must have the same bits as those of the run that was
never killed. One more run of two processes is killed and resumed as one; its losses must agree to 1e-5. The exit code
is 1 if they do not.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.measure import family
from relattn.translation import bundle
from relattn.translation.config import DataConfig, ModelConfig, Recipe, TrainConfig, dump
from relattn.translation.training import checkpoints
from relattn.translation.training.journal import read_log

KILLS_PER_RUN = 4
STEPS = 300


TOLERANCE = 1e-5  # relative, for losses with another number of processes: sums have another order


def recipe(out: Path, processes: int, strategy: Literal["ddp", "fsdp"] = "ddp") -> Recipe:
    """Return a recipe with dropout and several epochs, which takes the same steps on one process and on two."""
    return Recipe(
        out=str(out),
        model=ModelConfig(dim=32, heads=4, feed_forward_dim=64, encoder_layers=1, decoder_layers=1, clip=4),
        data=DataConfig(builtin_lines=300, vocab_size=600, max_tokens=400),
        train=TrainConfig(
            steps=STEPS,
            warmup_steps=50,
            accumulate=4 // processes,
            learning_rate_factor=0.03,  # 7e-4 at its highest, as in the paper
            accelerator="cpu",
            devices=processes,
            strategy=strategy if processes > 1 else "ddp",
            threads=1,
            log_every=4,
            valid_every=60,
            valid_bleu_lines=5,
            checkpoint_every=10,
            keep=3,
            average=2,
        ),
    )


def begin(run: Recipe, *, resume: bool) -> subprocess.Popen[str]:
    path = Path(run.out).with_suffix(".yaml")
    path.write_text(dump(run), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "relattn",
        "train",
        str(path),
        *(["--resume"] if resume else []),
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(run: Recipe, *, resume: bool) -> None:
    process = begin(run, resume=resume)
    _, err = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"{run.out}: exit code {process.returncode}: {err.splitlines()[-1]}")


def kill(process: subprocess.Popen[str], draw: random.Random) -> None:
    """Kill any one process of a run. The others must end by themselves."""
    os.kill(draw.choice(family(process.pid)), signal.SIGKILL)
    process.communicate(timeout=120)


def content(run: Recipe) -> list[Any]:
    """Return the log, the last checkpoint and the weights of the bundle of a run, without times and paths."""
    out = Path(run.out)
    rows = [replace(row, tokens_per_second=0.0, seconds=0.0) for row in read_log(out / "log.csv")]
    state = checkpoints.newest(out / "checkpoints")[1]
    del state["recipe"], state["progress"]["seconds"], state["progress"]["seconds_at_row"]
    return [rows, state, bundle.read_bundle(out / "bundle").state]


def same(a: Any, b: Any) -> bool:
    """Return whether two values have the same bits."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def off(a: Recipe, b: Recipe) -> float:
    """Return the largest relative difference between the losses that two runs logged."""
    ours, theirs = (
        [loss for row in read_log(Path(run.out) / "log.csv") for loss in (row.loss, row.valid_loss) if loss is not None]
        for run in (a, b)
    )
    return max(abs(x - y) / y for x, y in zip(ours, theirs, strict=True))


def killed_runs(directory: Path, processes: int, strategy: Any, kills: int, draw: random.Random) -> bool:
    """Kill runs `kills` times in all. Return whether all of them gave the same bits as a run that was never killed."""
    whole = recipe(directory / f"whole-{processes}", processes, strategy)
    start = time.monotonic()
    finish(whole, resume=False)
    length = time.monotonic() - start
    expected, good, done = content(whole), True, 0
    for number in range(1, kills + 1):
        run = recipe(directory / f"run-{processes}-{number}", processes, strategy)
        moments: list[str] = []
        while len(moments) < KILLS_PER_RUN and done < kills:
            process = begin(run, resume=(Path(run.out) / "recipe.yaml").exists())
            time.sleep(draw.uniform(0, length))
            if process.poll() is not None:
                process.communicate()
                break  # it had finished
            kill(process, draw)
            found = checkpoints.list_checkpoints(Path(run.out) / "checkpoints")
            moments.append(f"step {checkpoints.step_of(found[-1])}" if found else "none yet")
            done += 1
        finish(run, resume=(Path(run.out) / "recipe.yaml").exists())
        equal = same(content(run), expected)
        good &= equal
        print(
            f"{processes} process{'es' if processes > 1 else ''}, run {number}: killed {len(moments)} times, "
            f"last checkpoints {', '.join(moments) or 'none'}: {'same bits' if equal else 'DIFFERENT'}",
            flush=True,
        )
        if done == kills:
            break
    return good and (processes == 1 or resumed_as_one(directory, whole, processes, draw))


def resumed_as_one(directory: Path, whole: Recipe, processes: int, draw: random.Random) -> bool:
    """Kill a run of several processes, resume it as one, and return whether it logs the same losses."""
    run = replace(whole, out=str(directory / f"resumed-{processes}"))
    process, least = begin(run, resume=False), draw.randrange(10, STEPS - 20, 10)
    while (
        not (found := checkpoints.list_checkpoints(Path(run.out) / "checkpoints"))
        or checkpoints.step_of(found[-1]) < least
    ):
        time.sleep(0.01)
    kill(process, draw)
    finish(recipe(Path(run.out), 1), resume=True)
    worst = off(run, whole)
    print(
        f"{processes} processes, killed after step {least} and resumed as one: largest difference of losses "
        f"{worst:.1e}, {'within' if worst <= TOLERANCE else 'ABOVE'} the tolerance",
        flush=True,
    )
    return worst <= TOLERANCE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="number of kills, for each number of processes")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="numbers of processes")
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp", help="strategy of two processes")
    parser.add_argument("--seed", type=int, default=1, help="seed of the moments")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as directory:
        good = [
            killed_runs(Path(directory), processes, arguments.strategy, arguments.kills, draw)
            for processes in arguments.processes
        ]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
