"""Tests of `benchmarks.against`: verdicts, the table, and the cases."""

import pytest

from benchmarks import against


class Version:
    """A version of the package that takes given seconds per call, in one round after the other."""

    def __init__(self, name, *seconds, lacks=()):
        self.name, self.per_call, self.lacks = name, list(seconds), lacks

    def seconds(self, case, times):
        if case in self.lacks:
            raise against.Missing(f"not in {self.name} (TypeError: no rel_query | at all)")
        return self.per_call[0] * times

    def close(self):
        self.per_call = self.per_call[1:]


def test_verdict_holds_in_every_round():
    ones = [2.0, 3.0, 5.0]
    for ratios, verdict, swapped in (
        ((1.2, 1.3, 1.4), "slower", "faster"), ((1.2, 1.3, 1.04), "", ""), ((1.04, 1.04, 1.04), "", ""),
    ):  # fmt: skip
        others = [one * ratio for one, ratio in zip(ones, ratios, strict=True)]
        assert against.Times(ones, others).verdict() == verdict
        assert against.Times(others, ones).verdict() == swapped


def test_ratios_are_taken_per_round_and_missing_cases_are_named():
    other, here = Version("v1", 0.001, 0.003, 0.001, lacks=["xl"]), Version("here", 0.0012, 0.0036, 0.0013)
    results = against.compare(other, here, ["plain", "xl"], rounds=3, seconds=0.0)
    assert results["plain"].ratios == pytest.approx([1.2, 1.2, 1.3])
    plain, xl = against.table(results, ("v1", "here")).splitlines()[2:]
    assert plain == "| plain | 1.00 | 1.30 | 1.20 | 1.20–1.30 | **slower** |"
    assert "TypeError: no rel_query / at all" in xl


def test_a_case_is_prepared_once_and_an_error_is_the_reason(monkeypatch):
    ran = []
    monkeypatch.setattr(against, "CASES", {"counts": lambda: lambda: ran.append(0), "fails": lambda: [][1]})
    assert min(against.seconds_of("counts", times) for times in (1, 5)) >= 0
    assert len(ran) == 1 + 1 + 5
    with pytest.raises(against.Missing, match="IndexError: list index out of range"):
        against.seconds_of("fails", 1)


@pytest.mark.parametrize("case", list(against.CASES)[::4])
def test_this_tree_has_the_cases(case):
    assert against.seconds_of(case, 1) > 0
