"""Schemes of another package, kinds that are not listed, and formats that do not support a scheme."""

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from relattn_mt.bundle import read_bundle
from relattn_mt.config import SCHEMES, ModelConfig, Recipe, positions
from relattn_mt.config.base import arguments_of, setting_types
from relattn_mt.config.positions import DistanceBias, DotProduct, Mixer, Scheme, Signal
from relattn_mt.engine import decoder
from relattn_mt.engine.engine import NativeEngine
from relattn_mt.model.positions.stack import StackPositions
from relattn_mt.model.transformer import Transformer
from relattn_mt.support.errors import InputError
from relattn_mt.web.model_file import model_file
from relattn_mt.weights import weight_table
from torch import nn

from tests.support.commands import assert_refused
from tests.support.foreign_bundles import make_bundle


@dataclass(frozen=True)
class OwnMixer(Mixer):
    pass


@dataclass(frozen=True)
class OwnSignal(Signal):
    pass


class TorchLogBias(DistanceBias):
    module = f"{__name__}:LogBiases"

    def weights(self, heads):
        return {"weight": (2, heads, 1)}


class LogBias(TorchLogBias):
    in_numpy = f"{__name__}:log_biases"


def log_biases(distances, heads, *, is_causal, weight):
    scale, rate = np.exp(weight.astype(np.float64))
    return -scale * np.log1p(rate * np.abs(distances))


class LogBiases(nn.Module):
    """KERPLE's biases −p log(1 + a |j − i|) (Chi et al. 2022, equation 4)."""

    def __init__(self, heads, *, is_causal):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1.0, 0.5, 2 * heads).view(2, heads, 1))  # logarithms of p and a

    def forward(self, distances):
        scale, rate = self.weight.exp()
        return -scale * torch.log1p(rate * distances.abs())


@pytest.fixture
def register(monkeypatch, request):
    """Register a scheme until the test ends."""

    def registered(name, parts):
        setting_types(Recipe)  # with the schemes of before
        request.addfinalizer(arguments_of.cache_clear)
        monkeypatch.setitem(SCHEMES, name, None)
        monkeypatch.setattr(positions, "Positions", positions.Positions)
        positions.register(name, Scheme(name, "a scheme of a test", lambda config: parts))

    return registered


@pytest.mark.parametrize("kind", [LogBias, TorchLogBias])
@pytest.mark.parametrize("per_layer", [False, True])
def test_a_scheme_of_another_package(register, tmp_path, per_layer, kind):
    register("kerple", (None, kind(per_layer)))
    attention = StackPositions(ModelConfig(dim=12, heads=3, positions="kerple"), is_causal=False).attention().double()
    query, key, value = torch.randn(3, 1, 3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    distance = (torch.arange(5) - torch.arange(5)[:, None]).abs()
    p, a = torch.linspace(-1.0, 0.5, 6).double().exp().view(2, 3, 1, 1)
    expected = (query @ key.mT / 2 - p * (1 + a * distance).log()).softmax(-1) @ value
    torch.testing.assert_close(attention.eval()(query, key, value), expected, rtol=0, atol=1e-6)
    bundle = make_bundle(tmp_path / "b", positions="kerple", dim=12, heads=3, encoder_layers=2)
    lines = ["one apple", "17 pears and apples"]
    loaded = read_bundle(bundle.path)
    assert sum("bias.weight" in name and "attention.bias" in name for name in loaded.state) == (3 if per_layer else 0)
    translator = loaded.translator()
    expected = bundle.torch_translator().n_best(lines)
    is_compiled = kind is LogBias and decoder.KERNELS is not None
    assert isinstance(translator.engine, NativeEngine) == is_compiled
    for found, best in zip(translator.n_best(lines), expected, strict=True):
        assert [each.text for each in found] == [each.text for each in best]
        assert [each.score for each in found] == pytest.approx([each.score for each in best], abs=1e-5)
    with nullcontext() if is_compiled else pytest.raises(InputError, match="does not support kerple positions"):
        model_file(loaded)


@pytest.mark.parametrize("parts", [(None, OwnMixer()), (OwnSignal(), DotProduct())])
def test_a_kind_that_is_listed_but_not_packed_is_refused(register, monkeypatch, parts):
    register("scratch", parts)
    monkeypatch.setattr(decoder, "SUPPORTED", (*decoder.SUPPORTED, *map(type, parts)))
    config = ModelConfig(dim=12, heads=3, positions="scratch")
    assert decoder.unsupported_reason(config) is None
    weights = {name: np.ones(weight.shape, np.float32) for name, weight in weight_table(config, (50, 50)).items()}
    with pytest.raises(InputError, match=r"does not support scratch positions.* (OwnMixer|OwnSignal)$"):
        decoder.NativeDecoder(config, (50, 50), weights, int8=False)


@pytest.mark.parametrize("parts", [(None, OwnMixer()), (OwnSignal(), DotProduct())], ids=["mixer", "signal"])
def test_a_kind_that_is_not_listed_is_refused(register, parts):
    register("scratch", parts)
    config = ModelConfig(dim=12, heads=3, positions="scratch")
    assert "does not support scratch positions" in (decoder.unsupported_reason(config) or "")
    with pytest.raises(InputError, match=r"scratch positions.* Own"):
        Transformer(config, 50)


def test_an_export_that_another_format_supports_names_it(relattn, tmp_path):
    result = relattn("export", "ctranslate2", make_bundle(tmp_path / "b", positions="xl").path, "--out", tmp_path / "o")
    assert_refused(result, "(train with --model.positions relative); this model can be exported to web")
