"""A translation toolkit on top of the operator: train, measure, translate and ship relative-position models.

Importing it is light; what a name needs is imported when the name is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relattn.translation.config import Precision
    from relattn.translation.translate.torch_translator import Translator


def load(path: str | Path, *others: str | Path, device: str = "cpu", precision: Precision = "fp32") -> Translator:
    """A translator from a bundle: ``load("my-bundle").translate(["A sentence."])``. No code of a bundle is run.

    Args:
        path: a bundle's directory, or its name on the Hugging Face hub, ``"org/name"``, perhaps with a branch, a tag or
            a commit, ``"org/name@v1.0"``.
        others: further bundles. Together they are an ensemble, whose probabilities are the means of theirs.
        device: as PyTorch names it.
        precision: "fp32" or "bf16".

    Raises:
        InputError: a bundle is missing, damaged or of a later version, cannot be fetched, does not go with the others,
            or the device cannot be used.
    """
    from relattn.translation import bundle, hub

    return bundle.load(hub.resolve(path), *map(hub.resolve, others), device=device, precision=precision)
