"""Whole encoders of transformers at their published sizes, their own code and ours: time, memory, attention's part.

A row is one encoder on one input by one method: "eager" and "sdpa", its own code with that attention, or "relattn",
the operator inside. Each has a process of its own: one run on a short input, then one whose peak memory is taken above
what the model holds, and, while they are short, up to four more; seconds are the median. Attention's part is the time
spent in the modules that the operator stands in for, projections included.

What would take more than ten minutes or most of the machine's memory, by what shorter inputs took, is left out, and
its row says so.
"""

import argparse
import math
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.encoders import ENCODERS, inputs, made
from benchmarks.measure import apart, available_memory, conditions, keep, measured, peak_here, preload
from relattn.integrations import transformers as faster

RESULTS = Path(__file__).parent / "results" / "models-cpu.csv"
MOST_SECONDS = 600.0  # that a run may be expected to take
MOST_MEMORY = 0.8  # of what the machine can give
SHORT = 10.0  # seconds for all repeats
REPEATS = 5


def encoded(model: nn.Module, given: Tensor) -> None:
    with torch.inference_mode():
        model(given)


def watch_attention(model: nn.Module) -> list[float]:
    """Seconds spent in each module that the operator stands in for, as they come."""
    with faster.enable():
        replaced = [line.partition(" (")[0] for line in faster.report(model).splitlines() if line.endswith(": relattn")]
    spent: list[float] = []
    for name in filter(lambda name: name != "the model", replaced):
        began: list[float] = []

        def begin(*_: Any, began: list[float] = began) -> None:
            began.append(time.perf_counter())

        def end(*_: Any, began: list[float] = began) -> None:
            spent.append(time.perf_counter() - began.pop())

        module = model.get_submodule(name)
        module.register_forward_pre_hook(begin)
        module.register_forward_hook(end)
    return spent


def figures(name: str, method: str, size: int) -> dict[str, float]:
    """Seconds, bytes and attention's part of one encoder on one input, in this process."""
    model = made(name, method)
    encoded(model, inputs(name, 1, min(ENCODERS[name].sizes)))
    spent = watch_attention(model)
    run = partial(encoded, model, inputs(name, 1, size))
    seconds: list[float] = []
    peak = peak_here(lambda: seconds.append(measured(run)))
    while len(seconds) < REPEATS and sum(seconds) + seconds[0] < SHORT:
        seconds.append(measured(run))
    return {"seconds": statistics.median(seconds), "bytes": peak, "attention": sum(spent) / sum(seconds)}


def too_much(method: str, size: int, before: dict[int, dict[str, float]]) -> str:
    """Why a method is not run at a size, by its figures at smaller ones; empty where it is.

    Memory is taken to grow with the square, ours in proportion; time as it last did.
    """
    if not before:
        return ""
    last = max(before)
    held = before[last]["bytes"] * (size / last) ** (1 if method == "relattn" else 2)
    if held > MOST_MEMORY * available_memory():
        return f"left out: {held / 2**30:.0f} GiB by what it took at {last}"
    power = 2.0
    if len(before) > 1:
        shorter = sorted(before)[-2]
        power = math.log(before[last]["seconds"] / before[shorter]["seconds"]) / math.log(last / shorter)
    seconds = before[last]["seconds"] * (size / last) ** min(max(power, 1.0), 2.0)
    return f"left out: {seconds:.0f} s by what it took at {last}" if seconds > MOST_SECONDS else ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=ENCODERS, default=list(ENCODERS), help="these encoders")
    parser.add_argument("--sizes", type=int, nargs="*", help="in place of each encoder's own: seconds, or tokens")
    parser.add_argument("--methods", nargs="*", choices=("eager", "sdpa", "relattn"), help="these, of those it has")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    preload([__name__])
    for name in arguments.only:
        encoder = ENCODERS[name]
        methods = [each for each in (*encoder.own, "relattn") if arguments.methods is None or each in arguments.methods]
        before: dict[str, dict[int, dict[str, float]]] = {method: {} for method in methods}
        for size in arguments.sizes or encoder.sizes:
            for method in methods:
                note = too_much(method, size, before[method])
                found: dict[str, float] = {}
                if not note:
                    try:
                        found = before[method][size] = apart(figures, name, method, size)
                    except MemoryError as error:
                        note = str(error)
                row = written(name, method, size, found, note)
                print("  ".join(str(row[column]) for column in list(row)[:7]), flush=True)
                keep(arguments.out, [row | conditions()], ("model", "size", "method", "threads"))


def written(name: str, method: str, size: int, found: dict[str, float], note: str) -> dict[str, object]:
    """A row of the results."""
    return {
        "model": name,
        "size": size,
        "unit": "tokens" if ENCODERS[name].text else "s",
        "method": method,
        "seconds": f"{found['seconds']:.3g}" if found else "",
        "peak_mib": int(found["bytes"]) >> 20 if found else "",
        "attention": f"{found['attention']:.3f}" if found else "",
        "note": note,
    }


if __name__ == "__main__":
    main()
