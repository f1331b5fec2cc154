"""Tests of the schemes of docs/family.md: the code of the page against the class that the page names.

The classes are those of transformers, unmodified, with small sizes and random parameters. Each test computes query,
key and value with the projections of the class, runs the code of the page, and projects back. So the outputs and the
gradients of all parameters that are compared differ in the attention only.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers.models.bloom import modeling_bloom as bloom
from transformers.models.deberta import modeling_deberta as deberta
from transformers.models.deberta_v2 import modeling_deberta_v2 as deberta_v2
from transformers.models.esm import modeling_esmfold as esmfold
from transformers.models.fastspeech2_conformer import modeling_fastspeech2_conformer as fastspeech2
from transformers.models.granite_speech import modeling_granite_speech as granite
from transformers.models.inkling import modeling_inkling as inkling
from transformers.models.layoutlmv3 import modeling_layoutlmv3 as layoutlmv3
from transformers.models.mpt import modeling_mpt as mpt
from transformers.models.parakeet import modeling_parakeet as parakeet
from transformers.models.sam import modeling_sam as sam
from transformers.models.seamless_m4t_v2 import modeling_seamless_m4t_v2 as seamless
from transformers.models.speecht5 import modeling_speecht5 as speecht5
from transformers.models.swin import modeling_swin as swin
from transformers.models.t5 import modeling_t5 as t5
from transformers.models.vits import modeling_vits as vits
from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as wav2vec2_bert
from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer as wav2vec2_conformer
from transformers.models.wavlm import modeling_wavlm as wavlm
from transformers.models.xlnet import modeling_xlnet as xlnet

from tests.support.covering import pairwise
from tests.support.numerics import error

PAGE = (Path(__file__).parents[2] / "docs" / "family.md").read_text(encoding="utf-8")
ULPS = 16  # tolerance in units in the last place of the largest number compared; the page gives it too
BATCH, HEADS, HEAD_DIM = 2, 4, 6
DIM = HEADS * HEAD_DIM
EAGER = {"attn_implementation": "eager"}

Attend = Callable[[Tensor], Tensor]


def code(section: str) -> str:
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return block


SETUP, *SECTIONS = PAGE.partition("\n## What is not")[0].split("\n### ")
SCHEMES = {re.sub(r"\W+", "_", section.partition("\n")[0].lower()): code(section) for section in SECTIONS}


def test_every_scheme_has_a_test():
    assert {f"test_{name}" for name in SCHEMES} == {name for name in globals() if name.startswith("test_")} - {
        "test_every_scheme_has_a_test"
    }


@pytest.fixture
def scheme(request: pytest.FixtureRequest) -> Callable[..., Tensor]:
    """The code below the heading that the test is named after, as a function of the names that it uses."""

    def call(query: Tensor, key: Tensor, value: Tensor, options: dict | None = None, **variables: object) -> Tensor:
        names = {"query": query, "key": key, "value": value}
        exec(code(SETUP), names)
        names |= {name: partial(names[name], **options or {}) for name in ("relative_attention", "relation_attention")}
        names |= variables
        exec(SCHEMES[request.node.originalname.removeprefix("test_")], names)
        return names["out"]

    return call


def padded(*pairs: tuple[int, int]) -> pytest.MarkDecorator:
    """Parametrize a test with the lengths of two sequences."""
    return pytest.mark.parametrize("lengths", [torch.tensor(pair) for pair in pairs], ids=str)


def normal(*sizes: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def filled(module: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Fill all parameters of a module with random numbers, and turn dropout off."""
    for seed, parameter in enumerate(module.parameters()):
        parameter.data = 0.2 * normal(*parameter.shape, seed=seed, dtype=dtype)
    return module.eval().to(dtype)


