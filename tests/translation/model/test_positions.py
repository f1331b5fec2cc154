"""Position schemes, compared with loops over the formulas of the papers and with classes of transformers.

The reference uses the parameters of our layer, so that gradients are compared too: those of the input and of each
parameter of the layer and its scheme.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.bloom import modeling_bloom as bloom
from transformers.models.llama import modeling_llama as llama
from transformers.models.mpt import modeling_mpt as mpt
from transformers.models.t5 import modeling_t5 as t5
from transformers.models.vits import modeling_vits as vits
from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer as conformer

from relattn import relative_attention
from relattn.translation.config import OPTIONS, ModelConfig, Positions
from relattn.translation.model.attention import PlainAttention
from relattn.translation.model.positions.base import PositionScheme
from relattn.translation.model.positions.schemes import SCHEMES
from tests.support.numerics import error

EPSILON = torch.finfo(torch.float32).eps


def config(positions: Positions = "relative", **options: Any) -> ModelConfig:
    if "clip" in OPTIONS.get(positions, {}):
        options = {"clip": 2, **options}
    return ModelConfig(dim=6, heads=2, attention_dropout=0.0).with_positions(positions, **options)


@pytest.mark.parametrize("positions", ["sinusoidal", "relative+sinusoidal"])
@pytest.mark.parametrize("start", [0, 1, 3, 997])
def test_sinusoids_match_the_paper(positions, start):
    length, dim = 5, 6
    signal = SCHEMES[positions](config(positions), is_causal=False).embed(torch.zeros(1, length, dim), start)
    for n in range(length):
        position = start + n
        for i in range(dim // 2):
            angle = position / 10_000 ** (2 * i / dim)
            # the rounding error of the float32 angle grows with the angle
            allowed = 4 * EPSILON * (1 + angle)
            assert abs(signal[0, n, 2 * i].item() - math.sin(angle)) < allowed
            assert abs(signal[0, n, 2 * i + 1].item() - math.cos(angle)) < allowed


@pytest.mark.parametrize("positions", ["relative", "none"])
def test_these_schemes_do_not_change_embeddings(positions):
    x = torch.randn(2, 5, 6)
    scheme = SCHEMES[positions](config(positions), is_causal=False)
    assert torch.equal(scheme.embed(x, 0), x)
    assert torch.equal(scheme.embed(x, 40), x)
    assert not list(scheme.parameters())


def test_learned_positions_add_their_rows():
    scheme = SCHEMES["learned"](config("learned", max_positions=9), is_causal=False)
    x = torch.randn(2, 4, 6)
    assert torch.equal(scheme.embed(x, 3), x + scheme.weight[3:7])


def test_each_layer_has_its_own_tables():
    scheme = SCHEMES["relative"](config(clip=3, clip_right=1), is_causal=False)
    first, second = scheme.attention(), scheme.attention()
    assert first.rel_key.weight.shape == first.rel_value.weight.shape == (5, 3)
    assert not torch.equal(first.rel_key.weight, second.rel_key.weight)
    scheme = SCHEMES["relative"](config(clip=3, tables_per_head=True), is_causal=False)
    assert scheme.attention().rel_key.weight.shape == (2, 7, 3)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (2, 5), (5, 3)])
@pytest.mark.parametrize("lengths", [None, [1, 3]])
def test_plain_attention_equals_the_operator_without_tables(is_causal, queries, keys, lengths):
    """Without dropout it runs on PyTorch's kernels, with dropout on ours, which drop the same pairs as the operator."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 2, n, 3, generator=generator) for n in (queries, keys, keys))
    attention = PlainAttention(replace(config("none"), attention_dropout=0.4))
    offsets = {"query_offset": 2, "is_causal": is_causal}
    offsets["key_lengths"] = None if lengths is None else torch.tensor(lengths)
    want = relative_attention(query, key, value, **offsets, backend="reference")
    torch.testing.assert_close(attention.eval()(query, key, value, **offsets), want, rtol=1e-5, atol=1e-6)
    dropped = []
    for attend in (attention.train(), partial(relative_attention, dropout_p=0.4, backend="native")):
        torch.manual_seed(1)
        dropped.append(attend(query, key, value, **offsets))
    assert torch.equal(*dropped)
    assert not torch.allclose(dropped[0], want)


