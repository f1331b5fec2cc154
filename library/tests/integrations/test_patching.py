"""Tests of what `enable` does to modules and classes: hooks, copies, compiled models, and the check of each family."""

import copy
import functools
import itertools
import logging
import pickle
import random
import re
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from relattn.backends import plans
from relattn.integrations import transformers as faster
from relattn.integrations.transformers import attention_weights, patching
from torch import Tensor, nn
from transformers.models.vits import modeling_vits

from benchmarks.encoders import padding, remove_randomness
from library.tests.integrations.test_transformers import (
    CONVOLUTIONS,
    FAMILIES,
    SPEECHT5,
    Family,
    build,
    features,
    ids,
    maker,
    output,
    sound,
)
from library.tests.integrations.test_transformers import T5 as SMALL_T5
from tests.support.model_exports import Encoder, outcome


@pytest.fixture
def spy(monkeypatch):
    with faster.enable():  # the check of all families also calls the operator
        pass
    spy = Mock(side_effect=plans.form_of)
    monkeypatch.setattr(plans, "form_of", spy)
    return spy


@pytest.fixture
def check_again(monkeypatch):
    """Function that lets the families with these names be checked again in this test."""
    cached, again = patching._mismatch_reason, functools.cache(patching._mismatch_reason.__wrapped__)

    def forget(*names: str) -> None:
        def reason(family: Any) -> str | None:
            return again(family) if family.name in names else cached(family)

        monkeypatch.setattr(patching, "_mismatch_reason", reason)

    return forget


def add_hook(module: nn.Module, before: Any, after: Any) -> None:
    """Put functions around the forward of a module, as `accelerate.hooks.add_hook_to_module` does."""

    def new_forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        before(module)
        result = module._old_forward(*args, **kwargs)
        after(module)
        return result

    module._old_forward = module.forward
    module.forward = functools.update_wrapper(functools.partial(new_forward, module), module._old_forward)


def remove_hook(module: nn.Module) -> None:
    module.forward = module.__dict__.pop("_old_forward")


def offload(model: nn.Module) -> None:
    """Keep weights on the meta device outside of the forward of the module that holds them."""
    for module in [module for module in model.modules() if module._parameters]:
        weights = dict(module._parameters)

        def load(module: nn.Module, weights: dict[str, Any] = weights) -> None:
            module._parameters.update(weights)

        def unload(module: nn.Module) -> None:
            for name, weight in module._parameters.items():
                module._parameters[name] = None if weight is None else nn.Parameter(weight.to("meta"))

        add_hook(module, load, unload)
        unload(module)


# The own code of DeBERTa and WavLM reads weights past the module that holds them, so it cannot be offloaded.
OFFLOADED = [name for name in FAMILIES if not name.startswith(("deberta", "wavlm"))]


@pytest.mark.parametrize(
    ("name", "enabled"), list(zip(OFFLOADED, itertools.cycle(["before", "after", "class"]), strict=False))
)
def test_offloaded_models_give_the_same_outputs(name, enabled, spy):
    family = FAMILIES[name]
    model, inputs = build(family), family.inputs(family.length)
    own = output(model, inputs).last_hidden_state
    if enabled == "after":
        offload(model)
    with faster.enable(None if enabled == "class" else model):
        if enabled != "after":
            offload(model)
        assert faster.report(model).count(": relattn") == family.replaced
        ours = output(model, inputs).last_hidden_state
    assert spy.call_count >= 2
    torch.testing.assert_close(ours, own, rtol=0, atol=2e-5)
    assert torch.equal(output(model, inputs).last_hidden_state, own)  # hooks remain
    assert spy.call_count <= 2 * family.replaced


def test_hooks_stay_and_may_be_removed_in_any_order(spy):
    model, inputs = build(FAMILIES["vits"]), ids(30)
    attention = model.encoder.encoder.layers[0].attention
    forward, calls = type(attention).forward, []
    own = output(model, inputs).last_hidden_state
    add_hook(attention, calls.append, calls.append)
    with faster.enable():
        assert "enable the model" in faster.report(model)  # the hook calls the forward that it found
        with faster.enable(model):
            assert faster.report(model).count(": relattn") == 2
            ours = output(model, inputs).last_hidden_state
            assert (len(calls), spy.call_count) == (2, 2)
            remove_hook(attention)
            assert torch.equal(output(model, inputs).last_hidden_state, ours)
            assert (len(calls), spy.call_count) == (2, 4)
    assert torch.equal(output(model, inputs).last_hidden_state, own)
    assert spy.call_count == 4
    assert attention.forward.__func__ is type(attention).forward is forward


