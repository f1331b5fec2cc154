"""A position scheme that no engine knows runs on PyTorch, and every engine refuses it by its name."""

from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from relattn_mt.bundle import Bundle
from relattn_mt.config import SCHEMES, ModelConfig, positions
from relattn_mt.config.positions import DotProduct, Mixer, Scheme, Signal
from relattn_mt.engine import decoder
from relattn_mt.formats.exportable import FORMATS
from relattn_mt.model.attention import PlainAttention
from relattn_mt.model.positions.stack import StackPositions
from relattn_mt.model.transformer import Transformer
from relattn_mt.support.errors import InputError
from torch import Tensor, nn

from testing.commands import assert_refused
from testing.foreign_bundles import make_bundle

NAME = "scratch"
LINE = "one apple and two pears"


@dataclass(frozen=True)
class OwnMixer(Mixer):
    pass


@dataclass(frozen=True)
class OwnSignal(Signal):
    pass


class OwnAttention(PlainAttention):
    """A relative term of its own: keys are scaled by their positions."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        steps = torch.arange(key.shape[2], device=key.device)[:, None]
        return super().forward(query, key * (1.0 + 0.3 * steps), value, **options)


class Ramp(nn.Module):
    def forward(self, embeddings: Tensor, start: int) -> Tensor:
        return torch.arange(start, start + embeddings.shape[1])[:, None] * torch.linspace(
            -0.3, 0.3, embeddings.shape[2]
        )


@pytest.fixture(params=[(None, OwnMixer()), (OwnSignal(), DotProduct())], ids=["mixer", "signal"])
def registered(request, monkeypatch, tmp_path) -> Bundle:
    """A bundle of a scheme that is registered during a test, with modules of its own."""
    monkeypatch.setitem(SCHEMES, NAME, Scheme(NAME, "a scheme of a test", lambda config: request.param))
    monkeypatch.setattr(positions, "Positions", Literal[tuple(SCHEMES)])
    attention, signal = StackPositions.attention, StackPositions._signal
    monkeypatch.setattr(
        StackPositions,
        "attention",
        lambda self: OwnAttention(self.config) if self.spec.mixer == OwnMixer() else attention(self),
    )
    monkeypatch.setattr(
        StackPositions, "_signal", lambda self: Ramp() if self.spec.signal == OwnSignal() else signal(self)
    )
    return make_bundle(tmp_path / "bundle", positions=NAME)


@pytest.mark.filterwarnings("ignore:positions. none:UserWarning")
def test_translation_runs_on_pytorch_and_says_why(relattn, registered, monkeypatch, tmp_path):
    translator = registered.translator()
    expected = translator.translate([LINE])
    with torch.inference_mode():  # the scheme changes the model, so that dropping it would change translations
        plain = Transformer(registered.model.with_positions("none"), len(translator.tokenizer.vocabularies[0])).eval()
        plain.load_state_dict(translator.engine.model.state_dict(), strict=False)
        tokens, lengths = torch.randint(4, 50, (2, 9)), torch.tensor([9, 4])
        model = translator.engine.model
        assert float((plain(tokens, lengths, tokens) - model(tokens, lengths, tokens)).abs().max()) > 0.1
    assert NAME in (decoder.unsupported_reason(registered.model) or "")
    (tmp_path / "in.txt").write_text(f"{LINE}\n")
    with (tmp_path / "in.txt").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        shown = relattn("translate", registered.path, "--verbose")
    assert (shown.code, shown.out) == (0, f"{expected[0]}\n")
    assert f"does not support {NAME} positions" in shown.err


@pytest.mark.parametrize("program", FORMATS)
def test_exports_are_refused(relattn, registered, program, tmp_path):
    result = relattn("export", program, registered.path, "--out", tmp_path / "out")
    for fact in (str(registered.path), f"not support {NAME} positions", "no export format"):
        assert_refused(result, fact)
    assert not (tmp_path / "out").exists()


def test_a_kind_without_a_module_is_refused(monkeypatch):
    for parts in ((None, OwnMixer()), (OwnSignal(), DotProduct())):
        monkeypatch.setitem(SCHEMES, NAME, Scheme(NAME, "", lambda config, parts=parts: parts))
        with pytest.raises(InputError, match=f"{NAME} positions.* Own"):
            Transformer(ModelConfig(dim=12, heads=3, positions=NAME), 50)


def test_an_export_that_another_format_supports_names_it(relattn, tmp_path):
    result = relattn("export", "ctranslate2", make_bundle(tmp_path / "b", positions="xl").path, "--out", tmp_path / "o")
    assert_refused(result, "(train with --model.positions relative); this model can be exported to onnx")