def split(x: Tensor, heads: int = HEADS) -> Tensor:
    """Reshape (batch, n, heads · head_dim) to (batch, heads, n, head_dim)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def project(x: Tensor, *linears: nn.Module) -> tuple[Tensor, ...]:
    return tuple(split(linear(x)) for linear in linears)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def between(scheme: Callable[..., Tensor], *linears: nn.Module, options: dict, **names: object) -> Attend:
    """Return the code of the page between the projections of a class: of query, key and value, and of the output."""
    return lambda x: linears[-1](joined(scheme(*project(x, *linears[:3]), options, **names)))


def valid(lengths: Tensor) -> Tensor:
    """Return which positions of a padded batch are valid: (batch, n)."""
    return torch.arange(int(lengths.max())) < lengths[:, None]


def float_mask(may_attend: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Convert a boolean mask to the numbers that the classes add to their scores."""
    return torch.zeros(may_attend.shape, dtype=dtype).masked_fill(~may_attend, torch.finfo(dtype).min)


def causal(n: int) -> Tensor:
    return torch.ones(1, 1, n, n, dtype=torch.bool).tril()


def assert_same(
    ours: Attend,
    theirs: Attend,
    *modules: nn.Module,
    lengths: Tensor | None = None,
    shape: tuple[int, ...] = (),
    dtype: torch.dtype = torch.float64,
) -> None:
    """Assert that the outputs of valid queries agree, and the gradients of the hidden states and of all parameters."""
    hidden = normal(*(shape or (BATCH, int(lengths.max()), DIM)), dtype=dtype).requires_grad_()
    leaves = {"hidden": hidden, **dict(nn.ModuleList(modules).named_parameters())}
    both = []
    for attend in (ours, theirs):
        output = attend(hidden) if shape else attend(hidden) * valid(lengths)[..., None]
        cotangent = normal(*output.shape, seed=9, dtype=dtype)
        gradients = torch.autograd.grad(output, list(leaves.values()), cotangent, allow_unused=True)
        named = {"output": output.detach()} | dict(zip(leaves, gradients, strict=True))
        both.append({name: x for name, x in named.items() if x is not None})
    got, want = both
    assert got.keys() == want.keys()
    allowed = ULPS * torch.finfo(dtype).eps * max(float(x.abs().max()) for x in want.values())
    wrong = {name: off for name in want if (off := error(got[name], want[name])) > allowed}
    assert not wrong, f"off by {wrong}, allowed {allowed}"


def assert_equation(
    scheme: Callable[..., Tensor], n: int, tables: dict[str, Tensor], relative: Callable[..., tuple[Tensor, ...]]
) -> None:
    """Compare a scheme with softmax((q · k + term) / √d) v, plus what the relative values add.

    Args:
        scheme: The code of the page.
        n: The number of positions.
        tables: Tables by their names on the page, to be filled.
        relative: From the query, the key and the tables, return the term, (batch, heads, n, n), and if there are any,
            the relative values, (heads, n, n, head_dim).
    """
    linear, filled_tables = filled(nn.Linear(DIM, 3 * DIM)), filled(nn.ParameterDict(tables))

    def ours(x: Tensor) -> Tensor:
        return joined(scheme(*map(split, linear(x).chunk(3, -1)), **filled_tables))

    def theirs(x: Tensor) -> Tensor:
        query, key, value = map(split, linear(x).chunk(3, -1))
        term, *values = relative(query, key, **filled_tables)
        weights = ((query @ key.mT + term) * HEAD_DIM**-0.5).softmax(-1)
        return joined(weights @ value + sum(torch.einsum("bhij,hijd->bhid", weights, each) for each in values))

    assert_same(ours, theirs, linear, filled_tables, shape=(BATCH, n, DIM))


VITS = {"hidden_size": DIM, "num_attention_heads": HEADS, "window_size": 4, "attention_dropout": 0.0}


