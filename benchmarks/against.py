"""Compare the time of this tree's attention with another version of the package.

The other version is a directory that holds `relattn` with compiled kernels: a source tree, or a commit or tag installed
by pip, for commits before the folder `library` existed, without `#subdirectory=library`:

    pip install --no-deps --no-build-isolation --target build/other "git+file://$PWD@v0.1.0#subdirectory=library"
    python -m benchmarks.against build/other

Each version runs in its own process. A round starts both, times every case alternately, and gives one ratio of medians
per case. The version that starts changes from round to round. Rounds differ because of other load on the machine and
the memory layout of the processes.
"""

import argparse
import multiprocessing
import statistics
import sys
import textwrap
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import alternate, command, measured, parse, text_of

ROOT = Path(__file__).parents[1]
SPAWN = multiprocessing.get_context("spawn")  # a process that has not imported relattn
SHORTEST = 0.02  # seconds; shorter calls are timed several at once
REPEATS = 3  # minimum number of timed repeats per round
THRESHOLD = 0.05  # smallest change that is marked
HEADS, DIM, CLIP, TOKENS = 8, 64, 16, 4096
Work = Callable[[], object]

# Cases. They import public names of `relattn` only when they are prepared, so that a version without such a name lacks
# only the cases that need it.


def normal(*sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(0))


