"""Tests of relattn.integrations.transformers: patched models give the same outputs and gradients as their own code."""

import copy
import logging
import sys
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import transformers
from relattn.backends import plans
from relattn.integrations import transformers as faster
from relattn.integrations.transformers import adapters, attention_weights
from relattn.integrations.transformers.families import load_families
from relattn.integrations.transformers.family import difference, generate
from torch import Tensor, nn
from transformers.models.got_ocr2.modeling_got_ocr2 import GotOcr2VisionEncoder
from transformers.models.sam.modeling_sam import SamVisionEncoder
from transformers.models.sam_hq.modeling_sam_hq import SamHQVisionEncoder
from transformers.models.seamless_m4t.modeling_seamless_m4t import SeamlessM4TSpeechEncoder
from transformers.models.seamless_m4t_v2.modeling_seamless_m4t_v2 import SeamlessM4Tv2SpeechEncoder
from transformers.models.speecht5.modeling_speecht5 import SpeechT5EncoderWithoutPrenet

from benchmarks.encoders import Vits, padding, remove_randomness
from tests.support.covering import pairwise

# PyTorch warns in WavLM's own code.
pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask:UserWarning")

SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 48}
FAST = {**SMALL, "num_mel_bins": 16, "subsampling_conv_channels": 8, "num_key_value_heads": 4}
CLIP = {"left_max_position_embeddings": 9, "right_max_position_embeddings": 2, "feature_projection_input_dim": 16}
CONVOLUTIONS = {
    "conv_dim": (8, 8), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
SEAMLESS = {
    "hidden_size": 32, "speech_encoder_layers": 2, "speech_encoder_attention_heads": 4,
    "speech_encoder_intermediate_size": 48,
}  # fmt: skip
VITS = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "ffn_dim": 48, "vocab_size": 30}
T5 = {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 48, "num_layers": 3, "vocab_size": 30}
DEBERTA = {
    **SMALL, "vocab_size": 30, "relative_attention": True, "pos_att_type": "c2p|p2c", "max_relative_positions": 40,
}  # fmt: skip
DEBERTA_V3 = {**DEBERTA, "position_buckets": 16, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
MPNET = {**SMALL, "vocab_size": 30, "max_position_embeddings": 202}
SAM = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 44, "patch_size": 4,
    "window_size": 7, "output_channels": 8, "initializer_range": 0.2,
}  # fmt: skip
SPEECHT5 = {"hidden_size": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48}


@dataclass
class Family:
    """A small model with its inputs.

    Attributes:
        make: Builds the model with an attention implementation of transformers.
        inputs: Returns random inputs of a given length.
        replaced: Number of modules that the integration patches.
        length: Length of the inputs of most tests.
        valid: Returns the mask of valid output positions, (batch, length).
    """

    make: Callable[..., nn.Module]
    inputs: Callable[[int], Tensor]
    replaced: int = 2
    length: int = 90
    valid: Callable[[Any], Tensor] = lambda out: torch.ones(out.last_hidden_state.shape[:2], dtype=torch.bool)


def maker(model: Any, config: str, only: str = "", **sizes: Any) -> Callable[..., nn.Module]:
    """Return a function that builds a model, by its class or name; `only` is its one attention implementation."""
    model = getattr(transformers, model) if isinstance(model, str) else model

    def make(impl: str = "sdpa", **options: Any) -> nn.Module:
        options = {"attn_implementation": only or impl, **sizes, **options}
        return model(getattr(transformers, config)(**options))

    return make


def t5(kind: str, only: str = "") -> Family:
    make = maker(f"{kind}EncoderModel", f"{kind}Config", only, **T5, relative_attention_max_distance=40)
    return Family(make, ids, 3 + (kind != "SwitchTransformers"), 150)


def pop2piano(impl: str = "eager") -> nn.Module:
    return transformers.Pop2PianoForConditionalGeneration(transformers.Pop2PianoConfig(**T5)).encoder


def states(length: int) -> Tensor:
    return torch.randn(2, length, 32)


def image(length: int) -> Tensor:
    return torch.randn(2, 3, 44, 44)


def smaller_image(length: int) -> Tensor:
    """Return images for which ViTDet interpolates its tables."""
    return torch.randn(2, 3, 36, 44)


