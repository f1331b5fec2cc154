"""`benchmarks.gpu`: rehearsals where there is no GPU, what its checks find, and what happens if something breaks."""

import csv
import math
import os
import time

import pytest
import torch

from benchmarks import gpu, gpu_check, gpu_times, measure, peers, workers
from relattn.backends import dense, triton
from tests.support.calls import call_of
from tests.support.interpreter import patch_language_once


@pytest.mark.parametrize("command", gpu.FILES)
def test_rehearsal(monkeypatch, tmp_path, command):
    patch_language_once(monkeypatch)
    monkeypatch.setattr(gpu_times, "REPEATS", 2)
    monkeypatch.setattr(peers, "installed", lambda name: name == "VITS")
    assert gpu.main([command, "--device", "cpu", "--out", str(tmp_path), "--commit", "0123abc"]) == 0
    with open(tmp_path / gpu.FILES[command], newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len({tuple(row[name] for name in gpu.KEYS[command]) for row in rows}) == len(rows) > 1
    assert {row["commit"] for row in rows} == {"0123abc"}
    if command == "check":
        assert {row["result"] for row in rows} == {"passed"}
    else:
        assert {row["note"] for row in rows} == {""}
        assert all(float(row["ms low"]) <= float(row["ms"]) <= float(row["ms high"]) for row in rows)
        assert all(float(row["time ratio"]) > 0 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "fact"), [(["check"], "no NVIDIA GPU"), (["time", "--device", "cpu"], "TRITON_INTERPRET=1")]
)
def test_commands_that_cannot_run(monkeypatch, capsys, tmp_path, arguments, fact):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(SystemExit) as exit:
        gpu.main([*arguments, "--out", str(tmp_path), "--commit", "0"])
    assert exit.value.code == 2
    assert fact in capsys.readouterr().err


def test_checks_for_a_gpu_are_valid_calls():
    checks = [task for task in gpu_check.tasks("cuda").values() if task[0] is gpu_check.within_budget]
    assert len(checks) >= 3 * len(gpu_check.SHAPES)
    for _, (case, shape, _) in checks:
        operator, inputs, options = call_of(case, shape, torch.float32)
        assert operator(**inputs, **options, backend="native").isfinite().all()


def test_failures_and_work_without_time(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(gpu, "call", lambda function, arguments: workers.Failure("off by 2"))
    assert gpu.main(["check", "--device", "cpu", "--out", str(tmp_path), "--commit", "0"]) == 1
    assert "off by 2" in (tmp_path / gpu.FILES["check"]).read_text()
    assert list(workers.run_all([(math.sqrt, (4.0,))], 1, patience=60, stop=0.0)) == [(0, workers.LEFT_OUT)]


def test_work_continues_after_a_process_failed_died_or_hung():
    measure.preload(["benchmarks.workers"])
    tasks = [(math.sqrt, (-1.0,)), (math.sqrt, (4.0,)), (os._exit, (3,)), (time.sleep, (60,)), (math.sqrt, (9.0,))]
    found = [result for _, result in workers.run_all(tasks, 1, patience=4.0, stop=math.inf)]
    assert found[0].reason.startswith("ValueError: ")
    assert found[1:] == [2.0, workers.Failure("its process died"), workers.Failure("no answer in time"), 3.0]


@pytest.mark.parametrize("check", [gpu_check.within_budget, gpu_check.repeatable])
def test_wrong_kernels_are_found(monkeypatch, check):
    """Kernels that add noise are not within the tolerance, and never return the same."""

    def noisy(call, return_lse):
        output, lse = dense.attend(call, return_lse)
        output.data += torch.rand_like(output)
        return output, lse

    monkeypatch.setattr(triton, "attend", noisy)
    calls = (arguments for function, arguments in gpu_check.tasks("cpu").values() if function is check)
    with pytest.raises(AssertionError, match="output"):
        check(*next(calls))
