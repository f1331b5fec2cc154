"""What a run is made of, as frozen dataclasses: the one definition behind recipes, flags, help and errors.

A recipe is a YAML file with the fields of `Recipe`; every field can be overridden on the command line
(``--model.clip 8``). Values are checked when a dataclass is made, so an impossible one never reaches a run.
"""

from __future__ import annotations

import difflib
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from relattn.translation.errors import InputError

Positions = Literal["relative", "sinusoidal", "learned", "none", "relative+sinusoidal"]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)


def _require_at_least(config: Any, minimum: float, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        _require(value is None or value >= minimum, f"{name} must be at least {minimum}, got {value}")


def _require_fraction(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        _require(0 <= value < 1, f"{name} must be in [0, 1), got {value}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """An encoder–decoder Transformer (Vaswani et al. 2017) and how it knows about positions.

    Args:
        dim: model dimension, of embeddings and residuals.
        heads: attention heads; must divide dim.
        feed_forward_dim: inner dimension of the feed-forward layers.
        encoder_layers: layers of the encoder.
        decoder_layers: layers of the decoder.
        norm: layer normalisation before each sub-layer ("pre") or after its residual sum ("post", as in the paper).
        dropout: dropout on embeddings and on every sub-layer's output.
        attention_dropout: dropout on attention probabilities.
        activation_dropout: dropout inside the feed-forward layers, after the ReLU.
        positions: the position scheme; "none" is a baseline that cannot tell word order.
        clip: k, the clipping distance of relative positions; the reach to the left when clip_right is given.
        clip_right: the clipping distance to the right; null means the same as clip.
        relative_tables: which learned tables relative positions use: aK and aV, aK only, aV only.
        tables_per_head: one table per head (the paper's base model) rather than one shared by a layer's heads.
        max_positions: longest sequence, in pieces, that "learned" positions can hold; other schemes have no limit.
    """

    dim: int = 512
    heads: int = 8
    feed_forward_dim: int = 2048
    encoder_layers: int = 6
    decoder_layers: int = 6
    norm: Literal["pre", "post"] = "pre"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation_dropout: float = 0.0
    positions: Positions = "relative"
    clip: int = 16
    clip_right: int | None = None
    relative_tables: Literal["both", "keys", "values"] = "both"
    tables_per_head: bool = False
    max_positions: int = 1024

    def __post_init__(self) -> None:
        _require_at_least(self, 1, "dim", "heads", "feed_forward_dim", "encoder_layers", "decoder_layers")
        _require_at_least(self, 1, "max_positions")
        _require_at_least(self, 0, "clip", "clip_right")
        _require_fraction(self, "dropout", "attention_dropout", "activation_dropout")
        _require(self.dim % self.heads == 0, f"heads must divide dim, got heads {self.heads} and dim {self.dim}")
        if "sinusoidal" in self.positions:
            _require(self.dim % 2 == 0, f"sinusoidal positions need an even dim, got {self.dim}")

    @property
    def window(self) -> tuple[int, int]:
        """The clipping distances (left, right)."""
        return self.clip, self.clip if self.clip_right is None else self.clip_right


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where sentence pairs come from and how they become batches.

    Args:
        src_lang: source language (a locale for the embedded corpus).
        tgt_lang: target language.
        train_src: training text, source side, one sentence a line, plain or .gz; empty means the embedded corpus.
        train_tgt: training text, target side.
        valid_src: validation text, source side; empty means none (the embedded corpus brings its own).
        valid_tgt: validation text, target side.
        embedded_lines: training lines drawn from the embedded corpus.
        vocab_size: SentencePiece pieces, shared by both sides; fewer where the text does not have as many.
        max_tokens: padded pieces (of the longer side) in one micro-batch.
        accumulate: micro-batches whose gradients make one optimiser step.
        max_length: training pairs longer than this many pieces on either side are left out (and counted).
        max_words: training pairs longer than this many words on either side are left out; null keeps all.
    """

    src_lang: str = "en"
    tgt_lang: str = "de"
    train_src: str = ""
    train_tgt: str = ""
    valid_src: str = ""
    valid_tgt: str = ""
    embedded_lines: int = 20_000
    vocab_size: int = 8000
    max_tokens: int = 4096
    accumulate: int = 1
    max_length: int = 256
    max_words: int | None = None

    def __post_init__(self) -> None:
        _require_at_least(self, 1, "embedded_lines", "vocab_size", "max_tokens", "accumulate", "max_length")
        _require_at_least(self, 1, "max_words")
        for split in ("train", "valid"):
            src, tgt = getattr(self, f"{split}_src"), getattr(self, f"{split}_tgt")
            _require(bool(src) == bool(tgt), f"{split}_src and {split}_tgt go together, got '{src}' and '{tgt}'")
        _require(bool(self.train_src) or not self.valid_src, "valid_src is given, but train_src is not")

    @property
    def embedded(self) -> bool:
        """Whether training text comes from the embedded corpus."""
        return not self.train_src


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained: the paper's optimiser and schedule, and what is kept on the way.

    Args:
        steps: optimiser steps in all.
        warmup_steps: steps over which the learning rate rises, before it falls as step^-0.5.
        learning_rate: factor on the schedule d^-0.5 · min(step^-0.5, step · warmup^-1.5).
        label_smoothing: probability mass spread over the vocabulary.
        gradient_clip: largest gradient norm; 0 leaves gradients alone.
        precision: arithmetic of the forward and backward passes; weights stay in fp32.
        accelerator: where to train.
        devices: processes on each node, one a device.
        nodes: machines that train together; torchrun or SLURM starts the processes.
        threads: CPU threads of a process; null leaves torch's choice.
        log_every: steps between rows of log.csv.
        valid_every: steps between validations (loss and BLEU).
        valid_bleu_lines: validation lines translated greedily for the BLEU in the log; 0 skips it.
        checkpoint_every: steps between checkpoints.
        keep: newest checkpoints kept.
        average: checkpoints averaged into the final bundle; 1 takes the last weights as they are.
        patience: validations without a better loss before training stops; 0 never stops early.
        init_from: a bundle whose weights and tokenizer training starts from; empty starts afresh.
    """

    steps: int = 100_000
    warmup_steps: int = 4000
    learning_rate: float = 1.0
    label_smoothing: float = 0.1
    gradient_clip: float = 0.0
    precision: Literal["fp32", "bf16-mixed"] = "fp32"
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: int = 1
    nodes: int = 1
    threads: int | None = None
    log_every: int = 50
    valid_every: int = 1000
    valid_bleu_lines: int = 200
    checkpoint_every: int = 1000
    keep: int = 5
    average: int = 5
    patience: int = 0
    init_from: str = ""

    def __post_init__(self) -> None:
        _require_at_least(self, 1, "steps", "warmup_steps", "devices", "nodes", "threads", "log_every")
        _require_at_least(self, 1, "valid_every", "checkpoint_every", "keep", "average")
        _require_at_least(self, 0, "gradient_clip", "valid_bleu_lines", "patience")
        _require_fraction(self, "label_smoothing")
        _require(self.learning_rate > 0, f"learning_rate must be positive, got {self.learning_rate}")
        _require(
            self.average <= self.keep,
            f"cannot average {self.average} checkpoints when only {self.keep} are kept (keep)",
        )


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """How translations are searched for.

    Args:
        beam_size: hypotheses a sentence; 1 is greedy.
        length_penalty: what a score is divided by: "gnmt" ((5 + length) / 6)^alpha, "average" length^alpha, "none" 1.
        alpha: exponent of the length penalty.
        max_length_ratio: a translation has at most this many pieces a source piece …
        max_length_extra: … plus this many.
    """

    beam_size: int = 4
    length_penalty: Literal["gnmt", "average", "none"] = "gnmt"
    alpha: float = 0.6
    max_length_ratio: float = 2.0
    max_length_extra: int = 50

    def __post_init__(self) -> None:
        _require_at_least(self, 1, "beam_size")
        _require_at_least(self, 0, "alpha", "max_length_ratio", "max_length_extra")
        _require(self.max_length_ratio + self.max_length_extra >= 1, "a translation needs room for at least one piece")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that makes a run: the same recipe gives the same model.

    Args:
        out: directory of the run: checkpoints, log, and the finished bundle under ``bundle``.
        seed: seed of initial weights, batches and dropout.
        model: the model.
        data: the data.
        train: the training.
        search: the search, for validation and as the bundle's default.
    """

    out: str = "runs/relattn"
    seed: int = 1
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        _require(bool(self.out), "out must name a directory")
        _require_at_least(self, 0, "seed")


def as_dict(config: Any) -> Any:
    """A config as nested plain dictionaries, for YAML."""
    if not is_dataclass(config):
        return config
    return {f.name: as_dict(getattr(config, f.name)) for f in fields(config)}


def from_dict(content: dict) -> Recipe:
    """The recipe that `as_dict` gave as `content`; a TypeError where it is not one's."""
    groups: dict[str, Any] = {f.name: f.default_factory for f in fields(Recipe) if f.default_factory is not MISSING}
    return Recipe(**{name: groups[name](**value) if name in groups else value for name, value in content.items()})


def differences(old: dict, new: dict, prefix: str = "") -> list[str]:
    """Lines "name: old → new" for every leaf that differs between two `as_dict` results."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += differences(a, b, f"{prefix}{name}.")
        elif a != b:
            lines.append(f"{prefix}{name}: {a} → {b}")
    return lines


def dump(recipe: Recipe) -> str:
    """The recipe as YAML that `recipe_flags` reads back."""
    return yaml.safe_dump(as_dict(recipe), sort_keys=False, allow_unicode=True)


def recipe_flags(path: str | Path) -> list[str]:
    """A recipe's settings as command-line flags (``--model.clip=8``), one parser for both.

    Every value stays the text it is in the file, so that a language called ``no`` is not read as a false.

    Raises:
        InputError: the file cannot be read, is not YAML, or names a setting that a recipe does not have.
    """
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not YAML: {error}") from error
    if content in (None, ""):
        return []
    if not isinstance(content, dict):
        raise InputError(f"{path}: a recipe is a list of names and values, this is '{content}'")
    return _flags(content, as_dict(Recipe()), str(path), "")


def _flags(content: dict, known: dict, path: str, prefix: str) -> list[str]:
    flags = []
    for name, value in content.items():
        key = f"{prefix}{name}"
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            raise InputError(f"{path}: unknown setting {key}" + (f"; is {prefix}{close[0]} meant?" if close else ""))
        if isinstance(known[name], dict) != isinstance(value, dict) or isinstance(value, list):
            raise InputError(
                f"{path}: {key} must be {'a group of settings' if isinstance(known[name], dict) else 'one value'}"
            )
        if value == "" and not isinstance(known[name], str):
            value = "null"  # "clip_right:" with nothing after it
        flags += _flags(value, known[name], path, f"{key}.") if isinstance(value, dict) else [f"--{key}={value}"]
    return flags
