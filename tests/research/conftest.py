"""The small text and recipe of the toolkit's tests."""

from toolkit.tests.conftest import make_recipe, text

__all__ = ["make_recipe", "text"]
