"""`benchmarks.gpu` rehearsed where there is no GPU, and what it does when something breaks."""

import csv
import math
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

import relattn
from benchmarks import gpu, gpu_check, gpu_times, gpu_train, measure, workers
from benchmarks.peers import Case
from relattn import backends
from tests.support.numerics import Shape, error, make_inputs

ROOT = Path(__file__).parents[1]
COLUMNS = (*gpu.KEY, "heads", "commit", "device", "torch", "triton", "system")


def rehearse(*arguments, **options):
    """What the command prints."""
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments, "--device", "cpu"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"} | options.pop("env", {})
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **options)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """The folder of the results, and what was printed: of a copy of the Python files, where there is no git."""
    tree, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("core")
    packages = (Path(relattn.__file__).parent, ROOT / "benchmarks", ROOT / "tests" / "support")
    for package, name in zip(packages, ("src/relattn", "benchmarks", "tests/support"), strict=True):
        shutil.copytree(package, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "results"))
    return out, rehearse("core", "--out", str(out), cwd=tree, env={"PATH": str(tree), "PYTHONPATH": "src:."})


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    out = tmp_path_factory.mktemp("all")
    return out, rehearse("all", "--out", str(out), "--commit", "0123abc")


def table(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.whole
def test_core(core):
    rows, methods = table(core[0] / "attention-gpu.csv"), ("plain", "triton", "triton old tiles")
    found = [(row["n"], row["causal"], row["pass"], row["method"]) for row in rows]
    assert found == [("16", c, p, m) for c in ("False", "True") for p in gpu.PASSES for m in methods]
    for row in rows:
        assert float(row["ms low"]) <= float(row["ms"]) <= float(row["ms high"])
        assert (row["note"], row["dtype"], row["tokens"]) == ("", "float32", row["n"])
        assert all(row[name] for name in COLUMNS)
        assert row["commit"] == "none"
    checks = table(core[0] / "checks-gpu.csv")
    assert [(row["check"], row["result"]) for row in checks] == [(name, "passed") for name in gpu_check.tasks("cpu")]
    assert not (core[0] / "train-step-gpu.csv").exists()


@pytest.mark.whole
def test_all(everything):
    rows, methods = table(everything[0] / "attention-gpu.csv"), ("plain", "triton", "dense")
    found = [(row["n"], row["pass"], row["method"]) for row in rows if row["method"] in methods]
    assert found == [(n, name, method) for n in ("8", "16") for name in gpu.PASSES for method in methods]
    assert all(row[name] for row in rows for name in COLUMNS)
    assert {(row["note"], row["commit"]) for row in rows} == {("", "0123abc")}
    assert not (everything[0] / "checks-gpu.csv").exists()


@pytest.mark.whole
def test_training_is_timed(everything):
    rows = table(everything[0] / "train-step-gpu.csv")
    assert [(row["model"], row["compiled"], row["positions"], row["dim"]) for row in rows] == [
        ("tiny", "False", "sinusoidal", "32"),
        ("tiny", "False", "relative", "32"),
    ]
    assert float(rows[1]["time ratio"]) == pytest.approx(float(rows[1]["ms"]) / float(rows[0]["ms"]), rel=1e-2)
    assert float(rows[1]["pieces a second"]) == pytest.approx(16e3 / float(rows[1]["ms"]), rel=1e-2)


@pytest.mark.whole
def test_the_important_comes_last(core, everything):
    for (folder, printed), causal in ((core, "True"), (everything, "False")):
        rows = {
            (row["n"], row["causal"], row["pass"], row["method"]): row for row in table(folder / "attention-gpu.csv")
        }
        last = printed[printed.index("ours / the faster plain attention") :].splitlines()
        (line,) = (line for line in last if line.split()[:2] == ["16", "triton"] and "old" not in line)
        assert line.split()[-2:] == [rows["16", causal, name, "triton"]["time ratio"] for name in gpu.PASSES]
        assert last[-1] == f"written to {folder}"
    assert core[1].splitlines()[-2] == "failed checks: 0; left out: 0"
    assert any(line.split()[:2] == ["tiny", "eager"] for line in everything[1].splitlines())


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["core", "--check-only"], "no NVIDIA GPU here"),
        (["core", "--check-only", "--device", "cpu"], "TRITON_INTERPRET=1 goes with it"),
        (["core"], "--out must say where the results go"),
        (["all", "--check-only"], "the checks are those of core"),
    ],
)
def test_what_cannot_be_run(monkeypatch, capsys, flags, why):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(sys, "argv", ["gpu", *flags])
    with pytest.raises(SystemExit) as exit:
        gpu.main()
    printed = capsys.readouterr()
    assert (exit.value.code, printed.out) == (2, "")
    assert why in printed.err


