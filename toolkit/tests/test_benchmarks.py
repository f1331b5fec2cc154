"""Each benchmark command runs with small sizes and writes its rows; the two forms of its methods agree."""

import csv
import shutil
import sys

import pytest
import torch

from benchmarks import attention, decoding, forms, measure
from tests.support.covering import pairwise


def table(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs a benchmark with flags, and returns the rows of its results file."""

    monkeypatch.setattr(measure, "uncommitted", list)  # a tree with changes does not matter here

    def run(module, *flags):
        monkeypatch.setattr(sys, "argv", ["benchmark", *flags, "--out", str(tmp_path / "rows.csv")])
        module.main()
        return table(tmp_path / "rows.csv")

    return run


@pairwise(form=forms.FORMS, is_causal=[False, True], length=[5, 140])
def test_form_equals_its_mask(form, is_causal, length):
    case = forms.Case(2, 3, length, 8, 16, 16, is_causal, torch.float64)
    results = []
    for method in (form, f"{form} by mask"):
        inputs = attention.inputs_of(method, case, True)
        output = attention.attention(method, case)(*inputs)
        results.append([output, *torch.autograd.grad(output.square().sum(), inputs)])
    for ours, by_mask in zip(*results, strict=True):
        torch.testing.assert_close(ours, by_mask, rtol=1e-11, atol=1e-11)


def test_attention_replaces_the_rows_it_measures_again(run, monkeypatch):
    """It leaves out methods that do not fit into memory."""
    monkeypatch.setattr(attention, "peak_memory", lambda *_: 1 << 20)  # which takes a process each

    def run_attention(*flags):
        return run(attention, "--tokens", "10", "--repeats", "1", "--seconds", "0", *flags)

    before = run_attention("--lengths", "3", "5", "--methods", "dense")
    after = run_attention("--lengths", "5", "--methods", "reference")
    assert [row for row in after if row["n"] == "3"] == [row for row in before if row["n"] == "3"]
    methods = [row["method"] for row in after if row["n"] == "5" and row["causal"] == "True"]
    assert sorted(set(methods)) == ["dense", "plain", "reference"]
    assert all(row["commit"] and row["device"] and row["torch"] and float(row["ms"]) > 0 for row in after)
    monkeypatch.setattr(attention, "peak_memory", lambda _, small, case: case[1].n ** 2 if case[0] == "dense" else 0)
    monkeypatch.setattr(attention, "available_memory", lambda: 2 * 9**2)
    last = run_attention("--lengths", "8", "9", "10", "--methods", "dense")
    large = {(row["n"], row["method"]) for row in last if int(row["n"]) > 8}
    assert large == {("9", "dense"), ("9", "plain"), ("10", "plain")}


def test_decoding_translates_the_same_lines(run, tmp_path, monkeypatch, model, text):
    shutil.copytree(model, tmp_path / "bundle")
    monkeypatch.setattr(decoding, "apart", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(decoding, "peak_here", lambda work: (work(), 1 << 20)[1])
    flags = ("--bundle", str(tmp_path / "bundle"), "--lines", "9", "--beams", "2")
    methods = ["relattn", "ctranslate2", "relattn int8", "ctranslate2 int8", "ctranslate2 int8 inter"]
    rows = run(decoding, text["valid_src"], *flags, "--threads", "1", "--methods", *methods)
    assert [row["method"] for row in rows] == methods
    assert len({row["tokens"] for row in rows[:2]}) == len({row["tokens"] for row in rows[3:]}) == 1
    assert all(float(row["tokens_per_second"]) > 0 for row in rows)
