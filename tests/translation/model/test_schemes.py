"""Position schemes against the papers' formulas written as loops."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from relattn import relative_attention
from relattn.translation.config import ModelConfig
from relattn.translation.model.layers import SelfAttention
from relattn.translation.model.schemes import SCHEMES, PlainAttention

EPSILON = torch.finfo(torch.float32).eps


def config(**changes: Any) -> ModelConfig:
    return ModelConfig(**{"dim": 6, "heads": 2, "clip": 2, "attention_dropout": 0.0, **changes})


@pytest.mark.parametrize("positions", ["sinusoidal", "relative+sinusoidal"])
@pytest.mark.parametrize("start", [0, 1, 3, 997])
def test_sinusoids_are_those_of_vaswani_et_al(positions, start):
    length, dim = 5, 6
    signal = SCHEMES[positions](config(positions=positions)).embed(torch.zeros(1, length, dim), start)
    for n in range(length):
        position = start + n
        for i in range(dim // 2):
            angle = position / 10_000 ** (2 * i / dim)
            # the angle is a float32: what it can be off by grows with it
            allowed = 4 * EPSILON * (1 + angle)
            assert abs(signal[0, n, 2 * i].item() - math.sin(angle)) < allowed
            assert abs(signal[0, n, 2 * i + 1].item() - math.cos(angle)) < allowed


@pytest.mark.parametrize("positions", ["relative", "none"])
def test_nothing_absolute_is_added_by(positions):
    x = torch.randn(2, 5, 6)
    scheme = SCHEMES[positions](config(positions=positions))
    assert torch.equal(scheme.embed(x, 0), x)
    assert torch.equal(scheme.embed(x, 40), x)
    assert not list(scheme.parameters())


def test_learned_positions_add_their_row():
    scheme = SCHEMES["learned"](config(positions="learned", max_positions=9))
    x = torch.randn(2, 4, 6)
    assert torch.equal(scheme.embed(x, 3), x + scheme.weight[3:7])


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("tables", ["both", "keys", "values"])
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("right", [None, 0, 1, 3])
def test_self_attention_is_that_of_shaw_et_al(is_causal, tables, per_head, right):
    """Equations 3 and 4, a pair at a time: z_i = Σ_j α_ij (x_j W^V + a^V_ij), e_ij = q_i · (k_j + a^K_ij) / √d_z."""
    torch.manual_seed(1)
    settings = config(relative_tables=tables, tables_per_head=per_head, clip_right=right)
    layer = SelfAttention(settings, SCHEMES["relative"](settings), is_causal=is_causal).double()
    left, right = settings.window
    n, lengths = 5, [5, 3]
    x = torch.randn(2, n, 6, dtype=torch.float64)
    actual = layer(x, torch.tensor(lengths))

    def row(table: Any, head: int, distance: int) -> torch.Tensor:
        if table is None:
            return torch.zeros(3, dtype=torch.float64)
        weight = table.weight[head] if per_head else table.weight
        return weight[max(-left, min(right, distance)) + left]

    query, key, value = (p(x).view(2, n, 2, 3) for p in (layer.query, layer.key, layer.value))
    for b, length in enumerate(lengths):
        for i in range(length):
            heads = []
            for h in range(2):
                seen = range(i + 1 if is_causal else length)
                scores = [query[b, i, h] @ (key[b, j, h] + row(layer.attention.rel_key, h, j - i)) for j in seen]
                weights = (torch.stack(scores) / math.sqrt(3)).softmax(0)
                parts = [w * (value[b, j, h] + row(layer.attention.rel_value, h, j - i)) for j, w in enumerate(weights)]
                heads.append(torch.stack(parts).sum(0))
            torch.testing.assert_close(actual[b, i], layer.out(torch.cat(heads)), rtol=1e-12, atol=1e-12)


def test_tables_are_a_layers_own_and_of_the_size_the_paper_says():
    scheme = SCHEMES["relative"](config(clip=3, clip_right=1))
    first, second = scheme.attention(), scheme.attention()
    assert first.rel_key.weight.shape == first.rel_value.weight.shape == (5, 3)
    assert not torch.equal(first.rel_key.weight, second.rel_key.weight)
    assert SCHEMES["relative"](config(clip=3, tables_per_head=True)).attention().rel_key.weight.shape == (2, 7, 3)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (2, 5), (5, 3)])
@pytest.mark.parametrize("lengths", [None, [1, 3]])
def test_plain_attention_is_the_operator_without_tables(is_causal, queries, keys, lengths):
    """By PyTorch's kernels, and where it drops by the library's, which then drop what the operator drops."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 2, n, 3, generator=generator) for n in (queries, keys, keys))
    attention = PlainAttention(config(attention_dropout=0.4))
    where = {"query_offset": 2, "is_causal": is_causal}
    where["key_lengths"] = None if lengths is None else torch.tensor(lengths)
    want = relative_attention(query, key, value, **where, backend="reference")
    torch.testing.assert_close(attention.eval()(query, key, value, **where), want, rtol=1e-5, atol=1e-6)
    dropped = []
    for attend in (attention.train(), partial(relative_attention, dropout_p=0.4, backend="native")):
        torch.manual_seed(1)
        dropped.append(attend(query, key, value, **where))
    assert torch.equal(*dropped)
    assert not torch.allclose(dropped[0], want)