def vitdet(impl: str = "eager", **options: Any) -> nn.Module:
    sizes = SAM | {"num_hidden_layers": 3, "window_size": 3, "window_block_indices": [1]}
    options = {"use_relative_position_embeddings": True, **options}
    return transformers.VitDetModel(transformers.VitDetConfig(**sizes, **options))


def valid_tokens(out: Any) -> Tensor:
    return padding(out.last_hidden_state).bool()


def features(length: int) -> Tensor:
    return torch.randn(2, length, 16)


def sound(length: int) -> Tensor:
    return torch.randn(2, length * 10)


def ids(length: int) -> Tensor:
    return torch.randint(1, 30, (2, length))


bert = maker("Wav2Vec2BertModel", "Wav2Vec2BertConfig", **SMALL, **CLIP)
seamless = maker(SeamlessM4Tv2SpeechEncoder, "SeamlessM4Tv2Config", **SEAMLESS, **CLIP)
FAMILIES = {
    "parakeet": Family(
        maker("ParakeetEncoder", "ParakeetEncoderConfig", **FAST), features, 3, 400, lambda x: x.attention_mask.bool()
    ),
    "wav2vec2-bert": Family(bert, features, 3),
    "wav2vec2-bert relative": Family(partial(bert, position_embeddings_type="relative"), features, 3),
    "wav2vec2-conformer": Family(
        maker("Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig", **SMALL, **CONVOLUTIONS, mask_time_prob=0.0,
              position_embeddings_type="relative"),
        sound, 3,
    ),
    "seamless-m4t": Family(
        maker(SeamlessM4TSpeechEncoder, "SeamlessM4TConfig", **SEAMLESS, feature_projection_input_dim=16), features, 3
    ),
    "seamless-m4t-v2": Family(lambda impl="": seamless("sdpa", speech_encoder_chunk_size=20_000), features, 3),
    "seamless-m4t-v2 in chunks": Family(
        lambda impl="", **options: seamless(
            "sdpa", speech_encoder_chunk_size=20, speech_encoder_left_chunk_num=1, **options
        ),
        features, 3, valid=lambda x: padding(x.last_hidden_state).bool(),
    ),
    "vits": Family(lambda impl="", **options: Vits(**VITS, **options), ids),
    "speecht5": Family(
        maker(SpeechT5EncoderWithoutPrenet, "SpeechT5Config", "eager", **SPEECHT5, encoder_max_relative_position=12),
        states, 3,
    ),
    "t5": t5("T5"),
    "mt5": t5("MT5"),
    "umt5": t5("UMT5"),
    "switch": t5("SwitchTransformers", "eager"),
    "pop2piano": Family(pop2piano, ids, 4, 150),
    "deberta": Family(maker("DebertaModel", "DebertaConfig", "eager", **DEBERTA), ids, 3, valid=valid_tokens),
    "deberta-v2": Family(
        maker("DebertaV2Model", "DebertaV2Config", "eager", **DEBERTA, position_buckets=16, conv_kernel_size=3),
        ids, 3, valid=valid_tokens,
    ),
    "deberta-v3": Family(maker("DebertaV2Model", "DebertaV2Config", "eager", **DEBERTA_V3), ids, 3, valid=valid_tokens),
    "mpnet": Family(maker("MPNetModel", "MPNetConfig", "eager", **MPNET), ids, 3, 200),
    "wavlm": Family(
        maker("WavLMModel", "WavLMConfig", "eager", **SMALL, **CONVOLUTIONS, num_buckets=20, max_bucket_distance=60,
              mask_time_prob=0.0),
        sound,
    ),
    "wavlm-large": Family(
        maker("WavLMModel", "WavLMConfig", "eager", **SMALL, **CONVOLUTIONS, num_buckets=20, max_bucket_distance=60,
              mask_time_prob=0.0, do_stable_layer_norm=True),
        sound,
    ),
    "sam": Family(maker(SamVisionEncoder, "SamVisionConfig", **SAM, mlp_dim=48, global_attn_indexes=[1]), image),
    "sam-hq": Family(maker(SamHQVisionEncoder, "SamHQVisionConfig", **SAM, mlp_dim=48, global_attn_indexes=[1]), image),
    "got-ocr2": Family(
        maker(GotOcr2VisionEncoder, "GotOcr2VisionConfig", "eager", **SAM, mlp_dim=48, global_attn_indexes=[1]), image
    ),
    "vitdet": Family(vitdet, smaller_image, 3),
}  # fmt: skip
UNMASKED = ("sam", "sam-hq", "got-ocr2", "vitdet")  # models whose encoder takes no mask


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