def assert_same_as_vits(scheme: Callable[..., Tensor], lengths: Tensor) -> None:
    n, module = int(lengths.max()), filled(vits.VitsAttention(vits.VitsConfig(**VITS)))
    mask = float_mask(valid(lengths)[:, None, None].expand(-1, -1, n, -1))

    linears = (module.q_proj, module.k_proj, module.v_proj, module.out_proj)
    tables = {"rel_key": module.emb_rel_k[0], "rel_value": module.emb_rel_v[0]}
    ours = between(scheme, *linears, options={"key_lengths": lengths}, **tables)
    assert_same(ours, lambda x: module(x, attention_mask=mask)[0], module, lengths=lengths)


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("n", [5, 13])
def test_shaw(scheme, n, per_head):
    k = VITS["window_size"]
    size = (HEADS, 2 * k + 1, HEAD_DIM) if per_head else (2 * k + 1, HEAD_DIM)
    label = (torch.arange(n) - torch.arange(n)[:, None]).clamp(-k, k) + k

    def relative(query: Tensor, key: Tensor, rel_key: Tensor, rel_value: Tensor) -> tuple[Tensor, Tensor]:
        a_key, a_value = (table[..., label, :].expand(HEADS, n, n, HEAD_DIM) for table in (rel_key, rel_value))
        return torch.einsum("bhid,hijd->bhij", query, a_key), a_value

    assert_equation(scheme, n, {name: torch.empty(size) for name in ("rel_key", "rel_value")}, relative)
    if n <= k + 1:  # the two schemes are equal up to this length
        assert_same_as_vits(scheme, torch.tensor([n, n]))


@pairwise(model=["Wav2Vec2-BERT", "SeamlessM4T v2"], lengths=[(7, 3), (90, 75)])
def test_wav2vec2_bert(scheme, model, lengths):
    lengths = torch.tensor(lengths)
    if model == "Wav2Vec2-BERT":
        config = wav2vec2_bert.Wav2Vec2BertConfig(hidden_size=DIM, num_attention_heads=HEADS, **EAGER)
        module = filled(wav2vec2_bert.Wav2Vec2BertSelfAttention(config))
    else:
        config = seamless.SeamlessM4Tv2Config(hidden_size=DIM, speech_encoder_attention_heads=HEADS, **EAGER)
        module = filled(seamless.SeamlessM4Tv2ConformerSelfAttention(config))

    linears = (module.linear_q, module.linear_k, module.linear_v, module.linear_out)
    table = module.distance_embedding.weight
    ours = between(scheme, *linears, options={"key_lengths": lengths}, rel_key=table)
    mask = float_mask(valid(lengths)[:, None, None])
    assert_same(ours, lambda x: module(x, mask)[0], module, lengths=lengths)


@padded((7, 3), (200, 170))
def test_speecht5(scheme, lengths):
    module = filled(speecht5.SpeechT5Attention(DIM, HEADS))
    positions = filled(speecht5.SpeechT5RelativePositionalEncoding(HEAD_DIM, 160))

    linears = (module.q_proj, module.k_proj, module.v_proj, module.out_proj)
    ours = between(scheme, *linears, options={"key_lengths": lengths}, pe_k=positions.pe_k.weight)
    mask = float_mask(valid(lengths)[:, None, None].expand(-1, -1, int(lengths.max()), -1))

    theirs = partial(module, attention_mask=mask)
    assert_same(ours, lambda x: theirs(x, position_bias=positions(x))[0], module, positions, lengths=lengths)


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("n", [5, 12])
def test_music_transformer(scheme, n, per_head):
    def skewed(query: Tensor, key: Tensor, rel_key: Tensor) -> tuple[Tensor]:
        """Skew q E, (n, n), as in section 3.4.1: pad a column on the left, read as (n + 1, n), drop the first row."""
        products = query @ rel_key[..., 12 - n :, :].mT
        skewed = nn.functional.pad(products, (1, 0)).reshape(BATCH, HEADS, n + 1, n)[:, :, 1:]
        return (skewed.masked_fill(~causal(n), -torch.inf),)

    assert_equation(scheme, n, {"rel_key": torch.empty(*((HEADS,) if per_head else ()), 12, HEAD_DIM)}, skewed)


@padded((5, 3), (23, 16))
def test_vits(scheme, lengths):
    assert_same_as_vits(scheme, lengths)


