"""The reference against loops over plain numbers, and against finite differences."""

import itertools
import math

import pytest
import torch

from relattn import relation_attention, relative_attention
from tests.support.numerics import Shape, make_inputs

TINY = Shape(batch=2, heads=4, key_heads=2, queries=3, keys=5, dim=3, value_dim=2, left=1, right=2)


def by_loops(inputs, label, sees, scale):
    """Equations (3) and (4) of the paper in Python's own numbers, with a `rel_query` for its second x W^Q if there is
    one. `label` and `sees` are functions of b, h, i, j."""
    q, k, v = (inputs[name].tolist() for name in ("query", "key", "value"))
    r = inputs.get("rel_query", inputs["query"]).tolist()
    a_key, a_value = (inputs[name].tolist() for name in ("rel_key", "rel_value"))
    group = TINY.heads // TINY.key_heads
    z = torch.zeros(TINY.batch, TINY.heads, TINY.queries, TINY.value_dim, dtype=torch.float64)
    log_sum = torch.full(z.shape[:-1], -math.inf, dtype=torch.float64)
    for b, h, i in itertools.product(range(TINY.batch), range(TINY.heads), range(TINY.queries)):
        weights = {}
        for j in range(TINY.keys):
            if not sees(b, h, i, j):
                continue
            row = label(b, h, i, j)
            e = sum(q[b][h][i][c] * k[b][h // group][j][c] for c in range(TINY.dim))
            e += sum(x * a for x, a in zip(r[b][h][i], a_key[row], strict=True)) if row >= 0 else 0.0
            weights[j] = math.exp(scale * e)
        if not weights:
            continue
        total = sum(weights.values())
        log_sum[b, h, i] = math.log(total)
        for c in range(TINY.value_dim):
            z[b, h, i, c] = sum(
                weight
                / total
                * (v[b][h // group][j][c] + (a_value[row][c] if (row := label(b, h, i, j)) >= 0 else 0.0))
                for j, weight in weights.items()
            )
    return z, log_sum


@pytest.mark.parametrize("beyond", ["clip", "zero"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rel_dim", [None, 4])
def test_reference_is_the_loops(beyond, causal, rel_dim):
    inputs = make_inputs(TINY, rel_dim=rel_dim)
    offsets, lengths = [2, -1], [4, 5]

    def label(b, h, i, j):
        distance = j - (offsets[b] + i)
        inside = -TINY.left <= distance <= TINY.right
        return min(max(distance, -TINY.left), TINY.right) + TINY.left if inside or beyond == "clip" else -1

    def sees(b, h, i, j):
        position = offsets[b] + i
        return j < lengths[b] and (j <= position or not causal)

    z, log_sum = by_loops(inputs, label, sees, scale=0.5)
    got, lse = relative_attention(
        **inputs,
        clip=(TINY.left, TINY.right),
        beyond=beyond,
        is_causal=causal,
        query_offset=torch.tensor(offsets),
        key_lengths=torch.tensor(lengths),
        scale=0.5,
        backend="reference",
        return_lse=True,
    )
    torch.testing.assert_close(got, z, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(lse, log_sum, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("rel_dim", [None, 4])
def test_reference_is_the_loops_for_any_relation(rel_dim):
    inputs = make_inputs(TINY, rel_dim=rel_dim)
    relations = torch.randint(-1, TINY.labels, (2, 4, 3, 5), generator=torch.Generator().manual_seed(0))
    mask = torch.rand(2, 4, 3, 5, generator=torch.Generator().manual_seed(1)) < 0.5
    z, log_sum = by_loops(
        inputs, lambda *pair: int(relations[pair]), lambda *pair: bool(mask[pair]), scale=TINY.dim**-0.5
    )
    got, lse = relation_attention(**inputs, relations=relations, mask=mask, backend="reference", return_lse=True)
    torch.testing.assert_close(got, z, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(lse, log_sum, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("per_head", [False, True])
def test_gradients_are_finite_differences(per_head):
    made = make_inputs(TINY, per_head=per_head, rel_dim=2 if per_head else None)
    inputs = {name: x.requires_grad_() for name, x in made.items()}
    lengths, offset = torch.tensor([5, 3]), torch.tensor([2, 0])

    def attend(*tensors):
        options = {"is_causal": True, "key_lengths": lengths, "query_offset": offset}
        return relative_attention(
            **dict(zip(inputs, tensors, strict=True)), clip=(TINY.left, TINY.right), **options, backend="reference"
        )

    assert torch.autograd.gradcheck(attend, tuple(inputs.values()))
