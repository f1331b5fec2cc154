"""Tests of `benchmarks.against`: the table, and the cases."""

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


def test_ratios_are_taken_per_round_and_missing_cases_are_named():
    other, here = Version("v1", 0.001, 0.003, 0.001, lacks=["xl"]), Version("here", 0.0012, 0.0036, 0.0013)
    results = against.compare(other, here, ["plain", "xl"], rounds=3, seconds=0.0)
    assert results["plain"].ratios == pytest.approx([1.2, 1.2, 1.3])
    plain, xl = against.table(results, ("v1", "here")).splitlines()[2:]
    assert plain == "| plain | 1.00 | 1.30 | 1.20 | 1.20–1.30 | **slower** |"
    assert "TypeError: no rel_query / at all" in xl


@pytest.mark.parametrize("case", list(against.CASES)[::4])
def test_this_tree_has_the_cases(case):
    assert against.seconds_of(case, 1) > 0
