"""Train the same steps on one process, on two with a copy each, and on two with shards, and compare what they log.

    python -m benchmarks.split --steps 200

With dropout, several epochs and micro-batches that are accumulated. Prints the largest relative difference of a logged
loss from one process's; exits with 1 where it is above 1e-5.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.kills import TOLERANCE, finish, off, recipe
from relattn.translation.config import Recipe


def trained(run: Recipe, steps: int) -> Recipe:
    """The run, each of its steps logged, after so many."""
    train = replace(run.train, steps=steps, log_every=1, checkpoint_every=steps, keep=1, average=1)
    run = replace(run, train=train)
    start = time.monotonic()
    finish(run, resume=False)
    processes = f"{train.processes} process{'es, ' + train.strategy if train.processes > 1 else ''}"
    print(f"{processes}: {steps} steps, {time.monotonic() - start:.0f} s in all", flush=True)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of each run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        one = trained(recipe(Path(directory) / "one", 1), arguments.steps)
        worst = 0.0
        for strategy in ("ddp", "fsdp"):
            two = trained(recipe(Path(directory) / strategy, 2, strategy), arguments.steps)
            print(f"losses of {strategy} off by {off(two, one):.1e} at most")
            worst = max(worst, off(two, one))
    sys.exit(0 if worst <= TOLERANCE else 1)


if __name__ == "__main__":
    main()