def test_a_forward_that_another_library_replaced_stays():
    model, inputs = build(FAMILIES["vits"]), ids(30)
    attention = model.encoder.encoder.layers[0].attention
    own = attention.forward
    attention.forward = theirs = lambda *args, **kwargs: own(*args, **kwargs)
    with faster.enable(model):
        assert "another library" in faster.report(model)
        assert faster.report(model).count(": relattn") == 1
        assert attention.forward is theirs
        output(model, inputs)
    assert attention.__dict__["forward"] is theirs


def test_a_class_that_another_library_wrapped_stays_wrapped(monkeypatch, spy):
    model, inputs = build(FAMILIES["vits"]), ids(30)
    own = output(model, inputs).last_hidden_state
    module_type = modeling_vits.VitsAttention
    monkeypatch.setattr(module_type, "forward", module_type.forward)  # restores it afterwards
    for _ in range(2):
        faster.enable()
        ours = module_type.forward
        module_type.forward = theirs = functools.wraps(ours)(lambda *args, ours=ours, **kwargs: ours(*args, **kwargs))
        output(model, inputs)
        faster.disable()
        assert module_type.forward is theirs
        assert torch.equal(output(model, inputs).last_hidden_state, own)
        assert "not enabled" in faster.report(model)
    assert spy.call_count == 4


def test_replicas_compute_with_their_own_weights(spy):
    attention = build(FAMILIES["wav2vec2-bert"]).encoder.layers[0].self_attn
    encoder = build(FAMILIES["wav2vec2-bert"]).encoder
    states = torch.randn(2, 9, 32)
    attention = encoder.layers[0].self_attn
    with faster.enable(encoder):
        replica = attention._replicate_for_data_parallel()  # DataParallel then gives it copies of the submodules
        replica._modules = {name: copy.deepcopy(module) for name, module in attention._modules.items()}
        for parameter in replica.linear_out.parameters():
            parameter.data *= 2
        ours = output(attention, states)[0]
        torch.testing.assert_close(output(replica, states)[0], 2 * ours, rtol=0, atol=1e-5)
    assert spy.call_count == 2


def test_a_shallow_copy_keeps_its_setting():
    encoder = build(FAMILIES["wav2vec2-bert"]).encoder
    forward = type(encoder).forward
    with faster.enable(encoder, window=(7, 2)):
        twin = copy.copy(encoder)
    assert faster.report(twin).startswith("the model (Wav2Vec2BertEncoder): relattn, window (7, 2)\n")
    faster.disable(twin)
    assert faster.report(twin).startswith("the model (Wav2Vec2BertEncoder): not enabled\n")
    assert type(encoder).forward is forward


@pytest.mark.parametrize("window", [None, (7, 2)])
def test_pickled_models_stay_enabled(window, spy):
    model, inputs = build(FAMILIES["parakeet"]), features(90)
    forward = type(model).forward
    faster.enable(model, window=window)
    ours, data = output(model, inputs).last_hidden_state, pickle.dumps(model)
    faster.disable(model)
    assert type(model).forward is forward
    spy.reset_mock()
    loaded = pickle.loads(data)
    assert faster.report(loaded).count("relattn" if window is None else "relattn, window (7, 2)") == 3
    assert torch.equal(output(loaded, inputs).last_hidden_state, ours)
    assert spy.call_count == 2
    faster.disable(loaded)
    assert type(model).forward is forward


@pytest.mark.parametrize("name", ["t5", "speecht5", "parakeet", "wav2vec2-bert"])
def test_a_part_that_hands_positions_to_others_is_refused(name):
    model = build(FAMILIES[name])
    forwards = [type(module).forward for module in model.modules()]
    part = [module for name, module in model.named_modules() if name.endswith(("layers.0", "block.0"))][-1]
    with pytest.raises(ValueError, match=r"^model must contain the whole \w+, .*, got \w+$"):
        faster.enable(part)
    faster.enable(model)
    with pytest.raises(ValueError, match="model must contain the whole"):
        faster.disable(part)
    faster.disable(model)
    assert forwards == [type(module).forward for module in model.modules()]


@pytest.mark.parametrize(("name", "is_padded"), [("parakeet", True), ("t5", False)])
def test_compiled_models_are_one_graph(name, is_padded):
    family = FAMILIES[name]
    model, inputs = build(family), family.inputs(family.length)
    mask = padding(inputs) if is_padded else None
    own = output(model, inputs, attention_mask=mask)
    with faster.enable(model):
        ours = output(torch.compile(model, fullgraph=True, backend="eager"), inputs, attention_mask=mask)
    torch.compiler.reset()
    gap = (ours.last_hidden_state - own.last_hidden_state)[family.valid(own)]
    assert float(gap.abs().max()) < 2e-5


