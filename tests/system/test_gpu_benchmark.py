"""`benchmarks.gpu`: rehearsals where there is no GPU, what its checks find, and what happens if something breaks."""

import csv
import gzip

import pytest
import torch
from relattn.backends import dense, triton

from benchmarks import gpu, gpu_check, gpu_tiles, gpu_times

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
FILES = {
    "first": {"ceilings-gpu.csv", "checks-gpu.csv", "attention-gpu.csv", "tiles-gpu.csv"},
    "second": {"layers-gpu.csv", "attention-gpu.csv"},
    "third": {"train-step-gpu.csv", "train-gpu.csv"},
}


@pytest.mark.parametrize("go", FILES)
def test_rehearsal(monkeypatch, tmp_path, capsys, go):
    for module in (gpu_times, gpu_tiles):
        monkeypatch.setattr(module, "REPEATS", 2)
        monkeypatch.setattr(module, "SECONDS", 0.0)
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
