"""Supported model families, one file each. Each file maps the equation of its models to one call of the operator.

A file has `FAMILIES`: per model, its patches and a small model on which they are checked before use.
"""

from __future__ import annotations

import functools
import importlib
import logging

from relattn.integrations.transformers.family import Family, too_old

_log = logging.getLogger(__name__)
IMPORTS_SINCE = "5.2"  # the oldest version of transformers that has all names which the files import
FILES = (
    "deberta",
    "mpnet",
    "parakeet",
    "sam",
    "speecht5",
    "t5",
    "vits",
    "wav2vec2",
    "wavlm",
)


@functools.cache
def load_families() -> tuple[Family, ...]:
    """Import the files whose models the installed version of transformers has, and return their families."""
    families: list[Family] = []
    for name in FILES:
        try:
            families += importlib.import_module(f"{__name__}.{name}").FAMILIES
        except ImportError as error:
            # A version without the model has no module of it. Another missing name means that the model has changed.
            if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("transformers.models."):
                continue
            if (reason := too_old(IMPORTS_SINCE)) is None:
                reason = f"the installed version of transformers differs: {error}"
            _log.warning("%s keeps its own code: %s", name, reason)
    return tuple(families)
