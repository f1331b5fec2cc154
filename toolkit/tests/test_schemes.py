"""Kinds of position schemes that are not listed, and formats that do not support a scheme, are refused by name."""

from dataclasses import dataclass

import pytest
from relattn_mt.config import SCHEMES, ModelConfig
from relattn_mt.config.positions import DotProduct, Mixer, Scheme, Signal
from relattn_mt.engine import decoder
from relattn_mt.model.transformer import Transformer
from relattn_mt.support.errors import InputError

from tests.support.commands import assert_refused
from tests.support.foreign_bundles import make_bundle


@dataclass(frozen=True)
class OwnMixer(Mixer):
    pass


@dataclass(frozen=True)
class OwnSignal(Signal):
    pass


@pytest.mark.parametrize("parts", [(None, OwnMixer()), (OwnSignal(), DotProduct())], ids=["mixer", "signal"])
def test_a_kind_that_is_not_listed_is_refused(monkeypatch, parts):
    monkeypatch.setitem(SCHEMES, "scratch", Scheme("scratch", "a scheme of a test", lambda config: parts))
    config = ModelConfig(dim=12, heads=3, positions="scratch")
    assert "does not support scratch positions" in (decoder.unsupported_reason(config) or "")
    with pytest.raises(InputError, match=r"scratch positions.* Own"):
        Transformer(config, 50)


def test_an_export_that_another_format_supports_names_it(relattn, tmp_path):
    result = relattn("export", "ctranslate2", make_bundle(tmp_path / "b", positions="xl").path, "--out", tmp_path / "o")
    assert_refused(result, "(train with --model.positions relative); this model can be exported to web")
