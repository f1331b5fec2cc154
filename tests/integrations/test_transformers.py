"""Models of transformers say the same with the operator inside, and are left alone where it would not."""

from __future__ import annotations

import copy
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.models.granite_speech.modeling_granite_speech import GraniteSpeechCTCEncoder
from transformers.models.seamless_m4t_v2.modeling_seamless_m4t_v2 import SeamlessM4Tv2SpeechEncoder
from transformers.models.speecht5.modeling_speecht5 import SpeechT5EncoderWithoutPrenet

from benchmarks.encoders import FastSpeech2, Vits, padding, without_chance
from relattn.integrations import transformers as faster
from relattn.integrations.transformers import calls, patching

SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 48}
CONVOLUTIONS = {
    "conv_dim": (8, 8), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip


@dataclass
class Family:
    """A model of few weights, what it reads, and what of its output is text or sound."""

    make: Callable[..., nn.Module]
    inputs: Callable[[int], Tensor]
    replaced: int
    length: int = 90
    valid: Callable[[Any], Tensor] = lambda out: torch.ones(out.last_hidden_state.shape[:2], dtype=torch.bool)


def parakeet(impl: str = "sdpa", **options: Any) -> nn.Module:
    few = {"num_mel_bins": 16, "subsampling_conv_channels": 8, "num_key_value_heads": 4}
    return transformers.ParakeetEncoder(
        transformers.ParakeetEncoderConfig(**{**SMALL, **few, "attn_implementation": impl, **options})
    )


def bert(impl: str = "sdpa", **options: Any) -> nn.Module:
    few = {"feature_projection_input_dim": 16, "left_max_position_embeddings": 9, "right_max_position_embeddings": 2}
    return transformers.Wav2Vec2BertModel(
        transformers.Wav2Vec2BertConfig(**{**SMALL, **few, "attn_implementation": impl, **options})
    )


def conformer(impl: str = "sdpa", **options: Any) -> nn.Module:
    few = {**CONVOLUTIONS, "position_embeddings_type": "relative", "mask_time_prob": 0.0}
    return transformers.Wav2Vec2ConformerModel(
        transformers.Wav2Vec2ConformerConfig(**{**SMALL, **few, "attn_implementation": impl, **options})
    )


def seamless(impl: str = "sdpa", chunk: int = 20_000) -> nn.Module:
    return SeamlessM4Tv2SpeechEncoder(
        transformers.SeamlessM4Tv2Config(
            hidden_size=32, speech_encoder_layers=2, speech_encoder_attention_heads=4,
            speech_encoder_intermediate_size=48,
            left_max_position_embeddings=9, right_max_position_embeddings=2, feature_projection_input_dim=16,
            speech_encoder_chunk_size=chunk, attn_implementation=impl,
        )
    )  # fmt: skip


def vits(impl: str = "eager", **options: Any) -> nn.Module:
    few = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "ffn_dim": 48, "vocab_size": 30}
    return Vits(**few, **options)


def granite(impl: str = "sdpa", **options: Any) -> nn.Module:
    few = {"hidden_dim": 32, "num_layers": 2, "num_heads": 4, "dim_head": 8, "context_size": 40, "max_pos_emb": 50}
    return GraniteSpeechCTCEncoder(
        transformers.GraniteSpeechEncoderConfig(**few, input_dim=16, output_dim=9, **options)
    )


def fastspeech2(impl: str = "eager", **options: Any) -> nn.Module:
    return FastSpeech2(hidden_size=32, encoder_layers=2, decoder_layers=1, **options)


def t5(impl: str = "sdpa", kind: str = "T5", **options: Any) -> nn.Module:
    few = {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 48, "num_layers": 3, "vocab_size": 30}
    config = getattr(transformers, f"{kind}Config")(
        **{**few, "relative_attention_max_distance": 40, "attn_implementation": impl, **options}
    )
    return getattr(transformers, f"{kind}EncoderModel")(config)


def pop2piano(impl: str = "eager") -> nn.Module:
    few = {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 48, "num_layers": 2, "vocab_size": 30}
    return transformers.Pop2PianoForConditionalGeneration(transformers.Pop2PianoConfig(**few)).encoder


def speecht5(impl: str = "eager") -> nn.Module:
    few = {"hidden_size": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48}
    return SpeechT5EncoderWithoutPrenet(transformers.SpeechT5Config(**few, encoder_max_relative_position=12))


