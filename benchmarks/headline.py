"""Measure the numbers of README.md on this machine, in less than three minutes, and print them as a table.

    python -m benchmarks.headline

Nothing is written. Methods that are compared alternate or have a process of their own. Other programs on the machine
make times longer; ratios change less. The rows of the documentation come from the other benchmarks.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from relattn_mt import bundle
from relattn_mt.formats.ctranslate2.write import export
from relattn_mt.tokens.text_files import read_lines

from benchmarks import attention, decoding, models
from benchmarks.encoders import ENCODERS
from benchmarks.forms import Case
from benchmarks.measure import alternate, apart, command, preload, processor

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "toolkit/src/relattn_mt/models/everyday-en-de"
PHRASES = ROOT / "recipes/everyday-phrases.tsv"
ENCODER, TOKENS = "deberta-v3-base", 512
BEAM = 4
Line = tuple[str, str, str, str]  # what is measured, with the other program, with ours, ratio


# A process begins with the peak memory of its parent, so the parent is a small one.
FIRST_LINE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], input=b"Where is the nearest station?", stdout=subprocess.DEVNULL, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"{used.ru_utime + used.ru_stime:.2f} s, {used.ru_maxrss / 1024:.0f} MiB")
"""


def first_line() -> Line:
    """Return processor time and peak memory of a command that translates one line."""
    program = str(Path(sys.executable).with_name("relattn-mt"))
    small = [sys.executable, "-c", FIRST_LINE, program, "translate", "everyday-en-de"]
    figures = subprocess.run(small, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    return "one line from the start of `relattn-mt translate everyday-en-de`", "", figures, ""


def translation(threads: int) -> Line:
    """Return target tokens per second of the model of the package in int8, by CTranslate2 and by ours."""
    phrases = [line.partition("\t")[0] for line in read_lines(PHRASES)]
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, MODEL.name)
        link.symlink_to(MODEL)
        path = decoding.exported(link, "ctranslate2 int8")
        export(bundle.read_bundle(link), path, quantization="int8", sample=phrases)
        speeds = {}
        for method in ("ctranslate2 int8 inter", "relattn int8"):
            runs = [apart(decoding.figures, link, method, BEAM, threads, phrases) for _ in range(3)]
            speeds[method] = max(run.tokens / run.seconds for run in runs)
    theirs, ours = speeds.values()
    what = f"target tokens per second, `everyday-en-de` in int8, beam {BEAM}, beside CTranslate2"
    return what, f"{theirs:,.0f}", f"{ours:,.0f}", f"{ours / theirs:.2f}"


def encoder() -> Line:
    """Return the seconds of an encoder on one text, with its own code and with ours."""
    own = [apart(models.figures, ENCODER, method, TOKENS, None)["seconds"] for method in ENCODERS[ENCODER].own]
    ours = apart(models.figures, ENCODER, "relattn", TOKENS, None)["seconds"]
    return f"seconds, {ENCODER}, {TOKENS} tokens", f"{min(own):.2f}", f"{ours:.2f}", f"{ours / min(own):.2f}"


def operator() -> Iterator[Line]:
    """Yield milliseconds of attention, by PyTorch without positions and by ours with both tables."""
    for n in (128, 1024):
        case = Case(attention.TOKENS // n, attention.HEADS, n, attention.DIM, attention.CLIP, attention.CLIP, False)
        for backward, name in enumerate(attention.PASSES):
            works = {method: attention.prepare(method, case, bool(backward)) for method in ("plain", "auto")}
            times = alternate(works, 3, seconds=1.0)
            plain, ours = (1e3 * times[method].median for method in works)
            yield f"milliseconds, attention, n = {n:,}, {name}", f"{plain:.1f}", f"{ours:.1f}", f"{ours / plain:.2f}"


def lines(threads: int) -> Iterator[Line]:
    yield first_line()
    yield translation(threads)
    yield from operator()
    yield encoder()


def main() -> None:
    command("headline", __doc__).parse_args()
    preload([attention.__name__, decoding.__name__, models.__name__])
    start, threads = time.monotonic(), torch.get_num_threads()
    print(f"{processor()}; {threads} threads; torch {torch.__version__}\n")
    print("| what | other | relattn | relattn ÷ other |\n| --- | --- | --- | --- |")
    for line in lines(threads):
        print(f"| {' | '.join(line)} |", flush=True)
    print(f"\n{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