@pytest.mark.parametrize("n", [7, 400, 450])
def test_granite_speech(scheme, n):
    block = 200
    sizes = {"hidden_dim": DIM, "dim_head": HEAD_DIM, "num_heads": HEADS, "input_dim": 2, "output_dim": 2}
    model = granite.GraniteSpeechCTCEncoder(granite.GraniteSpeechEncoderConfig(num_layers=1, **sizes))
    module = filled(model.layers[0].attn)

    def ours(x: Tensor) -> Tensor:
        x = nn.functional.pad(module.pre_norm(x), (0, 0, 0, -n % block))
        blocks = x.unflatten(1, (-1, block)).flatten(0, 1)
        lengths = (n - torch.arange(0, n, block)).clamp(max=block).repeat(BATCH)
        inputs = map(split, (module.to_q(blocks), *module.to_kv(blocks).chunk(2, -1)))
        out = scheme(*inputs, rel_pos_emb=module.rel_pos_emb.weight, lengths=lengths)
        return module.to_out(joined(out).unflatten(0, (BATCH, -1)).flatten(1, 2)[:, :n])

    assert_same(ours, lambda x: module(x, model.attention_dists), module, shape=(BATCH, n, DIM))


@pairwise(
    model=["Parakeet", "Wav2Vec2-Conformer", "FastSpeech2-Conformer", "XLNet", "causal XLNet"],
    lengths=[(1, 1), (13, 8)],
)
def test_transformer_xl(scheme, model, lengths):
    lengths = torch.tensor(lengths)
    if "XLNet" in model:
        assert_same_as_xlnet(scheme, int(lengths.max()), is_causal=model == "causal XLNet")
        return
    keys, sizes = valid(lengths), {"hidden_size": DIM, "num_attention_heads": HEADS, **EAGER}
    dtype = torch.float32 if model == "Parakeet" else torch.float64
    hidden = torch.empty(BATCH, keys.shape[1], DIM, dtype=dtype)
    if model == "Parakeet":
        config = parakeet.ParakeetEncoderConfig(**sizes)
        module = filled(parakeet.ParakeetEncoderAttention(config, 0), dtype)
        positions = parakeet.ParakeetEncoderRelPositionalEncoding(config)(hidden)
        mask = keys[:, None, None].expand(-1, -1, keys.shape[1], -1)
        arguments = {"position_embeddings": positions, "attention_mask": mask}
        linears = (module.q_proj, module.k_proj, module.v_proj, module.relative_k_proj, module.o_proj)
        u, v = module.bias_u, module.bias_v
    else:
        if model == "Wav2Vec2-Conformer":
            config = wav2vec2_conformer.Wav2Vec2ConformerConfig(position_embeddings_type="relative", **sizes)
            module = filled(wav2vec2_conformer.Wav2Vec2ConformerSelfAttention(config))
            positions = wav2vec2_conformer.Wav2Vec2ConformerRelPositionalEmbedding(config)(hidden)
            arguments = {"relative_position_embeddings": positions, "attention_mask": float_mask(keys[:, None, None])}
        else:
            config = fastspeech2.FastSpeech2ConformerConfig(hidden_size=DIM)
            encoder = {"num_attention_heads": HEADS, "attention_dropout_rate": 0, "positional_dropout_rate": 0}
            module = filled(fastspeech2.FastSpeech2ConformerAttention(config, encoder))
            _, positions = fastspeech2.FastSpeech2ConformerRelPositionalEncoding(config, encoder)(hidden)
            arguments = {"pos_emb": positions, "attention_mask": keys[:, None]}
        linears = (module.linear_q, module.linear_k, module.linear_v, module.linear_pos, module.linear_out)
        u, v = module.pos_bias_u, module.pos_bias_v

    names = {"R": linears[3](positions[0]), "u": u, "v": v}
    ours = between(scheme, *linears, options={"key_lengths": lengths}, **names)
    assert_same(ours, lambda x: module(x, **arguments)[0], module, lengths=lengths, dtype=dtype)