def test_t5_with_a_decoder_trains_and_generates_alike():
    def losses_and_texts(model: Any) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        torch.manual_seed(3)
        inputs, labels = ids(60), ids(23)
        mask = padding(inputs)
        model.zero_grad()
        loss = model(input_ids=inputs, attention_mask=mask, labels=labels).loss
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        options = {"max_new_tokens": 11, "num_beams": 3, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        return loss.detach(), gradients, model.generate(inputs, attention_mask=mask, **options)

    settings = {**SMALL_T5, "num_layers": 2, "dropout_rate": 0.0, "decoder_start_token_id": 0}
    make = maker("T5ForConditionalGeneration", "T5Config", relative_attention_max_distance=40, **settings)
    model = build(Family(make, ids)).train()
    own_loss, own_gradients, own_texts = losses_and_texts(model)
    with faster.enable(model):
        loss, gradients, texts = losses_and_texts(model)
    torch.testing.assert_close(loss, own_loss)
    assert gradients.keys() == own_gradients.keys()
    for name, gradient in own_gradients.items():
        atol = 1e-5 * float(gradient.abs().max()) + 1e-8
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=atol, msg=name)
    assert torch.equal(texts, own_texts)


def changed_scale(monkeypatch: pytest.MonkeyPatch) -> str:
    own = modeling_vits.VitsAttention.forward

    def forward(module: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return own(module, 1.1 * hidden_states, *args, **kwargs)

    monkeypatch.setattr(modeling_vits.VitsAttention, "forward", forward)
    return "outputs up to .* differ by"


def changed_names(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(modeling_vits, "VitsAttentionV2", modeling_vits.VitsAttention, raising=False)
    monkeypatch.delattr(modeling_vits, "VitsAttention")
    return "AttributeError: .*VitsAttention"


def changed_capture(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(attention_weights, "needs_attention_weights", lambda *args: False)
    return "attention weights are missing"


def changed_arguments(monkeypatch: pytest.MonkeyPatch) -> str:
    own = modeling_vits.VitsAttention.forward

    def forward(
        module: Any, hidden_states: Tensor, key_value_states: Any = None, attention_mask: Any = None,
        output_attentions: bool = False, sinks: int = 0,
    ) -> Any:  # fmt: skip
        return own(module, hidden_states, key_value_states, attention_mask, output_attentions)

    monkeypatch.setattr(modeling_vits.VitsAttention, "forward", forward)
    monkeypatch.setattr(modeling_vits.VitsAttention, "__call__", functools.partialmethod(nn.Module.__call__, sinks=1))
    return "VitsAttention has the arguments sinks"


@pytest.mark.parametrize("change", [changed_scale, changed_names, changed_capture, changed_arguments])
def test_a_family_whose_class_has_changed_is_left_alone(change, monkeypatch, spy, check_again, caplog):
    check_again("VitsText")
    model, other, inputs = build(FAMILIES["vits"]), build(FAMILIES["t5"]), ids(30)
    reason = change(monkeypatch)
    own = output(model, inputs).last_hidden_state
    with caplog.at_level(logging.WARNING):
        for target in (None, model, None):
            with faster.enable(target):
                spy.reset_mock()
                assert torch.equal(output(model, inputs).last_hidden_state, own)
                assert spy.call_count == 0
                assert ": relattn" not in faster.report(model)
    (message,) = (record.message for record in caplog.records if "keeps its own code" in record.message)
    assert message.startswith("VitsText keeps its own code: transformers")
    assert re.search(reason, message)
    with faster.enable():
        assert faster.report(other).count(": relattn") == 4


def test_the_version_that_a_family_needs_is_named(monkeypatch, check_again, caplog):
    check_again("T5", "VitsText")
    monkeypatch.setattr("relattn.integrations.transformers.family.transformers.__version__", "5.14.1")
    with faster.enable():
        reasons = [line.partition(": ")[2] for line in faster.report(build(FAMILIES["t5"])).splitlines()]
        assert reasons == ["transformers must be 5.15 or later, got 5.14.1"] * 4
        assert faster.report(build(FAMILIES["vits"])).count(": relattn") == 2
    assert "T5 keeps its own code: transformers must be 5.15 or later, got 5.14.1" in caplog.messages


def test_a_model_without_a_supported_module_has_a_warning(caplog):
    for model, count in ((build(FAMILIES["t5"]), 0), (nn.Linear(2, 2), 1)):
        with faster.enable(model):
            assert sum("has no module" in message for message in caplog.messages) == count


def test_an_argument_that_the_replacement_lacks_runs_the_models_own_code():
    """Keys of another sequence are not part of T5's encoder, but its attention accepts them."""
    attention = build(FAMILIES["t5"]).encoder.block[0].layer[0].SelfAttention
    states, others = torch.randn(2, 1, 12, 32)
    own = output(attention, states, key_value_states=others)[0]
    with faster.enable():
        assert torch.equal(output(attention, states, key_value_states=others)[0], own)
        assert not torch.allclose(output(attention, states)[0], own)
        with pytest.raises(TypeError, match="hidden_states"):  # as without relattn
            attention(states, hidden_states=states)


@pytest.mark.parametrize(
    ("name", "exporter"), [("deberta-v3", "torch.jit.trace"), ("wav2vec2-bert relative", "torch.export")]
)
def test_exports_of_enabled_models_are_right_at_other_lengths(name, exporter):
    assert outcome(name, exporter, enabled=True) == "right"


def test_a_model_with_a_window_is_not_exported():
    model = build(FAMILIES["parakeet"])
    with faster.enable(model, window=(9, 9)), pytest.raises(ValueError, match=r"window must be None .* exports"):
        torch.export.export(Encoder(model), (features(90),))


@pytest.mark.parametrize("task", ["TextToSpeech", "SpeechToText", "SpeechToSpeech"])
def test_speecht5_with_a_decoder_trains_and_generates_alike(task, spy):
    settings = SPEECHT5 | CONVOLUTIONS | {
        "encoder_max_relative_position": 12, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48,
        "vocab_size": 30, "speaker_embedding_dim": 8, "use_guided_attention_loss": False, "mask_time_prob": 0.0,
        "apply_spec_augment": False,
    }  # fmt: skip
    model: Any = build(Family(maker(f"SpeechT5For{task}", "SpeechT5Config", "eager", **settings), ids))
    remove_randomness(model)
    inputs = {"input_ids": ids(60)} if task == "TextToSpeech" else {"input_values": sound(90)}
    inputs["attention_mask"] = padding(next(iter(inputs.values())))
    labels = ids(7) if task == "SpeechToText" else torch.randn(2, 12, 80)
    speaker = {} if task == "SpeechToText" else {"speaker_embeddings": torch.randn(2, 8)}

    def results() -> list[Tensor]:
        torch.manual_seed(2)  # the dropout before the decoder stays on
        model.zero_grad()
        out = model(**inputs, **speaker, labels=labels)
        loss = out.spectrogram.mean() if task == "SpeechToSpeech" else out.loss  # it has no loss
        loss.backward()
        if task == "SpeechToText":
            generated = model.generate(**inputs, max_new_tokens=9, do_sample=False)
        else:
            generated = model.generate_speech(**inputs, maxlenratio=0.2, **speaker)
        return [loss.detach(), generated, *(p.grad for p in model.parameters() if p.grad is not None)]

    own = results()
    assert spy.call_count == 0
    with faster.enable(model):
        report = faster.report(model)
        ours = results()
    assert (report.count(": relattn"), report.count(": decoder attention")) == (3, 4)
    assert spy.call_count >= 4  # two layers, two calls
    for x, y in zip(ours, own, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-5 * float(y.abs().max()) + 1e-7)


def test_the_check_changes_no_random_numbers_and_no_defaults(check_again, caplog):
    check_again("T5", "VitsText")

    def states() -> list[Any]:
        return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]

    model, before = build(FAMILIES["t5"]), states()
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        with caplog.at_level(logging.WARNING), faster.enable():
            assert states() == before
            assert faster.report(model).count(": relattn") == 4
            assert torch.empty(1).dtype == torch.float64
            assert torch.empty(1).is_meta
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert not [record for record in caplog.records if record.name.startswith("relattn")]


def settings_of(model: nn.Module) -> list[str]:
    """Return what each module does, and how many layers are in int8, as `report` has it."""
    return [line.partition(": ")[2] or line for line in faster.report(model).splitlines()]


EARLIER: dict[str, Any] = {
    "nothing": lambda model: None,
    "the model": faster.enable,
    "a window": lambda model: faster.enable(model, window=(7, 2)),
    "without padding": lambda model: faster.enable(model, unpad=True),
    "both": lambda model: faster.enable(model, window=(7, 2), unpad=True),
    "int8": lambda model: faster.enable(model, linear="int8"),
    "all models": lambda model: faster.enable(),
    "all models, and a window": lambda model: (faster.enable(), faster.enable(model, window=(7, 2))),
}
BLOCKS: list[dict[str, Any]] = [{}, {"window": (7, 2)}, {"unpad": True}, {"linear": "int8"}]
NESTED = list(itertools.product(BLOCKS, [None, *BLOCKS]))  # a block, and one within it


@pytest.mark.parametrize("earlier", EARLIER)
def test_a_block_restores_the_earlier_setting(earlier):
    wide = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
    model, inputs = build(FAMILIES["wav2vec2-bert"], **wide), features(40)
    try:
        EARLIER[earlier](model)
        mask = padding(inputs)
        before, own = settings_of(model), output(model, inputs, attention_mask=mask).last_hidden_state
        has_window = any("window" in line for line in before)
        may_have_window = has_window or "relattn" not in before  # else a window is refused

        def enter(outer: dict[str, Any], inner: dict[str, Any] | None) -> None:
            with faster.enable(model, **outer):
                within = settings_of(model)
                if inner is not None:
                    with faster.enable(model, **inner), faster.enable():
                        output(model, inputs, attention_mask=mask)
                assert settings_of(model) == within
                raise KeyError("inside")

        for outer, inner in NESTED[list(EARLIER).index(earlier) % 3 :: 3]:
            if ("window" in outer and not may_have_window) or (
                "window" in (inner or {}) and "window" not in outer and not has_window
            ):
                continue
            with pytest.raises(KeyError, match="inside"):
                enter(outer, inner)
            assert settings_of(model) == before
            assert torch.equal(output(model, inputs, attention_mask=mask).last_hidden_state, own)
    finally:
        faster.disable(model)
        faster.disable()
    assert "forward" not in vars(model)


@pytest.mark.parametrize("options", BLOCKS)
def test_what_is_enabled_again_inside_a_block_stays(options):
    """Also with a call between that asks for less, and a block that ends while another is still open."""
    wide = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
    model = build(FAMILIES["wav2vec2-bert"], **wide)
    own = settings_of(model)
    for calls in ([options], [{}, options], [options, {}], [{}, options, options]):
        with faster.enable(model, **options):
            for call in calls:
                faster.enable(model, **call)
            within = settings_of(model)
        assert settings_of(model) == within
        faster.disable(model)
        assert settings_of(model) == own
    first = faster.enable(model, **options).__enter__()
    faster.enable(model)
    second = faster.enable(model, **options).__enter__()
    within = settings_of(model)
    first.__exit__(None, None, None)
    assert settings_of(model) == within
    second.__exit__(None, None, None)
    assert {*settings_of(model)} == {"relattn"}
    with faster.enable(model, **({} if "window" in options else options)):
        faster.disable(model)
        faster.enable(model, **options)
        within = settings_of(model)
    assert settings_of(model) == within
    faster.disable(model)


def test_blocks_that_end_in_another_order():
    model, inputs = build(FAMILIES["parakeet"]), features(90)
    own = settings_of(model)
    first = faster.enable(model, window=(7, 2)).__enter__()
    second = faster.enable(model, window=(7, 2)).__enter__()
    windowed, result = settings_of(model), output(model, inputs).last_hidden_state
    first.__exit__(None, None, None)
    assert settings_of(model) == windowed
    assert torch.equal(output(model, inputs).last_hidden_state, result)
    second.__exit__(None, None, None)
    assert settings_of(model) == own


def test_what_is_enabled_without_a_block_stays():
    model, other = build(FAMILIES["parakeet"]), build(FAMILIES["vits"])
    with faster.enable(model, window=(7, 2)):
        faster.enable(model)
        assert "relattn, window (7, 2)" in settings_of(model)
    assert set(settings_of(model)) == {"relattn"}
    faster.disable(model)
    with faster.enable():
        faster.enable(other)
    assert set(settings_of(other)) == {"relattn"}
    faster.disable(other)
    with faster.enable():
        faster.enable()
        assert set(settings_of(other)) == {"relattn"}
    assert set(settings_of(other)) == {"relattn"}
    with faster.enable():
        pass
    assert set(settings_of(other)) == {"relattn"}
    faster.disable()
    assert set(settings_of(other)) == {"not enabled"}


def test_hooks_of_an_enabled_class_follow_it_after_a_block():
    model = build(FAMILIES["parakeet"])
    with faster.enable():
        for module in list(model.modules()):
            add_hook(module, lambda module: None, lambda module: None)
        before = settings_of(model)
        with faster.enable(model, window=(7, 2)):
            assert "relattn, window (7, 2)" in settings_of(model)
        assert settings_of(model) == before == ["relattn"] * len(before)
