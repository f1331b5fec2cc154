"""Labels and visibility against their definitions, pair by pair."""

import pytest
import torch

from relattn.positions import distances, labels, query_positions

CPU = torch.device("cpu")


@pytest.mark.parametrize("offset", [0, 4, -3])
@pytest.mark.parametrize(("queries", "keys"), [(3, 5), (5, 3), (1, 7), (0, 2), (2, 0), (0, 0)])
def test_distance_is_key_minus_query(queries, keys, offset):
    got = distances(queries, keys, offset, CPU)
    assert got.tolist() == [[j - (offset + i) for j in range(keys)] for i in range(queries)]
    ragged = distances(queries, keys, torch.tensor([offset, 0]), CPU)
    assert torch.equal(ragged[0], got)
    assert torch.equal(ragged[1], distances(queries, keys, 0, CPU))


def test_query_positions_follow_the_offset():
    assert query_positions(3, 5, CPU).tolist() == [5, 6, 7]
    assert query_positions(2, torch.tensor([0, 9]), CPU).tolist() == [[0, 1], [9, 10]]


@pytest.mark.parametrize(("left", "right"), [(2, 2), (0, 0), (3, 1), (0, 2)])
def test_labels_are_rows_from_the_left(left, right):
    distance = torch.arange(-6, 7)
    clipped = labels(distance, left, right, clips=True).tolist()
    zero = labels(distance, left, right, clips=False).tolist()
    for x, row, zero_row in zip(range(-6, 7), clipped, zero, strict=True):
        assert row == min(max(x, -left), right) + left
        assert zero_row == (row if -left <= x <= right else -1)


def test_row_zero_is_farthest_left():
    assert labels(torch.tensor(-100), 3, 3, clips=True) == 0
    assert labels(torch.tensor(100), 3, 3, clips=True) == 6
