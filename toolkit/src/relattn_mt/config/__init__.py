"""Configuration of a run, as frozen dataclasses. They define recipes, flags, help texts and errors.

A recipe is a YAML file with the fields of `Recipe`, which `yaml.py` reads. Every field can be overridden on the command
line (``--model.clip 8``). Values are checked when a dataclass is made. Importing this package does not import PyTorch.
"""

from __future__ import annotations

from dataclasses import asdict as as_dict
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relattn_mt.config.base import differences
    from relattn_mt.config.data import (
        MOST_WEIGHT,
        AugmentConfig,
        CleaningConfig,
        DataConfig,
        Normalization,
        SyntheticCleaningConfig,
    )
    from relattn_mt.config.model import ModelConfig
    from relattn_mt.config.positions import OPTION_NAMES, SCHEMES, Positions, PositionSpec
    from relattn_mt.config.recipe import Recipe, StageConfig, TrainConfig, dump
    from relattn_mt.config.search import SearchConfig

# Imported one after the other until one has a name that is used: translating needs no recipes.
_MODULES = "base", "search", "positions", "model", "data", "recipe"

__all__ = [
    "MOST_WEIGHT",
    "OPTION_NAMES",
    "SCHEMES",
    "AugmentConfig",
    "CleaningConfig",
    "DataConfig",
    "ModelConfig",
    "Normalization",
    "PositionSpec",
    "Positions",
    "Recipe",
    "SearchConfig",
    "StageConfig",
    "SyntheticCleaningConfig",
    "TrainConfig",
    "as_dict",
    "differences",
    "dump",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module_name in _MODULES:
            module = import_module(f"{__name__}.{module_name}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
