"""Sentences about heads: they name the distance that a head prefers, and whether it attends to it."""

import pytest
import torch
from relattn_mt.analysis.attention import SelfView
from relattn_mt.analysis.summaries import describe_cross, describe_self
from torch import Tensor

N, CLIP = 7, 3


def view_of(terms: dict[int, float], looks: int | None = None) -> SelfView:
    """One head whose relative terms are 0 but for some distances; it attends evenly, or only to one distance."""
    distances = list(range(-CLIP, CLIP + 1))
    by_distance = torch.tensor([[terms.get(distance, 0.0) for distance in distances]])
    weights = torch.full((1, N, N), 1 / N)
    if looks is not None:
        weights = torch.diag(torch.ones(N - abs(looks)), looks)[None]
    return SelfView(weights, weights, weights, distances, by_distance)


@pytest.mark.parametrize(
    ("terms", "looks", "is_causal", "facts"),
    [
        ({-1: 5.0}, -1, False, ["Mostly", "one piece back", "100"]),
        ({2: 5.0}, 2, False, ["Mostly", "two pieces ahead", "100"]),
        ({0: 5.0}, 0, True, ["Mostly", "the piece itself", "100"]),
        ({-3: 5.0}, -5, False, ["Mostly", "3 or more pieces back", "50"]),  # two of four queries have a key there
        ({-1: 5.0}, 2, False, ["overrides", "one piece back", "(0"]),
        ({1: 5.0, -2: 2.0, -1: 2.0}, -1, True, ["1 to 2 pieces back"]),
        ({-1: 2.0, 0: 2.0, 1: 2.0}, None, False, ["one piece back to one piece ahead"]),
        ({1: 0.9}, 1, False, ["little"]),
    ],
)
def test_self_attention(terms: dict[int, float], looks: int | None, is_causal: bool, facts: list[str]) -> None:
    sentence = describe_self(view_of(terms, looks), 0, is_causal=is_causal)
    assert [fact for fact in facts if fact not in sentence] == [], sentence


@pytest.mark.parametrize(
    ("weights", "fact"),
    [
        (torch.eye(5)[:4], "one piece"),
        (torch.full((4, 5), 0.2), "5 pieces"),
        (torch.tensor([[0.2, 0.8], [0.0, 1.0]]), "the end"),
    ],
)
def test_cross_attention(weights: Tensor, fact: str) -> None:
    assert fact in describe_cross(weights)
