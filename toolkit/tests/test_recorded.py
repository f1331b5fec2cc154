"""New weights, compared with recorded values: a refactoring must not change what a seed gives.

`recorded.json` has, for every position scheme, the names, shapes and order of a new model's parameters with two
checksums of their values. Record again, after an intended change, with

    python -m toolkit.tests.test_recorded
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from relattn_mt.config import SCHEMES, ModelConfig
from relattn_mt.model.transformer import Transformer

RECORDED = Path(__file__).with_name("recorded.json")
TABLES_PER_HEAD = "relative, tables per head"
MODELS = (*SCHEMES, TABLES_PER_HEAD)


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


@pytest.fixture(scope="module")
def recorded():
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def test_every_model_is_recorded(recorded):
    assert recorded.keys() == set(MODELS)


@pytest.mark.filterwarnings("ignore:positions. none")
@pytest.mark.parametrize("name", MODELS)
def test_weights_of_a_new_model_are_as_recorded(recorded, name):
    got = new_model(name)
    want = recorded[name]
    assert [row[:2] for row in got] == [row[:2] for row in want]
    for (key, shape, *sums), (_, _, *expected) in zip(got, want, strict=True):
        allowed = 1e-6 * math.prod(shape)  # processors differ in the last digits of a logarithm and a cosine
        assert sums == pytest.approx(expected, abs=allowed), key


if __name__ == "__main__":
    entries = (f"{json.dumps(name)}: {json.dumps(new_model(name))}" for name in MODELS)
    RECORDED.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")
