"""docs/family.md, a test for each of its schemes: the page's own code, against the class that the page names.

Classes come from transformers, as they are, with small sizes and random parameters. A test makes query, key and value
by the class's own projections, runs the page's code on them, and projects back: what is compared, outputs and the
gradients of all parameters, differs in the attention alone.
"""

import inspect
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers.models.bloom import modeling_bloom as bloom
from transformers.models.fastspeech2_conformer import modeling_fastspeech2_conformer as fastspeech2
from transformers.models.granite_speech import modeling_granite_speech as granite
from transformers.models.inkling import modeling_inkling as inkling
from transformers.models.mpt import modeling_mpt as mpt
from transformers.models.parakeet import modeling_parakeet as parakeet
from transformers.models.seamless_m4t_v2 import modeling_seamless_m4t_v2 as seamless
from transformers.models.speecht5 import modeling_speecht5 as speecht5
from transformers.models.swin import modeling_swin as swin
from transformers.models.t5 import modeling_t5 as t5
from transformers.models.vits import modeling_vits as vits
from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as wav2vec2_bert
from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer as wav2vec2_conformer
from transformers.models.wavlm import modeling_wavlm as wavlm
from transformers.models.xlnet import modeling_xlnet as xlnet

from tests.support.numerics import error

PAGE = (Path(__file__).parents[1] / "docs" / "family.md").read_text(encoding="utf-8")
ULPS = 16  # units in the last place of the largest number compared, as the page says
BATCH, HEADS, HEAD_DIM = 2, 4, 6
DIM = HEADS * HEAD_DIM
EAGER = {"attn_implementation": "eager"}

Attend = Callable[[Tensor], Tensor]


