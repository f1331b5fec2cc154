"""The reference against loops over Python numbers, and its gradients against finite differences."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from relattn import relation_attention, relative_attention
from relattn.call import Call

from testing.covering import pairwise
from testing.numerics import Shape, make_inputs

HEADS, KEY_HEADS, DIM, VALUE_DIM = 4, 2, 3, 2


def by_loops(inputs, label, may_attend, scale):
    """Return output and log-sum-exp by the paper's equations (3) and (4), with all terms of the operators.

    `label` and `may_attend` are functions of b, h, i, j; a label of −1 stands for no relative term.
    """
    q, k, v = (inputs[name].tolist() for name in ("query", "key", "value"))
    r = inputs.get("rel_query", inputs["query"])
    batch, queries, keys = len(q), len(q[0][0]), len(k[0][0])

    def table_of(name, dim):
        """Return (heads, labels, dim); zeros if there is no such table."""
        x = inputs.get(name)
        x = torch.zeros(16, dim) if x is None else x[..., None] if name == "rel_bias" else x
        return x.expand(HEADS, *x.shape[-2:]).tolist()

    a_key, a_query = table_of("rel_key", r.shape[3]), table_of("pos_query", DIM)
    a_value, a_bias = table_of("rel_value", VALUE_DIM), table_of("rel_bias", 1)
    bias = inputs.get("bias", torch.zeros(())).expand(batch, HEADS, queries, keys).tolist()
    r, z = r.tolist(), torch.zeros(batch, HEADS, queries, VALUE_DIM, dtype=torch.float64)
    log_sum = torch.full(z.shape[:-1], -math.inf, dtype=torch.float64)
    for b, h, i in itertools.product(range(batch), range(HEADS), range(queries)):
        group = h // (HEADS // KEY_HEADS)
        weights, rows = {}, {}
        for j in range(keys):
            if may_attend(b, h, i, j) and bias[b][h][i][j] > -math.inf:
                row = label(b, h, i, j)
                e = scale * sum(q[b][h][i][c] * k[b][group][j][c] for c in range(DIM)) + bias[b][h][i][j]
                if row >= 0:
                    e += scale * sum(x * a for x, a in zip(r[b][h][i], a_key[h][row], strict=True))
                    e += scale * sum(x * a for x, a in zip(k[b][group][j], a_query[h][row], strict=True))
                    e += a_bias[h][row][0]
                weights[j], rows[j] = math.exp(e), a_value[h][row] if row >= 0 else [0.0] * VALUE_DIM
        if weights:
            total = sum(weights.values())
            log_sum[b, h, i] = math.log(total)
            for c in range(VALUE_DIM):
                z[b, h, i, c] = sum(w / total * (v[b][group][j][c] + rows[j][c]) for j, w in weights.items())
    return z, log_sum


def assert_equal_to_loops(operator, inputs, label, may_attend, **options):
    got, lse = operator(**inputs, **options, backend="reference", return_lse=True)
    scale = options.get("scale")
    z, log_sum = by_loops(inputs, label, may_attend, DIM**-0.5 if scale is None else scale)
    torch.testing.assert_close(got, z, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(lse, log_sum, rtol=1e-13, atol=1e-13)


@settings(max_examples=60)
@given(data=st.data(), clip=st.tuples(st.integers(0, 3), st.integers(0, 3) | st.just(9)), is_causal=st.booleans())
def test_relative_attention_equals_loops(data, clip, is_causal):
    queries, keys, (left, right) = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5)), clip
    shape = Shape(2, HEADS, KEY_HEADS, queries, keys, DIM, VALUE_DIM, left, right)
    inputs = make_inputs(shape, rel_dim=data.draw(st.sampled_from([None, 4])))
    inputs["pos_query"] = torch.randn(shape.labels, DIM, dtype=torch.float64)
    scale = data.draw(st.sampled_from([0.5, 0.0]))
    if scale > 0:
        inputs["rel_bias"] = torch.randn(shape.labels, dtype=torch.float64)
    beyond = data.draw(st.sampled_from(["clip", "zero"]))
    starts, key_lengths, query_lengths = (
        data.draw(st.lists(st.integers(*limits), min_size=2, max_size=2))
        for limits in ((-4, 6), (0, keys), (0, queries))
    )

    side = st.none() | st.integers(0, 4)
    window = data.draw(st.none() | st.tuples(side, side))
    chunks = st.tuples(st.integers(1, 3), side) | st.tuples(st.integers(1, 3), side, side)
    chunk = data.draw(st.none() | chunks) if window is None else None

    def label(b, h, i, j):
        distance = j - (starts[b] + i)
        is_inside = -left <= distance <= right
        return min(max(distance, -left), right) + left if is_inside or beyond == "clip" else -1

    def may_attend(b, h, i, j):
        position = starts[b] + i
        is_valid = j < key_lengths[b] and i < query_lengths[b]
        if window is not None:
            is_valid &= all(
                limit is None or x <= limit for x, limit in zip((position - j, j - position), window, strict=True)
            )
        if chunk is not None:
            size, before, after = (*chunk, 0)[:3]
            ahead = j // size - position // size
            is_valid &= (before is None or ahead >= -before) and (after is None or ahead <= after)
        return is_valid and (j <= position or not is_causal)

    lengths = {"key_lengths": torch.tensor(key_lengths), "query_lengths": torch.tensor(query_lengths)}
    options = {"clip": clip, "beyond": beyond, "is_causal": is_causal, "query_offset": torch.tensor(starts), **lengths}
    options |= {"window": window, "chunk": chunk}
    assert_equal_to_loops(relative_attention, inputs, label, may_attend, scale=scale, **options)

    # rows of the tables that no pair reaches are cut off
    names = ("rel_query", "rel_bias", "relations", "check", "lengths", "key_lengths", "query_lengths", "mask", "bias")
    defaults = dict.fromkeys(names)
    options |= {"query_offset": torch.tensor(starts), "dropout_p": 0.0, "scale": None}
    call = Call.from_arguments(**defaults | options | inputs)
    assert call.rel_key.shape[0] == call.rel_value.shape[0] == call.left + call.right + 1
    assert call.left <= max(0, queries - 1 + max(starts))
    assert call.right <= (0 if is_causal else max(0, keys - 1 - min(starts)))


def test_defaults():
    """Queries are the last positions, and the scale is dim ** -0.5."""
    inputs = make_inputs(Shape(2, HEADS, KEY_HEADS, 3, 5, DIM, VALUE_DIM, left=1, right=2))
    assert_equal_to_loops(
        relative_attention, inputs, lambda b, h, i, j: min(max(j - i - 2, -1), 2) + 1, lambda *pair: True, clip=(1, 2)
    )


@pairwise(
    tables=["both", "keys", "values", "neither"],
    rel_dim=[None, 4],
    per_head=[False, True],
    bias_per_head=[False, True],
    scale=[None, -0.3],
)
def test_relation_attention_equals_loops(tables, rel_dim, per_head, bias_per_head, scale):
    """With biases per label and per pair; some are −inf, and one query has nothing to attend to."""
    shape = Shape(2, HEADS, KEY_HEADS, 3, 5, DIM, VALUE_DIM, left=1, right=2)
    inputs = make_inputs(shape, tables=tables, rel_dim=rel_dim, per_head=per_head)
    inputs["pos_query"] = torch.randn(*((HEADS,) if per_head else ()), 4, DIM, dtype=torch.float64)
    inputs["rel_bias"] = torch.randn(*((HEADS,) if bias_per_head else ()), 4, dtype=torch.float64)
    inputs["bias"] = torch.randn(2, 1, 3, 5, dtype=torch.float64).masked_fill(torch.rand(2, 1, 3, 5) < 0.2, -torch.inf)
    inputs["bias"][0, 0, 1] = -torch.inf
    relations, mask = torch.randint(-1, 4, (2, HEADS, 3, 5)), torch.rand(2, HEADS, 3, 5) < 0.7
    options = {"relations": relations, "mask": mask, "scale": scale}
    label, may_attend = (lambda *pair: int(relations[pair])), (lambda *pair: bool(mask[pair]))
    assert_equal_to_loops(relation_attention, inputs, label, may_attend, **options)


@pytest.mark.parametrize("per_head", [False, True])
def test_gradients_equal_finite_differences(per_head):
    shape = Shape(2, 2, 1, 3, 5, DIM, VALUE_DIM, left=1, right=2)
    made = make_inputs(shape, per_head=per_head, rel_dim=2 if per_head else None)
    made["rel_bias"] = torch.randn(*((2,) if per_head else ()), 4, dtype=torch.float64)
    made["bias"] = torch.randn(2, 1, 3, 5, dtype=torch.float64)
    inputs = {name: x.requires_grad_() for name, x in made.items()}
    options = {"is_causal": True, "key_lengths": torch.tensor([5, 3]), "query_offset": torch.tensor([2, 0])}

    def attend(*tensors):
        named = dict(zip(inputs, tensors, strict=True))
        return relative_attention(**named, clip=(1, 2), **options, backend="reference")

    assert torch.autograd.gradcheck(attend, tuple(inputs.values()))
