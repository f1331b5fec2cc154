"""Linear maps in float32 on a CPU: PyTorch's own products beside oneDNN's, the measure for `model/linear.py`.

A map takes `rows` of `inputs` to `outputs`. One pass is the forward product, the other that and the gradients of x, W
and b, three products in all; GFLOP/s count the products alone. The two ways alternate; one thread is timed by the
processor's time, several by the clock on the wall.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.measure import alternate, conditions, keep, measured
from relattn.translation.model import linear

ROWS = (32, 64, 128, 256, 300, 512, 1024, 2048, 4096)  # for 512 inputs and outputs
MAPS = (  # inputs and outputs, for 2,048 rows: model dims, feed-forward layers, and output layers
    *((128, 128), (128, 256), (256, 256), (256, 512), (512, 512), (512, 1024), (1024, 512), (512, 2048), (2048, 512)),
    *((1024, 1024), (2048, 2048), (256, 6000), (512, 8000), (512, 37000)),
)
FEW = (1, 4, 16, 64, 256)  # rows of a search, for an output layer
CASES = (
    *((rows, 512, 512) for rows in ROWS),
    *((2048, *sizes) for sizes in MAPS),
    *((rows, 512, 32768) for rows in FEW),
)
PASSES = {"forward": 1, "forward + backward": 3}  # and their products


def work(rows: int, inputs: int, outputs: int, products: str, backward: bool) -> Callable[[], object]:
    x, weight, bias = (torch.randn(*shape) for shape in ((rows, inputs), (outputs, inputs), (outputs,)))
    grad, run = torch.randn(rows, outputs), linear.PRODUCTS[products]
    tensors = [x.requires_grad_(backward), weight.requires_grad_(backward), bias.requires_grad_(backward)]
    if not backward:
        return lambda: run(*tensors)
    return lambda: torch.autograd.grad(run(*tensors), tensors, grad)


def processor_time(run: Callable[[], object]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linear", description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9, help="timed runs of each, at least")
    parser.add_argument("--seconds", type=float, default=0.5, help="more runs of each while they take no longer")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "linear-cpu.csv")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    linear.LEAST = 0  # small ones are measured too
    clock = processor_time if arguments.threads == 1 else measured
    held = conditions()
    print("; ".join(f"{name} {value}" for name, value in held.items()))
    print(f"the rule takes {linear.fastest()} here")
    print(
        f"{'rows':>5} {'inputs':>6} {'outputs':>7}  {'pass':<18}  {'torch':>7}  {'oneDNN':>7} GFLOP/s  ratio of times"
    )
    for rows, inputs, outputs in dict.fromkeys(CASES):
        for name, count in PASSES.items():
            works = {way: work(rows, inputs, outputs, way, count > 1) for way in linear.PRODUCTS}
            times = alternate(works, arguments.repeats, arguments.seconds, clock)
            rate = {way: 2e-9 * count * rows * inputs * outputs / taken.median for way, taken in times.items()}
            ratio = times["onednn"].median / times["torch"].median
            print(
                f"{rows:>5} {inputs:>6} {outputs:>7}  {name:<18}  {rate['torch']:>7.0f}  {rate['onednn']:>7.0f}"
                f"          {ratio:.2f}",
                flush=True,
            )
            row: dict[str, object] = {"rows": rows, "inputs": inputs, "outputs": outputs, "pass": name}
            for way, taken in times.items():
                row |= {f"{way} ms": round(1e3 * taken.median, 3), f"{way} ms low": round(1e3 * taken.low, 3)}
                row |= {f"{way} ms high": round(1e3 * taken.high, 3), f"{way} GFLOP/s": round(rate[way], 1)}
            row |= {"ratio": round(ratio, 3), "repeats": times["torch"].repeats, **held}
            keep(arguments.out, [row], ("rows", "inputs", "outputs", "pass", "threads", "device"))


if __name__ == "__main__":
    main()
