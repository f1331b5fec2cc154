"""Linear layers on a CPU: `F.linear` ("torch"), oneDNN, and oneDNN with prepacked weights, as in `model/linear.py`.

A layer maps (rows, inputs) to (rows, outputs). The forward pass has one matrix product. It runs without gradients, in
float32 and bfloat16. Forward and backward together have three products, in float32. GFLOP/s count the products. Runs of
the implementations alternate. One thread is measured in processor time, several threads in elapsed time.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import alternate, conditions, keep, measured
from relattn.translation.model import linear

ROWS = (32, 64, 128, 256, 300, 512, 1024, 2048, 4096)  # for 512 inputs and outputs
LAYERS = (  # inputs and outputs, for 2,048 rows: projections, feed-forward layers, and output layers
    *((128, 128), (128, 256), (256, 256), (256, 512), (512, 512), (512, 1024), (1024, 512), (512, 2048), (2048, 512)),
    *((1024, 1024), (2048, 2048), (256, 6000), (512, 8000), (512, 37000)),
)
FEW = (1, 4, 16, 64, 256)  # rows in decoding, for layers of a decoder and an output layer
CASES = (
    *((rows, 512, 512) for rows in ROWS),
    *((2048, *sizes) for sizes in LAYERS),
    *((rows, *sizes) for sizes in ((256, 768), (512, 2048), (512, 32768)) for rows in FEW),
)
PASSES = {"forward": 1, "forward, bfloat16": 1, "forward + backward": 3}  # number of products
IMPLEMENTATIONS = ("torch", "onednn", "packed")


def functions(rows: int, inputs: int, outputs: int, name: str) -> dict[str, Callable[[], object]]:
    """Return a function per implementation that runs one pass of `PASSES`."""
    dtype = torch.bfloat16 if "bfloat16" in name else torch.float32
    x, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((rows, inputs), (outputs, inputs), (outputs,)))
    if "backward" not in name:
        packed = weight.clone()
        linear.prepack(packed)
        run = torch.no_grad()(linear.linear)
        return {
            "torch": partial(torch.no_grad()(F.linear), x, weight, bias),
            "onednn": partial(run, x, weight, bias),
            "packed": partial(run, x, packed, bias),
        }
    grad, tensors = torch.randn(rows, outputs), [x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]

    def both(layer: Callable[..., Tensor]) -> object:
        return torch.autograd.grad(layer(*tensors), tensors, grad)

    return {"torch": partial(both, F.linear), "onednn": partial(both, linear.linear)}


def processor_time(run: Callable[[], object]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linear", description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9, help="minimum number of timed runs of each")
    parser.add_argument("--seconds", type=float, default=0.5, help="time each for at least so long, in seconds")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "linear-cpu.csv")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    for limit in ("MIN_FEATURES", "MIN_WORK", "MIN_PACKED_WEIGHT", "MIN_PACKED_WORK"):
        setattr(linear, limit, 0)  # small layers are measured too
    linear.use_onednn = True
    clock = processor_time if arguments.threads == 1 else measured
    held = conditions()
    print("; ".join(f"{name} {value}" for name, value in held.items()))
    print(f"training uses {'oneDNN' if linear.is_onednn_faster() else 'F.linear'} on this processor")
    print(f"{'rows':>5} {'inputs':>6} {'outputs':>7}  {'pass':<18}  GFLOP/s")
    for rows, inputs, outputs in dict.fromkeys(CASES):
        for name, count in PASSES.items():
            if "bfloat16" in name and not linear.has_bf16():
                continue
            times = alternate(functions(rows, inputs, outputs, name), arguments.repeats, arguments.seconds, clock)
            row: dict[str, object] = {"rows": rows, "inputs": inputs, "outputs": outputs, "pass": name}
            rates = []
            for way in IMPLEMENTATIONS:
                columns = (f"{way} ms", f"{way} ms low", f"{way} ms high", f"{way} GFLOP/s")
                row |= dict.fromkeys(columns, "")
                if taken := times.get(way):
                    rate = 2e-9 * count * rows * inputs * outputs / taken.median
                    seconds = taken.median, taken.low, taken.high
                    row |= zip(columns, [*(round(1e3 * each, 3) for each in seconds), round(rate, 1)], strict=True)
                    rates.append(f"{way} {rate:.0f}")
            print(f"{rows:>5} {inputs:>6} {outputs:>7}  {name:<18}  {'  '.join(rates)}", flush=True)
            ratio = times["onednn"].median / times["torch"].median
            row |= {"ratio": round(ratio, 3), "repeats": times["torch"].repeats, **held}
            keep(arguments.out, [row], ("rows", "inputs", "outputs", "pass", "threads", "device"))


if __name__ == "__main__":
    main()
