"""Encoders of Hugging Face transformers at their published sizes, with their own code and with our operator.

    python -m benchmarks.models            # seconds, peak memory, and the share of attention
    python -m benchmarks.models --check    # differences of outputs and gradients

A row of measurements is one encoder on one input or batch with one method: its own attention, "eager" or "sdpa", our
operator, "relattn", or with `--window` "relattn, window LEFT RIGHT". Each runs in a new process: a short input, then a
run whose peak memory beyond the model is measured, and up to four more if they are short. The seconds are the median.
The share of attention is the time in the modules that our operator replaces, with projections. A run that would take
more than ten minutes or most of the memory, extrapolated from shorter inputs, is left out, and its row says so.

A row of `--check` has the differences between the outputs of an encoder's own code and those with our operator. The
input has two sequences. In some rows, the second one is padded. Columns:

    largest, of             largest difference of two numbers, and largest number of the own output
    own, ours               difference of each output in bfloat16 from the own output in float32, relative to its norm
    loss, our_loss          losses of a training step without dropout
    gradient                difference of all gradients, relative to the norm of the own gradients
"""

import math
import statistics
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from relattn.integrations import transformers as faster
from torch import Tensor, nn

from benchmarks import measure
from benchmarks.encoders import ENCODERS, inputs, make, padding, remove_randomness
from benchmarks.measure import RESULTS, Row, apart, available_memory, measured, peak_here, record

MOST_SECONDS = 600.0  # longest expected run
MOST_MEMORY = 0.8  # largest share of the available memory
SHORT = 10.0  # seconds for all repeats
REPEATS = 5
# Encoders whose gradients are compared.
TRAINED = ("parakeet-0.6b", "wav2vec2-bert", "deberta-v3-base", "mpnet-base", "wavlm-base")
COLUMNS = ("model", "own_code", "dtype", "padded", "largest", "of", "own", "ours", "loss", "our_loss", "gradient")


def watch_attention(model: nn.Module) -> list[float]:
    """Return a list to which each call of a module that our operator replaces appends its seconds."""
    with faster.enable(model):
        replaced = [line.partition(" (")[0] for line in faster.report(model).splitlines() if "): relattn" in line]
    spent: list[float] = []
    for name in replaced:
        if name == "the model" or any(other.startswith(f"{name}.") for other in replaced):
            continue  # an encoder, which holds the others
        module = model.get_submodule(name)
        starts: list[float] = []

        def begin(*_: Any, starts: list[float] = starts) -> None:
            starts.append(time.perf_counter())

        def end(*_: Any, starts: list[float] = starts) -> None:
            spent.append(time.perf_counter() - starts.pop())

        module.register_forward_pre_hook(begin)
        module.register_forward_hook(end)
    return spent


@torch.inference_mode()
def figures(name: str, method: str, size: int, window: tuple[int, int] | None) -> dict[str, float]:
    """Return seconds, bytes and the share of attention of one encoder on one input, measured in this process."""
    model = make(name, method if window is None else ENCODERS[name].own[-1])
    if window is not None:
        faster.enable(model, window=window)
    batch = ENCODERS[name].batch
    model(inputs(name, batch, min(ENCODERS[name].sizes)))
    spent = watch_attention(model)
    run = partial(model, inputs(name, batch, size))
    seconds: list[float] = []
    peak = peak_here(lambda: seconds.append(measured(run)))
    while len(seconds) < REPEATS and sum(seconds) + seconds[0] < SHORT:
        seconds.append(measured(run))
    return {"seconds": statistics.median(seconds), "bytes": peak, "attention": sum(spent) / sum(seconds)}


def too_much(method: str, size: int, before: dict[int, dict[str, float]]) -> str:
    """Return the reason for leaving out a size, from the figures of smaller ones; empty if there is none.

    Memory is assumed to grow with the square of the size, ours linearly, and time with the last observed power.
    """
    if not before:
        return ""
    *_, last = lengths = sorted(before)
    memory = before[last]["bytes"] * (size / last) ** (1 if method.startswith("relattn") else 2)
    if memory > MOST_MEMORY * available_memory():
        return f"left out: {memory / 2**30:.0f} GiB extrapolated from size {last}"
    power = 2.0
    for shorter in lengths[-2:-1]:
        power = math.log(before[last]["seconds"] / before[shorter]["seconds"]) / math.log(last / shorter)
    seconds = before[last]["seconds"] * (size / last) ** min(max(power, 1.0), 2.0)
    return f"left out: {seconds:.0f} s extrapolated from size {last}" if seconds > MOST_SECONDS else ""


def measure_row(
    name: str, method: str, size: int, window: tuple[int, int] | None, before: dict[int, dict[str, float]]
) -> Row:
    """Measure one encoder on one input, add its figures to those of smaller inputs, and return its row."""
    note = too_much(method, size, before)
    if not note:
        try:
            before[size] = apart(figures, name, method, size, window)
        except MemoryError as error:
            note = str(error)
    row: Row = {"model": name, "size": size, "unit": ENCODERS[name].unit, "method": method}
    if note:
        return row | {"seconds": "", "peak_mib": "", "attention": "", "note": note}
    seconds, peak, attention = before[size].values()
    row |= {"seconds": f"{seconds:.3g}", "peak_mib": int(peak) >> 20, "attention": f"{attention:.3f}", "note": ""}
    return row