def own_and_ours(model: nn.Module, *inputs: Any, **options: Any) -> tuple[Any, Any]:
    """Return the outputs of the model's own code, and those while the integration is enabled."""
    own = output(model, *inputs, **options)
    with faster.enable():
        return own, output(model, *inputs, **options)


@pairwise(
    valid=lambda name, masked, **case: not (masked and name in UNMASKED),
    name=FAMILIES, impl=["eager", "sdpa"], masked=[False, True], one_model=[False, True],
)  # fmt: skip
def test_outputs_are_the_same(name, impl, masked, one_model, monkeypatch):
    family, spy = FAMILIES[name], Mock(side_effect=plans.form_of)
    monkeypatch.setattr(plans, "form_of", spy)
    model, inputs = build(family, impl), family.inputs(family.length)
    arguments = {"attention_mask": padding(inputs)} if masked else {}
    own = output(model, inputs, **arguments)
    with faster.enable(model if one_model else None):
        assert faster.report(model).count(": relattn") == family.replaced
        ours = output(model, inputs, **arguments)
    gap = (ours.last_hidden_state - own.last_hidden_state)[family.valid(own) if masked else slice(None)]
    assert float(gap.abs().max()) < 2e-5
    assert spy.call_count >= 2  # layers
    if masked and name == "parakeet":
        assert torch.equal(ours.attention_mask, own.attention_mask)
        assert ours.attention_mask.dtype == own.attention_mask.dtype
    assert torch.equal(output(model, inputs, **arguments).last_hidden_state, own.last_hidden_state)


@pytest.mark.parametrize(("size", "left_chunks", "kernel"), [(7, 0, 8), (2, 1, 8), (7, 1, 16), (7, -1, 8)])
@pytest.mark.parametrize("valid", [33, 34, 35, 42])
def test_adapters_of_seamless_read_the_padding_of_the_own_code(size, left_chunks, kernel, valid):
    model = build(
        Family(seamless, features),
        speech_encoder_chunk_size=size,
        speech_encoder_left_chunk_num=left_chunks,
        adaptor_kernel_size=kernel,
    )
    mask = torch.ones(2, 45, dtype=torch.long)
    mask[1, valid:] = 0
    own, ours = (x.last_hidden_state for x in own_and_ours(model, features(45), attention_mask=mask))
    count = int(model.adapter.layers[0]._compute_sub_sample_lengths_from_attention_mask(mask)[1])
    for a, b in ((own[0], ours[0]), (own[1, :count], ours[1, :count])):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "name", ["parakeet", "wav2vec2-bert", "deberta", "deberta-v3", "mpnet", "wavlm", "sam", "vitdet"]
)
def test_bfloat16_error_is_that_of_the_models_own_code(name):
    family = FAMILIES[name]
    model, inputs = build(family), family.inputs(family.length)
    exact = output(model, inputs).last_hidden_state
    half, inputs = model.to(torch.bfloat16), inputs.to(torch.bfloat16) if inputs.is_floating_point() else inputs
    own, ours = (result.last_hidden_state for result in own_and_ours(half, inputs))
    assert ours.dtype == torch.bfloat16
    gaps = [float((x.float() - exact).abs().mean()) for x in (ours, own)]
    assert gaps[0] <= 1.3 * gaps[1] + 1e-6


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "seamless-m4t-v2 in chunks"])
def test_training_step_is_the_same(name):
    family = FAMILIES[name]
    model, inputs = build(family), family.inputs(family.length)
    if name in ("parakeet", "wav2vec2-conformer", "t5"):
        model.activation_checkpointing_enable()
    model.train()
    remove_randomness(model)
    target = torch.randn_like(output(model, inputs).last_hidden_state)

    def gradients() -> tuple[float, dict[str, Tensor]]:
        model.zero_grad()
        loss = (model(inputs).last_hidden_state * target).mean()
        loss.backward()
        return float(loss.detach()), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    loss, own = gradients()
    with faster.enable():
        our_loss, ours = gradients()
    assert our_loss == pytest.approx(loss, abs=1e-5)
    assert ours.keys() == own.keys()
    for name, gradient in own.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-3, atol=1e-5 * float(gradient.abs().max()) + 1e-8)


