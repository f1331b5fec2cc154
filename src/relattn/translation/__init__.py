"""A translation toolkit on top of the operator: train, measure, translate and ship relative-position models.

Importing it is light; what a name needs is imported when the name is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relattn.translation.search.translator import Translator


def load(path: str | Path, *, device: str = "cpu") -> Translator:
    """A translator from a bundle: ``load("my-bundle").translate(["A sentence."])``. See `bundle.load`."""
    from relattn.translation import bundle

    return bundle.load(path, device=device)