@pytest.mark.whole
def test_core_needs_torch_and_triton_alone():
    """Nothing else can be imported but what torch has imported by itself; of the toolkit, the processor's name is."""
    names = "numpy lightning sentencepiece sacrebleu yaml datasets matplotlib onmt eole transformers tqdm"
    modules = "gpu, gpu_check, gpu_times, gpu_train, old_tiles, workers"
    script = (
        f"import sys, torch; sys.modules.update(dict.fromkeys({names!r}.split())); from benchmarks import {modules}; "
        "gpu.plan('core', 'cuda'); print(*(name for name in sys.modules if name.startswith('relattn.translation.')))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}  # it needs numpy
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout.split() == ["relattn.translation.processor"]


def test_both_commands_together_measure_every_length():
    core, everything = gpu.plan("core", "cuda"), gpu.plan("all", "cuda")
    groups = [*core.groups, *everything.groups]
    assert {(case.n, case.is_causal) for case, _ in groups} == {
        (2**power, causal) for power in range(6, 16) for causal in (False, True)
    }
    assert [(case.n, case.is_causal) for case, _ in core.groups[:2]] == [(2048, False), (2048, True)]
    assert max(case.n for case, _ in everything.groups[:-2]) < 32768
    assert all(methods[:3] == ("flash", "cudnn", "triton") for _, methods in groups)
    assert core.checks
    assert not everything.checks
    assert everything.models
    assert max(Counter(case for case, _ in core.groups).values()) == 1


def test_no_git(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert measure.commit() == "none"


def test_failed_checks_are_told(monkeypatch, capsys, tmp_path):
    ended = [(0, workers.Failure("off by 2")), (1, workers.LEFT_OUT), *((number, None) for number in range(2, 8))]
    monkeypatch.setattr(gpu, "run_all", lambda *_, **__: iter(ended))
    planned = gpu.plan("core", "cpu")
    name, other, *_ = planned.checks
    assert gpu.check(planned, gpu.Clock(1.0), {"commit": "x"}, tmp_path) == ([f"{name}: off by 2"], 1)
    printed = capsys.readouterr().out
    assert f"FAILED  {name}: off by 2\n" in printed
    assert "1 failed, 1 left out" in printed
    said = {row["check"]: row["result"] for row in table(tmp_path / "checks-gpu.csv")}
    assert (said[name], said[other], Counter(said.values())["passed"]) == ("off by 2", "left out: no time", 6)


def starts(method):
    """In the place of `gpu_times.start`, in the processes of the methods: this file is imported too."""
    gpu_times.start(method)


def answers_late(method):
    time.sleep(1)


def stalls_once(method, *rest):
    if method == "native":
        time.sleep(60)
    gpu_times.get_ready(method, *rest)


def dies_once(method):
    if method == "dense":
        os._exit(3)
    return gpu_times.once_more(method)


@pytest.fixture
def processes(monkeypatch):
    measure.preload(["benchmarks.gpu_times"])
    monkeypatch.setattr(gpu_times, "SECONDS", 0.0)
    started = gpu_times.Processes(("plain", "native", "unheard", "dense", "reference"), end=math.inf)
    yield started
    started.close()


@pytest.mark.whole
def test_a_method_loses_its_own_row_alone(monkeypatch, processes):
    """One that stalls, one that fails, one whose process dies while it is timed; another process does the next pass."""
    case, methods = Case(1, 2, 5, 8, 2, 2, False), tuple(processes.workers)
    with monkeypatch.context() as broken:
        broken.setattr(gpu_times, "start", starts)
        broken.setattr(gpu_times, "get_ready", stalls_once)
        broken.setattr(gpu_times, "once_more", dies_once)
        broken.setattr(gpu_times, "PATIENCE", 5.0)
        rows = gpu_times.time_pass(case, methods, "cpu", False, processes)
    assert [row["method"] for row in rows] == list(methods)
    unknown = f"ValueError: backend must be one of {', '.join(backends.NAMES)}, or 'auto', got 'unheard'"
    assert [row["note"] for row in rows] == ["", "no answer in time", unknown, "its process died", ""]
    assert [row["ms"] != "" for row in rows] == [True, False, False, False, True]
    assert rows[4]["time ratio"] == pytest.approx(rows[4]["ms"] / rows[0]["ms"], rel=0.05)
    assert len({tuple(row) for row in rows}) == 1
    again = gpu_times.time_pass(case, methods, "cpu", True, processes)
    assert [row["note"] for row in again] == ["", "", unknown, "", ""]
    assert [row["ms"] != "" for row in again] == [True, True, False, True, True]
    processes.stalls["native"] += 1
    third = gpu_times.time_pass(case, methods[:2], "cpu", False, processes)
    assert [(row["note"], row["ms"] != "") for row in third] == [("", True), ("not run: it stalled before", False)]


@pytest.mark.whole
def test_nothing_is_waited_for_after_the_end(processes):
    processes.end = time.monotonic()
    assert processes.ask(["plain"], 60.0, answers_late) == {"plain": workers.STALLED}


def test_arrays_that_do_not_fit_are_left_out():
    """At 32,768 positions an array of pairs has 16 GiB; what is before in the list has the memory first."""
    case, methods = Case(1, 8, 32768, 64, 16, 16, False, torch.bfloat16), ("flash", "triton", "dense", "VITS", "dense")
    notes = gpu_times.crowded_out(methods, case, True, 120 * 2**30)
    assert notes == {
        "VITS": "not run: it needs about 144.0 GiB, and 56.0 are left",
        "dense": "not run: it needs about 64.0 GiB, and 56.0 are left",
    }
    assert gpu_times.crowded_out(methods[:3], case, True, 80 * 2**30) == {}


def test_a_process_lets_go_of_its_work():
    gpu_times.get_ready("plain", Case(1, 2, 5, 8, 2, 2, False), "cpu", False)
    assert gpu_times.once_more("plain") > 0
    gpu_times.let_go("plain")
    assert gpu_times.Held.work is None


@pytest.mark.whole
def test_old_tiles_are_taken_where_they_are_asked_for(monkeypatch):
    from benchmarks import old_tiles  # with Triton, which the processes above do not need
    from relattn.backends.triton.plan import plan

    asked, config = [], old_tiles.config
    monkeypatch.setattr(old_tiles, "config", lambda *given: (asked.append(given[0]), config(*given))[1])
    plan.cache_clear()
    case = Case(1, 1, 40, 8, 2, 2, True)
    gpu_times.get_ready("triton", case, "cpu", True)
    assert asked == []
    gpu_times.get_ready(gpu_times.OLD_TILES, case, "cpu", True)
    assert set(asked) == {"forward", "backward_query", "backward_key", "whole"}
    inputs = list(make_inputs(Shape(1, 1, 1, 40, 40, 8, 8, 2, 2), dtype=torch.float32).values())
    old, today = (gpu_times.attention(method, case, "cpu")(*inputs) for method in (gpu_times.OLD_TILES, "triton"))
    assert error(old, today) < 1e-5


def test_old_tiles_are_of_the_kernels_there_were():
    from benchmarks import old_tiles

    assert old_tiles.config("forward", 9, torch.bfloat16, 64)[:5] == (128, 64, 32, 8, 2)
    assert old_tiles.config("forward", 9, torch.bfloat16, 256)[:5] == old_tiles.SMALL


@pytest.mark.whole
def test_a_model_that_fails_is_a_row():
    worker = workers.Worker()
    worker.send(gpu_train.prepare_steps, "tiny", "relative", False, 4, 8, "cpu")
    ready = {"sinusoidal": workers.Failure("it broke"), "relative": worker.receive(60)}
    bad, good = gpu_train.rows_of(("tiny", False), 4, 8, "cpu", {"relative": worker}, ready)
    worker.close()
    assert (bad["note"], bad["ms"], bad["dim"]) == ("it broke", "", "")
    assert (good["note"], good["dim"]) == ("", 32)
    assert float(good["ms"]) > 0
    assert list(good) == list(bad)


def test_rounds_go_on_without_one_that_failed():
    ran, left = [], {"fails": 2, "works": 99, "never": 0}

    def once(name):
        ran.append(name)
        left[name] -= 1
        return 0.1 if left[name] >= 0 else None

    times = measure.alternate({name: name for name in left}, 3, clock=once)
    assert list(times) == ["works"]
    assert times["works"].repeats == 3
    assert Counter(ran) == {"fails": 3, "works": 4, "never": 1}


def test_a_worker_that_fails_dies_or_hangs():
    measure.preload(["benchmarks.workers"])
    worker = workers.Worker()
    worker.send(math.sqrt, 4.0)
    assert worker.receive(60) == 2.0
    worker.send(math.sqrt, -1.0)
    assert worker.receive(60).reason.startswith("ValueError: ")
    worker.send(time.sleep, 60)
    assert worker.receive(0.1) == workers.STALLED
    worker.send(math.sqrt, 4.0)
    assert worker.receive(60) == workers.Failure("its process is gone")


@pytest.mark.whole
def test_work_goes_on_after_a_process_has_died():
    tasks = [(os._exit, (3,)), (math.sqrt, (4.0,)), (math.sqrt, (9.0,))]
    found = list(workers.run_all(tasks, 1, patience=60, stop=math.inf))
    assert found == [(0, workers.Failure("its process died")), (1, 2.0), (2, 3.0)]
    assert list(workers.run_all(tasks[1:], 1, patience=60, stop=0.0)) == [(0, workers.LEFT_OUT), (1, workers.LEFT_OUT)]
