"""Models that OpenNMT-py and eole made, of random weights, say here what those toolkits said (fixtures/make.py)."""

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


def require_the_same(found: ForeignModel, scores: Path) -> None:
    """That a model gives each token of the pairs the log-probability that its toolkit gave it."""
    ours = TorchTranslator(found.model(), found.tokenizer, found.search)
    src, tgt = zip(*make.numbered(*ours.tokenizer.vocabularies), strict=True)
    assert list(src) == [ours.tokenizer.encode(a) for a, _ in make.PAIRS]
    assert [ids[1:-1] for ids in tgt] == [ours.tokenizer.encode_target(b) for _, b in make.PAIRS]
    assert all((ids[0], ids[-1]) == (ours.tokenizer.special.bos, ours.tokenizer.special.eos) for ids in tgt)
    forced = ours.log_probs(src, [ids[1:-1] for ids in tgt])
    theirs = json.loads(scores.read_text())
    for mine, its in zip(forced, theirs, strict=True):
        assert mine == pytest.approx(its, abs=1e-5)
    assert len({round(x, 1) for row in theirs for x in row}) > 15


def test_opennmt_py():
    found = opennmt_py.read(CHECKPOINT, TOKENIZER, None)
    require_the_same(found, FIXTURES / "opennmt_py.json")
    assert (found.config.clip, found.config.shared_embeddings, found.config.norm_epsilon) == (3, "target", 1e-6)


def test_eole():
    found = eole.read(DIRECTORY, TOKENIZER, None)
    require_the_same(found, FIXTURES / "eole.json")
    assert (found.config.clip, found.config.shared_embeddings, found.config.activation) == (3, "target", "gelu_tanh")


def load() -> dict[str, Any]:
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(CHECKPOINT, weights_only=True)


