"""A small model, and the state of a run, read from its checkpoints, its log and its files, for exact comparisons."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from relattn_mt.config import ModelConfig, Recipe
from relattn_mt.model.transformer import Transformer
from relattn_mt.training import checkpoints
from relattn_mt.training.journal import read_log
from torch import Tensor

SRC = [[5, 6, 7], [8], [9, 10, 4, 5, 6], []]  # sentences of a batch
TGT = [[4, 4], [7, 8, 9, 10], [], [6]]


def make_model(positions: str = "relative", **changes: Any) -> Transformer:
    torch.manual_seed(1)
    clip = {"clip": 2} if positions == "relative" else {}
    small = {"dim": 12, "heads": 3, "feed_forward_dim": 20, "encoder_layers": 2, "decoder_layers": 2}
    return Transformer(ModelConfig(**{**small, **clip, "positions": positions, **changes}), 11)


def state_of(recipe: Recipe, step: int | None = None) -> dict[str, Any]:
    """Return a checkpoint of a run, by default the newest, without the recipe and times, which differ by session."""
    directory = Path(recipe.out) / "checkpoints"
    path = checkpoints.list_checkpoints(directory)[-1] if step is None else checkpoints.checkpoint_path(directory, step)
    content = checkpoints.load(path)
    del content["recipe"], content["progress"]["seconds"], content["progress"]["seconds_at_row"]
    return content


def losses(recipe: Recipe) -> list[tuple[int, float, float | None]]:
    """Return step, training loss and validation loss of each row of a run's log."""
    return [(row.step, row.loss, row.valid_loss) for row in read_log(Path(recipe.out) / "log.csv")]


def loss_values(recipe: Recipe) -> list[float]:
    """Return all losses in a run's log, in order."""
    return [loss for _, *row in losses(recipe) for loss in row if loss is not None]


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in nested lists and dictionaries, with their paths."""
    if isinstance(value, dict | list | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, f"{name}.{key}")
    else:
        yield name, value


def layout(state: Any) -> list[tuple[str, Any]]:
    """Return the content of a state with dtype and shape in place of the numbers of each tensor."""
    return [(name, (type(x), x.dtype, x.shape) if isinstance(x, Tensor) else x) for name, x in leaves(state)]


def assert_same(a: Any, b: Any) -> None:
    """Assert that two states are equal to the last bit."""
    left, right = dict(leaves(a)), dict(leaves(b))
    assert left.keys() == right.keys()
    for name, value in left.items():
        same = torch.equal(value, right[name]) if isinstance(value, Tensor) else value == right[name]
        assert same, name


def with_train(recipe: Recipe, **changes: Any) -> Recipe:
    """Return a recipe with other settings of training."""
    return replace(recipe, train=replace(recipe.train, **changes))


def tree(directory: Path) -> dict[str, bytes | None]:
    """Return the content of the files in a directory, and None for directories."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None for path in directory.rglob("*")
    }