DROPOUT = {  # attribute of the attention module that holds the dropout probability
    "parakeet": "attention_dropout", "wav2vec2-bert": "dropout.p",
    "vits": "dropout", "speecht5": "dropout", "t5": "dropout", "umt5": "dropout",
    "deberta": "dropout.p", "deberta-v3": "dropout.p", "mpnet": "dropout.p", "wavlm": "dropout",
    "got-ocr2": "dropout",
}  # fmt: skip


@pytest.mark.parametrize("name", DROPOUT)
def test_attention_dropout_applies_in_training_only(name):
    model, inputs = build(FAMILIES[name]), FAMILIES[name].inputs(60)
    with faster.enable():
        names = [line.partition(" (")[0] for line in faster.report(model).splitlines() if "Attention)" in line]
        for module_name in names:
            owner, _, option = DROPOUT[name].rpartition(".")
            setattr(model.get_submodule(module_name).get_submodule(owner), option, 0.5)
        evaluated = [output(model, inputs).last_hidden_state for _ in range(2)]
        for module_name in names:
            model.get_submodule(module_name).train()
        trained = [output(model, inputs).last_hidden_state for _ in range(2)]
    assert torch.equal(*evaluated)
    assert not torch.equal(*trained)


def test_position_dropout_per_sequence_runs_the_models_own_code():
    model = build(FAMILIES["parakeet"], dropout_positions=0.1, attention_dropout=0.0)
    attention, states = model.layers[0].self_attn.train(), torch.randn(2, 9, 32)
    positions = torch.randn(2, 17, 32)  # different per sequence
    own = output(attention, states, positions)[0]
    with faster.enable():
        assert torch.equal(output(attention, states, positions)[0], own)
        ours = output(attention, states, positions[:1])[0]
    torch.testing.assert_close(ours, output(attention, states, positions[:1].expand(2, -1, -1))[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [*DROPOUT, "wav2vec2-bert relative"])
def test_attention_weights_come_from_the_models_own_code(name, caplog, monkeypatch):
    monkeypatch.setattr(attention_weights, "_warned_modules", set())
    model = build(FAMILIES[name], "eager")
    inputs = FAMILIES[name].inputs(FAMILIES[name].length)
    arguments = {"attention_mask": padding(inputs), "output_attentions": True}
    with caplog.at_level(logging.WARNING):
        own, ours = own_and_ours(model, inputs, **arguments)
        own_and_ours(model, inputs, **arguments)
    assert len(ours.attentions) == len(own.attentions) >= 2
    assert all(torch.equal(a, b) for a, b in zip(ours.attentions, own.attentions, strict=True))
    assert torch.equal(ours.last_hidden_state, own.last_hidden_state)
    assert sum("attention weights" in record.message for record in caplog.records) == 1


def test_the_check_of_a_family_compares_generated_tokens(monkeypatch):
    """It logs no warning about attention weights, and later calls still do."""

    @contextmanager
    def with_other_tokens(model):
        own = model.generate
        model.generate = lambda **inputs: own(**inputs) + 1
        yield

    monkeypatch.setattr(attention_weights, "_warned_modules", set())
    checked = [each for each in load_families() if each.run is generate]
    assert [difference(each, with_other_tokens) for each in checked].count(None) == 0
    assert attention_weights._warned_modules == set()


def test_t5_layers_without_a_table_run_their_own_code():
    """A later layer called alone has no positions. After an unpatched layer it gets an n × n bias per head."""
    model, states = build(FAMILIES["t5"]), torch.randn(1, 12, 32)
    first, later = (block.layer[0].SelfAttention for block in model.encoder.block[:2])
    full_bias = output(first, states)[1]
    for options in ({}, {"position_bias": full_bias}):
        own, ours = own_and_ours(later, states, **options)
        assert torch.equal(ours[0], own[0])
    assert full_bias.shape == (1, 4, 12, 12)


def test_checkpoints_are_unchanged_and_copies_are_independent(tmp_path):
    model, inputs = build(FAMILIES["wav2vec2-bert"]), features(30)
    names = list(model.state_dict())
    with faster.enable():
        assert list(model.state_dict()) == names
        model.save_pretrained(tmp_path)
        again = transformers.Wav2Vec2BertModel.from_pretrained(tmp_path).eval()
        assert faster.report(again).count(": relattn") == 3
    ours = output(model, inputs).last_hidden_state
    assert torch.equal(output(again, inputs).last_hidden_state, ours)
    faster.enable(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.encoder.layers[0].self_attn.linear_out.weight.mul_(2)
    assert faster.report(twin).count(": relattn") == 3
    torch.testing.assert_close(output(model, inputs).last_hidden_state, ours, rtol=0, atol=2e-5)
    assert float((output(twin, inputs).last_hidden_state - ours).abs().max()) > 1e-3
    for each in (model, twin):
        faster.disable(each)


def test_disabling_restores_only_what_was_enabled():
    model, other = build(FAMILIES["vits"]), build(FAMILIES["wav2vec2-bert"])
    forward = type(other.encoder.layers[0].self_attn).forward
    faster.enable(model)
    with faster.enable():
        with faster.enable(), faster.enable(other):  # nested calls change nothing
            assert faster.report(other).count(": relattn") == 3
        assert faster.report(other).count(": relattn") == 3
    assert faster.report(other).count(": not enabled") == 3
    assert faster.report(model).count(": relattn") == 2  # enabled on its own
    faster.disable(model)
    assert faster.report(model).count(": not enabled") == 2
    faster.enable()
    faster.enable()
    for _ in range(2):  # the second call does nothing
        faster.disable()
        assert faster.report(other).count(": not enabled") == 3
        assert type(other.encoder.layers[0].self_attn).forward is forward


@pairwise(
    name=["deberta", "deberta-v2", "deberta-v3"], terms=[["c2p"], ["p2c"], ["c2p", "p2c"], [], ["c2p", "p2p"]],
    length=[1, 8, 9, 17, 41, 90], padded=["left", "right"],
)  # fmt: skip
def test_deberta_of_any_terms_and_length(name, terms, length, padded):
    """17 buckets, or 40 distances per direction, have rows of their own; short inputs read the nearest rows only."""
    model, inputs = build(FAMILIES[name], pos_att_type=terms), ids(length)
    mask = padding(inputs) if length > 1 else torch.ones_like(inputs)
    mask = mask.flip(1) if padded == "left" else mask
    own, ours = (result.last_hidden_state[mask.bool()] for result in own_and_ours(model, inputs, attention_mask=mask))
    torch.testing.assert_close(ours, own, rtol=0, atol=2e-5)


@pairwise(name=["mpnet", "deberta-v2"], return_dict=[True, False], hidden_states=[True, False])
def test_forms_of_results_are_the_same(name, return_dict, hidden_states):
    model, inputs = build(FAMILIES[name]), ids(70)
    options = {"output_hidden_states": hidden_states, "return_dict": return_dict}
    own, ours = own_and_ours(model, inputs, **options)
    assert type(ours) is type(own)
    assert len(ours) == len(own)
    torch.testing.assert_close(
        tuple(ours.values() if return_dict else ours), tuple(own.values() if return_dict else own), rtol=0, atol=2e-5
    )


@pytest.mark.parametrize("name", ["deberta", "deberta-v3"])
def test_deberta_masks_of_pairs_run_the_models_own_code(name):
    model, states = build(FAMILIES[name]), torch.randn(2, 13, 32)
    own, ours = own_and_ours(model.encoder, states, torch.ones(2, 13, 13).tril())
    assert torch.equal(ours.last_hidden_state, own.last_hidden_state)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("deberta", "relative_attention", False), ("deberta", "talking_head", True), ("deberta-v3", "position_buckets", 7),
     ("deberta-v3", "relative_attention", False), ("sam", "use_rel_pos", False),
     ("vitdet", "use_relative_position_embeddings", False)],
)  # fmt: skip
def test_configurations_without_a_supported_term_are_reported(name, option, value):
    family = FAMILIES[name]
    model, inputs = build(family, **{option: value}), family.inputs(30)
    own, ours = own_and_ours(model, inputs)
    with faster.enable():
        lines = faster.report(model).splitlines()
    assert all(f": {option} must be" in line for line in lines), lines
    assert torch.equal(ours.last_hidden_state, own.last_hidden_state)