@pytest.mark.parametrize("is_causal", [False, True])
def test_plain_attention_accepts_the_lengths_of_self_attention(is_causal):
    """`lengths` gives the same outputs as `key_lengths` and `query_lengths`, with and without dropout."""
    query, key, value = (torch.randn(2, 2, 5, 3) for _ in range(3))
    lengths = torch.tensor([2, 5])
    valid = (torch.arange(5) < lengths[:, None])[:, None, :, None]
    attention = PlainAttention(replace(config("none"), attention_dropout=0.4))
    for attend in (attention.eval(), attention.train()):
        got = []
        for padding in ({"lengths": lengths}, {"key_lengths": lengths, "query_lengths": lengths}, {}):
            torch.manual_seed(1)
            got.append(attend(query, key, value, is_causal=is_causal, **padding).where(valid, 0.0))
        assert torch.equal(got[0], got[1])
        assert torch.equal(got[0], got[2]) == is_causal  # valid queries then see no padding


DIM, HEADS, HEAD_DIM = 12, 3, 4
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"positions": name} for name in SCHEMES},
    **{
        f"relative, {tables}, {beyond}, 2 and {right}{', a head' * per_head}": {
            **{"relative_tables": tables, "beyond": beyond, "clip_right": right, "tables_per_head": per_head}
        }
        for tables in ("both", "keys", "values")
        for beyond in ("clip", "zero")
        for right in (0, 1, 3)
        for per_head in (False, True)
    },
    "zero": {"beyond": "zero"},
    "cnn, 1 wide": {"positions": "cnn", "kernel_size": 1},
    "cnn, 7 wide": {"positions": "cnn", "kernel_size": 7},
}


def random_tensor(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make_scheme(options: dict[str, Any], *, is_causal: bool, dropout: float = 0.0) -> PositionScheme:
    options = {"positions": "relative", **options}
    if options["positions"].startswith("relative"):
        options = {"clip": 2, **options}
    config = ModelConfig(dim=DIM, heads=HEADS, attention_dropout=dropout).with_positions(**options)
    return SCHEMES[config.positions](config, is_causal=is_causal)


def randomize(module: nn.Module) -> nn.Module:
    """Convert a module to float64, with random values in all parameters."""
    for seed, parameter in enumerate(module.parameters()):
        parameter.data = 0.5 * random_tensor(*parameter.shape, seed=seed)
    return module


def with_parameters(module: nn.Module, **parameters: Any) -> nn.Module:
    """Replace parameters or linear maps of a module. The new ones may be views of ours, or computed from ours."""
    for name, parameter in parameters.items():
        delattr(module, name)
        setattr(module, name, parameter)
    return module.double().eval()


def split_heads(x: Tensor) -> Tensor:
    """Reshape (batch, n, heads · head_dim) to (batch, heads, n, head_dim)."""
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def visibility(lengths: list[int], is_causal: bool) -> Tensor:
    """Return (batch, 1, n, n): true if a query sees a key."""
    n = max(lengths)
    keys = torch.arange(n) < torch.tensor(lengths)[:, None]
    mask = keys[:, None, None].expand(-1, 1, n, n)
    return mask.tril() if is_causal else mask


def additive_mask(mask: Tensor) -> Tensor:
    """Return a mask in the form that transformers uses: a number to add to scores."""
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, torch.finfo(torch.float64).min)


class Pairs:
    """Attention by its formula, one pair of positions at a time: z_i = Σ_j α_ij value_ij, α_i = softmax_j score_ij."""

    def __init__(self, layer: nn.Module, scheme: PositionScheme) -> None:
        self.layer, self.config = layer, scheme.config

    def score(self, head: int, i: int, j: int, query: Tensor, key: Tensor) -> Tensor:
        return query @ key / math.sqrt(HEAD_DIM)

    def value(self, head: int, i: int, j: int, value: Tensor) -> Tensor:
        return value

    def __call__(self, x: Tensor, lengths: list[int], is_causal: bool) -> Tensor:
        layer = self.layer
        query, key, value = (split_heads(p(x)) for p in (layer.query, layer.key, layer.value))
        rows = torch.zeros_like(x)
        for b, length in enumerate(lengths):
            for i in range(length):
                heads = []
                for h in range(HEADS):
                    visible_keys = range(i + 1 if is_causal else length)
                    scores = torch.stack([self.score(h, i, j, query[b, h, i], key[b, h, j]) for j in visible_keys])
                    values = torch.stack([self.value(h, i, j, value[b, h, j]) for j in visible_keys])
                    heads.append(scores.softmax(0) @ values)
                rows = rows.index_put((torch.tensor(b), torch.tensor(i)), layer.out(torch.cat(heads)))
        return rows