def nemotron(impl: str = "sdpa", **options: Any) -> nn.Module:
    few = {"num_mel_bins": 16, "subsampling_conv_channels": 8, "num_key_value_heads": 4, "sliding_window": 10}
    few |= {"default_num_lookahead_tokens": 2}
    return transformers.NemotronAsrStreamingEncoder(
        transformers.NemotronAsrStreamingEncoderConfig(**{**SMALL, **few, "attn_implementation": "sdpa", **options})
    )


def states(length: int) -> Tensor:
    return torch.randn(2, length, 32)


def features(length: int) -> Tensor:
    return torch.randn(2, length, 16)


def sound(length: int) -> Tensor:
    return torch.randn(2, length * 10)


def ids(length: int) -> Tensor:
    return torch.randint(1, 30, (2, length))


FAMILIES = {
    "parakeet": Family(parakeet, features, 3, 400, lambda out: out.attention_mask.bool()),
    "wav2vec2-bert": Family(bert, features, 2),
    "wav2vec2-bert relative": Family(lambda impl="sdpa": bert(impl, position_embeddings_type="relative"), features, 2),
    "wav2vec2-conformer": Family(conformer, sound, 2),
    "seamless-m4t-v2": Family(lambda impl="sdpa": seamless("sdpa"), features, 2),
    "seamless-m4t-v2 in chunks": Family(lambda impl="sdpa": seamless("sdpa", 20), features, 2),
    "granite-speech": Family(granite, features, 2),
    "fastspeech2-conformer": Family(fastspeech2, ids, 2),
    "vits": Family(vits, ids, 2),
    "speecht5": Family(speecht5, states, 3),
    "nemotron": Family(nemotron, features, 2, 400, lambda out: out.attention_mask.bool()),
    "t5": Family(t5, ids, 3, 150),
    "mt5": Family(lambda impl="sdpa": t5(impl, "MT5"), ids, 3, 150),
    "umt5": Family(lambda impl="sdpa": t5(impl, "UMT5"), ids, 3, 150),
    "switch": Family(lambda impl="eager": t5("eager", "SwitchTransformers"), ids, 3, 150),
    "pop2piano": Family(pop2piano, ids, 2, 150),
}
BLOCKS = ("granite-speech",)  # of one length, without a mask


