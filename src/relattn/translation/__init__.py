"""A translation toolkit on top of the operator: train, measure, translate and ship relative-position models.

Importing it is light; what a name needs is imported when the name is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relattn.translation.config import Precision
    from relattn.translation.search.translator import Translator


def load(path: str | Path, *others: str | Path, device: str = "cpu", precision: Precision = "fp32") -> Translator:
    """A translator from a bundle: ``load("my-bundle").translate(["A sentence."])``. See `bundle.load`.

    A path is a directory, or a name on the Hugging Face hub: ``load("org/name")``. See `hub.resolve`. Of several
    bundles an ensemble is made, whose probabilities are the means of theirs. `precision` is "fp32" or "bf16".
    """
    from relattn.translation import bundle, hub

    return bundle.load(hub.resolve(path), *map(hub.resolve, others), device=device, precision=precision)
