"""Tests of `benchmarks.against`: verdicts, the table, and the answers of a version's process."""

import pytest

from benchmarks import against


class Version:
    """A version of the package that takes given seconds per call, in one round after the other."""

    def __init__(self, name, *seconds, lacks=()):
        self.name, self.seconds, self.lacks = name, list(seconds), lacks

    def ask(self, what, argument):
        if argument in self.lacks:
            raise against.Missing(f"not in {self.name} (TypeError: no rel_query | at all)")
        return self.seconds[0] * (argument if what == "run" else 1)

    def close(self):
        self.seconds = self.seconds[1:]


def test_verdict_holds_in_every_round():
    ones = [2.0, 3.0, 5.0]
    for ratios, verdict, swapped in (
        ((1.2, 1.3, 1.4), "slower", "faster"), ((1.2, 1.3, 1.04), "", ""), ((1.04, 1.04, 1.04), "", ""),
    ):  # fmt: skip
        others = [one * ratio for one, ratio in zip(ones, ratios, strict=True)]
        assert against.Times(ones, others).verdict(0.05) == verdict
        assert against.Times(others, ones).verdict(0.05) == swapped


def test_ratios_are_taken_per_round_and_missing_cases_are_named():
    other, here = Version("v1", 0.001, 0.003, 0.001, lacks=["xl"]), Version("here", 0.0012, 0.0036, 0.0013)
    results = against.compare(other, here, ["plain", "xl"], rounds=3, seconds=0.0)
    assert results["plain"].ratios == pytest.approx([1.2, 1.2, 1.3])
    plain, xl = against.table(results, ("v1", "here"), 0.05).splitlines()[2:]
    assert plain == "| plain | 1.00 | 1.30 | 1.20 | 1.20–1.30 | **slower** |"
    assert "TypeError: no rel_query / at all" in xl


def test_a_process_answers_with_seconds_or_a_reason(monkeypatch):
    ran = []
    monkeypatch.setattr(against, "CASES", {"counts": lambda: lambda: ran.append(0), "fails": lambda: [][1]})
    questions = [["make", "counts"], ["run", 5], ["make", "fails"], ["make", "counts"]]
    taken, five, reason, again = against.answers(questions)
    assert reason == "IndexError: list index out of range"
    assert all(seconds >= 0 for seconds in (taken, five, again))
    assert len(ran) == 2 + 5 + 2


@pytest.mark.parametrize("case", list(against.CASES)[::4])
def test_this_tree_has_the_cases(case):
    answers = list(against.answers([("make", case)]))
    assert isinstance(answers[0], float), answers
