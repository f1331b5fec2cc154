"""Recipes: everything that defines a training run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import yaml

from relattn.translation.config.base import Config, number
from relattn.translation.config.data import DataConfig
from relattn.translation.config.model import ModelConfig
from relattn.translation.config.search import SearchConfig
from relattn.translation.config.training import TrainConfig
from relattn.translation.errors import require


@dataclass(frozen=True, kw_only=True)
class Recipe(Config):
    """Everything that defines a run. The same recipe gives the same model.

    Args:
        out: Directory of the run: checkpoints, log and, under bundle/, the finished bundle.
        seed: Seed of initial weights, batches and dropout.
        model: Model settings.
        data: Data settings.
        train: Training settings.
        search: Search settings, for validation and as the default of the bundle.
    """

    out: str = "runs/relattn"
    seed: int = number(1, "[0, 9223372036854775808)")
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.out), "out must name a directory")

    @property
    def micro_batches_per_step(self) -> int:
        """Number of micro-batches per optimizer step, over all processes."""
        return self.train.accumulate * self.train.processes


def dump(recipe: Recipe) -> str:
    """Return the recipe as YAML."""
    return yaml.safe_dump(asdict(recipe), sort_keys=False, allow_unicode=True)