def sequences(n: int, tokens: int = TOKENS) -> list[Tensor]:
    """Return queries, keys and values, (batch, heads, n, dim), with the memory layout of a projection."""
    return [normal(tokens // n, n, HEADS, DIM).transpose(1, 2) for _ in "qkv"]


def run_of(attend: Callable[..., Tensor], inputs: list[Tensor], backward: bool) -> Work:
    """Return a function that runs the forward pass without gradients, or forward and backward."""
    inputs = [x.requires_grad_(backward) for x in inputs]
    return lambda: torch.autograd.grad(attend(*inputs).sum(), inputs) if backward else attend(*inputs)


def relative(n: int, backward: bool, *, tokens: int = TOKENS, **options: Any) -> Work:
    """Prepare attention with tables for keys and values, on sequences of length n with `tokens` positions in total."""
    from relattn import relative_attention

    tables = [normal(2 * CLIP + 1, DIM) for _ in "kv"]
    return run_of(partial(relative_attention, clip=CLIP, **options), [*sequences(n, tokens), *tables], backward)


def xl(n: int) -> Work:
    """Prepare Transformer-XL's form: a table row per distance and head, and a separate query for the relative term."""
    from relattn import relative_attention

    def attend(query: Tensor, key: Tensor, value: Tensor, table: Tensor, rel_query: Tensor) -> Tensor:
        return relative_attention(query, key, value, table, rel_query=rel_query, clip=n - 1)

    query, key, value = sequences(n)
    return run_of(attend, [query, key, value, normal(HEADS, 2 * n - 1, DIM), query.clone()], True)


def labelled(n: int) -> Work:
    """Prepare attention with a label per pair, the same labels for all sequences."""
    from relattn import relation_attention

    labels = 2 * CLIP + 1
    relations = torch.randint(-1, labels, (1, 1, n, n), generator=torch.Generator().manual_seed(0))

    def attend(query: Tensor, key: Tensor, value: Tensor, rel_key: Tensor, rel_value: Tensor) -> Tensor:
        return relation_attention(query, key, value, relations, rel_key, rel_value)

    return run_of(attend, [*sequences(n), *(normal(labels, DIM) for _ in "kv")], True)


def decoding(steps: int) -> Work:
    """Prepare a causal layer with a cache that reads one token per step, for 8 sequences."""
    from relattn import RelativeSelfAttention

    layer = RelativeSelfAttention(HEADS * DIM, HEADS, CLIP, is_causal=True).eval()
    token = normal(8, 1, HEADS * DIM)

    @torch.inference_mode()
    def decode() -> None:
        cache = layer.empty_cache(8, steps)
        for _ in range(steps):
            _, cache = layer(token, cache=cache)

    return decode


def training(n: int) -> Work:
    """Prepare a training step of a model with one layer per side."""
    from benchmarks.train_step import config, prepare

    return prepare(config("base", "relative", layers=1), n, 1024)


PASSES = {"forward": False, "forward + backward": True}
CASES: dict[str, Callable[[], Work]] = {
    **{
        f"one sequence, {name}, n = {n}": partial(relative, n, PASSES[name], tokens=n)
        for name in PASSES
        for n in (1, 8)
    },
    **{f"{name}, n = {n}": partial(relative, n, PASSES[name]) for name in PASSES for n in (16, 128, 1024, 4096)},
    "causal, forward + backward, n = 1024": partial(relative, 1024, True, is_causal=True),
    "Transformer-XL's form, forward + backward, n = 512": partial(xl, 512),
    "labelled pairs, forward + backward, n = 256": partial(labelled, 256),
    "decoding 128 tokens with a cache": partial(decoding, 128),
    "training step of 1 + 1 layers, n = 64": partial(training, 64),
}


class Missing(Exception):
    """A version cannot run a case."""


def start(folder: str, threads: int) -> None:
    """Choose the version; runs first in the process of a `Version`."""
    sys.path.insert(0, folder)
    torch.set_num_threads(threads)


@lru_cache(maxsize=1)
def prepared(case: str) -> Work:
    """Return the work of a case after one run."""
    work = CASES[case]()
    work()
    return work


def seconds_of(case: str, times: int) -> float:
    """Return the seconds of several runs of a case; runs in the process of a `Version`."""
    try:
        work = prepared(case)
        return measured(lambda: [work() for _ in range(times)])
    except Exception as error:
        raise Missing(" ".join(f"{type(error).__name__}: {error}".split())) from None


class Version:
    """A version of the package in a process, which is started again after it died or was closed."""

    def __init__(self, name: str, folder: Path, threads: int) -> None:
        self.name, self.arguments = name, (str(folder), threads)
        self.process: ProcessPoolExecutor | None = None

    def seconds(self, case: str, times: int) -> float:
        """Return the result of `seconds_of` in the process of this version."""
        if self.process is None:
            self.process = ProcessPoolExecutor(1, SPAWN, initializer=start, initargs=self.arguments)
        try:
            return self.process.submit(seconds_of, case, times).result()
        except (Missing, BrokenProcessPool) as error:
            if isinstance(error, BrokenProcessPool):
                self.close()
            reason = str(error) if isinstance(error, Missing) else "its process died"
            raise Missing(f"not in {self.name} ({textwrap.shorten(reason, 120)})") from None

    def close(self) -> None:
        if self.process is not None:
            self.process.shutdown()
            self.process = None


@dataclass(frozen=True)
class Times:
    """Median seconds of a case, one number per round."""

    other: list[float]
    here: list[float]

    @property
    def ratios(self) -> list[float]:
        """This tree's time divided by the other version's, one ratio per round, sorted."""
        return sorted(here / other for other, here in zip(self.other, self.here, strict=True))

    def verdict(self) -> str:
        if self.ratios[0] > 1 + THRESHOLD:
            return "slower"
        return "faster" if 1 / self.ratios[-1] > 1 + THRESHOLD else ""


def time_case(case: str, versions: dict[str, Version], seconds: float) -> dict[str, float]:
    """Return the median seconds of a case in each version, timed alternately."""
    longest = max([version.seconds(case, 1) for version in versions.values()])
    calls = max(1, int(SHORTEST / longest))
    works: dict[str, Work] = {side: partial(version.seconds, case, calls) for side, version in versions.items()}
    times = alternate(works, REPEATS, seconds, clock=lambda work: work())
    return {side: time.median / calls for side, time in times.items()}


def compare(
    other: Version, here: Version, cases: Sequence[str], rounds: int, seconds: float
) -> dict[str, Times | Missing]:
    """Return the times of each case, or the reason why a version cannot run it."""
    results: dict[str, Times | Missing] = {case: Times([], []) for case in cases}
    orders = ({"other": other, "here": here}, {"here": here, "other": other})
    for turn in range(rounds):
        print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
        try:
            for case, times in results.items():
                if isinstance(times, Times):
                    try:
                        taken = time_case(case, orders[turn % 2], seconds)
                    except Missing as error:
                        results[case] = error
                    else:
                        times.other.append(taken["other"])
                        times.here.append(taken["here"])
        finally:
            other.close()
            here.close()
    return results


def table(results: dict[str, Times | Missing], names: tuple[str, str]) -> str:
    """Return the results as a Markdown table."""
    lines = [f"| case | {names[0]}, ms | {names[1]}, ms | ratio | rounds | |", "|---|--:|--:|--:|--:|---|"]
    for case, times in results.items():
        if isinstance(times, Missing):
            lines.append(f"| {case} | | | | | {str(times).replace('|', '/')} |")
            continue
        ms = " | ".join(f"{1e3 * statistics.median(side):.2f}" for side in (times.other, times.here))
        ratios, verdict = times.ratios, times.verdict()
        spread = f"{ratios[0]:.2f}–{ratios[-1]:.2f}"
        lines.append(f"| {case} | {ms} | {statistics.median(ratios):.2f} | {spread} | {verdict and f'**{verdict}**'} |")
    return "\n".join(lines)


def package_in(text: str) -> Path:
    """Return the directory that holds the package: this one, or its `library/src` or `src`."""
    for folder in (Path(text), Path(text) / "library/src", Path(text) / "src"):
        if (folder / "relattn" / "__init__.py").is_file():
            return folder.resolve()
    raise argparse.ArgumentTypeError(f"must hold relattn, library/src/relattn or src/relattn, got {text}")


def kernels(folder: Path) -> int:
    return len(list((folder / "relattn").rglob("*.so")))


def main() -> None:
    parser = command("against", __doc__)
    parser.add_argument("other", type=package_in, help="directory of the other version")
    parser.add_argument("--name", default="the other", help="name of the other version in the table")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.3, help="time per case and version in a round (%(default)s)")
    parser.add_argument("--out", type=Path, help="Markdown file for the table")
    arguments = parse(parser)
    other = Version(arguments.name, arguments.other, arguments.threads)
    here = Version("this tree", ROOT / "library/src", arguments.threads)
    results = compare(other, here, list(CASES), arguments.rounds, arguments.seconds)
    text = (
        f"### Time compared with {other.name}\n\n{table(results, (other.name, here.name))}\n\n"
        f'Medians of {arguments.rounds} rounds. The column "rounds" has the lowest and the highest ratio of a round. '
        f"A case is slower or faster if it is so by more than {THRESHOLD:.0%} in every round. Compiled "
        f"kernels: {kernels(arguments.other)} in {other.name}, {kernels(ROOT / 'library/src')} in this tree. "
        f"{text_of(arguments.conditions)}.\n"
    )
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
