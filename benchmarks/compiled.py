"""Machine code of the Triton kernels, for GPUs that need not be there: registers, spills, instructions per step.

Every kernel that a call with gradients launches is compiled by Triton for each target. Recorded are the assembler's
counts of registers per thread, bytes of shared memory, and bytes of registers spilled to memory. For the loops through
far and near tiles, the machine code gives the instructions that a warp issues per step where no pair is hidden,
exponentials over pairs in the tile (2: every pair is computed twice), and loads and stores of spilled registers.

The exit code is 1 if the assembler remarks that products on the tensor cores wait for one another (C75…), or if the
compiler made a trap of a kernel. TRITON_INTERPRET must not be set. To compile with another version of Triton: `pip
install --target FOLDER triton==3.6.0` and PYTHONPATH=FOLDER.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from benchmarks.measure import commit, keep
from relattn.backends.triton import operators
from relattn.backends.triton.configs import Config
from relattn.backends.triton.plan import tiles_of
from relattn.call import Call

TARGETS = (80, 90, 100)
WITH = ("mask", "relations", "grouped", "offsets", "lengths", "keys alone", "values alone", "rel_query", "bias")
KEY = ("triton", "target", "dtype", "dim", "clip", "n", "queries", "causal", "dropout", "given", "kernel")


@dataclass(frozen=True)
class Case:
    """Self-attention over sentences of one length, with both tables. A bias is a rel_query of ones with one dim."""

    dtype: str
    dim: int
    clip: int
    n: int
    causal: bool = False
    dropout: float = 0.0
    given: str = ""  # what else there is, out of WITH, joined by +
    queries: int = 0  # if not n
    batch: int = 2

    def call(self) -> Call:
        given, batch, heads = self.given.split("+"), self.batch, 2
        queries, right = self.queries or self.n, 0 if self.causal else self.clip

        def rows(length: int, heads: int) -> Tensor:  # as projections make them
            return torch.empty(batch, length, heads, self.dim, dtype=getattr(torch, self.dtype)).transpose(1, 2)

        query, key_heads, pairs = rows(queries, heads), 1 if "grouped" in given else heads, (batch, 1, queries, self.n)
        rel_query = rows(queries, heads) if "rel_query" in given else None
        if "bias" in given:
            rel_query = query.new_ones(1, 1, 1, 1).expand(batch, heads, queries, 1)
        rel_dim, labels = self.dim if rel_query is None else rel_query.shape[3], self.clip + right + 1
        each = torch.zeros(batch, dtype=torch.int64)
        return Call(
            query,
            key=rows(self.n, key_heads),
            value=rows(self.n, key_heads),
            rel_key=None if "values alone" in given else query.new_empty(labels, rel_dim),
            rel_value=None if "keys alone" in given else query.new_empty(labels, self.dim),
            rel_query=rel_query,
            relations=torch.zeros(pairs, dtype=torch.int64) if "relations" in given else None,
            query_offsets=each if "offsets" in given else None,
            key_lengths=each if "lengths" in given else None,
            query_lengths=each if "lengths" in given else None,
            mask=torch.zeros(pairs, dtype=torch.bool) if "mask" in given else None,
            seed=torch.zeros((), dtype=torch.int64) if self.dropout > 0.0 else None,
            query_offset=self.n - queries,
            left=self.clip,
            right=right,
            clips="relations" not in given,
            is_causal=self.causal,
            dropout_p=self.dropout,
            scale=self.dim**-0.5,
        )


CASES = (
    *(
        Case("bfloat16", 64, 16, n, causal, dropout)
        for n, causal, dropout in product((64, 128, 2048), (False, True), (0.0, 0.1))
    ),
    *(Case("bfloat16", dim, clip, 2048) for dim, clip in ((64, 64), (16, 16), (128, 16), (256, 16))),
    *(Case("bfloat16", 128, 16, n, causal) for n, causal in ((64, False), (128, False), (2048, True))),
    *(Case("float16", 64, 16, n) for n in (64, 2048)),
    *(Case("float32", 64, 16, n) for n in (64, 2048)),
    *(Case("bfloat16", 64, 16, 2048, given=given) for given in WITH),
    *(Case("bfloat16", 64, 16, 64, given=given) for given in ("mask", "relations", "rel_query")),
    Case("bfloat16", 64, 2047, 2048, given="keys alone+rel_query"),  # Transformer-XL's form
    Case("bfloat16", 64, 16, 2048, True, 0.1, "mask+grouped+offsets+lengths"),
    Case("float32", 64, 16, 2048, True, 0.1, "relations+mask+grouped+lengths"),
    Case("bfloat16", 64, 16, 4096, queries=1),
)


class Absent:
    """A driver for a GPU that is not there, which suffices to compile."""

    def __init__(self, target: int) -> None:
        self.target = GPUTarget("cuda", target, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.target.arch  # a number of its own, since Triton keeps a device's target

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def assembled(compiled: Any, target: int) -> dict[str, Any]:
    """Return the assembler's counts of a kernel, and those of its loops."""
    tools = triton.knobs.nvidia
    assembler = tools.ptxas_blackwell if target >= 100 else tools.ptxas
    architecture = f"sm_{target}a" if target >= 90 else f"sm_{target}"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.ptx").write_text(compiled.asm["ptx"])
        command = [assembler.path, "-v", f"--gpu-name={architecture}", "kernel.ptx", "-o", "kernel.cubin"]
        said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stderr
        command = [tools.nvdisasm.path, "-c", "kernel.cubin"]
        code = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    (registers,) = re.findall(r"Used (\d+) registers", said)
    remarks = {*re.findall(r"\bC75\d\d\b", said), *re.findall(r"\btrap\b", compiled.asm["ptx"])}
    return {
        "registers": int(registers),
        "shared": compiled.metadata.shared,
        "spilled": sum(int(size) for size in re.findall(r"(\d+) bytes spill", said)),
        "remarks": " ".join(sorted(remarks)),
        "loops": loops_of(code),
    }


