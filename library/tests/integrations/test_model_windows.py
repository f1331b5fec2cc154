"""Tests of windows and chunks in models: the same results as the models' own code with a mask, in linear memory."""

import random
from typing import Any

import pytest
import torch
from relattn.integrations import transformers as faster
from relattn.integrations.transformers import attention_weights
from relattn.integrations.transformers.families import parakeet
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.encoders import padding, remove_randomness
from library.tests.integrations.test_transformers import FAMILIES, build, features, output
from tests.support.covering import pairwise

WINDOWED = ("parakeet", "wav2vec2-bert", "wav2vec2-bert relative", "wav2vec2-conformer")
WINDOWS = [(5, 5), (7, 2), (0, 3), (4, None), (None, 0), (0, 0)]


def sharp(name: str, **options: Any) -> nn.Module:
    """Build a model whose attention differs from position to position, so that the keys in the window matter."""
    model = build(FAMILIES[name], **options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.5 * parameter[0].numel() ** -0.5)
    return model


def attention_modules(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if type(module).__name__.endswith("Attention")]


def visible(window: tuple[int | None, int | None], n: int) -> Tensor:
    """Return whether a query attends to a key: (n, n)."""
    left, right = (n if side is None else side for side in window)
    distance = torch.arange(n) - torch.arange(n)[:, None]  # j − i
    return (distance >= -left) & (distance <= right)


def with_band_mask(model: nn.Module, window: tuple[int | None, int | None]) -> None:
    """Add the window to the mask of each attention module. Padding attends to itself: a row of −∞ would be NaN."""

    def add(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        n, mask = kwargs["hidden_states"].shape[1], kwargs["attention_mask"]
        band = visible(window, n)[None, None]
        if mask is None or mask.dtype == torch.bool:
            mask = band if mask is None else (mask & band) | torch.eye(n, dtype=torch.bool)
        else:
            mask = mask.masked_fill(~band, torch.finfo(mask.dtype).min)
        return args, {**kwargs, "attention_mask": mask}

    for module in attention_modules(model):
        module.register_forward_pre_hook(add, with_kwargs=True)


def results(model: nn.Module, inputs: Tensor, arguments: dict[str, Tensor], valid: Tensor) -> dict[str, Tensor]:
    """Return the output at valid positions, and the gradients of all parameters."""
    remove_randomness(model.train())
    model.zero_grad()
    states = model(inputs, **arguments).last_hidden_state[valid]
    (states * torch.linspace(-1, 1, states.numel()).view_as(states)).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"output": states.detach(), **gradients}


# Wav2Vec2-Conformer's convolution reads the outputs of padding, and a row of its own mask without a key gives NaN.
@pairwise(
    valid=lambda name, masked, unpad, **case: (name, masked) != ("wav2vec2-conformer", True)
    and (not unpad or (name, masked) == ("wav2vec2-bert", True)),
    name=WINDOWED, window=WINDOWS, masked=[False, True], unpad=[False, True],
)  # fmt: skip
def test_a_window_equals_the_models_own_code_with_a_mask(name, window, masked, unpad):
    family = FAMILIES[name]
    model, inputs = sharp(name), family.inputs(family.length // 2)
    arguments = {"attention_mask": padding(inputs)} if masked else {}
    with torch.no_grad():
        own = model(inputs, **arguments)
    valid = torch.ones(own.last_hidden_state.shape[:2], dtype=torch.bool)
    if masked:
        valid = family.valid(own) if name == "parakeet" else padding(inputs).bool()
    with faster.enable(model, window=window, unpad=unpad):
        ours = results(model, inputs, arguments, valid)
        at_padding = output(model, inputs, **arguments).last_hidden_state[~valid]
    assert bool(at_padding.any()) == (masked and not unpad)  # without padding, it gets zeros
    assert float((ours["output"] - own.last_hidden_state[valid]).abs().max()) > 0.05  # the window matters
    with_band_mask(model, window)
    want = results(model, inputs, arguments, valid)
    assert ours.keys() == want.keys()
    assert len(ours) > 50
    for key, expected in want.items():
        atol = 2e-5 * float(expected.abs().max()) + 1e-6
        torch.testing.assert_close(
            ours[key], expected, rtol=1e-3, atol=atol, msg=lambda text, key=key: f"{key}: {text}"
        )


@pytest.mark.parametrize("name", WINDOWED)
def test_a_window_wider_than_the_input_equals_full_attention(name):
    family = FAMILIES[name]
    model, inputs = sharp(name), family.inputs(family.length)
    arguments = {"attention_mask": padding(inputs)}
    with faster.enable(model):
        full = output(model, inputs, **arguments).last_hidden_state
    for window in [(10_000, 10_000), (None, None), (family.length, None)]:
        with faster.enable(model, window=window):
            assert torch.equal(output(model, inputs, **arguments).last_hidden_state, full)


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor):
                self.elements = max(self.elements, x.numel())
        return out


@pytest.mark.parametrize("name", [*WINDOWED, "seamless-m4t-v2 in chunks"])
@pytest.mark.parametrize("masked", [False, True])
def test_no_tensor_grows_with_the_square_of_the_length(name, masked):
    family, largest = FAMILIES[name], []
    options = {"add_adapter": False} if name.startswith("seamless") else {}  # adapters have full attention
    model = sharp(name, **options)
    for length in (family.length * 30, family.length * 60):
        inputs = family.inputs(length)
        arguments = {"attention_mask": padding(inputs)} if masked else {}
        window = (9, 4) if name in WINDOWED else None
        with faster.enable(model, window=window), LargestTensor() as mode:
            output(model, inputs, **arguments)
        largest.append(mode.elements)
    assert largest[1] < 2.1 * largest[0]


