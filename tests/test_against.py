"""`benchmarks.against`: what it marks, what it says of a version that lacks something, and that it runs."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import against, against_cases

ROOT = Path(__file__).parents[1]
NAMES = ("v1", "this tree")


class Pretended:
    """A version that takes these seconds a call, in one round after the other, and says so without a process."""

    def __init__(self, name, *seconds, lacks=()):
        self.name, self.seconds, self.lacks, self.asked = name, list(seconds), lacks, []

    def ask(self, what, argument):
        self.asked.append((what, argument))
        if argument in self.lacks:
            raise against.Missing(f"not in {self.name} (TypeError: no rel_query | at all)")
        return self.seconds[0] * (argument if what == "run" else 1)

    def close(self):
        self.seconds = self.seconds[1:]


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.2, 1.3, 1.4), "slower"),
        ((1.2, 1.3, 1.04), ""),  # a round in which it is not
        ((1.04, 1.04, 1.04), ""),  # in every round, but by less than the threshold
        ((0.7, 0.8, 0.9), "faster"),
        ((0.7, 0.8, 0.97), ""),
        ((0.9, 1.0, 1.1), ""),
        ((1.0, 1.0, 1.0), ""),
    ],
)
def test_what_is_so_in_every_round_is_marked(ratios, verdict):
    ones = [2.0, 3.0, 5.0]
    times = against.Times(ones, [one * ratio for one, ratio in zip(ones, ratios, strict=True)])
    assert times.ratios == pytest.approx(sorted(ratios))
    assert times.verdict(0.05) == verdict
    turned = {"slower": "faster", "faster": "slower", "": ""}
    assert against.Times(times.here, times.other).verdict(0.05) == turned[verdict]


def test_a_ratio_is_of_one_round_and_the_table_says_what_is_missing(capsys):
    """The machine takes thrice as long in the second round, and both versions with it."""
    other = Pretended("v1", 0.001, 0.003, 0.001, lacks=["xl"])
    here = Pretended("this tree", 0.0012, 0.0036, 0.0013)
    results = against.compare(other, here, ["plain", "xl"], rounds=3, seconds=0.0)
    assert results["plain"].ratios == pytest.approx([1.2, 1.2, 1.3])
    assert against.table(results, NAMES, 0.05).splitlines() == [
        "| case | v1, ms | this tree, ms | ratio | rounds | |",
        "|---|--:|--:|--:|--:|---|",
        "| plain | 1.00 | 1.30 | 1.20 | 1.20–1.30 | **slower** |",
        "| xl | | | | | not in v1 (TypeError: no rel_query / at all) |",
    ]
    assert against.table(results, NAMES, 0.25).splitlines()[2].endswith("| 1.20–1.30 |  |")
    assert other.asked.count(("make", "xl")) == 1  # and no more in the other rounds
    assert ("run", 16) in other.asked  # 16 × 1.2 ms come to 20 ms
    assert capsys.readouterr().err.endswith("round 3 of 3\n")


def test_the_one_that_begins_changes_by_the_round():
    asked = []
    versions = [Pretended(name, 1.0, 1.0) for name in NAMES]
    for version in versions:
        version.asked = asked
        version.ask = lambda what, argument, name=version.name: asked.append(name) or 1.0
    against.compare(*versions, ["plain"], rounds=2, seconds=0.0)
    half = len(asked) // 2
    assert asked[:half] == list(NAMES) * (half // 2)
    assert asked[half:] == list(reversed(NAMES)) * (half // 2)


def test_a_process_answers_with_seconds_or_a_reason(monkeypatch):
    ran = []
    monkeypatch.setattr(against_cases, "CASES", {"counts": lambda: lambda: ran.append(0), "fails": lambda: [][1]})
    questions = [["make", "counts"], ["run", 5], ["make", "fails"], ["make", "counts"]]
    taken, five, reason, again = against_cases.answers(map(json.dumps, questions))
    assert reason == "IndexError: list index out of range"
    assert all(seconds >= 0 for seconds in (taken, five, again))
    assert len(ran) == 2 + 5 + 2


def run(monkeypatch, *arguments):
    """The exit status."""
    monkeypatch.setattr(sys, "argv", ["against", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        against.main()
    return exit.value.code


def test_a_folder_without_the_package(monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, tmp_path) == 2
    assert (
        capsys.readouterr().err.splitlines()[-1].endswith(f"argument other: no relattn in {tmp_path}, nor in its src")
    )


def test_no_rounds(monkeypatch, capsys):
    assert run(monkeypatch, ROOT, "--rounds", 0) == 2
    assert capsys.readouterr().err.endswith("error: --rounds 0: one at least\n")


@pytest.mark.parametrize(
    ("times", "flags", "status"),
    [
        (against.Times([1.0], [2.0]), [], 0),
        (against.Times([1.0], [2.0]), ["--fail"], 1),
        (against.Times([1.0], [2.0]), ["--fail", "--threshold", "1.5"], 0),
        (against.Times([2.0], [1.0]), ["--fail"], 0),
        (against.Missing("not in the other (x)"), ["--fail"], 0),
        (against.Missing("not in this tree (x)"), ["--fail"], 1),
    ],
)
def test_the_exit_status(monkeypatch, capsys, tmp_path, times, flags, status):
    monkeypatch.setattr(against, "compare", lambda *_: {"plain": times})
    assert run(monkeypatch, ROOT, "--out", tmp_path / "t.md", *flags) == status
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "t.md").read_text(encoding="utf-8") + "\n"
    assert "\n| plain | " in printed


@pytest.mark.whole
def test_this_tree_beside_one_that_lacks_a_case_and_dies_of_another(monkeypatch, capsys, tmp_path):
    """A package of a function, of no time, and of one that ends its process."""
    (tmp_path / "relattn").mkdir()
    functions = "import os\ndef relative_attention(q, *_, clip): return q\ndef relation_attention(*_): os._exit(3)\n"
    (tmp_path / "relattn" / "__init__.py").write_text(functions, encoding="utf-8")
    names = ["labelled pairs", "forward, n = 1024", "Transformer-XL", "decoding"]
    chosen = [next(case for case in against_cases.CASES if case.startswith(name)) for name in names]
    flags = ["--name", "v1", "--rounds", 1, "--seconds", 0, "--threads", 1]
    assert run(monkeypatch, tmp_path, *flags, "--cases", *chosen) == 0
    labelled, plain, xl, decoding = capsys.readouterr().out.splitlines()[4:8]
    assert "not in v1 (its process died)" in labelled
    assert plain.endswith("**slower** |")
    assert "not in v1 (TypeError: relative_attention() got an unexpected keyword argument 'rel_query')" in xl
    assert "not in v1 (ImportError: cannot import name 'RelativeSelfAttention'" in decoding


@pytest.mark.whole
@pytest.mark.parametrize("case", against_cases.CASES)
def test_this_tree_has_every_case(case):
    answers = list(against_cases.answers([json.dumps(["make", case])]))
    assert isinstance(answers[0], float), answers
