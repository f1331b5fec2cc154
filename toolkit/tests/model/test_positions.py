"""Position schemes, compared with loops over the formulas of the papers, outputs and gradients.

The loops use the parameters of our layer, so that the gradients of the input and of each parameter can be compared.
"""

import math
from bisect import bisect_right
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from relattn import relative_attention
from relattn_mt.config import SCHEMES, ModelConfig
from relattn_mt.model.attention import PlainAttention
from relattn_mt.model.positions.stack import StackPositions
from torch import Tensor, nn

from tests.support.covering import combinations, pairwise
from tests.support.numerics import error

EPSILON = torch.finfo(torch.float32).eps
DIM, HEADS, HEAD_DIM = 12, 3, 4


def make_scheme(
    positions: str = "relative", *, is_causal: bool, dropout: float = 0.0, **options: Any
) -> StackPositions:
    if "clip" in SCHEMES[positions].options:
        options = {"clip": 2, **options}
    config = ModelConfig(dim=DIM, heads=HEADS, attention_dropout=dropout).with_positions(positions, **options)
    return StackPositions(config, is_causal=is_causal)


def random_tensor(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def randomize(module: nn.Module) -> nn.Module:
    """Convert a module to float64, with random values in all parameters."""
    for seed, parameter in enumerate(module.parameters()):
        parameter.data = 0.5 * random_tensor(*parameter.shape, seed=seed)
    return module


@pytest.mark.parametrize("positions", SCHEMES)
@pytest.mark.parametrize("start", [0, 3, 997])
def test_what_a_scheme_adds_to_embeddings(positions, start):
    """Sinusoids of the paper, rows of a table, or nothing."""
    scheme, x = randomize(make_scheme(positions, is_causal=False)), random_tensor(2, 5, DIM)
    want = allowed = torch.zeros(5, DIM, dtype=torch.float64)
    if "learned" in positions or positions == "marian":
        want = scheme.signal.weight[start : start + 5]
    if "sinusoidal" in positions:
        dims = torch.arange(0, DIM, 2, dtype=torch.float64)
        angle = torch.arange(start, start + 5)[:, None] / 10_000 ** (dims / DIM)
        want = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
        allowed = 4 * EPSILON * (1 + angle.repeat_interleave(2, 1))  # the error of a float32 angle grows with it
    assert ((scheme.embed(x, start) - (x + want)).abs() <= allowed).all()


@pairwise(is_causal=[False, True], sizes=[(5, 5), (2, 5), (5, 3)], lengths=[None, [1, 3]])
def test_plain_attention_equals_the_operator_without_tables(is_causal, sizes, lengths):
    """In training on a CPU, it runs on the operator's kernels and drops the same pairs."""
    query, key, value = (
        random_tensor(2, 2, n, 3, seed=i).float() for i, n in enumerate((sizes[0], sizes[1], sizes[1]))
    )
    attention = PlainAttention(replace(make_scheme(is_causal=False).config, attention_dropout=0.4))
    options = {"query_offset": 2, "is_causal": is_causal, "key_lengths": lengths and torch.tensor(lengths)}
    want = relative_attention(query, key, value, **options, backend="reference")
    torch.testing.assert_close(attention.eval()(query, key, value, **options), want, rtol=1e-5, atol=1e-6)
    attention.train().dropout = 0.0
    with patch.object(F, "scaled_dot_product_attention", side_effect=AssertionError):
        torch.testing.assert_close(attention(query, key, value, **options), want, rtol=1e-5, atol=1e-6)
    attention.dropout, dropped = 0.4, []
    for attend in (attention, partial(relative_attention, dropout_p=0.4, backend="native")):
        torch.manual_seed(1)
        dropped.append(attend(query, key, value, **options))
    assert torch.equal(*dropped)
    assert not torch.allclose(dropped[0], want)


class Loops:
    """Attention by its formula, one pair of positions at a time: z_i = Σ_j α_ij value_ij, α_i = softmax_j score_ij."""

    def __init__(self, layer: nn.Module, scheme: StackPositions) -> None:
        self.layer, self.scheme, self.config = layer, scheme, scheme.config

    def score(self, head: int, i: int, j: int, query: Tensor, key: Tensor) -> Tensor:
        return query @ key / math.sqrt(HEAD_DIM)

    def value(self, head: int, i: int, j: int, value: Tensor) -> Tensor:
        return value

    def row(self, x: Tensor) -> Tensor:
        """Return the output for one sequence, (length, dim)."""
        query, key, value = (
            p(x).unflatten(-1, (HEADS, -1)) for p in (self.layer.query, self.layer.key, self.layer.value)
        )
        outputs = []
        for i in range(len(x)):
            heads = []
            for h in range(HEADS):
                visible = range(i + 1 if self.scheme.is_causal else len(x))
                scores = torch.stack([self.score(h, i, j, query[i, h], key[j, h]) for j in visible])
                values = torch.stack([self.value(h, i, j, value[j, h]) for j in visible])
                heads.append(scores.softmax(0) @ values)
            outputs.append(self.layer.out(torch.cat(heads)))
        return torch.stack(outputs)

    def __call__(self, x: Tensor, lengths: list[int]) -> Tensor:
        rows = [self.row(row[:length]) for row, length in zip(x, lengths, strict=True)]
        return torch.stack([F.pad(row, (0, 0, 0, x.shape[1] - len(row))) for row in rows])


class Shaw(Loops):
    """Equations 3 and 4: z_i = Σ_j α_ij (x_j W^V + a^V_ij), e_ij = q_i · (k_j + a^K_ij) / √d_z."""

    def vector(self, table: Any, head: int, distance: int) -> Tensor | float:
        left, right = self.config.clipping_range
        if table is None or (self.config.beyond == "zero" and not -left <= distance <= right):
            return 0.0
        weight = table.weight[head] if self.config.tables_per_head else table.weight
        return weight[max(-left, min(right, distance)) + left]

    def score(self, head: int, i: int, j: int, query: Tensor, key: Tensor) -> Tensor:
        return query @ (key + self.vector(self.layer.attention.rel_key, head, j - i)) / math.sqrt(HEAD_DIM)

    def value(self, head: int, i: int, j: int, value: Tensor) -> Tensor:
        return value + self.vector(self.layer.attention.rel_value, head, j - i)


class Dai(Loops):
    """Transformer-XL, section 3.3: the four terms (a) to (d) of A^rel, over √d as all scores are."""

    def score(self, head: int, i: int, j: int, query: Tensor, key: Tensor) -> Tensor:
        attention = self.layer.attention
        angles = [(i - j) / 10_000 ** (2 * m / DIM) for m in range(DIM // 2)]
        R = torch.tensor([f(angle) for angle in angles for f in (math.sin, math.cos)], dtype=torch.float64)
        far = (attention.distance.weight @ R)[head * HEAD_DIM : (head + 1) * HEAD_DIM]
        u, v = attention.u[head, 0], attention.v[head, 0]
        return (query @ key + query @ far + u @ key + v @ far) / math.sqrt(HEAD_DIM)


class Raffel(Loops):
    """T5, section 2.1. The buckets are those of transformers: each starts at one of these distances."""

    ENCODER = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91)
    DECODER = (*range(16), 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113)

    def bucket(self, distance: int) -> int:
        starts = self.DECODER if self.scheme.is_causal else self.ENCODER
        return bisect_right(starts, abs(distance)) - 1 + 16 * (distance > 0)

    def score(self, head: int, i: int, j: int, query: Tensor, key: Tensor) -> Tensor:
        return query @ key / math.sqrt(HEAD_DIM) + self.scheme.bias.weight[self.bucket(j - i), head]


class Press(Loops):
    """ALiBi, section 3: "the geometric sequence that starts at 2^(−8/n) and uses that same value as its ratio"."""

    def score(self, head: int, i: int, j: int, query: Tensor, key: Tensor) -> Tensor:
        slope = (2 ** (-8 / HEADS)) ** (head + 1)
        return query @ key / math.sqrt(HEAD_DIM) - slope * abs(i - j)


class Su(Loops):
    """RoPE, equation 34: the pair of dimensions (m, m + d/2) is rotated by p · 10,000^(−2m / d)."""

    @staticmethod
    def rotation(position: int) -> Tensor:
        half, matrix = HEAD_DIM // 2, torch.zeros(HEAD_DIM, HEAD_DIM, dtype=torch.float64)
        for m in range(half):
            angle = position * 10_000 ** (-2 * m / HEAD_DIM)
            matrix[m, m] = matrix[m + half, m + half] = math.cos(angle)
            matrix[m, m + half], matrix[m + half, m] = -math.sin(angle), math.sin(angle)
        return matrix

    def score(self, head: int, i: int, j: int, query: Tensor, key: Tensor) -> Tensor:
        return (self.rotation(i) @ query) @ (self.rotation(j) @ key) / math.sqrt(HEAD_DIM)


EXACT = torch.finfo(torch.float64).eps
ANGLES = 5 * EPSILON  # float32 angles, whose rounding error grows with the distance
REFERENCES: dict[str, tuple[type[Loops], float]] = {  # and the unit of rounding
    **dict.fromkeys(("none", "sinusoidal", "learned", "marian"), (Loops, EXACT)),
    **dict.fromkeys(("relative", "relative+sinusoidal", "relative+learned"), (Shaw, EXACT)),
    "xl": (Dai, ANGLES),
    "t5": (Raffel, EXACT),
    "alibi": (Press, ANGLES),
    "rope": (Su, ANGLES),
}
VARIANTS = [
    *({"positions": name} for name in SCHEMES),
    *combinations(
        relative_tables=("both", "keys", "values"),
        beyond=("clip", "zero"),
        clip_right=(0, 1, 3),
        tables_per_head=(False, True),
    ),
]


@pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_token_mixer_equals_its_reference(variant, is_causal):
    """If the scheme has parameters, such as the biases of T5, two layers share them, and their outputs are added."""
    scheme = randomize(make_scheme(**variant, is_causal=is_causal))
    layers = [randomize(scheme.token_mixer()) for _ in range(1 + any(True for _ in scheme.parameters()))]
    reference, rounding = REFERENCES[scheme.config.positions]
    # In a decoder, padding is to the right, where no query looks, so the layer is not given lengths.
    lengths = [5] if is_causal else [5, 1, 3]
    x = random_tensor(len(lengths), 5, DIM, seed=20).requires_grad_()
    valid = (torch.arange(5) < torch.tensor(lengths)[:, None])[..., None]
    leaves = {"x": x, **dict(scheme.named_parameters())}
    leaves |= {f"{i} {name}": x for i, layer in enumerate(layers) for name, x in layer.named_parameters()}
    leaves = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    results = []
    for run in (lambda layer: layer(x, None if is_causal else torch.tensor(lengths)),
                lambda layer: reference(layer, scheme)(x, lengths)):  # fmt: skip
        output = sum(map(run, layers)).where(valid, 0.0)
        weights = random_tensor(*output.shape, seed=21)
        gradients = torch.autograd.grad(output, list(leaves.values()), weights, materialize_grads=True)
        results.append([output.detach(), *gradients])
    allowed = 16 * rounding * max(float(x.abs().max()) for x in results[1])
    wrong = {name: off for name, *x in zip(["output", *leaves], *results, strict=True) if (off := error(*x)) > allowed}
    assert not wrong, f"off by {wrong}, allowed {allowed}"


def test_an_ssru_equals_its_equations():
    layer = randomize(make_scheme("t5", is_causal=True, decoder_mixer="ssru").token_mixer())
    x, state, expected = random_tensor(2, 5, DIM), torch.zeros(2, DIM, dtype=torch.float64), []
    for each in x.unbind(1):
        forget = (each @ layer.forget.weight.T + layer.forget.bias).sigmoid()
        state = forget * state + (1 - forget) * (each @ layer.value.weight.T)
        expected.append(state.clamp(min=0))
    torch.testing.assert_close(layer(x), torch.stack(expected, 1))
    first, cache = layer(x[:, :2], cache=layer.empty_cache(2))
    rest, cache = layer(x[:, 2:], cache=cache)
    assert cache.length == 5
    torch.testing.assert_close(torch.cat([first, rest], 1), torch.stack(expected, 1))


@pytest.mark.parametrize("is_causal", [False, True])
def test_buckets_at_any_distance(is_causal):
    scheme = make_scheme("t5", is_causal=is_causal)
    distances = torch.arange(-3000, 1 if is_causal else 3001)
    expected = [Raffel(nn.Module(), scheme).bucket(distance) for distance in distances.tolist()]
    assert scheme.bias.bucket(distances).tolist() == expected


@pytest.mark.parametrize("positions", SCHEMES)
def test_attention_dropout_acts_in_training_only(positions):
    x, outputs = random_tensor(2, 9, DIM), {}
    for dropout in (0.0, 0.5):
        scheme = randomize(make_scheme(positions, is_causal=True, dropout=dropout))
        layer = randomize(scheme.token_mixer())
        outputs[dropout] = layer.eval()(x), layer.train()(x)
    assert torch.equal(outputs[0.0][0], outputs[0.5][0])
    torch.testing.assert_close(*outputs[0.0], rtol=1e-12, atol=1e-12)
    assert not torch.equal(*outputs[0.5])