def saved(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    content = load()
    change(content)
    torch.save(content, path / "changed.pt")
    return path / "changed.pt"


def test_weights_beside_the_checkpoint(tmp_path):
    content = load()
    weights = content.pop("model") | {f"generator.{name}": tensor for name, tensor in content.pop("generator").items()}
    torch.save(content, tmp_path / "step.pt")
    safetensors.torch.save_file(
        {name: tensor.clone() for name, tensor in weights.items()}, tmp_path / "step.safetensors"
    )
    require_the_same(opennmt_py.read(tmp_path / "step.pt", TOKENIZER, None), FIXTURES / "opennmt_py.json")
    (tmp_path / "step.safetensors").unlink()
    with pytest.raises(InputError, match=r"not a checkpoint of OpenNMT-py 3 with its weights: it has no model, no gen"):
        opennmt_py.read(tmp_path / "step.pt", TOKENIZER, None)


def test_sinusoids_that_a_checkpoint_holds(tmp_path):
    """Of a model without relative positions, whose embeddings are scaled: a table, after the pieces."""

    def absolute(content: dict[str, Any]) -> None:
        content["opt"].max_relative_positions = 0
        for name in [name for name in content["model"] if "relative" in name]:
            del content["model"][name]
        for stack in ("encoder", "decoder"):
            content["model"][f"{stack}.embeddings.make_embedding.pe.pe"] = torch.randn(30, 1, 8)

    found = opennmt_py.read(saved(tmp_path, absolute), TOKENIZER, None)
    assert (found.config.positions, found.config.max_positions, found.config.scaled_embeddings) == ("learned", 30, True)
    table = found.tensors["encoder.embeddings.make_embedding.pe.pe"]
    assert torch.equal(dict(found.model().named_parameters())["src_positions.weight"], table)


def test_positions_of_two_kinds_or_none(tmp_path):
    table = "relative_positions_embeddings.weight"

    def none(content: dict[str, Any]) -> None:
        content["model"] = {name: tensor for name, tensor in content["model"].items() if not name.endswith(table)}

    def both(content: dict[str, Any]) -> None:
        content["model"]["encoder.embeddings.make_embedding.pe.pe"] = torch.randn(30, 1, 8)

    for change, message in ((none, "no positions"), (both, "positions of two kinds")):
        with pytest.raises(InputError, match=f"not supported: {message}$"):
            opennmt_py.read(saved(tmp_path, change), TOKENIZER, None)


class Runs:
    def __reduce__(self) -> tuple:
        return print, ("it ran",)


def test_nothing_in_a_checkpoint_runs(tmp_path, capsys):
    torch.save({"opt": Runs()}, tmp_path / "evil.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps({"opt": Runs()}))
    for name in ("evil.pt", "plain.pt"):
        with pytest.raises(InputError, match=rf"{name}: not loaded: ") as caught:
            opennmt_py.read(tmp_path / name, TOKENIZER, None)
        assert "\n" not in str(caught.value)
    assert not capsys.readouterr().out


def test_a_checkpoint_that_is_wrong_is_told_in_a_line(tmp_path):
    def refused(change: Callable[[dict[str, Any]], object], message: str) -> None:
        path = saved(tmp_path, change)
        with pytest.raises(InputError, match=f"^{path}: {message}$") as caught:
            opennmt_py.read(path, TOKENIZER, None).model()
        assert "\n" not in str(caught.value)

    options = {"max_relative_positions": -1, "layer_norm": "rms", "num_kv": 1, "decoder_type": "rnn"}
    refused(
        lambda c: (vars(c["opt"]).update(options), c["vocab"].update(src_feats=["case"], data_task="lm")),
        "not supported: decoder_type rnn; layer_norm rms; fewer heads of keys than of queries; "
        "rotary positions; the task lm; features of the source",
    )
    lora = "encoder.transformer.0.self_attn.linear_keys.lora_A"
    of_all = lora.replace(".0.", r"\.\*\.")
    refused(lambda c: c["model"].update({lora: torch.ones(2, 8)}), f"not supported: {of_all}")
    every = {lora.replace(".0.", f".{i}."): torch.ones(2, 8) for i in (0, 1)}
    refused(lambda c: c["model"].update(every), f"not supported: {of_all}")
    refused(lambda c: vars(c["opt"]).update(heads=3), "heads must divide dim, got heads 3 and dim 8")
    refused(lambda c: vars(c["opt"]).update(heads="two"), ".*")
    refused(
        lambda c: vars(c["opt"]).update(heads=4),
        r".*relative_pos\S+ must have shape \(7, 2\), got \(7, 4\).*",
    )
    refused(lambda c: c["vocab"].update(src="a list"), "a vocabulary's source must be a list of strings")
    refused(lambda c: c["vocab"].update(decoder_start_token="<2de>"), "the target vocabulary must have '<2de>'")
    refused(lambda c: c.pop("vocab"), "not a checkpoint of OpenNMT-py 3 with its weights: it has no vocab")
    embedding = "encoder.embeddings.make_embedding.emb_luts.0.weight"
    refused(lambda c: c["model"].pop(embedding), f"has no {embedding}")
    (tmp_path / "text.pt").write_text("no checkpoint")
    with pytest.raises(InputError, match=r"text\.pt: "):
        opennmt_py.read(tmp_path / "text.pt", TOKENIZER, None)
    (tmp_path / "cut.pt").write_bytes(CHECKPOINT.read_bytes()[:20000])
    with pytest.raises(InputError, match=r"cut\.pt: "):
        opennmt_py.read(tmp_path / "cut.pt", TOKENIZER, None)


@pytest.fixture
def directory(tmp_path) -> Path:
    return Path(shutil.copytree(DIRECTORY, tmp_path / "eole"))


def test_a_directory_of_eole_that_is_wrong_is_told_in_a_line(directory):
    def refused(message: str) -> None:
        with pytest.raises(InputError, match=message) as caught:
            eole.read(directory, TOKENIZER, None).model()
        assert "\n" not in str(caught.value)

    def changed(name: str, change: Callable[[dict[str, Any]], object], message: str) -> None:
        before = (directory / name).read_text()
        content = json.loads(before)
        change(content)
        (directory / name).write_text(json.dumps(content))
        refused(message)
        (directory / name).write_text(before)

    def unlike(config: dict[str, Any]) -> None:
        config["model"]["decoder"].update(layer_norm="rms", heads_kv=1, mlp_activation_fn="gated-silu")
        config["model"]["embeddings"].update(position_encoding_type="Rotary", normalize=True)

    changed(
        "config.json",
        unlike,
        "eole: not supported: layer_norm rms; mlp_activation_fn gated-silu; fewer heads of keys than "
        "of queries; position_encoding_type Rotary; normalize True$",
    )
    unshared = r"eole: has no generator\.weight$"
    changed("config.json", lambda c: c["model"].pop("share_decoder_embeddings"), unshared)
    changed("config.json", lambda c: c.pop("model"), r"config\.json: must have a group model$")
    changed("vocab.json", lambda c: c.pop("tgt"), r"vocab\.json: a vocabulary's target must be a list of strings$")
    changed(
        "vocab.json", lambda c: c.update(specials={"eos_token": "<end>"}), r"the target vocabulary must have '<end>'$"
    )
    weights = directory / "model.00.safetensors"
    tensors, whole = safetensors.torch.load_file(weights), weights.read_bytes()
    scaled = tensors | {"decoder.transformer_layers.1.layer_scalar": torch.tensor([0.5])}
    safetensors.torch.save_file(scaled, weights)
    refused(r"not supported: decoder\.transformer_layers\.\*\.layer_scalar$")
    weights.write_bytes(whole[:999])
    refused(r"model\.00\.safetensors: truncated, damaged, or not a safetensors file: ")
    weights.unlink()
    refused(r"eole: has no model\.00\.safetensors$")
    (directory / "vocab.json").unlink()
    refused(r"vocab\.json: cannot be read: No such file or directory$")


def test_weights_in_several_files(directory):
    tensors = safetensors.torch.load_file(directory / "model.00.safetensors")
    names = sorted(tensors)
    for number, some in enumerate((names[::2], names[1::2])):
        safetensors.torch.save_file({name: tensors[name] for name in some}, directory / f"model.0{number}.safetensors")
    require_the_same(eole.read(directory, TOKENIZER, None), FIXTURES / "eole.json")
