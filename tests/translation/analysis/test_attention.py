"""Scores taken apart: their sum is what attention attends by, whatever the scheme; and the files that show it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from relattn.translation.analysis.attention import as_json, inspect, view
from relattn.translation.commands import main as cli
from relattn.translation.config import ModelConfig, Recipe, SearchConfig
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.errors import InputError
from relattn.translation.model.ensemble import Ensemble
from relattn.translation.model.positions.schemes import SCHEMES
from relattn.translation.model.transformer import Transformer
from relattn.translation.translate.torch_translator import TorchTranslator

TEXT = ["one cat sat on a mat", "zwei Katzen und 3 Matten"] * 10
SMALL = {"dim": 12, "heads": 3, "feed_forward_dim": 16, "encoder_layers": 2, "decoder_layers": 1}
OPTIONS = {
    "relative": {"clip": 2},
    "keys": {"clip": 3, "relative_tables": "keys"},
    "values": {"clip": 3, "relative_tables": "values"},
    "per head, lopsided": {"clip": 3, "clip_right": 1, "tables_per_head": True},
    "zero beyond": {"clip": 1, "beyond": "zero"},
    "xl": {"positions": "xl"},
    "t5": {"positions": "t5"},
    "alibi": {"positions": "alibi"},
    "sinusoidal": {"positions": "sinusoidal"},
}


def translator(**options: object) -> TorchTranslator:
    tokenizer = Tokenizer.train(TEXT, 290, seed=1)
    torch.manual_seed(3)
    model = Transformer(ModelConfig(**{**SMALL, **options}), tokenizer.vocab_size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return TorchTranslator(model, tokenizer, SearchConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_the_weights_are_those_that_the_layer_attends_by(options: dict, causal: bool) -> None:
    model = translator(**options).model
    layer = (model.decoder if causal else model.encoder)[0].self_attention
    x = torch.randn(1, 9, 12)
    found = view(layer, x)
    heads = (layer.num_heads, layer.head_dim)
    value = layer.value(x).unflatten(-1, heads).transpose(1, 2)[0]
    attended = found.weights @ value
    table = getattr(layer.attention, "rel_value", None)
    if table is not None:
        left, right = layer.attention.clip
        rows = table().expand(heads[0], -1, -1)
        for i in range(9):
            for j in range(9):
                label = max(-left, min(right, j - i)) + left
                if label == j - i + left or layer.attention.beyond == "clip":
                    attended[:, i] += found.weights[:, i, j, None] * rows[:, label]
    expected = layer.out(attended.transpose(0, 1).flatten(1))
    torch.testing.assert_close(layer(x)[0], expected, atol=1e-5, rtol=1e-5)


def test_distances_are_worth_the_mean_over_queries() -> None:
    model = translator(clip=2).model
    layer, x = model.encoder[0].self_attention, torch.randn(1, 9, 12)
    found = view(layer, x)
    assert found.distances == [-2, -1, 0, 1, 2]
    assert found.relative is not None
    assert found.by_distance is not None
    diagonal = torch.stack([found.relative[:, i, i] for i in range(9)]).mean(0)
    torch.testing.assert_close(found.by_distance[:, 2], diagonal)


def test_a_sentence_is_inspected_with_its_translation() -> None:
    of = translator()
    found = inspect(of, "one cat")
    ((best,),) = of.n_best(["one cat"])
    assert found.translation == best.text
    assert found.source[-1] == "</s>"
    assert [len(found.encoder), len(found.decoder), len(found.cross)] == [2, 1, 1]
    assert found.cross[0].shape == (3, len(found.written), len(found.source))
    torch.testing.assert_close(found.cross[0].sum(-1), torch.ones(3, len(found.written)))
    causal = found.decoder[0].weights
    assert bool((causal.triu(1) == 0).all())
    assert json.loads(as_json(found))["decoder"][0]["weights"][0][0][0] == 1.0


@pytest.mark.parametrize("positions", ["rope", "rove", "lstm", "cnn"])
def test_schemes_without_parts_are_refused(positions: str) -> None:
    assert positions in SCHEMES
    with pytest.raises(InputError, match=f"{positions} positions have no separate terms"):
        inspect(translator(positions=positions, dim=24), "one")


def test_what_cannot_be_looked_at_is_refused() -> None:
    of = translator()
    for line, message in (
        (" ", "must not be blank"),
        ("a\udcff", "must be UTF-8"),
        ("one " * 10, "at most 5 tokens, got"),
    ):
        with pytest.raises(InputError, match=message):
            inspect(of, line, longest=5)
    both = TorchTranslator(Ensemble([of.model, of.model]), of.tokenizer, of.search)
    with pytest.raises(InputError, match="got an ensemble"):
        inspect(both, "one")


def test_the_command_writes_pictures_and_data(
    finished: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["analyze", "attention", str(Path(finished.out) / "bundle")]
    for part in ("encoder", "decoder", "cross"):
        assert cli.main([*command, "one cat $ sat", "--out", str(tmp_path / f"{part}.png"), "--part", part]) == 0
        assert (tmp_path / f"{part}.png").read_bytes().startswith(b"\x89PNG")
    assert cli.main([*command, "one cat", "--out", str(tmp_path / "all.json")]) == 0
    assert set(json.loads((tmp_path / "all.json").read_text())) >= {"encoder", "decoder", "cross", "translation"}
    capsys.readouterr()
    for out, *wrong in (["x.pdf"], ["x.png", "--layer", "9"], ["x.json", "--layer", "1"]):
        assert cli.main([*command, "one cat", "--out", str(tmp_path / out), *wrong]) == 2
        assert "relattn: error:" in capsys.readouterr().err
    assert not list(tmp_path.glob("x.*"))
