"""Recipes, which define training runs, and the settings of training."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import yaml

from relattn_mt.config.base import Config, number
from relattn_mt.config.data import MOST_WEIGHT, AugmentConfig, DataConfig
from relattn_mt.config.model import ModelConfig
from relattn_mt.config.search import SearchConfig
from relattn_mt.support.errors import require


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    """Optimizer, learning-rate schedule, devices, validation and checkpoints.

    Args:
        steps: Number of optimizer steps.
        accumulate: Number of micro-batches per optimizer step, which the processes share.
        warmup_steps: Number of steps over which the learning rate rises. After that it falls as step^-0.5.
        learning_rate_factor: Factor on the schedule d^-0.5 · min(step^-0.5, step · warmup^-1.5).
        label_smoothing: Probability mass that is spread over the vocabulary.
        guided_alignment: Weight of a second loss, by which the first head of the last decoder layer, or of
            model.alignment_layer, learns the word alignment of the training text: the cross entropy of its attention
            per target token, in nats. Pairs that data.augment has changed have none. 0 disables it.
        gradient_clip: Maximum gradient norm. 0 disables clipping.
        precision: Precision of the forward and backward passes; weights stay in fp32. "fp16-mixed" scales the loss. A
            step with infinite gradients is skipped, and the scale is halved.
        activation_checkpointing: Keep only the input of each layer, and recompute the rest in the backward pass. This
            takes less memory and more time, with the same results.
        compile: Compile the model with torch.compile. This takes minutes at the start; results differ by rounding.
        accelerator: Device type to train on.
        threads: Number of CPU threads per process. By default, PyTorch's choice.
        log_every: Number of steps between rows of log.csv.
        valid_every: Number of steps between validations (loss and BLEU).
        valid_bleu_lines: Number of validation lines to translate greedily for the BLEU in the log. 0 skips it.
        checkpoint_every: Number of steps between checkpoints.
        keep: Number of newest checkpoints to keep.
        average: Number of checkpoints to average into the bundle. 1 uses the last weights.
        patience: Stop after this many validations without a lower loss. 0 never stops early.
        init_from: Bundle to take initial weights and tokenizer from. By default, weights are drawn at random.
    """

    steps: int = number(100_000, "[1, 1e9]")
    accumulate: int = number(1, "[1, 1e6]")
    warmup_steps: int = number(4000, "[1, 1e9]")
    learning_rate_factor: float = number(1.0, "(0, 1e6]")
    label_smoothing: float = number(0.1, "[0, 1)")
    guided_alignment: float = number(0.0, "[0, 1000]")
    gradient_clip: float = number(0.0, "[0, 1e9]")
    precision: Literal["fp32", "bf16-mixed", "fp16-mixed"] = "fp32"
    activation_checkpointing: bool = False
    compile: bool = False
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    threads: int | None = number(None, "[1, 1024]")
    log_every: int = number(50, "[1, 1e9]")
    valid_every: int = number(1000, "[1, 1e9]")
    valid_bleu_lines: int = number(200, "[0, 1e9]")
    checkpoint_every: int = number(1000, "[1, 1e9]")
    keep: int = number(5, "[1, 1e9]")
    average: int = number(5, "[1, 1e9]")
    patience: int = number(0, "[0, 1e9]")
    init_from: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.average <= self.keep, f"average must be at most keep ({self.keep}), got {self.average}")


@dataclass(frozen=True, kw_only=True)
class StageConfig(Config):
    """Part of a run with its own mixture and augmentation. It begins with a new epoch.

    Args:
        steps: Number of optimizer steps. Must be null for the last stage, which ends after train.steps.
        weights: Weight of each corpus of data.train_list, in its order. 0 leaves a corpus out. By default, the weights
            in the list.
        augment: Augmentation, instead of data.augment.
    """

    steps: int | None = number(None, "[1, 1e9]")
    weights: tuple[float, ...] | None = None
    augment: AugmentConfig = field(default_factory=AugmentConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = (1.0,) if self.weights is None else self.weights
        valid = max(weights, default=0) > 0 and all(0 <= weight <= MOST_WEIGHT for weight in weights)
        require(valid, f"weights of a stage must be in [0, {MOST_WEIGHT}], at least one above 0, got {list(weights)}")


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
        stages: Parts of the run, one after the other, such as all text first and clean text last. By default, the run
            has one.
    """

    out: str = "runs/relattn"
    seed: int = number(1, "[0, 9223372036854775808)")
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    stages: tuple[StageConfig, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.out, "out must name a directory")
        *earlier, last = self.stages or (StageConfig(),)
        require(
            last.steps is None, f"the last stage must have no steps, because it ends after train.steps: {last.steps}"
        )
        require(all(stage.steps for stage in earlier), "stages before the last must have steps")
        earlier_steps = sum(stage.steps or 0 for stage in earlier)
        fits = earlier_steps < self.train.steps
        require(fits, f"stages before the last must end before train.steps ({self.train.steps}), got {earlier_steps}")
        weighted = any(stage.weights is not None for stage in self.stages)
        require(not weighted or self.data.train_list, "weights of a stage require data.train_list")
        apart = not self.stages or self.data.augment == AugmentConfig()
        require(apart, "data.augment must not be set together with stages, of which each has its own augment")
        if self.train.guided_alignment > 0:
            self._guide()

    def _guide(self) -> None:
        """Name the head that guided alignment trains as the one that aligns words."""
        layer = self.model.alignment_layer
        heads = self.model.alignment_heads
        wanted = "model.alignment_heads 1, or model.alignment_layer assumed"
        fits = heads == 1 or (heads == 0 and layer == "assumed")
        require(fits, f"train.guided_alignment trains one head: it requires {wanted}, got {heads} and {layer}")
        last, _ = self.model.alignment
        object.__setattr__(self, "model", replace(self.model, alignment_layer=last, alignment_heads=1))
        largest = max(share for augment in self.augments for share in asdict(augment).values())
        message = "train.guided_alignment needs pairs without augmentation: shares of data.augment must be below 1"
        require(largest < 1, f"{message}, got {largest:g}")

    @property
    def directory(self) -> Path:
        """Directory of the run."""
        return Path(self.out)

    @property
    def augments(self) -> list[AugmentConfig]:
        """Augmentation of each stage."""
        return [stage.augment for stage in self.stages] or [self.data.augment]


def dump(recipe: Recipe) -> str:
    """Return the recipe as YAML."""
    return yaml.safe_dump(asdict(recipe), sort_keys=False, allow_unicode=True)
