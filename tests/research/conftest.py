"""The small text and recipe of the toolkit's tests, and the schemes that `research` registers."""

from collections.abc import Iterator

import pytest
from relattn_mt.config import SCHEMES, positions
from relattn_mt.config.base import arguments_of

from research import baselines
from toolkit.tests.conftest import make_recipe, relattn, text

__all__ = ["make_recipe", "relattn", "text"]


@pytest.fixture(autouse=True)
def _baselines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the schemes for one test."""
    for name in baselines.SCHEMES:
        monkeypatch.setitem(SCHEMES, name, None)
    monkeypatch.setattr(positions, "Positions", positions.Positions)
    baselines.register()
    yield
    monkeypatch.undo()
    arguments_of.cache_clear()
