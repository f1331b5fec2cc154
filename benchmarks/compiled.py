"""Machine code of the Triton kernels, compiled without a GPU: registers, spills, instructions per step.

Triton compiles every kernel of a call with gradients for each target. The rows have the assembler's counts of registers
per thread, bytes of shared memory, and bytes of spilled registers. For the loops over far and near tiles, they have the
instructions that a warp issues per step without hidden pairs ("instructions"), the exponentials per pair of the tile
("redundancy"; 2: every pair is computed twice), and the loads and stores of spilled registers ("local").

The exit code is 1 if the assembler remarks that products on the tensor cores wait for each other (C75…), if the
compiler turned a kernel into a trap, if an address is computed from an undefined register, or if a program needs more
shared memory than there is. TRITON_INTERPRET must not be set. To compile with another version of Triton, run
`pip install --target FOLDER triton==3.6.0` and set PYTHONPATH=FOLDER.
"""

import io
import re
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
from relattn.backends.triton import operators
from relattn.backends.triton.availability import use_sound_assembler
from relattn.backends.triton.configs import TileConfig
from relattn.call import Call
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from benchmarks.measure import Row, command, parse, record

TARGETS = (80, 90, 100)  # compute capabilities × 10
WITH = ("mask", "relations", "grouped", "offsets", "lengths", "keys alone", "values alone", "rel_query", "bias")
LATER = ("window", "chunk", "pos_query")  # further names for `given`
CALL = ("target", "dtype", "dim", "clip", "n", "queries", "causal", "dropout", "given", "kernel")
KEY = ("triton", *CALL)
LOOPS = tuple(f"{loop} {count}" for loop in ("far", "near") for count in ("instructions", "redundancy", "local"))
SHOWN = (*CALL, "rows", "cols", "near", "warps", "stages", "registers", "shared", "spilled", *LOOPS, "remarks")


@dataclass(frozen=True)
class Case:
    """Self-attention of sequences of one length, with both tables."""

    dtype: str
    dim: int
    clip: int
    n: int
    causal: bool = False
    dropout: float = 0.0
    given: str = ""  # other arguments of the call, names of WITH and LATER joined by +
    queries: int = 0  # number of queries; 0: n
    batch: int = 2

    def call(self) -> Call:
        """Return the call; the bias is a rel_query of ones with a single dimension, windows are 128 to each side."""
        given, batch, heads = self.given.split("+"), self.batch, 2
        queries, right = self.queries or self.n, 0 if self.causal else self.clip

        def rows(length: int, heads: int) -> Tensor:  # memory layout of a projection
            return torch.empty(batch, length, heads, self.dim, dtype=getattr(torch, self.dtype)).transpose(1, 2)

        query, key_heads, pairs = rows(queries, heads), 1 if "grouped" in given else heads, (batch, 1, queries, self.n)
        rel_query = rows(queries, heads) if "rel_query" in given else None
        if "bias" in given:
            rel_query = query.new_ones(1, 1, 1, 1).expand(batch, heads, queries, 1)
        rel_dim, labels = self.dim if rel_query is None else rel_query.shape[3], self.clip + right + 1
        each = torch.zeros(batch, dtype=torch.int64)
        left, right_side = (256, 127) if "chunk" in given else (128, 128) if "window" in given else (None, None)
        return Call(
            query,
            key=rows(self.n, key_heads),
            value=rows(self.n, key_heads),
            rel_key=None if "values alone" in given else query.new_empty(labels, rel_dim),
            rel_value=None if "keys alone" in given else query.new_empty(labels, self.dim),
            rel_query=rel_query,
            pos_query=query.new_empty(labels, self.dim) if "pos_query" in given else None,
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
            window_left=left,
            window_right=None if self.causal else right_side,
            chunk=128 if "chunk" in given else 1,
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
    *(
        Case(dtype, dim, 16, 2048, causal, dropout, given)
        for given in LATER
        for dtype, dim in (("bfloat16", 64), ("bfloat16", 128), ("float32", 64))
        for causal, dropout in ((False, 0.0), (True, 0.1))
    ),
    Case("bfloat16", 64, 16, 64, given="pos_query"),
    Case("bfloat16", 64, 511, 2048, given="keys alone+pos_query"),  # DeBERTa's form
    Case("bfloat16", 64, 16, 2048, given="relations+pos_query"),
    Case("bfloat16", 64, 16, 2048, True, 0.1, "window+pos_query+rel_query+grouped+lengths"),
)


LOGS: dict[str, str] = {}  # what the assembler printed, by the hash of a kernel, which is compiled once


UNDEFINED = re.compile(r"R2UR UR\d+, R1\b")  # the stack pointer, instead of a value that ptxas 12.8 has lost


SHARED = {8: 101376, 9: 232448, 10: 232448}  # bytes that a program may have; for 8, the least of several chips


