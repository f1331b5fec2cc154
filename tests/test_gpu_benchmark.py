"""`benchmarks.gpu` rehearsed where there is no GPU, and what it does when something breaks."""

import csv
import math
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from benchmarks import gpu, gpu_check, gpu_times, measure, workers
from benchmarks.peers import Case
from relattn import backends
from relattn.backends import triton


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """The folder of the results, and what was printed."""
    folder = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--out", str(folder)]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder, ran.stdout


def table(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_attention_is_timed(rehearsed):
    rows = table(rehearsed[0] / "attention-gpu.csv")
    methods = ("plain", "triton", "merged", "dense")
    found = [(row["n"], row["pass"], row["method"]) for row in rows if row["method"] in methods]
    assert found == [(n, name, method) for n in ("16", "32") for name in gpu.PASSES for method in methods]
    for row in rows:
        assert float(row["ms low"]) <= float(row["ms"]) <= float(row["ms high"])
        assert (row["note"], row["dtype"], row["tokens"]) == ("", "float32", row["n"])
        assert all(row[name] for name in (*gpu.KEY, "heads", "commit", "device", "torch", "triton", "system"))


def test_training_is_timed(rehearsed):
    rows = table(rehearsed[0] / "train-step-gpu.csv")
    assert [(row["model"], row["compiled"], row["positions"]) for row in rows] == [
        ("tiny", "False", "sinusoidal"),
        ("tiny", "False", "relative"),
    ]
    assert float(rows[1]["time ratio"]) == pytest.approx(float(rows[1]["ms"]) / float(rows[0]["ms"]), rel=1e-2)
    assert float(rows[1]["pieces a second"]) == pytest.approx(16e3 / float(rows[1]["ms"]), rel=1e-2)


def test_the_important_comes_last(rehearsed):
    folder, printed = rehearsed
    rows = {(row["n"], row["pass"], row["method"]): row for row in table(folder / "attention-gpu.csv")}
    last = printed[printed.index("ours / the faster plain attention") :].splitlines()
    for line, n in zip(last[2:4], ("16", "32"), strict=True):
        assert line.split() == [n, *(rows[n, name, "triton"]["time ratio"] for name in gpu.PASSES)]
    assert any(line.split()[:2] == ["tiny", "eager"] for line in last)
    assert last[-2:] == ["failed checks: 0; left out: 0", f"written to {folder}"]


@pytest.mark.parametrize(
    ("flags", "why"), [([], "no NVIDIA GPU here"), (["--device", "cpu"], "TRITON_INTERPRET=1 goes with it")]
)
def test_without_a_gpu(monkeypatch, capsys, flags, why):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(sys, "argv", ["gpu", *flags])
    with pytest.raises(SystemExit) as exit:
        gpu.main()
    printed = capsys.readouterr()
    assert (exit.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert why in printed.err


def test_failed_checks_are_told(monkeypatch, capsys):
    ended = [(0, workers.Failure("off by 2")), (1, workers.LEFT_OUT), (2, None)]
    monkeypatch.setattr(gpu, "run_all", lambda *_, **__: iter(ended))
    name = next(iter(gpu_check.tasks("cpu")))
    assert gpu.check(gpu.plan("cpu"), gpu.Clock(1.0), until=1.0) == ([f"{name}: off by 2"], 1)
    printed = capsys.readouterr().out
    assert f"FAILED  {name}: off by 2\n" in printed
    assert "1 failed, 1 left out" in printed


@pytest.mark.parametrize("check", [gpu_check.within_budget, gpu_check.deterministic])
def test_a_wrong_kernel_is_seen(monkeypatch, check):
    """One that adds noise: not within budget, and never the same."""

    def noisy(call):
        attended = backends.load("dense").relative_attention(call)
        attended.output.data += torch.rand_like(attended.output)
        return attended

    monkeypatch.setattr(triton, "relative_attention", noisy)
    with pytest.raises(AssertionError, match="output"):
        check(gpu_check.Check(17, "float32", dim=8, k=3), "cpu")


def test_a_compiler_that_changes_results_is_seen(monkeypatch):
    def compiler(operator, **_):
        return lambda **given: (operator(**given)[0] + 1.0, operator(**given)[1])

    monkeypatch.setattr(torch, "compile", compiler)
    with pytest.raises(AssertionError, match="differ from eager"):
        gpu_check.compiled(gpu_check.Check(17, "float32", dim=8, k=3), "cpu")


def test_dropout_with_another_seed_is_seen(monkeypatch):
    case, tensor = gpu_check.Check(20, "float32", dim=8, k=3), torch.tensor
    seeds = iter((5, 6))
    monkeypatch.setattr(torch, "tensor", lambda *_, **__: tensor(next(seeds)))
    with pytest.raises(AssertionError, match="dropout against the kernels for CPUs: output off by"):
        gpu_check.dropout(case, "cpu")


@pytest.mark.parametrize("case", gpu_check.CHECKS, ids=str)
def test_checks_are_calls_that_can_be_made(case):
    if case.n > 300:
        case = replace(case, n=300)
    operator = gpu_check.relation_attention if case.relations else gpu_check.relative_attention
    assert operator(**case.inputs("cpu"), **case.options("cpu"), backend="dense").isfinite().all()


def test_a_method_that_fails_is_a_row(monkeypatch):
    monkeypatch.setattr(gpu_times, "SECONDS", 0.0)
    case = Case(1, 2, 5, 8, 2, 2, False)
    good, bad = gpu_times.time_pass(case, ("plain", "unheard"), "cpu", True)
    assert float(good["ms"]) > 0
    assert good["note"] == ""
    assert bad["ms"] == ""
    assert bad["note"].startswith("ValueError: backend 'unheard' is not known")
    assert list(good) == list(bad) == list(gpu_times.lost_rows(case, ("plain",), "")[0])


def test_a_worker_that_fails_dies_or_hangs():
    measure.preload(["benchmarks.workers"])
    worker = workers.Worker()
    worker.send(math.sqrt, 4.0)
    assert worker.receive(60) == 2.0
    worker.send(math.sqrt, -1.0)
    assert worker.receive(60).reason.startswith("ValueError: ")
    worker.send(time.sleep, 60)
    assert worker.receive(0.1) == workers.Failure("no answer in time")
    worker.send(math.sqrt, 4.0)
    assert worker.receive(60) == workers.Failure("its process is gone")


def test_work_goes_on_after_a_process_has_died():
    tasks = [(os._exit, (3,)), (math.sqrt, (4.0,)), (math.sqrt, (9.0,))]
    found = list(workers.run_all(tasks, 1, patience=60, stop=math.inf))
    assert found == [(0, workers.Failure("its process died")), (1, 2.0), (2, 3.0)]
    assert list(workers.run_all(tasks[1:], 1, patience=60, stop=0.0)) == [(0, workers.LEFT_OUT), (1, workers.LEFT_OUT)]