@pytest.mark.parametrize("window", [(3, 3), (5, 2), (0, 20)])
def test_nemo_s_local_attention(scheme, window):
    """Compare with Parakeet, whose weights are NeMo's, and a mask of the window. Padding attends to itself there."""
    lengths, n, (left, right) = torch.tensor([25, 18]), 25, window
    config = parakeet.ParakeetEncoderConfig(hidden_size=DIM, num_attention_heads=HEADS, **EAGER)
    module = filled(parakeet.ParakeetEncoderAttention(config, 0), torch.float32)
    positions = parakeet.ParakeetEncoderRelPositionalEncoding(config)(torch.empty(BATCH, n, DIM))
    distance = torch.arange(n) - torch.arange(n)[:, None]
    mask = valid(lengths)[:, None, None] & (distance >= -left) & (distance <= right) | (distance == 0)

    def ours(x: Tensor) -> Tensor:
        inputs = project(x, module.q_proj, module.k_proj, module.v_proj)
        R = module.relative_k_proj(positions[0, n - 1 - left : n + right])
        names = {"R": R, "u": module.bias_u, "v": module.bias_v, "left": left, "right": right}
        return module.o_proj(joined(scheme(*inputs, {"key_lengths": lengths}, **names)))

    theirs = partial(module, position_embeddings=positions, attention_mask=mask)
    assert_same(ours, lambda x: theirs(x)[0], module, lengths=lengths, dtype=torch.float32)


def assert_same_as_xlnet(scheme: Callable[..., Tensor], n: int, is_causal: bool) -> None:
    """Compare with XLNet and a memory. XLNet puts time first, and its mask is 1 where a query must not attend."""
    sizes = {"vocab_size": 2, "d_model": DIM, "n_layer": 1, "n_head": HEADS, "d_inner": 2}
    model = filled(xlnet.XLNetModel(xlnet.XLNetConfig(attn_type="uni" if is_causal else "bi", **sizes)))
    module, memory = model.layer[0].rel_attn, normal(BATCH, 7, DIM, seed=1)
    positions = model.relative_positional_encoding(n, 7 + n, BATCH).double()
    mask = torch.ones(n, 7 + n, dtype=torch.float64).triu(8)[..., None, None] if is_causal else None
    arguments = {"g": None, "attn_mask_h": mask, "attn_mask_g": None, "r": positions, "seg_mat": None}

    def theirs(x: Tensor) -> Tensor:
        return module(x.transpose(0, 1), mems=memory.transpose(0, 1), **arguments)[0].transpose(0, 1)

    def ours(x: Tensor) -> Tensor:
        both = torch.cat([memory, x], 1)
        query, key, value = (split(x @ w.flatten(1)) for x, w in ((x, module.q), (both, module.k), (both, module.v)))
        R = positions[1:, 0] @ module.r.flatten(1)  # the first row is that of i − j = keys
        out = scheme(query, key, value, {"is_causal": is_causal}, R=R, u=module.r_w_bias, v=module.r_r_bias)
        return module.post_attention(x.transpose(0, 1), out.permute(2, 0, 1, 3)).transpose(0, 1)

    assert_same(ours, theirs, module, shape=(BATCH, n, DIM))


@pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
@padded((29, 17), (300, 200))
def test_t5(scheme, decoder, lengths):
    n = int(lengths.max())
    config = t5.T5Config(d_model=DIM, d_kv=HEAD_DIM, num_heads=HEADS, dropout_rate=0.0, is_decoder=decoder, **EAGER)
    module = filled(t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0))
    mask = float_mask(valid(lengths)[:, None, None] & (causal(n) | (not decoder)))
    bucket = partial(module._relative_position_bucket, bidirectional=not decoder)

    linears, options = (module.q, module.k, module.v, module.o), {"key_lengths": lengths, "is_causal": decoder}
    names = {"weight": module.relative_attention_bias.weight, "bucket": bucket}
    ours = between(scheme, *linears, options=options, **names)
    assert_same(ours, lambda x: module(x, mask=mask)[0], module, lengths=lengths)


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask:UserWarning")  # of PyTorch, in the class
@padded((29, 17), (850, 830))
def test_wavlm(scheme, lengths):
    module = filled(wavlm.WavLMAttention(DIM, HEADS))
    names = {"bucket": module._relative_positions_bucket, "weight": module.rel_attn_embed.weight}

    def ours(x: Tensor) -> Tensor:
        a, b = module.gru_rel_pos_linear(split(x)).unflatten(-1, (2, 4)).sum(-1).sigmoid().chunk(2, -1)
        gate = a * (b * module.gru_rel_pos_const - 1) + 2
        inputs = project(x, module.q_proj, module.k_proj, module.v_proj)
        return module.out_proj(joined(scheme(*inputs, {"key_lengths": lengths}, gate=gate, **names)))

    mask = valid(lengths).long()
    assert_same(ours, lambda x: module(x, mask)[0], module, lengths=lengths)


@pairwise(model=["BLOOM", "MPT"], lengths=[(17, 12), (70, 50)])
def test_alibi(scheme, model, lengths):
    lengths, dtype = torch.tensor(lengths), torch.float32
    n, keys = int(lengths.max()), valid(lengths)
    mask = keys[:, None, None] & causal(n)
    if model == "BLOOM":
        module = filled(bloom.BloomAttention(bloom.BloomConfig(hidden_size=DIM, n_head=HEADS), 0), dtype)
        alibi, out = bloom.build_alibi_tensor(keys.float(), HEADS, dtype), module.dense

        def both(x: Tensor) -> tuple[Sequence[Tensor], Tensor]:
            inputs = module.query_key_value(x).unflatten(-1, (HEADS, 3, HEAD_DIM)).transpose(1, 2).unbind(3)
            return inputs, module(x, torch.zeros_like(x), alibi, float_mask(mask, dtype))[0]

    else:
        module = filled(mpt.MptAttention(mpt.MptConfig(d_model=DIM, n_heads=HEADS), 0), dtype)
        alibi, out = mpt.build_mpt_alibi_tensor(HEADS, n), module.out_proj

        def both(x: Tensor) -> tuple[Sequence[Tensor], Tensor]:
            return tuple(map(split, module.Wqkv(x).chunk(3, -1))), module(x, alibi, attention_mask=~mask)[0]

    def ours(x: Tensor) -> Tensor:
        return out(joined(scheme(*both(x)[0], {"key_lengths": lengths})))

    assert_same(ours, lambda x: both(x)[1], module, lengths=lengths, dtype=dtype)


@pairwise(window=[3, 7], shifted=[False, True])
def test_swin(scheme, window, shifted):
    windows, area, dtype = 3, window * window, torch.float32
    module = filled(swin.SwinAttention(swin.SwinConfig(**EAGER), DIM, HEADS, window), dtype)
    index = module.relative_position_bias.relative_position_index.view(area, area)
    region = torch.arange(area) % 2 + torch.arange(windows)[:, None] % 2  # positions attend to their own region
    mask = region[:, :, None] == region[:, None, :] if shifted else torch.ones(windows, area, area, dtype=torch.bool)

    linears = (module.q_proj, module.k_proj, module.v_proj, module.o_proj)
    names = {"index": index, "table": module.relative_position_bias.relative_position_bias_table}
    options, added = ({"mask": mask.repeat(BATCH, 1, 1)[:, None]}, float_mask(mask, dtype)) if shifted else ({}, None)
    ours = between(scheme, *linears, options=options, **names)
    assert_same(ours, lambda x: module(x, added)[0], module, shape=(BATCH * windows, area, DIM), dtype=dtype)


