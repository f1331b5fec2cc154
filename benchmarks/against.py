"""Times this tree's attention beside another version of the package: what a change makes slower, or faster.

The other version is a folder that holds `relattn` with its kernels compiled: a source tree, or what pip makes of a
commit or a tag:

    pip install --no-deps --no-build-isolation --target build/other "git+file://$PWD@v0.1.0"
    python -m benchmarks.against build/other

Each version has a process of its own, since two cannot be imported at once; these import no other `relattn`, and so
are none of `workers`. A round starts both afresh and runs every case in turns, one version after the other, which
begin in every other round; it gives one ratio a case, of medians. Rounds differ by whatever else the machine does and
by how each process came to lie in memory, and that is the noise: a case is slower, or faster, where it is by more
than the threshold in every round. Of a version beside itself that happens to a case less often than heads in as many
throws as there are rounds, and much less often where the threshold is above the noise.
"""

import argparse
import json
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.against_cases import CASES
from benchmarks.measure import alternate, conditions

ROOT = Path(__file__).parents[1]
SHORTEST = 0.02  # seconds: what takes less is run so many times at once
REPEATS = 3  # timed repeats in a round, at least


class Missing(Exception):
    """A version that has not what a case needs, and why."""


class Version:
    """A version of the package, in processes of its own: where one dies, the next question has another."""

    def __init__(self, name: str, folder: Path, threads: int) -> None:
        self.name = name
        self.command = [sys.executable, "-m", "benchmarks.against_cases", str(folder), str(threads)]
        self.process: subprocess.Popen[str] | None = None

    def ask(self, what: str, argument: str | int) -> float:
        """Seconds, as `against_cases` says."""
        if self.process is None:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(self.command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps([what, argument]) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer = json.loads(line) if line else "its process died"
        if isinstance(answer, float):
            return answer
        if not line:
            self.close()
        raise Missing(f"not in {self.name} ({textwrap.shorten(answer, 120)})")

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@dataclass(frozen=True)
class Times:
    """Seconds that a case takes, a median for each round."""

    other: list[float]
    here: list[float]

    @property
    def ratios(self) -> list[float]:
        """This tree's time in the other version's, in each round, the lowest first."""
        return sorted(here / other for other, here in zip(self.other, self.here, strict=True))

    def verdict(self, threshold: float) -> str:
        if self.ratios[0] > 1 + threshold:
            return "slower"
        return "faster" if 1 / self.ratios[-1] > 1 + threshold else ""


def in_turns(case: str, versions: dict[str, Version], seconds: float) -> dict[str, float]:
    """Median seconds of a case in each version."""
    longest = max([version.ask("make", case) for version in versions.values()])
    calls = max(1, int(SHORTEST / longest))
    works: dict[str, Callable[[], float]] = {
        side: partial(version.ask, "run", calls) for side, version in versions.items()
    }
    times = alternate(works, REPEATS, seconds, clock=lambda work: work())
    return {side: time.median / calls for side, time in times.items()}


def compare(
    other: Version, here: Version, cases: Sequence[str], rounds: int, seconds: float
) -> dict[str, Times | Missing]:
    results: dict[str, Times | Missing] = {case: Times([], []) for case in cases}
    orders = ({"other": other, "here": here}, {"here": here, "other": other})
    for turn in range(rounds):
        print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
        try:
            for case, times in results.items():
                if isinstance(times, Missing):
                    continue
                try:
                    taken = in_turns(case, orders[turn % 2], seconds)
                except Missing as error:
                    results[case] = error
                else:
                    times.other.append(taken["other"])
                    times.here.append(taken["here"])
        finally:
            other.close()
            here.close()
    return results


def table(results: dict[str, Times | Missing], names: tuple[str, str], threshold: float) -> str:
    """In Markdown."""
    lines = [f"| case | {names[0]}, ms | {names[1]}, ms | ratio | rounds | |", "|---|--:|--:|--:|--:|---|"]
    for case, times in results.items():
        if isinstance(times, Missing):
            lines.append(f"| {case} | | | | | {str(times).replace('|', '/')} |")
            continue
        ms = " | ".join(f"{1e3 * statistics.median(side):.2f}" for side in (times.other, times.here))
        ratios, verdict = times.ratios, times.verdict(threshold)
        spread = f"{ratios[0]:.2f}–{ratios[-1]:.2f}"
        lines.append(f"| {case} | {ms} | {statistics.median(ratios):.2f} | {spread} | {verdict and f'**{verdict}**'} |")
    return "\n".join(lines)


def package_in(text: str) -> Path:
    """The folder that holds the package: this one, or its `src`."""
    for folder in (Path(text), Path(text) / "src"):
        if (folder / "relattn" / "__init__.py").is_file():
            return folder.resolve()
    raise argparse.ArgumentTypeError(f"no relattn in {text}, nor in its src")


def kernels(folder: Path) -> int:
    return len(list((folder / "relattn").rglob("*.so")))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.against", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=package_in, help="folder of the other version: it or its src holds relattn")
    parser.add_argument("--name", default="the other", help="what the other version is called in the table")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help="some alone")
    parser.add_argument("--rounds", type=int, default=5, help="how many times both are started")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each case and version in a round, or 3 repeats")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--threshold", type=float, default=0.05, help="slower by less is not marked")
    parser.add_argument("--out", type=Path, help="file for the table, Markdown")
    parser.add_argument("--fail", action="store_true", help="exit status 1 where a case is slower, or fails here")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds}: one at least")
    return arguments


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)  # for the conditions
    other = Version(arguments.name, arguments.other, arguments.threads)
    here = Version("this tree", ROOT / "src", arguments.threads)
    results = compare(other, here, arguments.cases, arguments.rounds, arguments.seconds)
    held = "; ".join(f"{name} {value}" for name, value in conditions().items())
    text = (
        f"### Time beside {other.name}\n\n"
        f"{table(results, (other.name, here.name), arguments.threshold)}\n\n"
        f"Medians of {arguments.rounds} rounds; the ratio's lowest and highest of a round stand beside it. Slower or "
        f"faster is what is so by more than {arguments.threshold:.0%} in every round. Compiled kernels: "
        f"{kernels(arguments.other)} in {other.name}, {kernels(ROOT / 'src')} in this tree. {held}.\n"
    )
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text, encoding="utf-8")
    bad = [
        case
        for case, times in results.items()
        if (here.name in str(times) if isinstance(times, Missing) else times.verdict(arguments.threshold) == "slower")
    ]
    sys.exit(1 if arguments.fail and bad else 0)


if __name__ == "__main__":
    main()