def test_unsupported_modules_run_their_own_code_and_are_reported():
    rotary = build(FAMILIES["wav2vec2-bert"], position_embeddings_type="rotary")
    inputs = features(30)
    own = output(rotary, inputs)
    with faster.enable():
        assert torch.equal(output(rotary, inputs).last_hidden_state, own.last_hidden_state)
        faster.enable(rotary)
        lines = faster.report(rotary).splitlines()
        without = faster.report(build(FAMILIES["vits"], window_size=0)).splitlines()
    assert (len(lines), len(without)) == (3, 2)
    assert all("(Wav2Vec2BertSelfAttention): position_embeddings_type" in line for line in lines[1:])
    assert all(": window_size" in line for line in without)
    assert "Linear" in faster.report(nn.Linear(2, 2))


def test_mask_options():
    attend, hide = 0.0, torch.finfo(torch.float32).min
    assert adapters.mask_options(None, 2) == {}
    assert adapters.mask_options(torch.ones(2, 1, 5, 5, dtype=torch.bool), 2) == {}
    right = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()[:, None, None].expand(2, 1, 4, 3)
    numbers = torch.where(right, attend, hide)
    twice = 2 * numbers.half()  # overflows to −∞
    for mask in (right, numbers, torch.where(right, attend, -torch.inf), right[:, :, :1], twice):
        options = {name: x.tolist() for name, x in adapters.mask_options(mask, 2).items()}
        assert options == {"key_lengths": [3, 1]}  # no query_lengths: padding queries attend too
    assert adapters.mask_options(right[1:], 3)["key_lengths"].tolist() == [1, 1, 1]  # a mask for all sequences
    left = right.flip(-1)
    assert torch.equal(adapters.mask_options(left, 2)["mask"], left[:, :1, :1])
    causal = torch.ones(4, 4).tril().bool()[None, None]
    assert torch.equal(adapters.mask_options(causal, 2)["mask"], causal)
    assert adapters.mask_options(torch.full((1, 1, 4, 4), -1.0), 2) is None  # a bias, not a mask


