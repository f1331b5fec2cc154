"""A translation toolkit on top of the operator: train, evaluate, translate with and export relative-position models.

Importing it is fast: modules are imported when a function needs them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relattn.translation.translate import Precision
    from relattn.translation.translate.pipeline import Translator


def load(
    path: str | Path,
    *others: str | Path,
    device: str = "cpu",
    precision: Precision | None = None,
    threads: int | None = None,
) -> Translator:
    """Load a translator: ``load("my-bundle").translate(["A sentence."])``. Loading runs no code from a model.

    Args:
        path: directory of a bundle or of an export for CTranslate2, or the name of a bundle on the Hugging Face hub:
            ``"org/name"`` or, with a branch, tag or commit, ``"org/name@v1.0"``.
        others: further bundles. The result is an ensemble, which averages their probabilities.
        device: device to translate on: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        precision: ``"fp32"`` (default) or ``"bf16"``. The precision of an export is fixed.
        threads: number of CPU threads; PyTorch's or CTranslate2's default if None.

    Raises:
        InputError: a model is missing, damaged, of another version, cannot be downloaded or does not fit the others, or
            the device cannot be used.
    """
    from relattn.translation.translate.load import load as load_translator

    return load_translator(path, *others, device=device, precision=precision, threads=threads)
