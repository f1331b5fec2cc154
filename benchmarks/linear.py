"""Linear maps on a CPU: PyTorch's own products beside oneDNN's, the measure for `model/linear.py`.

A map takes `rows` of `inputs` to `outputs`. One pass is the forward product, without gradients, by a packed weight too;
the other that and the gradients of x, W and b, three products in all, in float32 alone. GFLOP/s count the products.
The ways alternate; one thread is timed by the processor's time, several by the clock on the wall.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.measure import alternate, conditions, keep, measured
from relattn.translation.model import linear

ROWS = (32, 64, 128, 256, 300, 512, 1024, 2048, 4096)  # for 512 inputs and outputs
MAPS = (  # inputs and outputs, for 2,048 rows: model dims, feed-forward layers, and output layers
    *((128, 128), (128, 256), (256, 256), (256, 512), (512, 512), (512, 1024), (1024, 512), (512, 2048), (2048, 512)),
    *((1024, 1024), (2048, 2048), (256, 6000), (512, 8000), (512, 37000)),
)
FEW = (1, 4, 16, 64, 256)  # rows of a search, for maps within a decoder and an output layer
CASES = (
    *((rows, 512, 512) for rows in ROWS),
    *((2048, *sizes) for sizes in MAPS),
    *((rows, *sizes) for sizes in ((256, 768), (512, 2048), (512, 32768)) for rows in FEW),
)
PASSES = {"forward": 1, "forward, bfloat16": 1, "forward + backward": 3}  # and their products


def works(rows: int, inputs: int, outputs: int, name: str) -> dict[str, Callable[[], object]]:
    """A pass by each kind of products."""
    dtype = torch.bfloat16 if "bfloat16" in name else torch.float32
    x, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((rows, inputs), (outputs, inputs), (outputs,)))
    if "backward" not in name:
        linear.lay_out(weight)
        return {name: partial(torch.no_grad()(run), x, weight, bias) for name, run in linear.PRODUCTS.items()}
    grad, tensors = torch.randn(rows, outputs), [x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]

    def both(run: Callable[..., torch.Tensor]) -> object:
        return torch.autograd.grad(run(*tensors), tensors, grad)

    return {name: partial(both, linear.PRODUCTS[name]) for name in ("torch", "onednn")}


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
    print(f"{'rows':>5} {'inputs':>6} {'outputs':>7}  {'pass':<18}  GFLOP/s")
    for rows, inputs, outputs in dict.fromkeys(CASES):
        for name, count in PASSES.items():
            if "bfloat16" in name and not linear.has_bf16():
                continue
            times = alternate(works(rows, inputs, outputs, name), arguments.repeats, arguments.seconds, clock)
            row: dict[str, object] = {"rows": rows, "inputs": inputs, "outputs": outputs, "pass": name}
            rates = []
            for way in linear.PRODUCTS:
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