def loops_of(code: str) -> list[dict[str, int]]:
    """Return the counts of each innermost loop with exponentials, in the order of the code.

    They are instructions issued per step if every forward branch is taken, exponentials, and loads and stores of
    spilled registers.
    """
    found, labels = list[str](), dict[str, int]()
    for line in code.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line.strip()):
            labels[label[1]] = len(found)
        elif instruction := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(.*?);", line):
            found.append(instruction[1])
    branches = [(at, re.search(r"\.L_x_\d+", text)) for at, text in enumerate(found) if text.startswith("BRA")]
    jumps = [(at, labels[to[0]]) for at, to in branches if to is not None]
    bodies = [(to, at + 1) for at, to in jumps if to <= at and any("EX2" in text for text in found[to:at])]
    inner = [(a, b) for a, b in bodies if not any(a <= c and d <= b and (c, d) != (a, b) for c, d in bodies)]
    counts = []
    for start, stop in sorted(inner):
        skipped = {at for a, b in jumps if start <= a < b < stop for at in range(a + 1, b)}
        issued = [text for at, text in enumerate(found) if start <= at < stop and at not in skipped]
        body = found[start:stop]
        counts.append(
            {
                "issued": len(issued),
                "exponentials": sum("EX2" in text for text in issued),
                "local": sum(text.startswith(("LDL", "STL")) for text in body),
            }
        )
    return counts


def counted(kernel: str, tiles: Config, loops: list[dict[str, int]], has_far: bool = True) -> dict[str, Any]:
    """Return the columns of the loops through far and near tiles, empty for a loop of a single step.

    If the compiler makes several loops of one, they are those of the first.
    """
    far: dict[str, int] = loops[0] if has_far and len(loops) > 1 else {}
    near: dict[str, int] = next(iter(loops[bool(far) :]), {})
    side = tiles.cols if kernel == "backward_key" else tiles.rows
    pairs = {"far": tiles.rows * tiles.cols, "near": side * tiles.near}
    columns: dict[str, Any] = {}
    for name, loop in (("far", far), ("near", near)):
        redundancy = "" if not loop else round(loop["exponentials"] * 32 * tiles.warps / pairs[name], 2)
        columns |= {
            f"{name} instructions": loop.get("issued", ""),
            f"{name} redundancy": redundancy,
            f"{name} local": loop.get("local", ""),
        }
    return columns


