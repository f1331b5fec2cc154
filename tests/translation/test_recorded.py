"""New weights, batches and losses, compared with recorded values: a refactoring must not change what a seed gives.

`recorded.json` has, for every position scheme, the names, shapes and order of a new model's parameters with two
checksums of their values; the first epoch's batches of the demo with fewer lines; and the losses of its first steps.
Record again, after an intended change, with

    python -m tests.translation.test_recorded
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch

from relattn.translation.config import SCHEMES, ModelConfig
from relattn.translation.data import encode
from relattn.translation.model.transformer import Transformer
from relattn.translation.training.journal import read_log
from relattn.translation.training.train import train
from research import corpus
from research.tables import SCALES, in_directory

RECORDED = Path(__file__).with_name("recorded.json")
STEPS = 20
TABLES_PER_HEAD = "relative, tables per head"
MODELS = (*SCHEMES, TABLES_PER_HEAD)


def read_recorded() -> dict[str, Any]:
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def new_model(name: str) -> list[list[Any]]:
    """Return name, shape and two checksums of each tensor of a new model, in the order of its state dictionary."""
    positions: Any = "relative" if name == TABLES_PER_HEAD else name
    options: dict[str, Any] = {"clip": 3} if "clip" in SCHEMES[positions].options else {}
    if name == TABLES_PER_HEAD:
        options["tables_per_head"] = True
    config = ModelConfig(dim=24, heads=3, feed_forward_dim=40, encoder_layers=2, decoder_layers=2)
    torch.manual_seed(11)
    tensors = Transformer(config.with_positions(positions, **options), 61).state_dict()
    return [[key, list(tensor.shape), *checksums(tensor)] for key, tensor in tensors.items()]


def checksums(tensor: torch.Tensor) -> tuple[float, float]:
    """Return the sum of a tensor's numbers, and their sum with weights that depend on their places."""
    flat = tensor.double().flatten()
    weights = torch.cos(torch.arange(len(flat), dtype=torch.float64))
    return float(flat.sum()), float(flat @ weights)


def run_demo(out: Path) -> tuple[str, list[float]]:
    """Train for some steps. Return a digest of the first epoch's batches, in order, and the losses."""
    corpus.write_files(out / "text", lines={"train": 2000, "valid": 2})
    recipe = SCALES["demo"].recipe
    settings = {"steps": STEPS, "log_every": 1, "valid_every": STEPS, "valid_bleu_lines": 0}
    recipe = replace(
        recipe,
        out=str(out / "run"),
        model=recipe.model.with_positions("relative", clip=8),
        data=in_directory(recipe.data, str(out / "text")),
        train=replace(recipe.train, **settings),
    )
    train(recipe, show=False)
    text = encode.open_data(recipe).train
    digest = hashlib.sha256()
    for step in takewhile(lambda step: step.epoch == 0, text.steps()):
        for batch in step.micro_batches:
            for tensor in (batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out, batch.tgt_lengths):
                digest.update(tensor.long().numpy().tobytes())
    return digest.hexdigest(), [row.loss for row in read_log(out / "run" / "log.csv")]


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return read_recorded()


@pytest.mark.filterwarnings("ignore:positions. none")
@pytest.mark.parametrize("name", read_recorded()["state_dicts"])
def test_weights_of_a_new_model_are_as_recorded(name, recorded):
    got, want = new_model(name), recorded["state_dicts"][name]
    assert [row[:2] for row in got] == [row[:2] for row in want]
    for (key, shape, *sums), (_, _, *expected) in zip(got, want, strict=True):
        allowed = 1e-6 * math.prod(shape)  # processors differ in the last digits of a logarithm and a cosine
        assert sums == pytest.approx(expected, abs=allowed), key


def test_batches_and_losses_of_the_demo_are_as_recorded(tmp_path, recorded):
    batches, losses = run_demo(tmp_path)
    assert batches == recorded["batches"]
    assert losses == pytest.approx(recorded["losses"], rel=1e-4)


def record() -> None:
    with tempfile.TemporaryDirectory() as directory:
        batches, losses = run_demo(Path(directory))
    content = {"state_dicts": {name: new_model(name) for name in MODELS}, "batches": batches, "losses": losses}
    RECORDED.write_text(json.dumps(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