def made(family: Family, *arguments: Any, **options: Any) -> nn.Module:
    """A model with weights that all matter."""
    torch.manual_seed(1)
    model = family.make(*arguments, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            if not bool(parameter.abs().gt(1e-3).any()):
                parameter.normal_(0, 0.2)
    return model.eval()


def output(model: nn.Module, *inputs: Any, **options: Any) -> Any:
    with torch.no_grad():
        return model(*inputs, **options)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("impl", ["eager", "sdpa"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_says_the_same(name, impl):
    family = FAMILIES[name]
    model, inputs = made(family, impl), family.inputs(family.length)
    options = [{}] if name in BLOCKS else [{}, {"attention_mask": padding(inputs)}]
    for given in options:
        own = output(model, inputs, **given)
        where = family.valid(own) if given else slice(None)
        with faster.enable():
            ours = output(model, inputs, **given)
        again = output(model, inputs, **given)
        faster.enable(model)
        assert faster.report(model).count(": relattn") == family.replaced
        alone = output(model, inputs, **given)
        faster.disable(model)
        for each in (ours, alone):
            gap = (each.last_hidden_state - own.last_hidden_state)[where].abs().max()
            assert 0 < float(gap) < 2e-5
        assert torch.equal(again.last_hidden_state, own.last_hidden_state)
        if given and name == "parakeet":
            assert torch.equal(ours.attention_mask, own.attention_mask)
            assert ours.attention_mask.dtype == own.attention_mask.dtype


def test_seamless_pads_where_its_own_eager_code_does_not():
    """That one adds its mask of True and False to scores, in transformers 5.23: 1 for what is valid, 0 for padding."""
    inputs = features(90)
    eager, right = (made(Family(seamless, features, 2), impl) for impl in ("eager", "sdpa"))
    given = {"attention_mask": padding(inputs)}
    exact, wrong = (output(model, inputs, **given).last_hidden_state for model in (right, eager))
    with faster.enable():
        ours = output(eager, inputs, **given).last_hidden_state
    assert float((wrong - exact).abs().max()) > 1e-3
    torch.testing.assert_close(ours, exact, rtol=0, atol=2e-5)


@pytest.mark.parametrize("length", [40, 47, 13, 1])
def test_blocks_that_end_early(length):
    model, inputs = made(FAMILIES["granite-speech"]), features(length)
    own = output(model, inputs)
    with faster.enable():
        ours = output(model, inputs)
    torch.testing.assert_close(ours.last_hidden_state, own.last_hidden_state, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["parakeet", "wav2vec2-bert", "wav2vec2-conformer", "granite-speech"])
def test_in_bfloat16_both_are_as_near_to_float32(name):
    family = FAMILIES[name]
    model, inputs = made(family), family.inputs(family.length)
    exact = output(model, inputs).last_hidden_state
    half = model.to(torch.bfloat16)
    inputs = inputs.to(torch.bfloat16)
    own = output(half, inputs).last_hidden_state
    with faster.enable():
        ours = output(half, inputs).last_hidden_state
    assert ours.dtype == torch.bfloat16
    gaps = [float((x.float() - exact).abs().mean()) for x in (ours, own)]
    assert gaps[0] <= 1.3 * gaps[1] + 1e-6


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "checkpointing"),
    [
        ("parakeet", False),
        ("parakeet", True),
        ("wav2vec2-bert", False),
        ("wav2vec2-bert", True),
        ("wav2vec2-conformer", False),
        ("wav2vec2-conformer", True),
        ("granite-speech", False),
        ("t5", False),
        ("t5", True),
        ("mt5", False),
        ("umt5", False),
        ("pop2piano", False),
        ("switch", False),
        ("vits", False),
        ("fastspeech2-conformer", False),
        ("seamless-m4t-v2", False),
        ("wav2vec2-bert relative", False),
        ("nemotron", False),
        ("speecht5", False),
    ],
)
def test_a_step_of_training_is_the_same(name, checkpointing):
    family = FAMILIES[name]
    model, inputs = made(family), family.inputs(family.length)
    if checkpointing:
        model.activation_checkpointing_enable()
    model.train()
    without_chance(model)
    target = torch.randn_like(output(model, inputs).last_hidden_state)

    def gradients() -> tuple[float, dict[str, Tensor]]:
        model.zero_grad()
        loss = (model(inputs).last_hidden_state * target).mean()
        loss.backward()
        found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        return float(loss.detach()), found

    loss, own = gradients()
    with faster.enable():
        our_loss, ours = gradients()
    assert our_loss == pytest.approx(loss, abs=1e-5)
    assert ours.keys() == own.keys()
    for name, gradient in own.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-3, atol=1e-5 * float(gradient.abs().max()) + 1e-8)


DROPPED = {  # where each family says how much of its attention is dropped
    "parakeet": "attention_dropout",
    "wav2vec2-bert": "dropout.p",
    "fastspeech2-conformer": "dropout.p",
    "vits": "dropout",
    "speecht5": "dropout",
    "t5": "dropout",
    "umt5": "dropout",
}


@pytest.mark.parametrize("name", DROPPED)
def test_attention_is_dropped_in_training(name):
    model, inputs = made(FAMILIES[name]), FAMILIES[name].inputs(60)
    with faster.enable():
        places = [line.partition(" (")[0] for line in faster.report(model).splitlines() if "Attention)" in line]
        for place in places:
            module = model.get_submodule(place)
            owner, _, option = DROPPED[name].rpartition(".")
            setattr(module.get_submodule(owner), option, 0.5)
        still = [output(model, inputs).last_hidden_state for _ in range(2)]
        for place in places:
            model.get_submodule(place).train()
        moved = [output(model, inputs).last_hidden_state for _ in range(2)]
    assert torch.equal(*still)
    assert not torch.equal(*moved)


