"""What a checkpoint holds, compared to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relattn.translation.config import Recipe
from relattn.translation.training import checkpoints


def state_of(recipe: Recipe, step: int | None = None) -> dict[str, Any]:
    """Return a run's checkpoint of a step, or its newest, without what differs between sessions: recipe, times."""
    directory = Path(recipe.out) / "checkpoints"
    if step is None:
        found = checkpoints.newest(directory)[1]
    else:
        found = checkpoints.load(checkpoints.checkpoint_path(directory, step))
    del found["recipe"], found["progress"]["seconds"], found["progress"]["seconds_at_row"]
    return found


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in lists and dictionaries inside each other, by its path."""
    if isinstance(value, dict | list | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, f"{name}.{key}")
    else:
        yield name, value


def assert_same(a: Any, b: Any) -> None:
    """Equal to the last bit."""
    left, right = dict(leaves(a)), dict(leaves(b))
    assert left.keys() == right.keys()
    for name, value in left.items():
        same = torch.equal(value, right[name]) if isinstance(value, Tensor) else value == right[name]
        assert same, name
