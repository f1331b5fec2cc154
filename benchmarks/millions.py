"""Prepare text of millions of pairs and train on it for a hundred steps; measure time, memory and disk space.

    python -m benchmarks.millions --pairs 1000000 2000000 5000000 --work DIR

The text is generated: words follow Zipf's law, sentences have 2 to 80 words, the translation is word by word, and one
pair in 20 should be dropped by cleaning. A small model is trained by two processes, so that the cost of the text
dominates. Rows are added to benchmarks/results/millions-cpu.csv. Memory is the peak of each process, without mapped
files.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.measure import conditions, family, keep
from relattn.translation.config import DataConfig, ModelConfig, Recipe, TrainConfig, dump

WORDS = 200_000
STEPS = 100
_CHUNK = 10_000


def generate(directory: Path, pairs: int) -> None:
    """Write text.en and text.de. The text is deterministic, and fewer pairs are the beginning of more."""
    random = np.random.default_rng(1)
    syllables = np.array([c + v for c in "bdfgklmnprstvz" for v in "aeiou"])
    src, tgt = (
        ["".join(syllables[random.integers(0, len(syllables), length)]) for length in random.integers(1, 6, WORDS)]
        for _ in range(2)
    )
    weights = 1 / np.arange(10, WORDS + 10)
    cumulative = np.cumsum(weights / weights.sum())
    with (directory / "text.en").open("w") as src_file, (directory / "text.de").open("w") as tgt_file:
        for start in range(0, pairs, _CHUNK):
            count = min(_CHUNK, pairs - start)
            lengths = np.clip(np.exp(random.normal(3, 0.6, count)).astype(int), 2, 80)
            words = np.minimum(np.searchsorted(cumulative, random.random(lengths.sum())), WORDS - 1).tolist()
            lines: list[list[int]] = []
            at = 0
            for number, length in enumerate(lengths.tolist()):
                line = words[at : at + length]
                at += length
                if number % 60 == 7:  # a duplicate
                    line = lines[0]
                elif number % 60 == 27:  # too long
                    line = (line * 150)[:300]
                lines.append(line)
            src_file.writelines(" ".join(map(src.__getitem__, line)) + "\n" for line in lines)
            tgt_file.writelines(
                (" ".join(map(tgt.__getitem__, line)) if number % 60 != 47 else "") + "\n"  # not translated
                for number, line in enumerate(lines)
            )


@dataclass
class Measured:
    """Measurements of a command and of the processes that it started.

    Attributes:
        seconds: duration.
        lines: lines of standard error, each with the seconds from the start.
        anonymous: peak bytes of anonymous memory of each process, by its id.
        resident: peak bytes of resident memory, mapped files included.
    """

    seconds: float = 0.0
    lines: list[tuple[float, str]] = field(default_factory=list)
    anonymous: dict[int, int] = field(default_factory=dict)
    resident: dict[int, int] = field(default_factory=dict)


@contextmanager
def monitoring(process: subprocess.Popen[str], measured: Measured) -> Iterator[None]:
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(0.05):
            for pid in family(process.pid):
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                for name, held in (("RssAnon", measured.anonymous), ("VmRSS", measured.resident)):
                    if match := re.search(rf"{name}:\s+(\d+) kB", status):
                        held[pid] = max(held.get(pid, 0), int(match[1]) << 10)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def run(*command: str) -> Measured:
    """Run a command of relattn and measure it."""
    measured, started = Measured(), time.perf_counter()
    arguments = [sys.executable, "-m", "relattn", *command]
    with (
        subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process,
        monitoring(process, measured),
    ):
        assert process.stderr is not None
        for line in process.stderr:
            measured.lines.append((time.perf_counter() - started, line.rstrip()))
        code = process.wait()
    measured.seconds = time.perf_counter() - started
    if code != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {code}: {measured.lines[-3:]}")
    return measured


def size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def recipe(work: Path, processes: int) -> Recipe:
    return Recipe(
        out=str(work / "run"),
        model=ModelConfig(dim=32, heads=2, feed_forward_dim=32, encoder_layers=1, decoder_layers=1, clip=8),
        data=DataConfig(
            train_src=str(work / "prepared" / "train.en.gz"),
            train_tgt=str(work / "prepared" / "train.de.gz"),
            max_tokens=4000,
        ),
        train=TrainConfig(
            steps=STEPS,
            warmup_steps=50,
            accelerator="cpu",
            devices=processes,
            threads=1,
            log_every=1,
            valid_every=STEPS,
            checkpoint_every=STEPS,
            keep=1,
            average=1,
        ),
    )


def measure(work: Path, pairs: int, processes: int) -> dict[str, object]:
    """Prepare and train, and return the measurements by column."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    generate(work, pairs)
    raw = size(work)
    texts = ("--src", str(work / "text.en"), "--tgt", str(work / "text.de"), "--src_lang", "en", "--tgt_lang", "de")
    prepared = run("prepare", *texts, "--out", str(work / "prepared"), "--processes", str(processes))
    for name in ("text.en", "text.de"):
        (work / name).unlink()
    (work / "recipe.yaml").write_text(dump(recipe(work, processes)), encoding="utf-8")
    trained = run("train", str(work / "recipe.yaml"))
    first = next(seconds for seconds, line in trained.lines if line.startswith("step 1 "))
    last = next(seconds for seconds, line in trained.lines if line.startswith(f"step {STEPS} "))
    parent, *workers = sorted(prepared.anonymous.values(), reverse=True)
    return {
        "pairs": pairs,
        "text MiB": raw >> 20,
        "prepare s": f"{prepared.seconds:.1f}",
        "prepare pairs/s": f"{pairs / prepared.seconds:.0f}",
        "prepare MiB": parent >> 20,
        "prepare worker MiB": max(workers, default=0) >> 20,
        "prepared MiB on disk": size(work / "prepared") >> 20,
        "first step s": f"{first:.1f}",
        "100 steps s": f"{last - first:.1f}",
        "train MiB": " ".join(str(held >> 20) for held in sorted(trained.anonymous.values(), reverse=True)[:processes]),
        "train MiB with files": " ".join(
            str(held >> 20) for held in sorted(trained.resident.values(), reverse=True)[:processes]
        ),
        "run MiB on disk": size(work / "run") >> 20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.millions", description=__doc__)
    parser.add_argument("--pairs", type=int, nargs="+", default=[1_000_000, 2_000_000, 5_000_000])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--work", type=Path, required=True, help="working directory; its content is deleted")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "millions-cpu.csv")
    arguments = parser.parse_args()
    held = conditions()
    for pairs in arguments.pairs:
        row = measure(arguments.work, pairs, arguments.processes)
        print("; ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        keep(arguments.out, [{**row, "processes": arguments.processes, **held}], ("pairs", "processes", "device"))


if __name__ == "__main__":
    main()
