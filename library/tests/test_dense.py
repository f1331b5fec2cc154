"""What only `dense` does: parts of the heads, views of diagonals, sums by label."""

import itertools

import pytest
import torch
from relattn import relation_attention, relative_attention
from relattn.backends.dense import attention
from relattn.backends.dense.labels import sum_by_label, sum_by_label_in_passes

from tests.support.numerics import Shape, assert_close, make_inputs, outputs_and_gradients


@pytest.mark.parametrize("per_head", [False, True])
def test_parts_of_the_heads_give_the_same_results(monkeypatch, per_head):
    shape = Shape(batch=3, heads=10, key_heads=5, queries=7, keys=7, dim=3, value_dim=2, left=2, right=1)
    inputs = make_inputs(shape, per_head=per_head)
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(3, 10, 7, 7, generator=generator) < 0.7
    relations = torch.randint(-1, 4, (3, 1, 7, 7), generator=generator)
    options = {"key_lengths": torch.tensor([7, 4, 0]), "mask": mask, "backend": "dense"}
    results = []
    for pairs in (10**6, 1, 200, 500):  # the whole, one head, some heads, some sequences
        monkeypatch.setattr(attention, "PAIRS_PER_TASK", pairs // torch.get_num_threads())
        assert (len(list(attention.tasks(inputs["query"], inputs["key"]))) > 1) == (pairs < 10**6)
        torch.manual_seed(0)
        relative = outputs_and_gradients(relative_attention, inputs, clip=(2, 1), dropout_p=0.2, **options)
        results.append((relative, outputs_and_gradients(relation_attention, inputs, relations=relations, **options)))
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            assert_close(got, want)


def test_nan_and_infinity_stay_in_their_row():
    """Rows of the view of diagonals end in the next query's row of pairs."""
    inputs = make_inputs(Shape(batch=1, heads=1, key_heads=1, queries=13, keys=13, dim=5, value_dim=5, left=4, right=4))
    want = relative_attention(**inputs, clip=4, backend="dense")
    for row, number in itertools.product((0, 6, 12), (torch.inf, torch.nan)):
        query = inputs["query"].clone()
        query[0, 0, row, 0] = number
        got = relative_attention(**{**inputs, "query": query}, clip=4, backend="dense")
        others = torch.arange(13) != row
        assert got[0, 0, row].isnan().all()
        assert torch.equal(got[0, 0, others], want[0, 0, others])


def test_both_ways_to_sum_by_label_agree():
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randn(2, 3, 5, 7, dtype=torch.float64, generator=generator)
    label = torch.randint(0, 4, pairs.shape, generator=generator)
    assert_close(sum_by_label_in_passes(pairs, label, 4), sum_by_label(pairs, label, 4))
    assert_close(sum_by_label(pairs, label, 4).sum(-1), pairs.sum(-1))
