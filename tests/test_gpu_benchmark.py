"""`benchmarks.gpu`: rehearsals where there is no GPU, what its checks find, and what happens if something breaks."""

import csv
import gzip
import math
import os
import time

import pytest
import torch

from benchmarks import gpu, gpu_check, gpu_tiles, gpu_times, measure, peers, workers
from relattn.backends import dense, triton
from tests.support.calls import call_of
from tests.support.interpreter import patch_language_once

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
FILES = {
    "first": {"ceilings-gpu.csv", "checks-gpu.csv", "attention-gpu.csv", "tiles-gpu.csv"},
    "second": {"layers-gpu.csv", "attention-gpu.csv"},
    "third": {"train-step-gpu.csv", "train-gpu.csv"},
}


@pytest.mark.parametrize("go", FILES)
def test_rehearsal(monkeypatch, tmp_path, capsys, go):
    patch_language_once(monkeypatch)
    for module in (gpu_times, gpu_tiles):
        monkeypatch.setattr(module, "REPEATS", 2)
        monkeypatch.setattr(module, "SECONDS", 0.0)
    monkeypatch.setattr(peers, "installed", lambda name: name == "VITS")
    for name in ("train", "valid", "newstest2013"):
        lines = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS[:3]]
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}.gz").write_bytes(gzip.compress("\n".join([*lines, ""]).encode()))
    out = tmp_path / "out"
    flags = ["--device", "cpu", "--out", str(out), "--commit", "0123abc", "--steps", "2", "--text", str(tmp_path)]
    assert gpu.main([go, *flags]) == 0, capsys.readouterr().out
    tables = {path.name: list(csv.DictReader(path.read_text().splitlines())) for path in out.glob("*-gpu.csv")}
    assert set(tables) == FILES[go]
    keys = {stage.file: stage.key for stage in gpu.stages(go, gpu.parse_flags([go, *flags]))}
    for name, rows in tables.items():
        assert len({tuple(row[column] for column in keys[name]) for row in rows}) == len(rows) > 1
        assert {row["commit"] for row in rows} == {"0123abc"}
        assert {row.get("note", "") for row in rows} == {""}
        assert all(float(row["ms low"]) <= float(row["ms"]) <= float(row["ms high"]) for row in rows if "ms" in row)
    assert all(row["result"] == "passed" for row in tables.get("checks-gpu.csv", ()))
    assert all(float(row["difference"]) < 0.02 for row in tables.get("layers-gpu.csv", ()))
    if go == "third":
        assert {path.name for path in out.glob("*.de")} == {"valid-relative.de", "newstest2013-relative.de"}
        assert len((out / "valid-relative.de").read_text().splitlines()) == 300


@pytest.mark.parametrize(
    ("arguments", "fact"), [(["first"], "no NVIDIA GPU"), (["second", "--device", "cpu"], "TRITON_INTERPRET=1")]
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


def failed_method(case, methods, device):
    row = {"n": case.n, "causal": False, "pass": "forward", "method": methods[0], "dtype": "", "tokens": 1}
    return [{**row, "dim": 4, "clip": 4, "note": "RuntimeError: out of registers"}]


def test_failures_are_counted_and_keep_their_stack_traces(monkeypatch, capsys, tmp_path):
    """A failed check, and a method whose row has its error in the note, as our own kernels' would."""

    def fail(*_):
        try:
            raise ValueError("from the compiler")
        except ValueError:
            raise RuntimeError("could not be compiled") from None

    monkeypatch.setattr(gpu_check, "tasks", lambda device: {"sum": (fail, ())})
    monkeypatch.setattr(gpu_times, "time_case", failed_method)
    monkeypatch.setattr(gpu_times, "compile_tasks", lambda table, device: {})
    monkeypatch.setattr(gpu_tiles, "tasks", lambda device, compiles: {})
    assert gpu.main(["first", "--device", "cpu", "--out", str(tmp_path), "--commit", "0"]) == 1
    printed = capsys.readouterr().out
    assert "time: 1 tasks, 1 failed, 0 left out" in printed
    assert "check: 1 tasks, 1 failed, 0 left out" in printed
    failures = (tmp_path / gpu.FAILURES).read_text()
    assert failures.index("ValueError: from the compiler") < failures.rindex("RuntimeError: could not be compiled")
    assert "out of registers" in failures
    assert "RuntimeError: could not be compiled" in (tmp_path / "checks-gpu.csv").read_text()


def test_work_continues_after_a_process_failed_died_or_hung():
    measure.preload(["benchmarks.workers"])
    tasks = [(math.sqrt, (-1.0,)), (math.sqrt, (4.0,)), (os._exit, (3,)), (time.sleep, (60,)), (math.sqrt, (9.0,))]
    found = [result for _, result in workers.run_all(tasks, 1, patience=4.0, stop=math.inf)]
    assert found[0].reason.startswith("ValueError: ")
    assert found[1:] == [2.0, workers.Failure("its process died"), workers.Failure("no answer in time"), 3.0]
    assert list(workers.run_all([(math.sqrt, (4.0,))], 1, patience=60, stop=0.0)) == [(0, workers.LEFT_OUT)]


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