def output_of(model: nn.Module, read: Tensor, mask: Tensor | None) -> Tensor:
    """Return the output in float32, without padding if the model marks it or has an output per token."""
    with torch.inference_mode():
        out: Any = model(read) if mask is None else model(read, attention_mask=mask)
    states: Tensor = out.last_hidden_state.float()
    valid = None if mask is None else getattr(out, "attention_mask", None)
    if mask is not None and mask.shape == states.shape[:2] and not read.is_floating_point():
        valid = mask
    return states if valid is None else states[valid.bool()]


def distance(first: list[Tensor], second: list[Tensor]) -> float:
    """Return the norm of the difference of two lists of tensors, as a share of the norm of the second."""
    squares = [(float((x - y).square().sum()), float(y.square().sum())) for x, y in zip(first, second, strict=True)]
    return math.sqrt(sum(difference for difference, _ in squares) / sum(norm for _, norm in squares))


def agreement(name: str, own_code: str, size: int) -> list[Row]:
    """Return the rows of the outputs of one encoder, compared with one of its own methods."""
    model, read = make(name, own_code), inputs(name, 2, size)
    masks = [None, padding(read)] if ENCODERS[name].masked else [None]
    rows: list[Row] = []
    exact: list[list[Tensor]] = []
    for dtype in (torch.float32, torch.bfloat16):
        model = model.to(dtype)
        read = read.to(dtype) if read.is_floating_point() else read
        for case, mask in enumerate(masks):
            own = output_of(model, read, mask)
            with faster.enable():
                ours = output_of(model, read, mask)
            row: Row = {"model": name, "own_code": own_code}
            row |= {"dtype": str(dtype).removeprefix("torch."), "padded": mask is not None}
            row |= {"largest": f"{float((ours - own).abs().max()):.2g}", "of": f"{float(own.abs().max()):.3g}"}
            if dtype == torch.float32:
                exact.append([own])
            else:
                row |= {"own": f"{distance([own], exact[case]):.4f}", "ours": f"{distance([ours], exact[case]):.4f}"}
            rows.append(row)
    return rows


def training(name: str, own_code: str, size: int) -> list[Row]:
    """Return the row of a training step of one encoder, compared with one of its own methods."""
    model, read = make(name, own_code).train(), inputs(name, 2, size)
    remove_randomness(model)
    torch.manual_seed(3)
    with torch.no_grad():
        target = torch.randn_like(model(read).last_hidden_state)

    def step() -> tuple[float, list[Tensor]]:
        model.zero_grad()
        loss = (model(read).last_hidden_state - target).square().mean()
        loss.backward()
        return float(loss.detach()), [p.grad for p in model.parameters() if p.grad is not None]

    loss, own = step()
    with faster.enable():
        our_loss, ours = step()
    row: Row = {"model": name, "own_code": own_code, "dtype": "float32", "padded": "training"}
    return [row | {"loss": f"{loss:.6f}", "our_loss": f"{our_loss:.6f}", "gradient": f"{distance(ours, own):.2g}"}]


def main() -> None:
    parser = measure.command("models", __doc__)
    parser.add_argument("--check", action="store_true", help="compare outputs and gradients, and measure nothing")
    parser.add_argument("--only", nargs="*", choices=ENCODERS, default=list(ENCODERS), help="encoders (default: all)")
    parser.add_argument("--sizes", type=int, nargs="*", help="sizes of the inputs (default: by encoder)")
    parser.add_argument("--methods", nargs="*", choices=("eager", "sdpa", "relattn"), help="(default: all)")
    parser.add_argument("--window", type=int, nargs=2, help="also measure a sliding window (left, right)")
    parser.add_argument("--out", type=Path, help="CSV file (default: models-cpu.csv or models-agreement.csv)")
    arguments = measure.parse(parser, threads=1)
    arguments.out = arguments.out or RESULTS / ("models-agreement.csv" if arguments.check else "models-cpu.csv")
    measure.preload([__name__])
    for name in arguments.only:
        encoder = ENCODERS[name]
        methods = [each for each in (*encoder.own, "relattn") if arguments.methods is None or each in arguments.methods]
        sizes = arguments.sizes or encoder.sizes
        if not arguments.check:
            windows: dict[str, tuple[int, int] | None] = dict.fromkeys(methods)
            if arguments.window is not None:
                left, right = arguments.window
                windows[f"relattn, window {left} {right}"] = left, right
            before: dict[str, dict[int, dict[str, float]]] = {method: {} for method in windows}
            for size, method in product(sizes, windows):
                row = measure_row(name, method, size, windows[method], before[method])
                record(arguments, [row], ("model", "size", "method"))
        elif not encoder.random and encoder.batch == 1:
            size = min(sizes)
            for own_code in encoder.own:
                rows = apart(agreement, name, own_code, size)
                rows += apart(training, name, own_code, size) if name in TRAINED else []
                whole = [dict.fromkeys(COLUMNS, "") | row | {"size": size} for row in rows]
                record(arguments, whole, ("model", "own_code", "dtype", "padded"))


if __name__ == "__main__":
    main()