def test_positions_that_are_dropped_for_each_sequence_are_left_to_the_model():
    model = made(FAMILIES["parakeet"], dropout_positions=0.1, attention_dropout=0.0)
    attention, given = model.layers[0].self_attn.train(), torch.randn(2, 9, 32)
    positions = torch.randn(2, 17, 32)  # another for each
    own = output(attention, given, positions)[0]
    with faster.enable():
        assert torch.equal(output(attention, given, positions)[0], own)
        ours = output(attention, given, positions[:1])[0]
    torch.testing.assert_close(ours, output(attention, given, positions[:1].expand(2, -1, -1))[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["parakeet", "wav2vec2-bert", "vits", "fastspeech2-conformer", "t5", "umt5", "speecht5"]
)
def test_weights_that_are_wanted_come_from_the_model_itself(name, caplog, monkeypatch):
    monkeypatch.setattr(calls, "_told", set())
    family = FAMILIES[name]
    model, inputs = made(family, "eager"), family.inputs(family.length)
    given = {"attention_mask": padding(inputs), "output_attentions": True}
    own = output(model, inputs, **given)
    with faster.enable(), caplog.at_level(logging.WARNING):
        ours = output(model, inputs, **given)
        output(model, inputs, **given)
    assert len(ours.attentions) == len(own.attentions) == (3 if "t5" in name and name != "speecht5" else 2)
    assert all(torch.equal(a, b) for a, b in zip(ours.attentions, own.attentions, strict=True))
    assert torch.equal(ours.last_hidden_state, own.last_hidden_state)
    told = [record.message for record in caplog.records if "attention weights are wanted" in record.message]
    assert len(told) == 1


def test_a_stream_says_the_same():
    """Chunks of sound with keys from a cache, of which the queries are the last."""
    model, sound = made(FAMILIES["nemotron"]), features(240)

    def said() -> list[Tensor]:
        parts, past = [], {}
        for chunk in sound.split(48, dim=1):
            out = output(model, chunk, use_cache=True, num_lookahead_tokens=2, **past)
            past = {"past_key_values": out.past_key_values, "padding_cache": out.padding_cache}
            parts.append(out.last_hidden_state)
        return parts

    own = said()
    with faster.enable():
        ours = said()
    for mine, theirs in zip(ours, own, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-5)
    assert len(ours) == 5
    assert not torch.equal(ours[4], own[4])


def test_a_layer_of_t5_without_a_table_is_left_alone():
    """One called by itself has no positions; one after a layer that was left alone is given n × n numbers a head."""
    model, given = made(FAMILIES["t5"]), torch.randn(1, 12, 32)
    first, later = (block.layer[0].SelfAttention for block in model.encoder.block[:2])
    whole = output(first, given)[1]
    own = [output(later, given)[0], output(later, given, position_bias=whole)[0]]
    with faster.enable():
        ours = [output(later, given)[0], output(later, given, position_bias=whole)[0]]
    assert all(torch.equal(a, b) for a, b in zip(ours, own, strict=True))
    assert whole.shape == (1, 4, 12, 12)


def test_a_decoder_of_t5_is_left_alone():
    config = transformers.T5Config(d_model=32, d_kv=8, num_heads=4, d_ff=48, num_layers=2, vocab_size=30)
    model = made(Family(lambda: transformers.T5Model(config), ids, 2))
    given = {"input_ids": ids(60), "decoder_input_ids": ids(40)}
    own = output(model, **given)
    with faster.enable():
        ours = output(model, **given)
        told = faster.report(model)
    torch.testing.assert_close(ours.last_hidden_state, own.last_hidden_state, rtol=0, atol=2e-5)
    assert (told.count(": relattn"), told.count(": in a decoder")) == (2, 4)


def test_checkpoints_are_as_before(tmp_path):
    model = made(FAMILIES["wav2vec2-bert"])
    names = list(model.state_dict())
    with faster.enable():
        assert list(model.state_dict()) == names
        model.save_pretrained(tmp_path)
        again = transformers.Wav2Vec2BertModel.from_pretrained(tmp_path).eval()
        assert type(again.encoder.layers[0].self_attn) is type(model.encoder.layers[0].self_attn)
        assert faster.report(again).count(": relattn") == 2
    inputs = features(30)
    assert torch.equal(output(again, inputs).last_hidden_state, output(model, inputs).last_hidden_state)


def test_what_is_enabled_is_undone_and_nothing_else():
    model, other = made(FAMILIES["vits"]), made(FAMILIES["wav2vec2-bert"])
    assert faster.report(model).count(": not enabled") == 2
    faster.enable(model)
    with faster.enable():
        with faster.enable(), faster.enable(other):  # which changes nothing more
            assert faster.report(other).count(": relattn") == 2
        assert faster.report(other).count(": relattn") == 2
    assert faster.report(other).count(": not enabled") == 2
    assert faster.report(model).count(": relattn") == 2  # enabled for itself
    faster.enable(model)
    faster.disable(model)
    assert faster.report(model).count(": not enabled") == 2
    faster.enable()
    faster.enable()
    faster.disable()
    assert faster.report(other).count(": not enabled") == 2
    faster.disable()
    assert not any(hasattr(s.find().forward, patching._OWN) for s in patching._all())


def test_a_copy_of_a_model_computes_by_itself():
    model = made(FAMILIES["wav2vec2-bert"])
    faster.enable(model)
    twin = copy.deepcopy(model)
    assert twin.encoder.layers[0].self_attn.forward.__self__ is twin.encoder.layers[0].self_attn
    with torch.no_grad():
        twin.encoder.layers[0].self_attn.linear_out.weight.mul_(2)
    inputs = features(20)
    assert not torch.equal(output(model, inputs).last_hidden_state, output(twin, inputs).last_hidden_state)


def test_a_module_that_cannot_be_expressed_is_left_alone_and_named():
    rotary = made(Family(bert, features, 0), position_embeddings_type="rotary")
    inputs = features(30)
    own = output(rotary, inputs)
    with faster.enable():
        assert torch.equal(output(rotary, inputs).last_hidden_state, own.last_hidden_state)
        faster.enable(rotary)
        assert faster.report(rotary).splitlines() == [
            f"encoder.layers.{i}.self_attn (Wav2Vec2BertSelfAttention): position_embeddings_type rotary" for i in (0, 1)
        ]
        without = made(Family(vits, ids, 0), window_size=0)
        assert faster.report(without).count("window_size 0") == 2
    assert faster.report(nn.Linear(2, 2)) == "Linear: none of its modules is of a class that is known"


def test_what_a_mask_says():
    yes, no = 0.0, torch.finfo(torch.float32).min
    assert calls.seen(None, 5) == {}
    assert calls.seen(torch.ones(2, 1, 5, 5, dtype=torch.bool), 5) == {}
    right = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()[:, None, None].expand(2, 1, 4, 3)
    for mask in (right, torch.where(right, yes, no), torch.where(right, yes, -torch.inf), right[:, :, :1]):
        found = calls.seen(mask, 4)
        assert found is not None
        assert found["key_lengths"].tolist() == [3, 1]
        assert found["query_lengths"].tolist() == [4, 4]
    left = right.flip(-1)
    assert torch.equal(calls.seen(left, 4)["mask"], left[:, :1, :1])
    causal = torch.ones(4, 4).tril().bool()[None, None]
    assert torch.equal(calls.seen(causal, 4)["mask"], causal)
    assert calls.seen(torch.full((1, 1, 4, 4), -1.0), 4) is None  # a bias, which is no mask
    twice = torch.where(right, yes, no).half() + torch.where(right, yes, no).half()
    assert calls.seen(twice, 4)["key_lengths"].tolist() == [3, 1]


def test_a_bias_in_a_mask_is_left_to_the_model():
    model = made(FAMILIES["vits"])
    attention = model.encoder.encoder.layers[0].attention
    states, bias = torch.randn(1, 7, 32), torch.randn(1, 1, 7, 7)
    own = output(attention, states, attention_mask=bias)[0]
    with faster.enable():
        assert torch.equal(output(attention, states, attention_mask=bias)[0], own)


def test_versions_that_were_not_tested_are_refused(monkeypatch):
    package = sys.modules["transformers"]  # which takes its own place again when a part of it is loaded
    for version in ("5.22.9", "5.24.0", "6.0"):
        monkeypatch.setattr(package, "__version__", version)
        message = rf"^transformers {version} was not tested with .* 5\.23\.0 up to, and not, 5\.24$"
        with pytest.raises(RuntimeError, match=message):
            faster.enable()
    monkeypatch.setattr(package, "__version__", "5.23.7")
    with faster.enable():
        pass


def test_without_the_package():
    code = (
        "import sys; sys.modules['transformers'] = None; from relattn.integrations import transformers as faster\n"
        "try: faster.enable()\nexcept ImportError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == 'transformers cannot be imported: pip install "relattn[transformers]"\n'
