"""What the Triton kernels take of a GPU that need not be there: compiled ahead of time, for several generations.

Every kernel that a call with gradients launches is compiled by Triton for each target, down to machine code, and the
assembler's own count is kept: registers a thread, bytes of shared memory, and bytes of registers spilled to memory.
Nothing is run, so that this needs no GPU; but Triton must not be in its interpreter (TRITON_INTERPRET unset).
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from benchmarks.measure import commit, keep
from relattn.backends.triton import configs, operators

TARGETS = (80, 90, 100)
KEY = ("target", "dtype", "dim", "clip", "n", "causal", "dropout", "kernel")


@dataclass(frozen=True)
class Case:
    """Self-attention over sentences of one length, both tables given."""

    dtype: str
    dim: int
    clip: int
    n: int
    causal: bool = False
    dropout: float = 0.0


CASES = (
    *(
        Case("bfloat16", 64, 16, n, causal, dropout)
        for n, causal, dropout in product((64, 2048), (False, True), (0.0, 0.1))
    ),
    *(Case("bfloat16", dim, clip, 2048) for dim, clip in ((64, 64), (16, 16), (128, 16), (256, 16))),
    *(Case("float16", 64, 16, n) for n in (64, 2048)),
    Case("float32", 64, 16, 2048),
)


class Absent:
    """A driver for a GPU that is not there: enough for Triton to compile by, not to run."""

    def __init__(self, target: int) -> None:
        self.target = GPUTarget("cuda", target, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.target.arch  # a number of its own, since Triton keeps a device's target

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def resources(compiled: Any, target: int) -> dict[str, int]:
    """Registers a thread, bytes of shared memory a program, and bytes a thread spills, by the assembler's word."""
    tools = triton.knobs.nvidia
    assembler = tools.ptxas_blackwell if target >= 100 else tools.ptxas
    architecture = f"sm_{target}a" if target >= 90 else f"sm_{target}"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.ptx").write_text(compiled.asm["ptx"])
        command = [assembler.path, "-v", f"--gpu-name={architecture}", "kernel.ptx", "-o", "kernel.cubin"]
        said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stderr
    (registers,) = re.findall(r"Used (\d+) registers", said)
    spilled = sum(int(size) for size in re.findall(r"(\d+) bytes spill", said))
    return {"registers": int(registers), "shared": compiled.metadata.shared, "spilled": spilled}


def rows(target: int, case: Case) -> Iterator[dict[str, Any]]:
    """What each kernel of a call, forward and backward, takes."""
    found = []

    def compile_only(kernel: Any, programs: int, tiles: Any, problem: Any, **arguments: Any) -> None:
        compiled = kernel.warmup(**operators.launched(tiles, problem, arguments), grid=(programs,))
        row = {"target": f"sm_{target}", **asdict(case), "kernel": kernel.__name__, **tiles._asdict()}
        found.append({**row, **resources(compiled, target)})

    driver.set_active(Absent(target))
    configs.generation = lambda device: target // 10
    held, operators.launch = operators.launch, compile_only
    try:
        sizes = (2, case.n, 2, case.dim)  # as projections make them
        query, key, value, grad = (
            torch.empty(sizes, dtype=getattr(torch, case.dtype)).transpose(1, 2) for _ in range(4)
        )
        tables = [query.new_empty(2 * case.clip + 1, case.dim) for _ in range(2)]
        right = 0 if case.causal else case.clip
        tables = [table[: case.clip + right + 1] for table in tables]
        seed = torch.zeros((), dtype=torch.int64) if case.dropout > 0.0 else None
        options = (0, case.clip, right, True, case.causal, case.dropout, case.dim**-0.5)
        arguments = (query, key, value, *tables, None, None, None, None, seed, *options)
        output, lse = operators.run_forward(*arguments)
        operators.run_backward(grad, output, lse, *arguments)
    finally:
        operators.launch = held
    yield from found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiled", description=__doc__)
    parser.add_argument("--targets", type=int, nargs="+", default=list(TARGETS), help="compute capabilities, ten times")
    parser.add_argument("--dims", type=int, nargs="+", help="only cases of these head dims")
    parser.add_argument("--dtypes", nargs="+", help="only cases of these types")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "triton-compiled.csv")
    options = parser.parse_args()
    if triton.knobs.runtime.interpret:
        sys.exit("Triton is in its interpreter, which compiles nothing: unset TRITON_INTERPRET")
    wanted = {"dim": options.dims, "dtype": options.dtypes}
    chosen = [case for case in CASES if all(of is None or getattr(case, name) in of for name, of in wanted.items())]
    held = {"triton": triton.__version__, "commit": commit()}
    print(f"{'target':<8}{'type':<10}{'d':>4}{'k':>5}{'n':>6}{'':<17}  {'kernel':<15}{'tiles':<13}", end="")
    print("warps  registers  shared  spilled")
    for target, case in product(options.targets, chosen):
        found = [{**row, **held} for row in rows(target, case)]
        for row in found:
            size = f"{row['rows']}×{row['cols']}, {row['near']}"
            print(
                f"{row['target']:<8}{case.dtype:<10}{case.dim:>4}{case.clip:>5}{case.n:>6}"
                f"{'  causal' if case.causal else '':<8}{'  dropout' if case.dropout else '':<9}  {row['kernel']:<15}"
                f"{size:<13}{row['warps']:>5}{row['registers']:>11}{row['shared']:>8}{row['spilled']:>9}",
                flush=True,
            )
        keep(options.out, found, KEY)


if __name__ == "__main__":
    main()