@pairwise(layer=["hybrid", "hybrid_sliding"], lengths=[(9, 7), (40, 33)])
def test_inkling(scheme, layer, lengths):
    lengths, groups, window, dtype = torch.tensor(lengths), 2, 11, torch.float32
    n = int(lengths.max())
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS // groups, "head_dim": HEAD_DIM}
    config = inkling.InklingTextConfig(
        hidden_size=DIM, num_hidden_layers=1, **heads, **{f"swa_{name}": value for name, value in heads.items()},
        layer_types=[layer], rel_extent=13, sliding_window_size=window, log_scaling_n_floor=16, **EAGER,
    )  # fmt: skip
    module = filled(inkling.InklingAttention(config, 0), dtype)
    mask = valid(lengths)[:, None, None] & causal(n)
    options = {"key_lengths": lengths}
    if layer == "hybrid_sliding":
        options["mask"] = causal(n).triu(1 - window)
        mask = mask & options["mask"]

    def ours(x: Tensor) -> Tensor:
        query, r = module.q_norm(module.q_proj(x).unflatten(-1, (HEADS, -1))), module.r_proj(x)
        key = module.k_norm(module.k_sconv(module.k_proj(x)).unflatten(-1, (HEADS // groups, -1)))
        value = split(module.v_sconv(module.v_proj(x)), HEADS // groups)
        tau = torch.ones(n, 1)
        if layer == "hybrid":
            tau = 1 + config.log_scaling_alpha * (torch.arange(1.0, n + 1) / 16).clamp(min=1).log()[:, None]
        query, key, r = tau * query.transpose(1, 2), key.transpose(1, 2), tau * split(r)
        return module.o_proj(joined(scheme(query, key, value, options, r=r, P=module.rel_logits_proj.proj)))

    assert_same(ours, lambda x: module(x, float_mask(mask, dtype))[0], module, lengths=lengths, dtype=dtype)


@pytest.mark.parametrize("n", [5, 12])
def test_bert_relative_key(scheme, n):
    distance = torch.arange(n)[:, None] - torch.arange(n)

    def relative(query: Tensor, key: Tensor, weight: Tensor) -> tuple[Tensor]:
        return (torch.einsum("bhid,ijd->bhij", query, weight[distance + 11]),)

    assert_equation(scheme, n, {"weight": torch.empty(23, HEAD_DIM)}, relative)


@pytest.mark.parametrize("version", [1, 2])
@padded((5, 3), (30, 21))
def test_deberta(scheme, version, lengths):
    """The classes compute the scale in float32."""
    sizes = {"hidden_size": DIM, "num_attention_heads": HEADS, "relative_attention": True, "pos_att_type": "c2p|p2c"}
    if version == 1:
        span = 14
        module = deberta.DisentangledSelfAttention(deberta.DebertaConfig(max_relative_positions=span, **sizes))
    else:
        span, most = 8, 40
        config = deberta_v2.DebertaV2Config(position_buckets=span, max_relative_positions=most, **sizes)
        module = deberta_v2.DisentangledSelfAttention(config)
    embeddings = nn.Embedding(2 * span, DIM)
    filled(nn.ModuleList([module, embeddings]), torch.float32)
    mask = valid(lengths)[:, None, None]

    def ours(x: Tensor) -> Tensor:
        positions, options = embeddings.weight[None], {"key_lengths": lengths}
        if version == 1:
            (pos_key,), (pos_query,) = project(positions, module.pos_proj, module.pos_q_proj)
            query, key, value = split(module.in_proj(x)).chunk(3, dim=-1)
            query, value = (a + split(b[None, None]) for a, b in ((query, module.q_bias), (value, module.v_bias)))
        else:
            (pos_key,), (pos_query,) = project(positions, module.pos_key_proj, module.pos_query_proj)
            query, key, value = project(x, module.query_proj, module.key_proj, module.value_proj)
        names = {"pos_key": pos_key, "pos_query": pos_query, "span": span, "bucket": bucket}
        return joined(scheme(query, key, value, options, **names))

    def bucket(distance: Tensor) -> Tensor:
        return distance if version == 1 else deberta_v2.make_log_bucket_position(distance, span, most).long()

    def theirs(x: Tensor) -> Tensor:
        n = x.shape[1]
        relative = (torch.arange(n)[:, None] - torch.arange(n))[None] if version == 1 else None
        return module(x, mask, relative_pos=relative, rel_embeddings=embeddings.weight)[0]

    assert_same(ours, theirs, module, embeddings, lengths=lengths, dtype=torch.float32)


@pytest.mark.parametrize("n", [5, 12])
def test_bert_relative_key_query(scheme, n):
    distance = torch.arange(n)[:, None] - torch.arange(n)

    def relative(query: Tensor, key: Tensor, weight: Tensor) -> tuple[Tensor]:
        pairs = weight[distance + 11]
        return (torch.einsum("bhid,ijd->bhij", query, pairs) + torch.einsum("bhjd,ijd->bhij", key, pairs),)

    assert_equation(scheme, n, {"weight": torch.empty(23, HEAD_DIM)}, relative)


@pytest.mark.parametrize(("h", "w"), [(5, 7), (3, 3)])
def test_sam(scheme, h, w):
    """The class computes its softmax in float32."""
    sizes = {"hidden_size": DIM, "num_attention_heads": HEADS, "image_size": 14, "patch_size": 2}
    module = sam.SamVisionAttention(sam.SamVisionConfig(**sizes), window_size=w)
    module.rel_pos_h = nn.Parameter(torch.empty(2 * h - 1, HEAD_DIM))
    module = filled(module, torch.float32)

    def ours(x: Tensor) -> Tensor:
        query, key, value = map(split, module.qkv(x.flatten(1, 2)).chunk(3, -1))
        tables = {"rel_pos_h": module.rel_pos_h, "rel_pos_w": module.rel_pos_w}
        out = scheme(query, key, value, h=h, w=w, **tables)
        return module.proj(joined(out)).unflatten(1, (h, w))

    assert_same(ours, lambda x: module(x)[0], module, shape=(BATCH, h, w, DIM), dtype=torch.float32)


@pytest.mark.parametrize("model", ["LayoutLMv3", "ESMFold"])
@padded((7, 3), (40, 31))
def test_pair_bias(scheme, model, lengths):
    """The biases are computed from parameters, whose gradients are compared too."""
    n, keys = int(lengths.max()), valid(lengths)
    pairs = nn.ParameterList([torch.empty(BATCH, HEADS, n, n) for _ in range(2)])
    pairs = filled(pairs)
    if model == "LayoutLMv3":
        config = layoutlmv3.LayoutLMv3Config(
            hidden_size=DIM, num_attention_heads=HEADS, attention_probs_dropout_prob=0.0,
            has_relative_attention_bias=True, has_spatial_attention_bias=True,
        )  # fmt: skip
        module = filled(layoutlmv3.LayoutLMv3SelfAttention(config))
        mask = float_mask(keys[:, None, None])

        def bias() -> Tensor:  # the model adds and scales both once for all layers
            return (pairs[0] + pairs[1]) * HEAD_DIM**-0.5

        def ours(x: Tensor) -> Tensor:
            inputs = project(x, module.query, module.key, module.value)
            return joined(scheme(*inputs, {"key_lengths": lengths}, pair_bias=bias()))

        assert_same(ours, lambda x: module(x, mask, bias())[0], module, pairs, lengths=lengths)
        return
    folding = filled(esmfold.EsmFoldSelfAttention(DIM, HEADS, HEAD_DIM, gated=True))

    def ours_folding(x: Tensor) -> Tensor:
        query, key, value = folding.proj(x).unflatten(-1, (HEADS, -1)).transpose(1, 2).chunk(3, -1)
        out = joined(scheme(query, key, value, {"key_lengths": lengths}, pair_bias=pairs[0] + pairs[1]))
        return folding.o_proj(folding.g_proj(x).sigmoid() * out)

    def theirs(x: Tensor) -> Tensor:
        return folding(x, mask=keys, bias=(pairs[0] + pairs[1]).permute(0, 2, 3, 1))[0]

    assert_same(ours_folding, theirs, folding, pairs, lengths=lengths)