class Shaw(Pairs):
    """Equations 3 and 4: z_i = Σ_j α_ij (x_j W^V + a^V_ij), e_ij = q_i · (k_j + a^K_ij) / √d_z."""

    def row(self, table: Any, head: int, distance: int) -> Tensor | float:
        left, right = self.config.clipping_range
        if table is None or (self.config.beyond == "zero" and not -left <= distance <= right):
            return 0.0
        weight = table.weight[head] if self.config.tables_per_head else table.weight
        return weight[max(-left, min(right, distance)) + left]

    def score(self, head: int, i: int, j: int, query: Tensor, key: Tensor) -> Tensor:
        return query @ (key + self.row(self.layer.attention.rel_key, head, j - i)) / math.sqrt(HEAD_DIM)

    def value(self, head: int, i: int, j: int, value: Tensor) -> Tensor:
        return value + self.row(self.layer.attention.rel_value, head, j - i)


class Dai(Pairs):
    """Transformer-XL, section 3.3: the four terms (a) to (d) of A^rel, over √d as all scores are."""

    def score(self, head: int, i: int, j: int, query: Tensor, key: Tensor) -> Tensor:
        attention = self.layer.attention
        angles = [(i - j) / 10_000 ** (2 * m / DIM) for m in range(DIM // 2)]
        R = torch.tensor([f(angle) for angle in angles for f in (math.sin, math.cos)], dtype=torch.float64)
        far = (attention.distance.weight @ R)[head * HEAD_DIM : (head + 1) * HEAD_DIM]
        u, v = attention.u[head, 0], attention.v[head, 0]
        return (query @ key + query @ far + u @ key + v @ far) / math.sqrt(HEAD_DIM)


class Press(Pairs):
    """ALiBi, section 3: "the geometric sequence that starts at 2^(−8/n) and uses that same value as its ratio"."""

    def score(self, head: int, i: int, j: int, query: Tensor, key: Tensor) -> Tensor:
        slope = (2 ** (-8 / HEADS)) ** (head + 1)
        return query @ key / math.sqrt(HEAD_DIM) - slope * abs(i - j)


class Su(Pairs):
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


class SuWithValues(Su):
    """Values are rotated as keys, and outputs are rotated back by the position of the query."""

    def value(self, head: int, i: int, j: int, value: Tensor) -> Tensor:
        return torch.linalg.inv(self.rotation(i)) @ self.rotation(j) @ value


Attend = Callable[[Tensor, list[int], bool], Tensor]


def vits_reference(layer: nn.Module, scheme: PositionScheme) -> Attend:
    settings = {"hidden_size": DIM, "num_attention_heads": HEADS, "window_size": 2, "attention_dropout": 0.0}
    module = with_parameters(
        vits.VitsAttention(vits.VitsConfig(**settings)),
        **{"q_proj": layer.query, "k_proj": layer.key, "v_proj": layer.value, "out_proj": layer.out},
        emb_rel_k=layer.attention.rel_key.weight[None],
        emb_rel_v=layer.attention.rel_value.weight[None],
    )
    return lambda x, lengths, is_causal: module(x, attention_mask=additive_mask(visibility(lengths, is_causal)))[0]


def conformer_reference(layer: nn.Module, scheme: PositionScheme) -> Attend:
    config = conformer.Wav2Vec2ConformerConfig(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        attention_dropout=0.0,
        position_embeddings_type="relative",
        attn_implementation="eager",
    )
    ours = layer.attention
    module = with_parameters(
        conformer.Wav2Vec2ConformerSelfAttention(config),
        **{"linear_q": layer.query, "linear_k": layer.key, "linear_v": layer.value, "linear_out": layer.out},
        **{"linear_pos": ours.distance, "pos_bias_u": ours.u[:, 0], "pos_bias_v": ours.v[:, 0]},
    )
    positions = conformer.Wav2Vec2ConformerRelPositionalEmbedding(config)

    def attend(x: Tensor, lengths: list[int], is_causal: bool) -> Tensor:
        return module(x, additive_mask(visibility(lengths, is_causal)), relative_position_embeddings=positions(x))[0]

    return attend


def t5_attention(layer: nn.Module, bias: nn.Module | None, is_causal: bool) -> nn.Module:
    """Return T5's attention with our parameters. T5 does not scale scores, so its queries are ours divided by √d."""
    config = t5.T5Config(
        d_model=DIM, d_kv=HEAD_DIM, num_heads=HEADS, is_decoder=is_causal, attn_implementation="eager", dropout_rate=0.0
    )
    module = t5.T5Attention(config, has_relative_attention_bias=bias is not None, layer_idx=0)
    if bias is not None:
        with_parameters(module.relative_attention_bias, weight=bias.weight.T)
    module.q.forward = lambda x: layer.query(x) / math.sqrt(HEAD_DIM)
    return with_parameters(module, k=layer.key, v=layer.value, o=layer.out)


def t5_reference(layer: nn.Module, scheme: PositionScheme) -> Attend:
    def attend(x: Tensor, lengths: list[int], is_causal: bool) -> Tensor:
        module = t5_attention(layer, scheme.buckets, is_causal)
        return module(x, mask=additive_mask(visibility(lengths, is_causal)))[0]

    return attend


def llama_reference(layer: nn.Module, scheme: PositionScheme) -> Attend:
    settings = {"hidden_size": DIM, "num_attention_heads": HEADS, "head_dim": HEAD_DIM}
    rotary = llama.LlamaRotaryEmbedding(llama.LlamaConfig(**settings))

    def attend(x: Tensor, lengths: list[int], is_causal: bool) -> Tensor:
        cos, sin = rotary(x, torch.arange(x.shape[1])[None])
        query, key, value = (split_heads(p(x)) for p in (layer.query, layer.key, layer.value))
        query, key = llama.apply_rotary_pos_emb(query, key, cos, sin)
        if scheme.config.positions == "rove":
            value, _ = llama.apply_rotary_pos_emb(value, value, cos, sin)
        out = F.scaled_dot_product_attention(query, key, value, visibility(lengths, is_causal))
        if scheme.config.positions == "rove":
            out, _ = llama.apply_rotary_pos_emb(out, out, cos, -sin)
        return layer.out(out.transpose(1, 2).flatten(2))

    return attend


def cells_reference(layer: nn.Module, scheme: PositionScheme) -> Attend:
    """One LSTMCell per direction, one position at a time."""
    directions = ("", "_reverse") if layer.lstm.bidirectional else ("",)

    def attend(x: Tensor, lengths: list[int], is_causal: bool) -> Tensor:
        rows = []
        for row, length in zip(x, lengths, strict=True):
            outputs_per_direction = []
            for direction in directions:
                cell = nn.LSTMCell(DIM, DIM // len(directions))
                with_parameters(
                    cell, **{name: getattr(layer.lstm, f"{name}_l0{direction}") for name, _ in cell.named_parameters()}
                )
                state, outputs = None, [None] * length
                for i in reversed(range(length)) if direction else range(length):
                    state = cell(row[i], state)
                    outputs[i] = state[0]
                outputs_per_direction.append(torch.stack(outputs))
            rows.append(F.pad(torch.cat(outputs_per_direction, -1), (0, 0, 0, x.shape[1] - length)))
        return torch.stack(rows)

    return attend


def window_reference(layer: nn.Module, scheme: PositionScheme) -> Attend:
    """Σ_k W_k x_(i + k − before) + b over positions in the sequence; one half times the sigmoid of the other half."""
    weight, bias = layer.convolution.weight, layer.convolution.bias
    size = weight.shape[2]

    def attend(x: Tensor, lengths: list[int], is_causal: bool) -> Tensor:
        rows, before = [], size - 1 if is_causal else size // 2
        for row, length in zip(x, lengths, strict=True):
            outputs = []
            for i in range(length):
                at = [(k, i + k - before) for k in range(size) if 0 <= i + k - before < length]
                a, b = (bias + sum(weight[:, :, k] @ row[j] for k, j in at)).chunk(2)
                outputs.append(a * b.sigmoid())
            rows.append(F.pad(torch.stack(outputs), (0, 0, 0, x.shape[1] - length)))
        return torch.stack(rows)

    return attend


def convolution_reference(layer: nn.Module, scheme: PositionScheme) -> Attend:
    """PyTorch's convolution, which pads with zeros, on one row at a time."""
    weight, bias = layer.convolution.weight, layer.convolution.bias

    def attend(x: Tensor, lengths: list[int], is_causal: bool) -> Tensor:
        rows, before = [], weight.shape[2] - 1 if is_causal else weight.shape[2] // 2
        for row, length in zip(x, lengths, strict=True):
            sums = F.conv1d(row[:length].T, weight, bias, padding=before)[:, :length]
            rows.append(F.pad(F.glu(sums, 0).T, (0, 0, 0, x.shape[1] - length)))
        return torch.stack(rows)

    return attend


SHORT, EXACT, ANGLES = [7, 1, 4], torch.finfo(torch.float64).eps, EPSILON
Case = tuple[str, Callable[[nn.Module, PositionScheme], Attend], list[int], float]
CASES: list[Case] = [  # variant, reference, lengths of sequences, unit of rounding
    *((name, Pairs, SHORT, EXACT) for name in ("none", "sinusoidal", "learned")),
    *((name, Shaw, SHORT, EXACT) for name in VARIANTS if name.startswith(("relative", "zero"))),
    *(("zero", vits_reference, lengths, EXACT) for lengths in ([3, 2], [40, 29])),
    ("xl", Dai, SHORT, ANGLES),
    *(("xl", conformer_reference, lengths, EXACT) for lengths in (SHORT, [90, 41])),
    *(("t5", t5_reference, lengths, EXACT) for lengths in (SHORT, [300, 140])),
    ("alibi", Press, SHORT, ANGLES),
    *((name, llama_reference, lengths, ANGLES) for name in ("rope", "rove") for lengths in (SHORT, [90, 41])),
    ("rope", Su, SHORT, ANGLES),
    ("rove", SuWithValues, SHORT, ANGLES),
    ("lstm", cells_reference, [9, 1, 4], EXACT),
    *(
        (name, window_reference, lengths, EXACT)
        for name in VARIANTS
        if name[:3] == "cnn"
        for lengths in ([1, 1], SHORT)
    ),
    *((name, convolution_reference, [50, 31], EXACT) for name in VARIANTS if name[:3] == "cnn"),
]


def test_every_scheme_has_a_reference():
    assert {case[0] for case in CASES} == set(VARIANTS)
    assert set(SCHEMES) == set(get_args(Positions))
    assert all(issubclass(scheme, PositionScheme) for scheme in SCHEMES.values())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize(
    ("variant", "oracle", "lengths", "rounded"), CASES, ids=[f"{c[0]}-{c[1].__name__}-{c[2][0]}" for c in CASES]
)
def test_a_token_mixer_equals_its_reference(variant, oracle, lengths, rounded, is_causal):
    scheme = randomize(make_scheme(VARIANTS[variant], is_causal=is_causal))
    layer = randomize(scheme.token_mixer())
    if is_causal:  # padding is to the right, where no query looks, so the layer is not given lengths
        lengths = [max(lengths)] * len(lengths)
    n = max(lengths)
    x = random_tensor(len(lengths), n, DIM, seed=20)
    leaves = {"x": x.requires_grad_(), **dict(layer.named_parameters()), **dict(scheme.named_parameters())}
    live = (torch.arange(n) < torch.tensor(lengths)[:, None])[..., None]
    attend = oracle(layer, scheme)
    both = []
    for output in (layer(x, None if is_causal else torch.tensor(lengths)), attend(x, lengths, is_causal)):
        kept = output.where(live, 0.0)
        gradients = torch.autograd.grad(
            kept, list(leaves.values()), random_tensor(*output.shape, seed=21), allow_unused=variant == "learned"
        )
        named = {"output": kept.detach(), **dict(zip(leaves, gradients, strict=True))}
        both.append({name: x for name, x in named.items() if x is not None})
    got, want = both
    assert got.keys() == want.keys()
    allowed = 16 * rounded * max(float(x.abs().max()) for x in want.values())
    if rounded == ANGLES:  # float32 angles, whose rounding error grows with the distance
        allowed *= n
    wrong = {name: off for name in want if (off := error(got[name], want[name])) > allowed}
    assert not wrong, f"off by {wrong}, allowed {allowed}"


def test_layers_of_a_stack_share_the_biases_of_t5():
    """Two of our layers against two of T5's, where the second layer uses the biases of the first."""
    scheme = randomize(make_scheme({"positions": "t5"}, is_causal=False))
    first, second = (randomize(scheme.token_mixer()) for _ in range(2))
    assert [name for name, _ in scheme.named_parameters()] == ["buckets.weight"]
    assert not any("bucket" in name for name in first.state_dict())
    x, weight = 0.2 * random_tensor(2, 9, DIM), scheme.buckets.weight
    begun, bias, _ = t5_attention(first, scheme.buckets, is_causal=False)(x)
    theirs = t5_attention(second, None, is_causal=False)(begun, position_bias=bias)[0]
    ours = second(first(x))
    got, want = ((y.detach(), torch.autograd.grad(y.square().mean(), weight)[0]) for y in (ours, theirs))
    torch.testing.assert_close(got, want, rtol=0, atol=32 * EXACT * float(max(x.abs().max() for x in want)))


@pytest.mark.parametrize("is_causal", [False, True])
def test_buckets_are_those_of_t5(is_causal):
    distances = torch.arange(-3000, 1 if is_causal else 3001)
    theirs = t5.T5Attention._relative_position_bucket(distances, bidirectional=not is_causal)
    ours = make_scheme({"positions": "t5"}, is_causal=is_causal).buckets.bucket(distances)
    assert torch.equal(ours, theirs)
    assert ours.unique().numel() == (32 if is_causal else 31)  # bucket 16 would be distance 0 to the right


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 16])
def test_slopes_match_the_paper(heads):
    """Compare with BLOOM and MPT for powers of two. They have other rules for other numbers of heads."""
    n = 200
    slopes = [2 ** (-8 * (head + 1) / heads) for head in range(heads)]
    scheme = SCHEMES["alibi"](ModelConfig(dim=2 * heads, heads=heads).with_positions("alibi"), is_causal=False)
    ours = scheme.bias(torch.arange(-n, n + 1)).double()
    want = [[-slope * abs(distance) for distance in range(-n, n + 1)] for slope in slopes]
    torch.testing.assert_close(ours, torch.tensor(want).double(), rtol=4 * EPSILON, atol=0)
    if heads in (1, 2, 8, 16):
        bloom_bias = bloom.build_alibi_tensor(torch.ones(1, n), heads, torch.float64)[:, 0]  # grows from the first key
        mpt_bias = mpt.build_mpt_alibi_tensor(heads, n)[:, 0].double()
        for theirs in (bloom_bias - bloom_bias[:, -1:], mpt_bias):
            torch.testing.assert_close(ours[:, 1 : n + 1], theirs, rtol=4 * EPSILON, atol=n * EPSILON)


@pytest.mark.parametrize("positions", SCHEMES)
def test_dropout_is_applied_in_training_only(positions):
    x, outputs = random_tensor(2, 9, DIM), {}
    for dropout in (0.0, 0.5):
        layer = randomize(
            randomize(make_scheme({"positions": positions}, is_causal=True, dropout=dropout)).token_mixer()
        )
        outputs[dropout] = layer.eval()(x), layer.train()(x)
    assert torch.equal(outputs[0.0][0], outputs[0.5][0])
    torch.testing.assert_close(*outputs[0.0], rtol=1e-12, atol=1e-12)
    assert torch.equal(*outputs[0.5]) == (positions in ("lstm", "cnn"))  # they have no attention probabilities
