"""Fresh weights, batches and losses, compared with values recorded before the library was reorganised.

A refactoring must not change what a seed gives. `recorded.json` holds, for every position scheme, the names, shapes
and order of a new model's parameters with two checksums of their values; the first epoch's batches of the demo; and
the losses of its first 50 steps. Record again, after an intended change, with

    python -m tests.translation.test_recorded
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from relattn.translation import demo
from relattn.translation.config import OPTIONS, ModelConfig, Positions
from relattn.translation.data.encode import load_data
from relattn.translation.model.transformer import Transformer
from relattn.translation.training.train import train

RECORDED = Path(__file__).with_name("recorded.json")
LOSSES = 50
TABLES_PER_HEAD = "relative, tables per head"
MODELS = (*get_args(Positions), TABLES_PER_HEAD)


def state_dict(name: str) -> list[list[Any]]:
    """Name, shape and two checksums of each tensor of a new model, in the order of its state dict."""
    positions: Any = "relative" if name == TABLES_PER_HEAD else name
    options: dict[str, Any] = {"clip": 3} if "clip" in OPTIONS.get(positions, {}) else {}
    if name == TABLES_PER_HEAD:
        options["tables_per_head"] = True
    config = ModelConfig(dim=24, heads=3, feed_forward_dim=40, encoder_layers=2, decoder_layers=2)
    torch.manual_seed(11)
    tensors = Transformer(config.with_positions(positions, **options), 61).state_dict()
    return [[key, list(tensor.shape), *checksums(tensor)] for key, tensor in tensors.items()]


def checksums(tensor: torch.Tensor) -> tuple[float, float]:
    """The sum of a tensor's numbers, and their sum with weights that depend on their places."""
    flat = tensor.double().flatten()
    weights = torch.cos(torch.arange(len(flat), dtype=torch.float64))
    return float(flat.sum()), float(flat @ weights)


def demo_recipe(out: Path) -> Any:
    recipe = demo.recipe(out, "relative", steps=LOSSES, seed=1, src_lang="en", tgt_lang="de")
    return replace(recipe, train=replace(recipe.train, log_every=1, valid_every=LOSSES, threads=1))


def batches(out: Path) -> str:
    """Digest of the pieces of the first epoch's batches, in order."""
    recipe = demo_recipe(out)
    digest = hashlib.sha256()
    for step in load_data(recipe.data, out, seed=recipe.seed).train.steps():
        if step.epoch > 0:
            return digest.hexdigest()
        for batch in step.micro_batches:
            for tensor in (batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out, batch.tgt_lengths):
                digest.update(tensor.long().numpy().tobytes())
    raise AssertionError("the stream of steps has no end")


def losses(out: Path) -> list[float]:
    train(demo_recipe(out), show=False)
    with open(out / "log.csv", newline="", encoding="utf-8") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(RECORDED.read_text(encoding="utf-8"))


@pytest.mark.filterwarnings("ignore:positions. none")
@pytest.mark.parametrize("name", MODELS)
def test_weights_of_a_new_model_are_as_recorded(name, recorded):
    got, want = state_dict(name), recorded["state_dicts"][name]
    assert [row[:2] for row in got] == [row[:2] for row in want]
    for (key, shape, *sums), (_, _, *expected) in zip(got, want, strict=True):
        allowed = 1e-6 * math.prod(shape)  # processors differ in the last digits of a logarithm and a cosine
        assert sums == pytest.approx(expected, abs=allowed), key


def test_batches_of_the_first_epoch_are_as_recorded(tmp_path, recorded):
    assert batches(tmp_path / "run") == recorded["batches"]


def test_losses_of_the_demo_are_as_recorded(tmp_path, recorded):
    assert losses(tmp_path / "run") == pytest.approx(recorded["losses"], rel=1e-4)


def record() -> None:
    with tempfile.TemporaryDirectory() as directory:
        found = {
            "state_dicts": {name: state_dict(name) for name in MODELS},
            "batches": batches(Path(directory) / "batches"),
            "losses": losses(Path(directory) / "losses"),
        }
    RECORDED.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