def rows(target: int, case: Case) -> list[dict[str, Any]]:
    """Return a row for each kernel of a call, forward and backward."""
    found: list[dict[str, Any]] = []

    def compile_only(kernel: Any, programs: int, tiles: Any, call: Call, **arguments: Any) -> None:
        if tiles is None:
            return  # a join of few numbers
        compiled = kernel.warmup(**operators.launch_arguments(tiles, arguments), grid=(programs,))
        taken = assembled(compiled, target)
        loops = taken.pop("loops")
        row = {"target": f"sm_{target}", **asdict(case), "kernel": kernel.__name__, **tiles._asdict()}
        found.append({**row, **taken, **counted(kernel.__name__, tiles, loops, not arguments.get("WHOLE"))})

    driver.set_active(Absent(target))
    call, tiles_of_target = case.call(), partial(tiles_of, generation=target // 10)
    results = operators.run_forward(call, compile_only, tiles_of_target)
    operators.run_backward(call, torch.empty_like(results[0]), *results, compile_only, tiles_of_target)
    return found


def variants(cases: Iterable[Case]) -> int:
    """Return the number of variants that Triton compiles for calls with gradients, by its own keys. Compile nothing.

    There is one for each combination of dtypes, tiles, options and properties of integers, such as being 1.
    """
    found = set()

    def add(kernel: Any, programs: int, tiles: Config | None, call: Call, **arguments: Any) -> None:
        binder = kernel.device_caches[driver.active.get_current_device()][-1]
        _, specialization, options = binder(**operators.launch_arguments(tiles, arguments), debug=False)
        found.add(f"{kernel.__name__} {specialization} {options}")

    for case in cases:
        call = case.call()
        results = operators.run_forward(call, add)
        operators.run_backward(call, torch.empty_like(results[0]), *results, add)
    return len(found)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiled", description=__doc__)
    parser.add_argument("--targets", type=int, nargs="+", default=list(TARGETS), help="compute capabilities, times ten")
    parser.add_argument("--dims", type=int, nargs="+", help="only cases of these head dims")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "triton-compiled.csv")
    options = parser.parse_args(arguments)
    if triton.knobs.runtime.interpret:
        parser.error("Triton's interpreter compiles nothing: unset TRITON_INTERPRET")
    held, remarks = {"triton": triton.__version__, "commit": commit()}, 0
    for target, case in product(options.targets, CASES):
        if options.dims is None or case.dim in options.dims:
            found = [{**row, **held} for row in rows(target, case)]
            for row in found:
                print(show(row), flush=True)
                remarks += bool(row["remarks"])
            keep(options.out, found, KEY)
    print(f"{remarks} kernels with remarks")
    return 1 if remarks else 0


def show(row: dict[str, Any]) -> str:
    options = [row["given"]] + [name for name in ("causal", "dropout") if row[name]]
    loops = "  ".join(
        f"{name} {row[f'{name} instructions']} × {row[f'{name} redundancy']}, local {row[f'{name} local']}"
        for name in ("far", "near")
        if row[f"{name} instructions"] != ""
    )
    return (
        f"{row['target']:<6} {row['dtype']:<8} d {row['dim']} k {row['clip']} n {row['n']} "
        f"{'+'.join(filter(None, options))} {row['kernel']} {row['rows']}×{row['cols']}, {row['near']}; "
        f"{row['warps']} warps, {row['stages']} stages; {row['registers']} registers, {row['shared']} shared, "
        f"{row['spilled']} spilled; {loops} {row['remarks']}"
    )


if __name__ == "__main__":
    sys.exit(main())