@pytest.mark.parametrize("mode", [nullcontext, torch.inference_mode])
def test_mask_options_follow_changes_in_place(mode):
    with mode():
        mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)
        assert adapters.mask_options(mask, 2) == {}
        mask[1, ..., 3:] = False
        assert adapters.mask_options(mask, 2)["key_lengths"].tolist() == [5, 3]
        assert adapters.mask_options(mask[1:], 3)["key_lengths"].tolist() == [3, 3, 3]


@pytest.mark.parametrize("name", ["vits", "t5", "umt5"])
def test_a_mask_that_is_a_bias_runs_the_models_own_code(name):
    model = build(FAMILIES[name], "eager")
    with faster.enable():
        module_name = next(line for line in faster.report(model).splitlines() if "Attention)" in line).split()[0]
    attention, states, bias = model.get_submodule(module_name), torch.randn(1, 7, 32), torch.randn(1, 1, 7, 7)
    arguments = {"mask" if name == "t5" else "attention_mask": bias}
    own, ours = own_and_ours(attention, states, **arguments)
    assert torch.equal(ours[0], own[0])


def test_transformers_must_be_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="transformers must be installed"):
        faster.enable()


@pytest.mark.parametrize("name", ["deberta", "deberta-v3", "mpnet", "t5", "mt5", "umt5", "pop2piano", "wav2vec2-bert"])
def test_layers_without_padding(name):
    """Outputs and gradients at valid positions are the same, and a text alone has the same outputs as in its batch."""
    family = FAMILIES[name]
    model, inputs = build(family), family.inputs(family.length)
    inputs = torch.cat([inputs] * 3)[:5]
    length = inputs.shape[1]
    lengths = torch.tensor([length, 7, 7, length // 2, 1])
    valid = torch.arange(length) < lengths[:, None]
    sizes = []

    def run():
        model.zero_grad()
        result = call()
        (result.last_hidden_state[valid] * 0.1).square().sum().backward()
        states = [x[valid].detach() for x in result.hidden_states or [result.last_hidden_state]]
        return [*states, *(x.grad.clone() for x in model.parameters() if x.grad is not None)]

    def call(called=model):
        return called(inputs, attention_mask=valid.long(), output_hidden_states=True)

    own, reference = run(), copy.deepcopy(model)
    faster.enable(reference)
    with faster.enable(model, unpad=True):
        assert "relattn, without padding" in faster.report(model)
        linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
        linear = linears[name == "wav2vec2-bert"]  # the first projects features there
        handle = linear.register_forward_hook(lambda module, given, output: sizes.append(given[0].shape[:2].numel()))
        for got, want in zip(run(), own, strict=True):
            assert float((got - want).abs().max()) <= 2e-5 * max(1.0, float(want.abs().max()))
        assert max(sizes) == int(lengths.sum())
        with torch.no_grad():
            alone = model(inputs[3:4, : length // 2]).last_hidden_state[0]
            batch = call().last_hidden_state
        assert float((batch[3, : length // 2] - alone).abs().max()) <= 1e-5
        assert not batch[~valid].any()
        assert torch.equal(call(copy.deepcopy(model)).last_hidden_state, batch)
        handle.remove()
        for empty in (4, slice(None)):  # texts without tokens, of which models read padding
            valid[empty] = False
            with torch.no_grad():
                padded = call(reference).last_hidden_state
                assert torch.equal(call().last_hidden_state, padded)


@torch.inference_mode()
def test_batch_with_little_padding_is_not_packed():
    """Packing costs copies, and one call of the operator per length."""
    model, ids = build(FAMILIES["deberta-v3"]), torch.randint(1, 20, (8, 11))
    valid = torch.arange(11) < torch.tensor([10, 11] * 4)[:, None]
    with faster.enable(model):
        padded = model(ids, attention_mask=valid.long()).last_hidden_state
    with faster.enable(model, unpad=True):
        assert torch.equal(model(ids, attention_mask=valid.long()).last_hidden_state, padded)


HEADS = "CTC", "SequenceClassification", "AudioFrameClassification", "XVector"


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("is_weighted", [False, True])
@torch.inference_mode()
def test_heads_of_wav2vec2_bert_leave_padding_out(head, is_weighted):
    """Some collect the states of all layers."""
    sizes = {"num_labels": 3, "classifier_proj_size": 8, "tdnn_dim": (8, 8, 8, 8, 16), "xvector_output_dim": 8}
    config = bert().config
    config.update({**sizes, "vocab_size": 30, "use_weighted_layer_sum": is_weighted})
    with torch.inference_mode(False):
        torch.manual_seed(1)
        model = getattr(transformers, f"Wav2Vec2BertFor{head}")(config).eval()
        for parameter in model.parameters():
            parameter.data += torch.randn_like(parameter) * 0.1  # outputs of new heads are near zero
    features = torch.randn(3, 40, config.feature_projection_input_dim)
    valid = torch.arange(40) < torch.tensor([40, 27, 33])[:, None]
    rows = []
    linear = next(module for name, module in model.named_modules() if name.endswith("layers.0.ffn1.intermediate_dense"))
    linear.register_forward_hook(lambda module, given, output: rows.append(given[0].shape[:2].numel()))

    def call():
        result = model(input_features=features, attention_mask=valid.long(), output_hidden_states=True)
        logits = result.logits[valid] if result.logits.shape[:2] == valid.shape else result.logits
        return [logits, *(states[valid] for states in result.hidden_states)]

    own = call()
    with faster.enable(model, unpad=True):
        assert "relattn, without padding" in faster.report(model)
        got = call()
    assert rows == [3 * 40, int(valid.sum())]
    for x, y in zip(got, own, strict=True):
        assert float((x - y).abs().max()) <= 2e-5 * max(1.0, float(y.abs().max()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nn.Linear(4, 4),
            "a model of Deberta, DebertaV2, MPNet, T5, MT5, Pop2Piano, UMT5, Wav2Vec2Bert, got Linear",
        ),
        (lambda: build(FAMILIES["wav2vec2-conformer"]), "got Wav2Vec2ConformerModel"),
        (lambda: build(FAMILIES["switch"]), "got SwitchTransformersEncoderModel"),
        (lambda: bert(add_adapter=True), "got Wav2Vec2BertEncoder: add_adapter must be False"),
        (lambda: bert(position_embeddings_type="relative"), "position_embeddings_type must be relative_key"),
    ],
)
def test_models_that_read_padding_are_not_unpadded(make, message):
    with pytest.raises(ValueError, match=f"unpad must be given with .*{message}"):
        faster.enable(make(), unpad=True)
    with pytest.raises(ValueError, match="unpad must be True or False, got 'x'"):
        faster.enable(make(), unpad="x")