def code(section: str) -> str:
    (found,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return found


SETUP, *SECTIONS = PAGE.partition("\n## What is not")[0].split("\n### ")
SCHEMES = {re.sub(r"\W+", "_", section.partition("\n")[0].lower()): code(section) for section in SECTIONS}


def test_every_scheme_of_the_page_has_its_test():
    here = {name for name, _ in inspect.getmembers(sys.modules[__name__], inspect.isfunction) if name[:5] == "test_"}
    assert {f"test_{name}" for name in SCHEMES} == here - {"test_every_scheme_of_the_page_has_its_test"}


@pytest.fixture
def scheme(request: pytest.FixtureRequest) -> Callable[..., Tensor]:
    """The code below the heading that the test is named after, as a function of the names which it uses."""

    def call(query: Tensor, key: Tensor, value: Tensor, options: dict | None = None, **given: object) -> Tensor:
        names = {"query": query, "key": key, "value": value}
        exec(code(SETUP), names)
        names |= {name: partial(names[name], **options or {}) for name in ("relative_attention", "relation_attention")}
        names |= given
        exec(SCHEMES[request.node.originalname.removeprefix("test_")], names)
        return names["out"]

    return call


def normal(*sizes: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def filled(module: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The module ready to compare: no dropout, no parameter at zero."""
    for seed, parameter in enumerate(module.parameters()):
        parameter.data = 0.2 * normal(*parameter.shape, seed=seed, dtype=dtype)
    return module.eval().to(dtype)


def split(x: Tensor, heads: int = HEADS) -> Tensor:
    """(batch, n, heads · head_dim) as (batch, heads, n, head_dim)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def valid(lengths: Tensor, n: int) -> Tensor:
    return torch.arange(n) < lengths[:, None]


def added(may_attend: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """A bool mask as classes want it: a number to add to scores."""
    return torch.zeros(may_attend.shape, dtype=dtype).masked_fill(~may_attend, torch.finfo(dtype).min)


def causal(n: int) -> Tensor:
    return torch.ones(1, 1, n, n, dtype=torch.bool).tril()


def assert_same(
    hidden: Tensor, ours: Attend, theirs: Attend, *modules: nn.Module, lengths: Tensor | None = None
) -> None:
    """The output of valid queries is the same, and its gradients: the hidden states' and every parameter's."""
    hidden = hidden.detach().requires_grad_()
    parameters = nn.ModuleList(modules).named_parameters()
    leaves = {"hidden": hidden, **dict(parameters)}
    live = None if lengths is None else valid(lengths, hidden.shape[1])[..., None]
    both = []
    for attend in (ours, theirs):
        output = attend(hidden) if live is None else attend(hidden) * live
        gradients = torch.autograd.grad(
            output, list(leaves.values()), normal(*output.shape, seed=9, dtype=output.dtype), allow_unused=True
        )
        named = {"output": output.detach()} | dict(zip(leaves, gradients, strict=True))
        both.append({name: x for name, x in named.items() if x is not None})
    got, want = both
    assert got.keys() == want.keys()
    allowed = ULPS * torch.finfo(hidden.dtype).eps * max(float(x.abs().max()) for x in want.values())
    wrong = {name: off for name in want if (off := error(got[name], want[name])) > allowed}
    assert not wrong, f"off by {wrong}, allowed {allowed}"


def softmax_of_sum(query: Tensor, key: Tensor, term: Tensor) -> Tensor:
    """Of (q · k + term) / √d over the keys: what "by formula" comes down to."""
    return ((query @ key.mT + term) * HEAD_DIM**-0.5).softmax(-1)


VITS = {"hidden_size": DIM, "num_attention_heads": HEADS, "window_size": 4, "attention_dropout": 0.0}


def with_two_tables(scheme: Callable[..., Tensor], module: nn.Module, options: dict | None = None) -> Attend:
    """The attention of VITS by the page's code."""

    def ours(x: Tensor) -> Tensor:
        query, key, value = (split(linear(x)) for linear in (module.q_proj, module.k_proj, module.v_proj))
        tables = {"rel_key": module.emb_rel_k[0], "rel_value": module.emb_rel_v[0]}
        return module.out_proj(joined(scheme(query, key, value, options, **tables)))

    return ours


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("n", [1, 5, 13])
def test_shaw(scheme, n, per_head):
    k = VITS["window_size"]
    projections = filled(nn.Linear(DIM, 3 * DIM))
    size = (HEADS, 2 * k + 1, HEAD_DIM) if per_head else (2 * k + 1, HEAD_DIM)
    tables = filled(nn.ParameterList(torch.empty(size) for _ in range(2)))
    label = (torch.arange(n) - torch.arange(n)[:, None]).clamp(-k, k) + k

    def ours(x: Tensor) -> Tensor:
        return joined(scheme(*map(split, projections(x).chunk(3, -1)), rel_key=tables[0], rel_value=tables[1]))

    def theirs(x: Tensor) -> Tensor:
        query, key, value = map(split, projections(x).chunk(3, -1))
        a_key, a_value = (table[..., label, :].expand(HEADS, n, n, HEAD_DIM) for table in tables)
        weights = softmax_of_sum(query, key, torch.einsum("bhid,hijd->bhij", query, a_key))
        return joined(weights @ value + torch.einsum("bhij,hijd->bhid", weights, a_value))

    assert_same(normal(BATCH, n, DIM), ours, theirs, projections, tables)
    if n <= k + 1 and not per_head:
        module = filled(vits.VitsAttention(vits.VitsConfig(**VITS)))
        assert_same(normal(BATCH, n, DIM), with_two_tables(scheme, module), lambda x: module(x)[0], module)


@pytest.mark.parametrize("lengths", [(7, 3), (90, 75)])
@pytest.mark.parametrize("model", ["Wav2Vec2-BERT", "SeamlessM4T v2"])
def test_wav2vec2_bert(scheme, model, lengths):
    lengths = torch.tensor(lengths)
    n = int(lengths.max())
    if model == "Wav2Vec2-BERT":
        config = wav2vec2_bert.Wav2Vec2BertConfig(hidden_size=DIM, num_attention_heads=HEADS, **EAGER)
        module = filled(wav2vec2_bert.Wav2Vec2BertSelfAttention(config))
    else:
        config = seamless.SeamlessM4Tv2Config(hidden_size=DIM, speech_encoder_attention_heads=HEADS, **EAGER)
        module = filled(seamless.SeamlessM4Tv2ConformerSelfAttention(config))

    def ours(x: Tensor) -> Tensor:
        query, key, value = (split(linear(x)) for linear in (module.linear_q, module.linear_k, module.linear_v))
        options = {"key_lengths": lengths}
        return module.linear_out(joined(scheme(query, key, value, options, rel_key=module.distance_embedding.weight)))

    mask = added(valid(lengths, n)[:, None, None])
    assert_same(normal(BATCH, n, DIM), ours, lambda x: module(x, mask)[0], module, lengths=lengths)


@pytest.mark.parametrize("lengths", [(7, 3), (200, 170)])
def test_speecht5(scheme, lengths):
    lengths = torch.tensor(lengths)
    n = int(lengths.max())
    module = filled(speecht5.SpeechT5Attention(DIM, HEADS))
    positions = filled(speecht5.SpeechT5RelativePositionalEncoding(HEAD_DIM, 160))

    def ours(x: Tensor) -> Tensor:
        query, key, value = (split(linear(x)) for linear in (module.q_proj, module.k_proj, module.v_proj))
        return module.out_proj(joined(scheme(query, key, value, {"key_lengths": lengths}, pe_k=positions.pe_k.weight)))

    mask = added(valid(lengths, n)[:, None, None].expand(-1, -1, n, -1))

    def theirs(x: Tensor) -> Tensor:
        return module(x, attention_mask=mask, position_bias=positions(x))[0]

    assert_same(normal(BATCH, n, DIM), ours, theirs, module, positions, lengths=lengths)


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("n", [1, 5, 12])
def test_music_transformer(scheme, n, per_head):
    longest = 12
    projections = filled(nn.Linear(DIM, 3 * DIM))
    table = filled(nn.ParameterList([torch.empty(*((HEADS,) if per_head else ()), longest, HEAD_DIM)]))

    def skewed(query: Tensor) -> Tensor:
        """Section 3.4.1: of q E, (n, n), pad a column on the left, read as (n + 1, n), and drop the first row."""
        products = query @ table[0][..., longest - n :, :].mT
        padded = torch.cat([products.new_zeros(BATCH, HEADS, n, 1), products], -1)
        return padded.reshape(BATCH, HEADS, n + 1, n)[:, :, 1:]

    def theirs(x: Tensor) -> Tensor:
        query, key, value = map(split, projections(x).chunk(3, -1))
        term = skewed(query).masked_fill(~causal(n), -torch.inf)
        return joined(softmax_of_sum(query, key, term) @ value)

    def ours(x: Tensor) -> Tensor:
        return joined(scheme(*map(split, projections(x).chunk(3, -1)), rel_key=table[0]))

    assert_same(normal(BATCH, n, DIM), ours, theirs, projections, table)


@pytest.mark.parametrize("lengths", [(1, 1), (5, 3), (23, 16)])
def test_vits(scheme, lengths):
    lengths = torch.tensor(lengths)
    n = int(lengths.max())
    module = filled(vits.VitsAttention(vits.VitsConfig(**VITS)))
    mask = added(valid(lengths, n)[:, None, None].expand(-1, -1, n, -1))
    ours = with_two_tables(scheme, module, {"key_lengths": lengths})
    assert_same(normal(BATCH, n, DIM), ours, lambda x: module(x, attention_mask=mask)[0], module, lengths=lengths)


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
        query, key, value = map(split, (module.to_q(blocks), *module.to_kv(blocks).chunk(2, -1)))
        out = scheme(query, key, value, rel_pos_emb=module.rel_pos_emb.weight, lengths=lengths)
        return module.to_out(joined(out).unflatten(0, (BATCH, -1)).flatten(1, 2)[:, :n])

    assert_same(normal(BATCH, n, DIM), ours, lambda x: module(x, model.attention_dists), module)


@pytest.mark.parametrize("lengths", [(1, 1), (13, 8)])
@pytest.mark.parametrize("model", ["Parakeet", "Wav2Vec2-Conformer", "FastSpeech2-Conformer", "XLNet", "causal XLNet"])
def test_transformer_xl(scheme, model, lengths):
    lengths = torch.tensor(lengths)
    n = int(lengths.max())
    if "XLNet" in model:
        return with_a_memory(scheme, n, causally=model == "causal XLNet")
    keys, sizes = valid(lengths, n), {"hidden_size": DIM, "num_attention_heads": HEADS, **EAGER}
    hidden = normal(BATCH, n, DIM, dtype=torch.float32 if model == "Parakeet" else torch.float64)
    if model == "Parakeet":
        config = parakeet.ParakeetEncoderConfig(**sizes)
        module = filled(parakeet.ParakeetEncoderAttention(config, 0), torch.float32)
        positions = parakeet.ParakeetEncoderRelPositionalEncoding(config)(hidden)
        given = {"position_embeddings": positions, "attention_mask": keys[:, None, None].expand(-1, -1, n, -1)}
        linears = (module.q_proj, module.k_proj, module.v_proj, module.relative_k_proj, module.o_proj)
        u, v = module.bias_u, module.bias_v
    else:
        if model == "Wav2Vec2-Conformer":
            config = wav2vec2_conformer.Wav2Vec2ConformerConfig(position_embeddings_type="relative", **sizes)
            module = filled(wav2vec2_conformer.Wav2Vec2ConformerSelfAttention(config))
            positions = wav2vec2_conformer.Wav2Vec2ConformerRelPositionalEmbedding(config)(hidden)
            given = {"relative_position_embeddings": positions, "attention_mask": added(keys[:, None, None])}
        else:
            config = fastspeech2.FastSpeech2ConformerConfig(hidden_size=DIM)
            encoder = {"num_attention_heads": HEADS, "attention_dropout_rate": 0, "positional_dropout_rate": 0}
            module = filled(fastspeech2.FastSpeech2ConformerAttention(config, encoder))
            _, positions = fastspeech2.FastSpeech2ConformerRelPositionalEncoding(config, encoder)(hidden)
            given = {"pos_emb": positions, "attention_mask": keys[:, None]}
        linears = (module.linear_q, module.linear_k, module.linear_v, module.linear_pos, module.linear_out)
        u, v = module.pos_bias_u, module.pos_bias_v

    def ours(x: Tensor) -> Tensor:
        query, key, value = (split(linear(x)) for linear in linears[:3])
        out = scheme(query, key, value, {"key_lengths": lengths}, R=linears[3](positions[0]), u=u, v=v)
        return linears[4](joined(out))

    return assert_same(hidden, ours, lambda x: module(x, **given)[0], module, lengths=lengths)


def with_a_memory(scheme: Callable[..., Tensor], n: int, causally: bool) -> None:
    """XLNet has time first, and 1 in a mask for what may not be attended to."""
    sizes = {"vocab_size": 2, "d_model": DIM, "n_layer": 1, "n_head": HEADS, "d_inner": 2}
    model = filled(xlnet.XLNetModel(xlnet.XLNetConfig(attn_type="uni" if causally else "bi", **sizes)))
    module, memory = model.layer[0].rel_attn, normal(BATCH, 7, DIM, seed=1)
    positions = model.relative_positional_encoding(n, 7 + n, BATCH).double()
    hides = torch.ones(n, 7 + n, dtype=torch.float64).triu(8)[..., None, None] if causally else None
    given = {"g": None, "attn_mask_h": hides, "attn_mask_g": None, "r": positions, "seg_mat": None}

    def theirs(x: Tensor) -> Tensor:
        return module(x.transpose(0, 1), mems=memory.transpose(0, 1), **given)[0].transpose(0, 1)

    def ours(x: Tensor) -> Tensor:
        both = torch.cat([memory, x], 1)
        query, key, value = (split(x @ w.flatten(1)) for x, w in ((x, module.q), (both, module.k), (both, module.v)))
        R = positions[1:, 0] @ module.r.flatten(1)  # the first row is that of i − j = keys
        out = scheme(query, key, value, {"is_causal": causally}, R=R, u=module.r_w_bias, v=module.r_r_bias)
        return module.post_attention(x.transpose(0, 1), out.permute(2, 0, 1, 3)).transpose(0, 1)

    assert_same(normal(BATCH, n, DIM), ours, theirs, module)


@pytest.mark.parametrize("lengths", [(1, 1), (29, 17), (300, 200)])
@pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
def test_t5(scheme, decoder, lengths):
    lengths = torch.tensor(lengths)
    n = int(lengths.max())
    config = t5.T5Config(d_model=DIM, d_kv=HEAD_DIM, num_heads=HEADS, dropout_rate=0.0, is_decoder=decoder, **EAGER)
    module = filled(t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0))
    mask = valid(lengths, n)[:, None, None] & (causal(n) | (not decoder))
    names = {
        "weight": module.relative_attention_bias.weight,
        "bucket": partial(module._relative_position_bucket, bidirectional=not decoder),
    }

    def ours(x: Tensor) -> Tensor:
        query, key, value = (split(linear(x)) for linear in (module.q, module.k, module.v))
        options = {"key_lengths": lengths, "is_causal": decoder}
        return module.o(joined(scheme(query, key, value, options, **names)))

    assert_same(normal(BATCH, n, DIM), ours, lambda x: module(x, mask=added(mask))[0], module, lengths=lengths)


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask:UserWarning")  # PyTorch's, to the class
@pytest.mark.parametrize("lengths", [(1, 1), (29, 17), (850, 830)])
def test_wavlm(scheme, lengths):
    lengths = torch.tensor(lengths)
    n = int(lengths.max())
    module = filled(wavlm.WavLMAttention(DIM, HEADS))
    names = {"bucket": module._relative_positions_bucket, "weight": module.rel_attn_embed.weight}

    def ours(x: Tensor) -> Tensor:
        query, key, value = (split(linear(x)) for linear in (module.q_proj, module.k_proj, module.v_proj))
        a, b = module.gru_rel_pos_linear(split(x)).unflatten(-1, (2, 4)).sum(-1).sigmoid().chunk(2, -1)
        gate = a * (b * module.gru_rel_pos_const - 1) + 2
        return module.out_proj(joined(scheme(query, key, value, {"key_lengths": lengths}, gate=gate, **names)))

    mask = valid(lengths, n).long()
    assert_same(normal(BATCH, n, DIM), ours, lambda x: module(x, mask)[0], module, lengths=lengths)


@pytest.mark.parametrize("lengths", [(1, 1), (17, 12), (70, 50)])
@pytest.mark.parametrize("model", ["BLOOM", "MPT"])
def test_alibi(scheme, model, lengths):
    lengths = torch.tensor(lengths)
    n = int(lengths.max())
    keys = valid(lengths, n)
    mask = keys[:, None, None] & causal(n)
    hidden = normal(BATCH, n, DIM, dtype=torch.float32)
    if model == "BLOOM":
        module = filled(bloom.BloomAttention(bloom.BloomConfig(hidden_size=DIM, n_head=HEADS), 0), torch.float32)
        alibi = bloom.build_alibi_tensor(keys.float(), HEADS, torch.float32)
        linear, out = module.query_key_value, module.dense

        def projected(x: Tensor) -> tuple[Tensor, ...]:
            return linear(x).unflatten(-1, (HEADS, 3, HEAD_DIM)).transpose(1, 2).unbind(3)

        def theirs(x: Tensor) -> Tensor:
            return module(x, torch.zeros_like(x), alibi, added(mask, torch.float32))[0]

    else:
        module = filled(mpt.MptAttention(mpt.MptConfig(d_model=DIM, n_heads=HEADS), 0), torch.float32)
        alibi, out = mpt.build_mpt_alibi_tensor(HEADS, n), module.out_proj

        def projected(x: Tensor) -> tuple[Tensor, ...]:
            return tuple(map(split, module.Wqkv(x).chunk(3, -1)))

        def theirs(x: Tensor) -> Tensor:
            return module(x, alibi, attention_mask=~mask)[0]

    def ours(x: Tensor) -> Tensor:
        return out(joined(scheme(*projected(x), {"key_lengths": lengths})))

    assert_same(hidden, ours, theirs, module, lengths=lengths)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("window", [1, 3, 7])
def test_swin(scheme, window, shifted):
    windows, area = 3, window * window
    module = filled(swin.SwinAttention(swin.SwinConfig(**EAGER), DIM, HEADS, window), torch.float32)
    index = module.relative_position_bias.relative_position_index.view(area, area)
    side = torch.arange(area) % 2 + torch.arange(windows)[:, None] % 2  # who sees whom, here by a number of each place
    mask = side[:, :, None] == side[:, None, :] if shifted else torch.ones(windows, area, area, dtype=torch.bool)

    def ours(x: Tensor) -> Tensor:
        query, key, value = (split(linear(x)) for linear in (module.q_proj, module.k_proj, module.v_proj))
        names = {"index": index, "table": module.relative_position_bias.relative_position_bias_table}
        options = {"mask": mask.repeat(BATCH, 1, 1)[:, None]} if shifted else {}
        return module.o_proj(joined(scheme(query, key, value, options, **names)))

    def theirs(x: Tensor) -> Tensor:
        return module(x, added(mask, torch.float32) if shifted else None)[0]

    assert_same(normal(BATCH * windows, area, DIM, dtype=torch.float32), ours, theirs, module)


@pytest.mark.parametrize("lengths", [(1, 1), (9, 7), (40, 33)])
@pytest.mark.parametrize("layer", ["hybrid", "hybrid_sliding"])
def test_inkling(scheme, layer, lengths):
    lengths, groups, window = torch.tensor(lengths), 2, 11
    n = int(lengths.max())
    config = inkling.InklingTextConfig(
        hidden_size=DIM,
        num_hidden_layers=1,
        head_dim=HEAD_DIM,
        swa_head_dim=HEAD_DIM,
        num_attention_heads=HEADS,
        swa_num_attention_heads=HEADS,
        num_key_value_heads=HEADS // groups,
        swa_num_key_value_heads=HEADS // groups,
        layer_types=[layer],
        rel_extent=13,
        sliding_window_size=window,
        log_scaling_n_floor=16,
        **EAGER,
    )
    module = filled(inkling.InklingAttention(config, 0), torch.float32)
    mask = valid(lengths, n)[:, None, None] & causal(n)
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

    def theirs(x: Tensor) -> Tensor:
        return module(x, added(mask, torch.float32))[0]

    assert_same(normal(BATCH, n, DIM, dtype=torch.float32), ours, theirs, module, lengths=lengths)


@pytest.mark.parametrize("n", [1, 5, 12])
def test_bert_relative_key(scheme, n):
    longest = 12
    projections, table = filled(nn.Linear(DIM, 3 * DIM)), filled(nn.Embedding(2 * longest - 1, HEAD_DIM))
    distance = torch.arange(n)[:, None] - torch.arange(n)

    def theirs(x: Tensor) -> Tensor:
        query, key, value = map(split, projections(x).chunk(3, -1))
        term = torch.einsum("bhid,ijd->bhij", query, table(distance + longest - 1))
        return joined(softmax_of_sum(query, key, term) @ value)

    def ours(x: Tensor) -> Tensor:
        return joined(scheme(*map(split, projections(x).chunk(3, -1)), weight=table.weight))

    assert_same(normal(BATCH, n, DIM), ours, theirs, projections, table)
