"""Patched transformers models give the same outputs and gradients, and unsupported modules keep their own code."""

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
from relattn.integrations.transformers import adapters, forward_patch, patching

SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 48}
CONVOLUTIONS = {
    "conv_dim": (8, 8), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip


@dataclass
class Family:
    """A small model with its inputs.

    Attributes:
        make: builds the model.
        inputs: returns random inputs of a given length.
        replaced: number of modules that the integration patches.
        length: length of the inputs of most tests.
        valid: returns the mask of valid output positions, (batch, length).
    """

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
UNMASKED = ("granite-speech",)  # models whose encoder takes no mask


def build(family: Family, *arguments: Any, **options: Any) -> nn.Module:
    """Build a model in which no parameter is all zeros, so that each one affects the output."""
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
def test_outputs_are_the_same(name, impl):
    family = FAMILIES[name]
    model, inputs = build(family, impl), family.inputs(family.length)
    calls = [{}] if name in UNMASKED else [{}, {"attention_mask": padding(inputs)}]
    for arguments in calls:
        own = output(model, inputs, **arguments)
        valid = family.valid(own) if arguments else slice(None)
        with faster.enable():
            ours = output(model, inputs, **arguments)
        again = output(model, inputs, **arguments)
        faster.enable(model)
        assert faster.report(model).count(": relattn") == family.replaced
        alone = output(model, inputs, **arguments)
        faster.disable(model)
        for each in (ours, alone):
            gap = (each.last_hidden_state - own.last_hidden_state)[valid].abs().max()
            assert 0 < float(gap) < 2e-5
        assert torch.equal(again.last_hidden_state, own.last_hidden_state)
        if arguments and name == "parakeet":
            assert torch.equal(ours.attention_mask, own.attention_mask)
            assert ours.attention_mask.dtype == own.attention_mask.dtype


def test_seamless_ignores_padding_although_its_eager_code_does_not():
    """In transformers 5.23 the eager code adds its boolean mask to the scores: 1 for valid keys, 0 for padding."""
    inputs = features(90)
    eager, right = (build(Family(seamless, features, 2), impl) for impl in ("eager", "sdpa"))
    arguments = {"attention_mask": padding(inputs)}
    exact, wrong = (output(model, inputs, **arguments).last_hidden_state for model in (right, eager))
    with faster.enable():
        ours = output(eager, inputs, **arguments).last_hidden_state
    assert float((wrong - exact).abs().max()) > 1e-3
    torch.testing.assert_close(ours, exact, rtol=0, atol=2e-5)


@pytest.mark.parametrize("length", [40, 47, 13, 1])
def test_last_block_may_be_shorter(length):
    model, inputs = build(FAMILIES["granite-speech"]), features(length)
    own = output(model, inputs)
    with faster.enable():
        ours = output(model, inputs)
    torch.testing.assert_close(ours.last_hidden_state, own.last_hidden_state, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["parakeet", "wav2vec2-bert", "wav2vec2-conformer", "granite-speech"])
def test_bfloat16_error_is_that_of_the_models_own_code(name):
    family = FAMILIES[name]
    model, inputs = build(family), family.inputs(family.length)
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
def test_training_step_is_the_same(name, checkpointing):
    family = FAMILIES[name]
    model, inputs = build(family), family.inputs(family.length)
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


DROPOUT = {  # attribute of the attention module that holds the dropout probability
    "parakeet": "attention_dropout",
    "wav2vec2-bert": "dropout.p",
    "fastspeech2-conformer": "dropout.p",
    "vits": "dropout",
    "speecht5": "dropout",
    "t5": "dropout",
    "umt5": "dropout",
}


@pytest.mark.parametrize("name", DROPOUT)
def test_attention_dropout_applies_in_training_only(name):
    model, inputs = build(FAMILIES[name]), FAMILIES[name].inputs(60)
    with faster.enable():
        names = [line.partition(" (")[0] for line in faster.report(model).splitlines() if "Attention)" in line]
        for module_name in names:
            module = model.get_submodule(module_name)
            owner, _, option = DROPOUT[name].rpartition(".")
            setattr(module.get_submodule(owner), option, 0.5)
        evaluated = [output(model, inputs).last_hidden_state for _ in range(2)]
        for module_name in names:
            model.get_submodule(module_name).train()
        trained = [output(model, inputs).last_hidden_state for _ in range(2)]
    assert torch.equal(*evaluated)
    assert not torch.equal(*trained)


def test_dropout_of_positions_per_sequence_runs_the_models_own_code():
    model = build(FAMILIES["parakeet"], dropout_positions=0.1, attention_dropout=0.0)
    attention, states = model.layers[0].self_attn.train(), torch.randn(2, 9, 32)
    positions = torch.randn(2, 17, 32)  # different per sequence
    own = output(attention, states, positions)[0]
    with faster.enable():
        assert torch.equal(output(attention, states, positions)[0], own)
        ours = output(attention, states, positions[:1])[0]
    torch.testing.assert_close(ours, output(attention, states, positions[:1].expand(2, -1, -1))[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["parakeet", "wav2vec2-bert", "vits", "fastspeech2-conformer", "t5", "umt5", "speecht5"]
)
def test_attention_weights_come_from_the_models_own_code(name, caplog, monkeypatch):
    monkeypatch.setattr(adapters, "_warned_modules", set())
    family = FAMILIES[name]
    model, inputs = build(family, "eager"), family.inputs(family.length)
    arguments = {"attention_mask": padding(inputs), "output_attentions": True}
    own = output(model, inputs, **arguments)
    with faster.enable(), caplog.at_level(logging.WARNING):
        ours = output(model, inputs, **arguments)
        output(model, inputs, **arguments)
    assert len(ours.attentions) == len(own.attentions) == (3 if "t5" in name and name != "speecht5" else 2)
    assert all(torch.equal(a, b) for a, b in zip(ours.attentions, own.attentions, strict=True))
    assert torch.equal(ours.last_hidden_state, own.last_hidden_state)
    assert sum("attention weights were requested" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("masked", [False, True])
def test_streaming_outputs_are_the_same(masked):
    """Each chunk attends to earlier keys from a cache. Its queries are the last positions of these keys.

    A mask of one chunk hides the keys after its length in the model's own code, so some queries have `key_lengths`.
    """
    model, frames = build(FAMILIES["nemotron"]), features(240)

    def stream() -> list[Tensor]:
        parts, past = [], {}
        for chunk in frames.split(48, dim=1):
            options = {"attention_mask": torch.ones(chunk.shape[:2], dtype=torch.long)} if masked else {}
            out = output(model, chunk, use_cache=True, num_lookahead_tokens=2, **options, **past)
            past = {"past_key_values": out.past_key_values, "padding_cache": out.padding_cache}
            parts.append(out.last_hidden_state)
        return parts

    own = stream()
    with faster.enable():
        ours = stream()
    for our_states, own_states in zip(ours, own, strict=True):
        torch.testing.assert_close(our_states, own_states, rtol=0, atol=2e-5)
    assert len(ours) == 5
    assert not torch.equal(ours[2], own[2])


def test_a_t5_layer_without_a_table_runs_its_own_code():
    """A later layer called alone has no positions. After an unpatched layer it gets an n × n bias per head."""
    model, states = build(FAMILIES["t5"]), torch.randn(1, 12, 32)
    first, later = (block.layer[0].SelfAttention for block in model.encoder.block[:2])
    full_bias = output(first, states)[1]
    own = [output(later, states)[0], output(later, states, position_bias=full_bias)[0]]
    with faster.enable():
        ours = [output(later, states)[0], output(later, states, position_bias=full_bias)[0]]
    assert all(torch.equal(a, b) for a, b in zip(ours, own, strict=True))
    assert full_bias.shape == (1, 4, 12, 12)


def test_t5_decoders_run_their_own_code():
    config = transformers.T5Config(d_model=32, d_kv=8, num_heads=4, d_ff=48, num_layers=2, vocab_size=30)
    model = build(Family(lambda: transformers.T5Model(config), ids, 2))
    arguments = {"input_ids": ids(60), "decoder_input_ids": ids(40)}
    own = output(model, **arguments)
    with faster.enable():
        ours = output(model, **arguments)
        report = faster.report(model)
    torch.testing.assert_close(ours.last_hidden_state, own.last_hidden_state, rtol=0, atol=2e-5)
    assert (report.count(": relattn"), report.count(": decoder attention is not supported")) == (2, 4)


def test_checkpoints_are_unchanged(tmp_path):
    model = build(FAMILIES["wav2vec2-bert"])
    names = list(model.state_dict())
    with faster.enable():
        assert list(model.state_dict()) == names
        model.save_pretrained(tmp_path)
        again = transformers.Wav2Vec2BertModel.from_pretrained(tmp_path).eval()
        assert type(again.encoder.layers[0].self_attn) is type(model.encoder.layers[0].self_attn)
        assert faster.report(again).count(": relattn") == 2
    inputs = features(30)
    assert torch.equal(output(again, inputs).last_hidden_state, output(model, inputs).last_hidden_state)


def test_disabling_restores_only_what_was_enabled():
    model, other = build(FAMILIES["vits"]), build(FAMILIES["wav2vec2-bert"])
    assert faster.report(model).count(": not enabled") == 2
    faster.enable(model)
    with faster.enable():
        with faster.enable(), faster.enable(other):  # nested calls change nothing
            assert faster.report(other).count(": relattn") == 2
        assert faster.report(other).count(": relattn") == 2
    assert faster.report(other).count(": not enabled") == 2
    assert faster.report(model).count(": relattn") == 2  # enabled on its own
    faster.enable(model)
    faster.disable(model)
    assert faster.report(model).count(": not enabled") == 2
    faster.enable()
    faster.enable()
    faster.disable()
    assert faster.report(other).count(": not enabled") == 2
    faster.disable()
    assert not any(hasattr(p.load_class().forward, forward_patch.ORIGINAL) for p in patching._patches())


def test_a_deep_copy_is_independent():
    model = build(FAMILIES["wav2vec2-bert"])
    faster.enable(model)
    twin = copy.deepcopy(model)
    assert twin.encoder.layers[0].self_attn.forward.__self__ is twin.encoder.layers[0].self_attn
    with torch.no_grad():
        twin.encoder.layers[0].self_attn.linear_out.weight.mul_(2)
    inputs = features(20)
    assert not torch.equal(output(model, inputs).last_hidden_state, output(twin, inputs).last_hidden_state)


def test_unsupported_modules_run_their_own_code_and_are_reported():
    rotary = build(Family(bert, features, 0), position_embeddings_type="rotary")
    inputs = features(30)
    own = output(rotary, inputs)
    with faster.enable():
        assert torch.equal(output(rotary, inputs).last_hidden_state, own.last_hidden_state)
        faster.enable(rotary)
        reason = "position_embeddings_type must be relative or relative_key, got rotary"
        assert faster.report(rotary).splitlines() == [
            f"encoder.layers.{i}.self_attn (Wav2Vec2BertSelfAttention): {reason}" for i in (0, 1)
        ]
        without = build(Family(vits, ids, 0), window_size=0)
        assert faster.report(without).count("window_size must be at least 1, got 0") == 2
    assert faster.report(nn.Linear(2, 2)) == "Linear: no module of a supported class"


def test_mask_options():
    attend, hide = 0.0, torch.finfo(torch.float32).min
    assert adapters.mask_options(None) == {}
    assert adapters.mask_options(torch.ones(2, 1, 5, 5, dtype=torch.bool)) == {}
    right = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()[:, None, None].expand(2, 1, 4, 3)
    for mask in (right, torch.where(right, attend, hide), torch.where(right, attend, -torch.inf), right[:, :, :1]):
        options = adapters.mask_options(mask)
        assert options is not None
        assert list(options) == ["key_lengths"]  # no query_lengths: padding queries attend too
        assert options["key_lengths"].tolist() == [3, 1]
    left = right.flip(-1)
    assert torch.equal(adapters.mask_options(left)["mask"], left[:, :1, :1])
    causal = torch.ones(4, 4).tril().bool()[None, None]
    assert torch.equal(adapters.mask_options(causal)["mask"], causal)
    assert adapters.mask_options(torch.full((1, 1, 4, 4), -1.0)) is None  # a bias, not a mask
    twice = torch.where(right, attend, hide).half() + torch.where(right, attend, hide).half()
    assert adapters.mask_options(twice)["key_lengths"].tolist() == [3, 1]


def test_a_mask_that_is_a_bias_runs_the_models_own_code():
    model = build(FAMILIES["vits"])
    attention = model.encoder.encoder.layers[0].attention
    states, bias = torch.randn(1, 7, 32), torch.randn(1, 1, 7, 7)
    own = output(attention, states, attention_mask=bias)[0]
    with faster.enable():
        assert torch.equal(output(attention, states, attention_mask=bias)[0], own)


def test_untested_versions_are_refused(monkeypatch):
    package = sys.modules["transformers"]  # lazy; it replaces itself when a submodule is imported
    for version in ("5.22.9", "5.24.0", "6.0"):
        monkeypatch.setattr(package, "__version__", version)
        message = rf"^transformers must have a tested version .* got {version}; install a tested version$"
        with pytest.raises(RuntimeError, match=message):
            faster.enable()
    monkeypatch.setattr(package, "__version__", "5.23.7")
    with faster.enable():
        pass


def test_without_transformers():
    code = (
        "import sys; sys.modules['transformers'] = None; from relattn.integrations import transformers as faster\n"
        "try: faster.enable()\nexcept ImportError as error: print(error)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == 'transformers must be installed: pip install "relattn[transformers]"\n'
