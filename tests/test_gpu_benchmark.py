"""`benchmarks.gpu`: rehearsals where there is no GPU, what its checks find, and what happens if something breaks."""

import csv
import math
import os
import time

import pytest
import torch
import torch.nn.functional as F

from benchmarks import gpu, gpu_check, gpu_times, measure, peers, workers
from benchmarks.peers import Case
from relattn.backends import dense, triton
from tests.support.calls import call_of
from tests.support.interpreter import patch_language_once
from tests.support.numerics import equations_keeping


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


def test_a_method_that_fails_has_a_row_with_the_reason():
    rows = gpu_times.time_case(Case(1, 2, 5, 8, 2, 2, False), ("plain", "unknown", "dense"), "cpu")
    assert [row["method"] for row in rows] == 2 * ["plain", "unknown", "dense"]
    assert "got 'unknown'" in rows[1]["note"]
    assert [row["ms"] != "" for row in rows[:3]] == [True, False, True]
    assert rows[2]["time ratio"] == pytest.approx(rows[2]["ms"] / rows[0]["ms"], rel=0.05)


def test_methods_of_a_case_that_broke_are_timed_alone(monkeypatch):
    case = Case(1, 2, 5, 8, 2, 2, False)

    def run_all(tasks, *_):
        for index, (_, (_, methods, _)) in enumerate(tasks):
            yield index, workers.Failure("its process died") if "triton" in methods else methods

    monkeypatch.setattr(gpu, "run_all", run_all)
    planned = {"a": (gpu_times.time_case, (case, ("flash", "triton"), "cuda"))}
    found = dict(gpu.results(planned, "time", "cuda", stop=math.inf))
    assert found == {"a, flash": ("flash",), "a, triton": workers.Failure("its process died")}


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


def test_a_compiler_that_changes_results_is_found(monkeypatch):
    def compile_wrongly(operator, **_):
        return lambda **given: tuple(x + 1.0 for x in operator(**given))

    monkeypatch.setattr(triton, "attend", dense.attend)
    monkeypatch.setattr(torch, "compile", compile_wrongly)
    with pytest.raises(AssertionError, match="differs"):
        gpu_check.repeatable(17, False, True, "cpu")


def explicit(forward_seed=lambda seed: seed, backward_seed=lambda seed: seed, dropout_p=0.3, factor=1.0):
    """Return a replacement of the kernels by the equations, with faults of dropout."""

    def attend(call, return_lse):
        seed = int(torch.randint(2**31, ()))

        def keeping(number):
            generator = torch.Generator().manual_seed(number)
            kept = torch.rand(*call.query.shape[:3], call.query.shape[2], generator=generator) >= dropout_p
            unused = (0, 0, 0, call.left - call.right)  # rows for later keys, if the call is causal
            tables = {name: F.pad(getattr(call, name), unused) for name in ("rel_key", "rel_value")}
            return equations_keeping(kept, **{**call._asdict(), **tables}, clip=call.left)

        (output, lse), (other, _) = keeping(forward_seed(seed)), keeping(backward_seed(seed))
        return factor * (output.detach() + other - other.detach()), lse if return_lse else None

    return attend


FAULTS = [
    ({"backward_seed": lambda seed: seed + 1}, "d query off by .* d value off by .* d rel_value off by"),
    ({"forward_seed": lambda _: time.monotonic_ns()}, "a seed keeps other pairs"),
    ({"forward_seed": lambda _: 0, "backward_seed": lambda _: 0}, "another seed keeps the same pairs"),
    ({"dropout_p": 0.5}, "of the pairs are kept, expected 0.7"),
    ({"factor": 0.7}, "output off by"),
]


@pytest.mark.parametrize("is_causal", [False, True])
def test_wrong_dropout_is_found(monkeypatch, is_causal):
    monkeypatch.setattr(triton, "attend", explicit())
    gpu_check.dropout(33, is_causal, "cpu")
    for fault, message in FAULTS:
        monkeypatch.setattr(triton, "attend", explicit(**fault))
        with pytest.raises(AssertionError, match=message):
            gpu_check.dropout(33, is_causal, "cpu")