class Absent:
    """Driver for a GPU that is not present. It suffices to compile."""

    def __init__(self, target: int) -> None:
        self.target = GPUTarget("cuda", target, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.target.arch  # a different number per target, since Triton caches the target of a device

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def assembled(kernel: Any, arguments: dict[str, Any], generation: int) -> dict[str, Any]:
    """Compile a kernel, and return the assembler's counts and the counts of its loops."""
    if generation == 9:
        use_sound_assembler(kernel)
    with redirect_stdout(io.StringIO()) as printed:
        compiled = kernel.warmup(**arguments, grid=(1,))
    log = LOGS.setdefault(compiled.hash, printed.getvalue())
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(compiled.asm["cubin"])
        command = [triton.knobs.nvidia.nvdisasm.path, "-c", file.name]
        code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (registers,) = re.findall(r"Used (\d+) registers", log)
    remarks = {*re.findall(r"\bC75\d\d\b", log), *re.findall(r"\btrap\b", compiled.asm["ptx"])}
    if UNDEFINED.search(code):
        remarks.add("undefined")
    if compiled.metadata.shared > SHARED[generation]:
        remarks.add("shared")
    return {
        "registers": int(registers),
        "shared": compiled.metadata.shared,
        "spilled": sum(int(size) for size in re.findall(r"(\d+) bytes spill", log)),
        "remarks": " ".join(sorted(remarks)),
        "loops": loops_of(code),
    }


def loops_of(code: str) -> list[dict[str, int]]:
    """Return the counts of each innermost loop with exponentials, in the order of the code.

    The counts are instructions issued per step if every forward branch is taken, exponentials among them, and loads
    and stores of spilled registers.
    """
    code_lines, labels = list[str](), dict[str, int]()
    for line in code.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line.strip()):
            labels[label[1]] = len(code_lines)
        elif instruction := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(.*?);", line):
            code_lines.append(instruction[1])
    branches = [(at, re.search(r"\.L_x_\d+", text)) for at, text in enumerate(code_lines) if text.startswith("BRA")]
    jumps = [(at, labels[to[0]]) for at, to in branches if to is not None]
    bodies = [(to, at + 1) for at, to in jumps if to <= at and any("EX2" in text for text in code_lines[to:at])]
    inner = [(a, b) for a, b in bodies if not any(a <= c and d <= b and (c, d) != (a, b) for c, d in bodies)]
    counts = []
    for start, stop in sorted(inner):
        skipped = {at for a, b in jumps if start <= a < b < stop for at in range(a + 1, b)}
        issued = [text for at, text in enumerate(code_lines) if start <= at < stop and at not in skipped]
        body = code_lines[start:stop]
        counts.append(
            {
                "issued": len(issued),
                "exponentials": sum("EX2" in text for text in issued),
                "local": sum(text.startswith(("LDL", "STL")) for text in body),
            }
        )
    return counts


def counted(kernel: str, tiles: TileConfig, loops: list[dict[str, int]], has_far: bool = True) -> dict[str, Any]:
    """Return the columns of the loops over far and near tiles; empty for a loop with a single step.

    If the compiler splits a loop, the columns describe the first part.
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


def rows(target: int, case: Case) -> list[Row]:
    """Return a row for each kernel of a call, forward and backward."""
    made: list[Row] = []

    def compile_only(kernel: Any, programs: int, tiles: Any, call: Call, **arguments: Any) -> None:
        if tiles is None:
            return  # a small kernel that merges partial results
        taken = assembled(kernel, operators.launch_arguments(tiles, arguments), generation)
        loops = taken.pop("loops")
        row = {"target": f"sm_{target}", **asdict(case), "kernel": kernel.__name__, **tiles._asdict()}
        made.append({**row, **taken, **counted(kernel.__name__, tiles, loops, not arguments.get("WHOLE"))})

    generation = target // 10
    triton.knobs.nvidia.dump_ptxas_log = triton.knobs.compilation.always_compile = True
    driver.set_active(Absent(target))
    call = case.call()
    results = operators.run_forward(call, compile_only, generation=generation)
    operators.run_backward(call, torch.empty_like(results[0]), *results, compile_only, generation=generation)
    return made


def main() -> int:
    parser = command("compiled", __doc__)
    options = parse(parser, "triton-compiled.csv")
    if triton.knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET must not be set: the interpreter compiles nothing")
    options.conditions = {"triton": triton.__version__, "commit": options.conditions["commit"]}
    remarks = 0
    for target, case in product(TARGETS, CASES):
        made = rows(target, case)
        record(options, made, KEY, SHOWN)
        remarks += sum(bool(row["remarks"]) for row in made)
    print(f"{remarks} kernels with remarks")
    return 1 if remarks else 0


if __name__ == "__main__":
    sys.exit(main())
