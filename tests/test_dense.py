"""What `dense` does differently from other backends: views of diagonals, parts of the heads, few steps to decode."""

import itertools

import pytest
import torch

from relattn import relation_attention, relative_attention
from relattn.backends.dense import attention, diagonals_of
from relattn.call import Call
from relattn.positions import distances, labels
from tests.support.numerics import Shape, assert_within_budget, error, make_inputs, outputs_and_gradients

SIZES = list(itertools.product((1, 2, 7, 13), (1, 3, 13), (-40, -3, 0, 2, 9, 10**9), ((0, 0), (2, 1), (4, 9), (0, 3))))


def call_of(queries, keys, offset, left, right, beyond, causal):
    shape = Shape(2, 3, 3, queries, keys, 5, 5, left, right)
    window = {"left": left, "right": right, "clips": beyond == "clip"}
    return Call(**make_inputs(shape), **window, query_offset=offset, is_causal=causal)


@pytest.mark.parametrize("beyond", ["clip", "zero"])
@pytest.mark.parametrize("causal", [False, True])
def test_diagonals_add_terms_to_their_pairs_and_collect_them(beyond, causal):
    """Against labels pair by pair, so that what lands in another row would show."""
    generator = torch.Generator().manual_seed(0)
    for queries, keys, offset, (left, right) in SIZES:
        call = call_of(queries, keys, offset, left, right, beyond, causal)
        diagonals, rows = diagonals_of(call)
        distance = distances(queries, keys, offset, torch.device("cpu"))
        label = labels(distance, left, right, clips=beyond == "clip") - rows.start
        seen = (distance <= 0) if causal else torch.ones_like(distance, dtype=torch.bool)
        assert ((label >= 0) & (label < diagonals.width))[seen & (label + rows.start >= 0)].all()
        by_label = torch.randn(2, 3, queries, diagonals.width, dtype=torch.float64, generator=generator)
        one_hot = (label[..., None] == torch.arange(diagonals.width)).double()  # (queries, keys, width)

        pairs = torch.zeros(2, 3, queries, keys, dtype=torch.float64)
        diagonals.add(pairs, by_label.clone())
        want = torch.einsum("bhrl,rjl->bhrj", by_label, one_hot)
        assert error(pairs.where(seen, 0.0), want.where(seen, 0.0)) == 0.0

        pairs = torch.randn(2, 3, queries, keys, dtype=torch.float64, generator=generator) * seen
        got = diagonals.collect(pairs, diagonals.width)
        assert error(got, torch.einsum("bhrj,rjl->bhrl", pairs, one_hot)) < 1e-14


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("pairs_at_a_time", [1, 200, 500])
def test_parts_of_the_heads_make_the_whole(monkeypatch, pairs_at_a_time, per_head):
    shape = Shape(batch=3, heads=10, key_heads=5, queries=7, keys=7, dim=3, value_dim=2, left=2, right=1)
    inputs = make_inputs(shape, per_head=per_head)
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(3, 10, 7, 7, generator=generator) < 0.7
    relations = torch.randint(-1, 4, (3, 1, 7, 7), generator=generator)
    options = {"key_lengths": torch.tensor([7, 4, 0]), "mask": mask, "backend": "dense"}

    def run():
        torch.manual_seed(0)
        relative = outputs_and_gradients(relative_attention, inputs, clip=(2, 1), dropout_p=0.2, **options)
        return relative, outputs_and_gradients(relation_attention, inputs, relations=relations, **options)

    monkeypatch.setattr(attention, "PAIRS_AT_A_TIME", 10**6)
    want = run()
    monkeypatch.setattr(attention, "PAIRS_AT_A_TIME", pairs_at_a_time // torch.get_num_threads())
    assert len(list(attention.parts(inputs["query"], inputs["key"]))) > 1
    for got, whole in zip(run(), want, strict=True):
        assert all(error(got[name], whole[name]) < 1e-13 for name in whole)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("n", "clip"), [(32, 16), (65, 4), (97, (16, 3))])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_of_sentences_are_within_budget(n, clip, causal, dtype):
    left, right = clip if isinstance(clip, tuple) else (clip, clip)
    shape = Shape(batch=2, heads=2, key_heads=2, queries=n, keys=n, dim=16, value_dim=16, left=left, right=right)
    inputs = make_inputs(shape, dtype=dtype)
    assert_within_budget(relative_attention, inputs, "dense", clip=clip, is_causal=causal)


def test_gradients_under_dropout_are_those_of_the_explicit_formula():
    shape = Shape(batch=2, heads=3, key_heads=3, queries=13, keys=13, dim=5, value_dim=7, left=3, right=2)
    inputs = make_inputs(shape)
    torch.manual_seed(3)
    kept = torch.nn.functional.dropout(torch.ones(6, 13, 13), 0.4).view(2, 3, 13, 13).double()
    label = labels(distances(13, 13, 0, torch.device("cpu")), 3, 2, clips=True)

    def explicit(query, key, value, rel_key, rel_value, return_lse):
        scores = (query @ key.mT + torch.einsum("bhid,ijd->bhij", query, rel_key[label])) * 5**-0.5
        probabilities = scores.softmax(-1) * kept
        output = probabilities @ value + torch.einsum("bhij,ijd->bhid", probabilities, rel_value[label])
        return output, scores.detach().logsumexp(-1)

    want = outputs_and_gradients(explicit, inputs)
    torch.manual_seed(3)
    got = outputs_and_gradients(relative_attention, inputs, clip=(3, 2), dropout_p=0.4, backend="dense")
    assert all(error(got[name], want[name]) < 1e-6 for name in want)  # 1 / 0.6 is float32 in `kept`


def test_a_number_that_is_not_finite_stays_in_its_row():
    """Rows of the view of diagonals end in the next row of pairs; what is there must not reach it."""
    shape = Shape(batch=1, heads=1, key_heads=1, queries=13, keys=13, dim=5, value_dim=5, left=4, right=4)
    inputs = make_inputs(shape)
    want = relative_attention(**inputs, clip=4, backend="dense")
    for row, number in itertools.product((0, 6, 12), (torch.inf, torch.nan)):
        query = inputs["query"].clone()
        query[0, 0, row, 0] = number
        got = relative_attention(**{**inputs, "query": query}, clip=4, backend="dense")
        others = torch.arange(13) != row
        assert got[0, 0, row].isnan().all()
        assert torch.equal(got[0, 0, others], want[0, 0, others])


def test_one_step_of_decoding_is_a_few_operations():
    """Two products for plain attention and two for the tables; no mask, no labels, no copy of the keys."""
    shape = Shape(batch=2, heads=3, key_heads=3, queries=1, keys=40, dim=5, value_dim=5, left=16, right=16)
    inputs = make_inputs(shape)
    names = []

    class Names(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            if not any(alias.alias_info and not alias.alias_info.is_write for alias in function._schema.returns):
                names.append(function.__name__)  # those that return no view
            return function(*arguments, **(options or {}))

    with torch.no_grad(), Names():
        relative_attention(**inputs, clip=16, is_causal=True, query_offset=39, backend="dense")
    assert sum(name.startswith(("mm", "bmm", "baddbmm", "addmm")) for name in names) == 4
    assert len(names) <= 18, names