@pairwise(frames=[400, 401, 455, 463], kernel=[3, 5], masked=[False, True])
def test_convolutions_in_pieces_equal_those_of_the_whole_input(frames, kernel, masked, monkeypatch):
    model, inputs = sharp("parakeet", subsampling_conv_kernel_size=kernel), features(frames)
    mask = padding(inputs) if masked else None
    monkeypatch.setattr(parakeet, "CHUNK_POSITIONS", 19)
    with torch.no_grad():
        torch.testing.assert_close(parakeet.subsample(model, inputs, mask), model.subsampling(inputs, mask))


def test_windows_are_refused_where_they_would_not_hold_everywhere():
    model = build(FAMILIES["vits"])
    with pytest.raises(ValueError, match=r"^window must be given with a model of Parakeet[^\n]*got a model with \w+$"):
        faster.enable(model, window=(3, 3))
    assert ": relattn" not in faster.report(model)
    model = build(FAMILIES["wav2vec2-bert"], position_embeddings_type="rotary")
    with pytest.raises(ValueError, match=r"supported as a whole, got Wav2Vec2BertEncoder: .* got rotary"):
        faster.enable(model, window=(3, 3))
    with pytest.raises(ValueError, match=r"window must be given with a model of Parakeet.*got Linear"):
        faster.enable(nn.Linear(2, 2), window=(3, 3))
    with pytest.raises(ValueError, match="window must be given with a model, because"):
        faster.enable(window=(3, 3))
    model = sharp("parakeet")
    faster.enable(model)
    with pytest.raises(ValueError, match="window must be None, with which ParakeetEncoder is enabled"):
        faster.enable(model, window=(3, 3))


def test_a_model_may_have_a_window_where_its_class_is_enabled():
    model, inputs = sharp("parakeet"), features(400)
    own = output(model, inputs).last_hidden_state
    with faster.enable(model, window=(3, 3)):
        windowed = output(model, inputs).last_hidden_state
    with faster.enable():
        with faster.enable(model, window=(3, 3)), faster.enable(model, window=[3, 3]):
            assert faster.report(model).count(": relattn, window (3, 3)") == 3
            assert torch.equal(output(model, inputs).last_hidden_state, windowed)
        assert "window" not in faster.report(model)
        torch.testing.assert_close(output(model, inputs).last_hidden_state, own, rtol=0, atol=2e-5)
    assert float((windowed - own).abs().max()) > 1e-2
    assert torch.equal(output(model, inputs).last_hidden_state, own)


@pytest.mark.parametrize("name", ["parakeet", "wav2vec2-bert"])
def test_attention_weights_are_refused_with_a_window(name, monkeypatch):
    monkeypatch.setattr(attention_weights, "_warned_modules", set())
    model, inputs = build(FAMILIES[name], "eager"), features(90)
    with (
        faster.enable(model, window=(3, 3)),
        pytest.raises(ValueError, match=r"window must be None for calls.*\(3, 3\)"),
    ):
        output(model, inputs, output_attentions=True)


@pytest.mark.parametrize("name", ["parakeet", "wav2vec2-bert"])
def test_training_skips_as_many_layers_as_the_models_own_code(name):
    model, inputs = sharp(name), features(90)
    evaluated = output(model, inputs).last_hidden_state
    remove_randomness(model.train())
    model.layerdrop = model.config.layerdrop = 1.0
    own = output(model, inputs).last_hidden_state
    with faster.enable():
        ours = output(model, inputs).last_hidden_state
        assert not torch.allclose(output(model.eval(), inputs).last_hidden_state, ours)
    torch.testing.assert_close(ours, own, rtol=0, atol=2e-5)
    assert not torch.allclose(own, evaluated)


@pytest.mark.parametrize("name", ["wav2vec2-bert", "parakeet"])
def test_any_order_of_windows_gives_what_one_call_gives_a_new_model(name):
    """`enable` with and without a window, twice, with another one, in a block and after `disable`."""
    draw = random.Random(1)
    family = FAMILIES[name]
    model, fresh, inputs = sharp(name), sharp(name), family.inputs(family.length // 2)
    window: tuple[int, int] | None = None
    is_enabled = False
    for _ in range(14):
        match draw.choice(["plain", "window", "window", "in a block", "disable", "weights"]):
            case "plain":
                faster.enable(model)
                is_enabled = True
            case "window" | "in a block" as call:
                wanted = draw.choice([(5, 2), (0, 3)])
                if is_enabled and window != wanted:
                    with pytest.raises(ValueError, match="disable it first"):
                        faster.enable(model, window=wanted)
                elif call == "window" or is_enabled:
                    faster.enable(model, window=wanted)
                    window, is_enabled = wanted, True
                else:
                    with faster.enable(model, window=wanted), faster.enable(model):
                        assert faster.report(model) != faster.report(fresh)
            case "disable":
                faster.disable(model)
                window, is_enabled = None, False
            case "weights":
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(1.01)
        faster.disable(fresh)
        fresh.load_state_dict(model.state_dict())
        if is_enabled:
            faster.enable(fresh, window=window)
        assert torch.equal(*(output(each, inputs).last_hidden_state for each in (model, fresh)))
    faster.disable(model)
    faster.disable(fresh)
