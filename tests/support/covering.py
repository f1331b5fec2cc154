"""Covering arrays: a few combinations of options that contain every pair, or every triple, of their values."""

import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

_CANDIDATES = 20  # completions that are tried for each combination that is not covered yet


def combinations(
    n: int = 2, valid: Callable[..., bool] = lambda **case: True, **options: Iterable[Any]
) -> list[dict[str, Any]]:
    """Return cases that together contain every combination of values of any `n` options, as far as it is valid.

    The choice is greedy: of some random cases with a combination that is missing, the one that covers most.

    Args:
        n: Number of options whose values are combined: 2 for pairs, 3 for triples.
        valid: Return whether a case, given by keywords, is allowed.
        **options: Values of each option.
    """
    values = {name: list(choices) for name, choices in options.items()}
    chance = random.Random(0)

    def covered(row: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
        return set(itertools.combinations(enumerate(row), n))

    def case(row: tuple[int, ...]) -> dict[str, Any]:
        return {name: choices[index] for (name, choices), index in zip(values.items(), row, strict=True)}

    def rows_with(fixed: dict[int, int]) -> Iterable[tuple[int, ...]]:
        free = [[fixed[i]] if i in fixed else range(len(choices)) for i, choices in enumerate(values.values())]
        for _ in range(20 * _CANDIDATES):
            row = tuple(chance.choice(indices) for indices in free)
            if valid(**case(row)):
                yield row

    pairs = [[(i, index) for index in range(len(choices))] for i, choices in enumerate(values.values())]
    missing = [each for group in itertools.combinations(pairs, n) for each in itertools.product(*group)]
    missing_now, cases = dict.fromkeys(missing), []
    for each in missing:
        candidates = list(itertools.islice(rows_with(dict(each)), _CANDIDATES)) if each in missing_now else []
        if candidates:
            best = max(candidates, key=lambda row: len(covered(row) & missing_now.keys()))
            cases.append(case(best))
            for done in covered(best):
                missing_now.pop(done, None)
    return cases


def pairwise(
    n: int = 2,
    valid: Callable[..., bool] = lambda **case: True,
    in_turn: dict[str, Iterable[Any]] | None = None,
    **options: Iterable[Any],
) -> pytest.MarkDecorator:
    """Parametrize a test with a covering array of its arguments: `@pairwise(backend=NAMES, causal=[False, True])`.

    The arguments are those of `combinations`. Cases take the values of each option `in_turn` one after the other.
    """
    turns = {name: itertools.cycle(values) for name, values in (in_turn or {}).items()}
    cases = [case | {name: next(turn) for name, turn in turns.items()} for case in combinations(n, valid, **options)]
    return pytest.mark.parametrize((*options, *turns), [tuple(case.values()) for case in cases])
