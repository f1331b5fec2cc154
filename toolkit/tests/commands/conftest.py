"""Commands that run in the test's process, and bundles for them."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from relattn_mt.config import Recipe, dump
from relattn_mt.training import train as training

from tests.support.bundles import save_changed


@pytest.fixture(scope="session")
def another(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of a bundle with the same vocabulary and other weights."""
    return save_changed(model, tmp_path_factory.mktemp("another") / "bundle", lambda weight: weight.flip(0))


@pytest.fixture
def recipe_file(tmp_path: Path, make_recipe: Callable[..., Recipe]) -> Path:
    """File of a recipe that trains into tmp_path/run."""
    path = tmp_path / "recipe.yaml"
    path.write_text(dump(make_recipe(tmp_path / "run")), encoding="utf-8")
    return path


@pytest.fixture
def train_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Recipe, bool]]:
    """Recipes that `train` is called with, and `resume` of each. Nothing is trained."""
    calls: list[tuple[Recipe, bool]] = []

    def train(recipe: Recipe, *, resume: bool) -> Path:
        calls.append((recipe, resume))
        return Path("somewhere")

    monkeypatch.setattr(training, "train", train)
    return calls


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[bytes], None]]:
    """Function that sets the content of standard input."""
    with (tmp_path / "stdin").open("w+b") as file:

        def put(content: bytes) -> None:
            file.seek(0)
            file.truncate()
            file.write(content)
            file.seek(0)

        monkeypatch.setattr(sys, "stdin", file)
        yield put
