"""Apply single slips to shipped code, and run the tests that should notice each: `make mutants N=40 SEED=1`.

    python -m tools.mutants --python 40 --c 8 --seed 1 [--show] [PATH ...]
    python -m tools.mutants --map [PATH ...]

A mutant is a file with one change, such as `<` for `<=`, a condition that is negated, an argument that is left out, or
a statement that is removed. Messages, annotations and docstrings are not changed. Mutants are drawn with a seed, from
the paths that are given or from all shipped code.

Mutants are applied to copies of the tree in a temporary directory, so the tree itself does not change. The tests of
the mirrored file and folder run first, then the others of the distribution, until one fails; for C, also `make test-c`.
`--map` runs the whole suite once and records which tests execute which block, after which only those tests run; with
paths of tests, it adds these to the record. A failure counts if the same test passes without the mutant. A survivor is
to be read: it shows a test that is missing, or code that is not needed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest

from tools import blocks
from tools.slips import Mutant, c_mutants, conditions, python_mutants

ROOT = Path(__file__).parents[1]
MAP = ROOT / ".cache" / "mutants" / "map.json"
SHIPPED = ("library/src", "toolkit/src", "kernels")
LIMIT = 600.0  # seconds of tests per mutant
TEST_LIMIT = 120  # seconds per test: one that takes longer fails


def sample(paths: Sequence[str], count: int, is_c: bool, chance: random.Random) -> list[Mutant]:
    """Draw mutants that can be parsed, at different places."""
    places = []
    for path in paths:
        source = (ROOT / path).read_text(encoding="utf-8")
        places += c_mutants(path, source) if is_c else python_mutants(path, source) + conditions(path, source)
    chance.shuffle(places)
    chosen: list[Mutant] = []
    for place in places:
        mutant = chance.choice(place)
        if len(chosen) < count and (is_c or is_changed(mutant)):
            chosen.append(mutant)
    return chosen


def is_changed(mutant: Mutant) -> bool:
    """Return whether the file can still be parsed, and differs."""
    source = (ROOT / mutant.path).read_text(encoding="utf-8")
    try:
        return ast.dump(ast.parse(mutant.apply(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


SERVER = """
import json, os, signal, sys, time, traceback

os.environ.update(OMP_NUM_THREADS="1", TRITON_INTERPRET="1")  # as conftest.py
import hypothesis, pytest, pytest_timeout, torch, torch._dynamo, triton.language, xdist
import transformers.models.t5.modeling_t5, transformers.models.marian.modeling_marian
import transformers.models.deberta_v2.modeling_deberta_v2, transformers.models.wav2vec2.modeling_wav2vec2

