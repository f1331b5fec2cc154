"""Models with random weights that OpenNMT-py and eole made, compared with the scores of these toolkits."""

from __future__ import annotations

import argparse
import json
import pickle
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch

from relattn.translation.errors import InputError
from relattn.translation.formats import eole, opennmt_py
from relattn.translation.formats.foreign_model import ForeignModel
from relattn.translation.translate.torch_translator import TorchTranslator

FIXTURES = Path(__file__).parent / "fixtures"
make = SimpleNamespace(**runpy.run_path(str(FIXTURES / "make.py")))
CHECKPOINT, DIRECTORY, TOKENIZER = FIXTURES / "opennmt_py.pt", FIXTURES / "eole", make.TOKENIZER


def assert_scores(found: ForeignModel, scores: Path) -> None:
    """Assert that a model gives each token of the pairs the log-probability that its toolkit gave it."""
    ours = TorchTranslator(found.model(), found.tokenizer, found.search)
    src, tgt = zip(*make.numbered(*ours.tokenizer.vocabularies), strict=True)
    assert list(src) == [ours.tokenizer.encode(a) for a, _ in make.PAIRS]
    assert [ids[1:-1] for ids in tgt] == [ours.tokenizer.encode_target(b) for _, b in make.PAIRS]
    assert all((ids[0], ids[-1]) == (ours.tokenizer.special.bos, ours.tokenizer.special.eos) for ids in tgt)
    expected = json.loads(scores.read_text())
    for mine, its in zip(ours.log_probs(src, [ids[1:-1] for ids in tgt]), expected, strict=True):
        assert mine == pytest.approx(its, abs=1e-5)


def load_checkpoint() -> dict[str, Any]:
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(CHECKPOINT, weights_only=True)


def save_checkpoint(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Save the checkpoint with a change, and return its path."""
    content = load_checkpoint()
    change(content)
    torch.save(content, path / "changed.pt")
    return path / "changed.pt"


def test_opennmt_py(tmp_path):
    """The weights may be in a safetensors file next to the checkpoint."""
    found = opennmt_py.read(CHECKPOINT, TOKENIZER, None)
    assert_scores(found, FIXTURES / "opennmt_py.json")
    assert (found.config.clip, found.config.shared_embeddings, found.config.norm_epsilon) == (3, "target", 1e-6)
    content = load_checkpoint()
    weights = content.pop("model") | {f"generator.{name}": x for name, x in content.pop("generator").items()}
    torch.save(content, tmp_path / "step.pt")
    weights = {name: tensor.clone() for name, tensor in weights.items()}
    safetensors.torch.save_file(weights, tmp_path / "step.safetensors")
    assert_scores(opennmt_py.read(tmp_path / "step.pt", TOKENIZER, None), FIXTURES / "opennmt_py.json")
    (tmp_path / "step.safetensors").unlink()
    with pytest.raises(InputError, match="it has no model, no generator"):
        opennmt_py.read(tmp_path / "step.pt", TOKENIZER, None)


def test_eole(tmp_path):
    """The weights may be in several files."""
    found = eole.read(DIRECTORY, TOKENIZER, None)
    assert_scores(found, FIXTURES / "eole.json")
    assert (found.config.clip, found.config.shared_embeddings, found.config.activation) == (3, "target", "gelu_tanh")
    path = Path(shutil.copytree(DIRECTORY, tmp_path / "eole"))
    tensors = safetensors.torch.load_file(path / "model.00.safetensors")
    for number, names in enumerate((sorted(tensors)[::2], sorted(tensors)[1::2])):
        safetensors.torch.save_file({name: tensors[name] for name in names}, path / f"model.0{number}.safetensors")
    assert_scores(eole.read(path, TOKENIZER, None), FIXTURES / "eole.json")


def test_sinusoids_in_a_checkpoint(tmp_path):
    """A model without relative positions has a table of sinusoids, and scaled embeddings."""

    def absolute(content: dict[str, Any]) -> None:
        content["opt"].max_relative_positions = 0
        for name in [name for name in content["model"] if "relative" in name]:
            del content["model"][name]
        for stack in ("encoder", "decoder"):
            content["model"][f"{stack}.embeddings.make_embedding.pe.pe"] = torch.randn(30, 1, 8)

    found = opennmt_py.read(save_checkpoint(tmp_path, absolute), TOKENIZER, None)
    assert (found.config.positions, found.config.max_positions, found.config.scaled_embeddings) == ("learned", 30, True)
    table = found.tensors["encoder.embeddings.make_embedding.pe.pe"]
    assert torch.equal(dict(found.model().named_parameters())["src_positions.signal.weight"], table)


class Runs:
    def __reduce__(self) -> tuple:
        return print, ("it ran",)


def test_nothing_in_a_checkpoint_is_executed(tmp_path, capsys):
    """Messages do not advise to load the file in a way that executes it."""
    torch.save({"opt": Runs()}, tmp_path / "zip.pt")
    contents = {"plain.pt": pickle.dumps({"opt": Runs()}), "text.pt": b"no checkpoint", "empty.pt": b""}
    contents |= {"pickle.pt": b"\x80\x04\x95\x00.", "cut.pt": CHECKPOINT.read_bytes()[:20000]}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for name in ("zip.pt", *contents):
        with pytest.raises(InputError, match=rf"^{tmp_path / name}: ") as refused:
            opennmt_py.read(tmp_path / name, TOKENIZER, None)
        assert "\n" not in str(refused.value)
        assert "weights_only" not in str(refused.value)
    assert not capsys.readouterr().out
