"""Labels and visibility against their definitions, pair by pair."""

import pytest
import torch

from relattn.call import Call
from relattn.positions import distances, labels, labels_of_pairs, query_positions, reached_range

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


@pytest.mark.parametrize("clips", [True, False])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("offsets", [(0, 0), (-30, -30), (40, 40), (-3, 9)])
@pytest.mark.parametrize(("left", "right"), [(0, 0), (2, 3), (100, 100), (0, 90)])
def test_rows_that_no_pair_takes_are_left_out_and_no_others(clips, causal, offsets, left, right):
    queries, keys, rows = 5, 7, torch.arange(left + right + 1.0)[:, None]
    query, key, offset = torch.zeros(2, 1, queries, 1), torch.zeros(2, 1, keys, 1), torch.tensor(offsets)
    call = Call.from_arguments(
        query, key, key, rows, rows, clip=(left, right), beyond="clip" if clips else "zero", query_offset=offset,
        is_causal=causal, rel_query=None, relations=None, check=None, lengths=None, key_lengths=None,
        query_lengths=None, mask=None, dropout_p=0.0, scale=None,
    )  # fmt: skip
    distance = distances(queries, keys, offset, CPU)[:, None]
    before, after = labels(distance, left, right, clips=clips), labels_of_pairs(call)
    seen = distance <= 0 if causal else torch.ones_like(before, dtype=torch.bool)
    for table in (call.rel_key, call.rel_value):
        assert table.shape == (call.left + call.right + 1, 1)
        assert torch.equal(table[after[seen], 0].where(after[seen] >= 0, -1), before[seen].float())
    assert call.left <= max(0, queries - 1 + max(offsets))
    assert call.right <= (0 if causal else max(0, keys - 1 - min(offsets)))
    assert reached_range(left, right, queries, keys, None, is_causal=False) == (left, right)