print("ready", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        status = 1
        try:
            status = int(pytest.main(request["arguments"]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            sys.stdout.flush()
            os._exit(status)
    end, done, status = time.monotonic() + request["seconds"], 0, -1
    while not done and time.monotonic() < end:
        time.sleep(0.05)
        done, status = os.waitpid(child, os.WNOHANG)
    try:
        os.killpg(child, signal.SIGKILL)  # also processes that tests have left
    except ProcessLookupError:
        pass
    if not done:
        os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status) if done else 0
    print(-1 if not done else code if code >= 0 else 128, flush=True)
"""  # a run of tests in a fork does not import PyTorch and transformers again


class Server:
    """A process that has imported what tests import from others, and forks for each run of tests.

    Args:
        root: Its directory.
        environment: Its environment variables.
    """

    def __init__(self, root: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SERVER], cwd=root, env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._read()

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the process that runs tests has ended")
        return line

    def request(self, request: dict[str, object]) -> int:
        """Return the exit status of pytest, 128 after a signal, or -1 if the time was over."""
        assert self.process.stdin is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return int(self._read())

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Copy:
    """A copy of the tree in which mutants are tried.

    Args:
        directory: Where the copy is made.
    """

    def __init__(self, directory: Path) -> None:
        self.root = directory
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True,
            check=True, text=True,
        )  # fmt: skip
        self.built = [str(path.relative_to(ROOT)) for package in SHIPPED[:2] for path in (ROOT / package).rglob("*.so")]
        self.built += [str(Path(name).with_suffix(suffix)) for name in self.built for suffix in (".h", ".json")]
        for name in [*filter(None, listed.stdout.split("\0")), *self.built]:
            if (ROOT / name).is_file():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, directory / name)
        paths = [str(directory / package) for package in SHIPPED[:2]]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment["PYTHONWARNDEFAULTENCODING"] = "1"  # as in the Makefile
        self._server: Server | None = None

    def close(self) -> None:
        """End its process."""
        if self._server is not None:
            self._server.close()

    def server(self) -> Server:
        """Return the process that forks for each run of tests."""
        if self._server is None:
            self._server = Server(self.root, self.environment)
        return self._server

    def tests(self, tests: Sequence[str], seconds: float, without: Sequence[str] = ()) -> tuple[str, str]:
        """Return "passed", "failed" or "unfinished", and the first test that failed, of some tests without others."""
        options = ["-x", "-vv", "-n", "0", "-p", "no:cacheprovider", "--tb=no", "--timeout=0"]
        options += [f"-o=faulthandler_timeout={TEST_LIMIT}", "-o=faulthandler_exit_on_timeout=true"]  # also in C
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of plugins that the server has imported
        options += [f"--deselect={test}" for test in without]
        output_file = self.root / "output.txt"
        request = {"output": str(output_file), "seconds": max(1.0, seconds), "arguments": [*options, *tests]}
        status = self.server().request(request)
        output = output_file.read_text(encoding="utf-8", errors="replace")
        if status < 0:
            return "unfinished", ""
        if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return "passed", ""
        gone = {name.removeprefix(f"{self.root}/") for name in re.findall("^ERROR: not found: (.*)$", output, re.M)}
        if gone:  # tests that the record has and that are gone: other cases of the same functions run, if there are any
            functions = {test.partition("[")[0] for test in tests} & gone
            rest = [test for test in tests if test.partition("[")[0] not in gone]
            rest += sorted(functions.difference(tests))
            return self.tests(rest, seconds, without) if rest else ("passed", "")
        name = re.search(r"^(?:FAILED|ERROR) (\S+\.py(?:::\w+)*(?:\[.*?\](?= - |$))?)", output, re.MULTILINE)
        name = name or re.search(r"^(\S+\.py::.*?)\s+(?:\++ )?(?:Timeout|Fatal Python error)\b", output, re.MULTILINE)
        if name is None and status < 128:
            raise RuntimeError(f"pytest must name the test that failed, got {output[-2000:]}")
        return "failed", name[1] if name else ""  # without a name: the process ended

    def change(self, path: str, content: str) -> bool:
        """Write a file, and compile the libraries of a source in C. Return whether they can be."""
        (self.root / path).write_text(content, encoding="utf-8")
        return not path.startswith("kernels/") or self.compile(path)

    def restore(self, path: str) -> None:
        """Undo a change."""
        for name in [path, *(self.built if path.startswith("kernels/") else [])]:
            shutil.copy2(ROOT / name, self.root / name)

    def passes_c_tests(self) -> bool:
        """Return whether the tests in C pass, which find accesses beside an array."""
        command = ["sh", "kernels/tests/run.sh", str(self.root / "build" / "test-c")]
        return subprocess.run(command, cwd=self.root, capture_output=True).returncode == 0

    def compile(self, path: str) -> bool:
        """Compile the libraries of a source again. Return whether it can be."""
        distributions = [name for name, folder in FOLDERS.items() if path.startswith(folder)] or list(FOLDERS)
        command = [sys.executable, "-c", COMPILE, *distributions]
        return subprocess.run(command, cwd=self.root, env=self.environment, capture_output=True).returncode == 0


FOLDERS = {"library": "kernels/attention/", "toolkit": "kernels/engine/"}  # other sources are in both libraries
COMPILE = """
import sys
from pathlib import Path
from kernels import build
from tests.support.levels import allowed_levels
build.FLAGS[0] = "-O1"  # takes a third of the time
levels = build.levels(build.host_target())
used = {*allowed_levels(), list(levels)[-1]}  # the last is the default
build.levels = lambda target: {name: levels[name] for name in levels if name in used}
for name in sys.argv[1:]:
    library = build.ATTENTION if name == "library" else build.ENGINE
    if build.build(library, build.host_target(), Path(name) / library.folder):
        sys.exit(1)
"""


def mirrors(path: str) -> list[list[str]]:
    """Return lists of tests to run one after the other: of the mirrored file, of its folder, of the distribution."""
    distribution, _, inner = path.partition("/src/")
    parts = Path(inner).with_suffix("").parts[1:]
    tests = Path(distribution) / "tests"
    files = [
        tests.joinpath(*parts[:-1], f"test_{parts[-1]}.py"),
        *(tests / f"test_{part}.py" for part in reversed(parts)),
    ]
    folders = [tests.joinpath(*parts[:i]) for i in range(len(parts) - 1, 0, -1)]
    first = [str(each) for each in files if (ROOT / each).exists()]
    folder = [str(each) for each in folders if (ROOT / each).is_dir()][:1]
    return [each for each in (first, folder, [str(tests)], ["tests"]) if each]


def c_tests(path: str) -> list[list[str]]:
    engine = ["toolkit/tests/engine", "toolkit/tests/search", "toolkit/tests/translate"]
    attention = ["library/tests/test_native.py", "library/tests/integrations/test_int8.py", "library/tests"]
    if path.startswith(FOLDERS["toolkit"]):
        return [engine[:1], engine[1:], ["toolkit/tests"]]
    if path.startswith(FOLDERS["library"]):
        return [attention[:1], attention[1:2], attention[2:]]
    return [attention[:1], engine[:1], attention[1:2], engine[1:], attention[2:]]


class Coverage:
    """Which tests execute which block, if `--map` has recorded it."""

    def __init__(self) -> None:
        record = json.loads(MAP.read_text(encoding="utf-8")) if MAP.exists() else {"blocks": [], "tests": {}}
        self.blocks: dict[str, list[tuple[int, int, int]]] = {}  # of a file: length, first line, number
        for number, (path, first, last) in enumerate(record["blocks"]):
            self.blocks.setdefault(path, []).append((last - first, first, number))
        self.tests: dict[int, list[str]] = {}
        for test, numbers in record["tests"].items():
            for number in numbers:
                self.tests.setdefault(number, []).append(test)

    def of(self, mutant: Mutant) -> list[list[str]]:
        """Return the tests that execute the block of a mutant, those of the mirrored folder first.

        For code outside of functions, these are the tests that execute any block of the file.
        """
        source = (ROOT / mutant.path).read_text(encoding="utf-8")
        line = source.count("\n", 0, mutant.start) + 1
        blocks = self.blocks.get(mutant.path, [])
        around = sorted(block for block in blocks if block[1] <= line <= block[1] + block[0])[:1]
        numbers = [number for _, _, number in around or blocks]
        found = {test for number in numbers for test in self.tests.get(number, ())}
        batches = []
        for group in mirrors(mutant.path):
            near = sorted(test for test in found if test.startswith(tuple(group)))
            found -= set(near)
            batches += [near] if near else []
        return [*batches, *([sorted(found)] if found else [])]


def record_map(tests: Sequence[str]) -> None:
    """Record which tests execute which block; with tests, add these to the record."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Copy(Path(directory))
        found = blocks.instrument(tree.root, SHIPPED[:2])
        options = ["-n", "0", "-p", "tools.blocks", "-p", "no:cacheprovider", "--timeout", "300", "--tb=no"]
        subprocess.run([sys.executable, "-m", "pytest", *options, *tests], cwd=tree.root, env=tree.environment)
        record = {"blocks": found, "tests": {}}
        if tests and MAP.exists():
            record = json.loads(MAP.read_text(encoding="utf-8"))
            if [tuple(block) for block in record["blocks"]] != found:
                raise ValueError("blocks have changed: run --map for all tests")
        record["tests"] |= json.loads((tree.root / blocks.RECORD).read_text(encoding="utf-8"))
    MAP.parent.mkdir(parents=True, exist_ok=True)
    MAP.write_text(json.dumps(record), encoding="utf-8")


class Trials:
    """Tries mutants in copies of the tree.

    Args:
        clean: A copy that has no mutant.
        copies: The copies.
        coverage: Which tests execute which line.
    """

    def __init__(self, clean: Copy, copies: Sequence[Copy], coverage: Coverage) -> None:
        self.clean = clean
        self.copies: SimpleQueue[Copy] = SimpleQueue()
        for each in copies:
            self.copies.put(each)
        self.coverage = coverage
        self.passing: dict[str, bool] = {}  # whether a test passes without a mutant

    def run(self, mutant: Mutant) -> tuple[str, str]:
        """Return "killed", "survived", "unfinished" or "not compiled", and the test that failed."""
        tree = self.copies.get()
        try:
            return self._run(mutant, tree)
        finally:
            self.copies.put(tree)

    def _run(self, mutant: Mutant, tree: Copy) -> tuple[str, str]:
        source = (ROOT / mutant.path).read_text(encoding="utf-8")
        try:
            if not tree.change(mutant.path, mutant.apply(source)):
                return "not compiled", ""
            if not mutant.path.startswith("kernels/"):
                return self._test(self.coverage.of(mutant) or mirrors(mutant.path), tree)
            result, test = self._test(c_tests(mutant.path), tree)
            if result == "survived" and not tree.passes_c_tests():
                return "killed", "make test-c"
            return result, test
        finally:
            tree.restore(mutant.path)

    def _test(self, batches: Sequence[Sequence[str]], tree: Copy) -> tuple[str, str]:
        end = time.monotonic() + LIMIT
        for tests in batches:
            is_known = False
            while not is_known:
                failing = [test for test, passes in self.passing.items() if not passes]
                result, test = tree.tests(tests, end - time.monotonic(), failing)
                if test in failing:  # a file that cannot be imported, with or without the mutant
                    return "unfinished", test
                is_known = not test or self._passes_without(test)
            if result == "failed":
                return "killed", test or "without the name of a test: the process ended"
            if result == "unfinished":
                return result, ""
        return "survived", ""

    def _passes_without(self, test: str) -> bool:
        if test not in self.passing:
            self.passing[test] = self.clean.tests([test], LIMIT)[0] == "passed"
        return self.passing[test]


def shipped_files(paths: Sequence[str], suffixes: tuple[str, ...]) -> list[str]:
    found: list[Path] = []
    for path in paths:
        whole = ROOT / path
        found += [whole] if whole.is_file() else sorted(each for each in whole.rglob("*") if each.suffix in suffixes)
    headers = ("library/src/relattn/backends/native/relattn.h", "toolkit/src/relattn_mt/engine/relattn_mt.h")
    left_out = (*headers, "kernels/build.py", "kernels/tests/")  # copies, what runs before the tests, and tests
    names = [str(path.relative_to(ROOT)) for path in found if path.suffix in suffixes]
    return [name for name in names if not name.startswith(left_out)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "paths", nargs="*", default=list(SHIPPED), help="files or folders that mutants are drawn from, or tests"
    )
    parser.add_argument("--python", type=int, default=40, help="number of mutants in Python (default: 40)")
    parser.add_argument("--c", type=int, default=0, help="number of mutants in C (default: 0)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample (default: 1)")
    parser.add_argument("--jobs", type=int, default=2, help="number of mutants, or processes, at a time (default: 2)")
    parser.add_argument("--show", action="store_true", help="print the sample and run nothing")
    parser.add_argument("--map", action="store_true", help="record which tests execute which block, and end")
    options = parser.parse_args()
    if options.map:
        tests = [] if options.paths == list(SHIPPED) else options.paths
        return record_map(tests)
    chance = random.Random(options.seed)
    mutants = sample(shipped_files(options.paths, (".py",)), options.python, False, chance)
    mutants += sample(shipped_files(options.paths, (".c", ".h")), options.c, True, chance)
    described = {each: each.describe((ROOT / each.path).read_text(encoding="utf-8")) for each in mutants}
    if options.show:
        return print(*described.values(), sep="\n")
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(options.jobs) as pool:
        clean, *copies = (Copy(Path(directory) / str(i)) for i in range(options.jobs + 1))
        trials = Trials(clean, copies, Coverage())
        for mutant, (result, test) in zip(mutants, pool.map(trials.run, mutants), strict=True):
            counts[result] = counts.get(result, 0) + 1
            print(f"{result}: {described[mutant]}\n    {test}", flush=True)
        for tree in (clean, *copies):
            tree.close()
    print(", ".join(f"{count} {result}" for result, count in sorted(counts.items())))
    return None


if __name__ == "__main__":
    main()
