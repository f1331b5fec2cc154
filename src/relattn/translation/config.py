"""What a run is made of, as frozen dataclasses: the one definition behind recipes, flags, help and errors.

A recipe is a YAML file with the fields of `Recipe` (`settings.py` reads it); every field can be overridden on the
command line (``--model.clip 8``). Values are checked when a dataclass is made, so an impossible one never reaches a
run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

import yaml

from relattn.translation.errors import one_line, require

Positions = Literal[
    "relative",
    "sinusoidal",
    "relative+sinusoidal",
    "learned",
    "none",
    "xl",
    "t5",
    "alibi",
    "rope",
    "rove",
    "lstm",
    "cnn",
]

Quantization = Literal[  # of the weights of an export
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16"
]

Precision = Literal["fp32", "bf16"]  # of a model that translates

Part = Literal["encoder", "decoder", "cross"]  # of a model whose attention is looked at
Format = Literal["text", "tsv", "jsonl"]  # of translations that are written out

_TABLES = {"clip": 16, "clip_right": None, "beyond": "clip", "relative_tables": "both", "tables_per_head": False}

OPTIONS: dict[str, dict[str, Any]] = {  # of each scheme, and what they are by default; any other means nothing for it
    "relative": _TABLES,
    "relative+sinusoidal": _TABLES,
    "learned": {"max_positions": 1024},
    "cnn": {"kernel_size": 3},
}
OPTION_NAMES = sorted({name for options in OPTIONS.values() for name in options})


_Rule = tuple[str, Callable[[Any], bool]]  # what a value must be, and whether it is


def _field(default: Any, *rules: _Rule) -> Any:
    """A setting with the rules that stand for its values; null needs none."""
    return field(default=default, metadata={"rules": rules})


def _number(default: float | None, least: float, most: float) -> Any:
    """A setting from `least` to `most`, which lies beyond all use and short of what overflows somewhere."""
    return _field(default, (f"at least {least}", lambda x: x >= least), (f"at most {most:,}", lambda x: x <= most))


def _fraction(default: float) -> Any:
    return _field(default, ("in [0, 1)", lambda x: 0 <= x < 1))


@dataclass(frozen=True, kw_only=True)
class _Config:
    """What every config is held to when it is made: the rules that stand with its fields, and text that can be kept.

    It is a dataclass itself, for jsonargparse takes a class with any other base as the name of a class to import.
    """

    def __post_init__(self) -> None:
        for setting in fields(self):
            name, value = setting.name, getattr(self, setting.name)
            for what, holds in setting.metadata.get("rules", ()) if value is not None else ():
                require(holds(value), f"{name} must be {what}, got {one_line(value, 40)}")
            if isinstance(value, str):
                require(is_text(value), f"{name} must be UTF-8 without NUL, got {one_line(ascii(value), 100)}")


def is_text(value: str) -> bool:
    """Return whether a string can be written as UTF-8 and has no NUL."""
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:  # a surrogate, which stands for a byte of a path that is not UTF-8
        return False


@dataclass(frozen=True, kw_only=True)
class ModelConfig(_Config):
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
        activation_dropout: dropout inside the feed-forward layers, after the activation.
        activation: of the feed-forward layers; "gelu_tanh" is GELU's approximation, "swish" also called SiLU.
        shared_embeddings: which of three are one matrix: the source's, the target's and that of the output ("all"), the
            latter two ("target"), the former two ("inputs"), or none.
        scaled_embeddings: multiply embeddings by √dim, as in the paper, before positions are added.
        output_bias: add a bias to the logits.
        norm_epsilon: of layer normalisation, added to the variance.
        positions: the position scheme; "none" is a baseline that cannot tell word order.
        clip: of "relative": k, the clipping distance (16); the reach to the left when clip_right is given.
        clip_right: of "relative": the clipping distance to the right; the same as clip unless given.
        beyond: of "relative": pairs farther apart take a table's last row ("clip") or no term ("zero").
        relative_tables: of "relative": which learned tables there are: aK and aV ("both"), aK only, aV only.
        tables_per_head: of "relative": a table for each head (the paper's base model), not one for a layer's heads.
        max_positions: of "learned": the longest sequence, in pieces (1024); other schemes have no limit.
        kernel_size: of "cnn": positions that a convolution sees, itself among them (3); odd.
    """

    dim: int = _number(512, 1, 2**16)
    heads: int = _number(8, 1, 2**16)
    feed_forward_dim: int = _number(2048, 1, 2**20)
    encoder_layers: int = _number(6, 1, 1000)
    decoder_layers: int = _number(6, 1, 1000)
    norm: Literal["pre", "post"] = "pre"
    dropout: float = _fraction(0.1)
    attention_dropout: float = _fraction(0.1)
    activation_dropout: float = _fraction(0.0)
    activation: Literal["relu", "gelu", "gelu_tanh", "swish"] = "relu"
    shared_embeddings: Literal["all", "target", "inputs", "none"] = "all"
    scaled_embeddings: bool = True
    output_bias: bool = False
    norm_epsilon: float = _number(1e-5, 1e-12, 1.0)
    positions: Positions = "relative"
    clip: int | None = _number(None, 0, 2**16)
    clip_right: int | None = _number(None, 0, 2**16)
    beyond: Literal["clip", "zero"] | None = None
    relative_tables: Literal["both", "keys", "values"] | None = None
    tables_per_head: bool | None = None
    max_positions: int | None = _number(None, 1, 2**20)
    kernel_size: int | None = _field(None, ("odd", lambda x: x % 2 == 1), ("from 1 to 999", lambda x: 1 <= x <= 999))

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.dim % self.heads == 0, f"heads must divide dim, got heads {self.heads} and dim {self.dim}")
        options = OPTIONS.get(self.positions, {})
        given = {name: getattr(self, name) for name in OPTION_NAMES if getattr(self, name) is not None}
        vain = {name: str(value) for name, value in given.items() if name not in options}
        mean = "means" if len(vain) == 1 else "mean"
        told = f"{', '.join(vain)} {mean} nothing for {self.positions} positions, got {', '.join(vain.values())}"
        require(not vain, told)
        for name, value in options.items():
            object.__setattr__(self, name, given.get(name, value))
        if self.positions in ("sinusoidal", "relative+sinusoidal", "xl", "lstm"):
            require(self.dim % 2 == 0, f"{self.positions} positions need an even dim, got {self.dim}")
        if self.positions in ("rope", "rove"):
            head_dim = self.dim // self.heads
            require(head_dim % 2 == 0, f"{self.positions} positions need an even dim / heads, got {head_dim}")

    def with_positions(self, positions: Positions, **options: Any) -> ModelConfig:
        """The same model with another position scheme; options that are not given are as by default."""
        return replace(self, positions=positions, **{**dict.fromkeys(OPTION_NAMES), **options})

    @property
    def clipping_range(self) -> tuple[int, int]:
        """The clipping distances (left, right) of relative positions."""
        assert self.clip is not None
        return self.clip, self.clip if self.clip_right is None else self.clip_right


@dataclass(frozen=True, kw_only=True)
class DataConfig(_Config):
    """Where sentence pairs come from and how they become batches.

    Args:
        src_lang: source language (a locale for the embedded corpus).
        tgt_lang: target language.
        train_src: training text, source side, one sentence a line, plain or .gz; empty means the embedded corpus.
        train_tgt: training text, target side.
        valid_src: validation text, source side; empty means none (the embedded corpus brings its own).
        valid_tgt: validation text, target side.
        train_list: a list of several corpora, in place of train_src and train_tgt: a line each, source file, target
            file and perhaps a weight, with tabs between, from the directory of the list.
        valid_list: several validation sets, likewise and without weights; the first is what patience looks at.
        temperature: of several corpora: an epoch has of each in proportion to (pairs · weight)^(1 / temperature).
        embedded_lines: training lines drawn from the embedded corpus.
        vocab_size: SentencePiece pieces, shared by both sides; fewer where the text does not have as many.
        vocab_lines: lines, of both sides, that the pieces are learned from; drawn at random where there are more.
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
    train_list: str = ""
    valid_list: str = ""
    temperature: float = _number(1.0, 0.01, 10**6)
    embedded_lines: int = _number(20_000, 1, 10**9)
    vocab_size: int = _number(8000, 1, 2**20)
    vocab_lines: int = _number(500_000, 1, 10**9)
    max_tokens: int = _number(4096, 1, 10**9)
    accumulate: int = _number(1, 1, 10**6)
    max_length: int = _number(256, 1, 10**6)
    max_words: int | None = _number(None, 1, 10**9)

    def __post_init__(self) -> None:
        super().__post_init__()
        for split in ("train", "valid"):
            src, tgt = getattr(self, f"{split}_src"), getattr(self, f"{split}_tgt")
            require(bool(src) == bool(tgt), f"{split}_src and {split}_tgt go together, got '{src}' and '{tgt}'")
            require(not (src and getattr(self, f"{split}_list")), f"{split}_list is in place of {split}_src; got both")
        valid = "valid_src" if self.valid_src else "valid_list"
        require(not self.embedded or not getattr(self, valid), f"{valid} is given, but train_src is not")

    @property
    def embedded(self) -> bool:
        """Whether training text comes from the embedded corpus."""
        return not (self.train_src or self.train_list)


@dataclass(frozen=True, kw_only=True)
class CleaningConfig(_Config):
    """Which pairs of a corpus stay when it is prepared; null leaves a rule out.

    Args:
        max_words: pairs with more words than this on either side are dropped; a character of Chinese, Japanese or Thai
            is a word by itself.
        max_characters: pairs with more characters than this on either side are dropped.
        max_ratio: pairs are dropped of which a side has more than this many words for each of the other's and one more.
        min_script: pairs are dropped of which less than this share of a side's letters is of its language's scripts.
        ngram: pairs are dropped of which a side has so many words in a row in common with a held-out line.
        keep_duplicates: keep pairs that occurred before, too.
    """

    max_words: int | None = _number(250, 1, 10**6)
    max_characters: int | None = _number(5000, 1, 2**26)
    max_ratio: float | None = _number(3.0, 1, 10**6)
    min_script: float | None = _number(0.5, 0, 1)
    ngram: int | None = _number(13, 1, 1000)
    keep_duplicates: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainConfig(_Config):
    """How a model is trained: the paper's optimiser and schedule, and what is kept on the way.

    Args:
        steps: optimiser steps in all.
        warmup_steps: steps over which the learning rate rises, before it falls as step^-0.5.
        learning_rate: factor on the schedule d^-0.5 · min(step^-0.5, step · warmup^-1.5).
        label_smoothing: probability mass spread over the vocabulary.
        gradient_clip: largest gradient norm; 0 leaves gradients alone.
        precision: arithmetic of the forward and backward passes; weights stay in fp32. In "fp16-mixed" the loss is
            scaled; a step whose gradients then are infinite is skipped, and the scale halved.
        activation_checkpointing: keep of each layer what went in alone, and compute the rest again in the backward
            pass: less memory, more time, the same numbers.
        compile: have PyTorch compile the model, which takes minutes at first; the same but for rounding.
        accelerator: where to train.
        devices: processes on each node, one a device.
        nodes: machines that train together; torchrun or SLURM starts the processes.
        strategy: of several processes: each has the whole model ("ddp"), or a share of every parameter, gradient and
            moment, and each layer's parameters come together while it is computed ("fsdp").
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

    steps: int = _number(100_000, 1, 10**9)
    warmup_steps: int = _number(4000, 1, 10**9)
    learning_rate: float = _field(1.0, ("positive", lambda x: x > 0), ("at most 1e6", lambda x: x <= 1e6))
    label_smoothing: float = _fraction(0.1)
    gradient_clip: float = _number(0.0, 0, 10**9)
    precision: Literal["fp32", "bf16-mixed", "fp16-mixed"] = "fp32"
    activation_checkpointing: bool = False
    compile: bool = False
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: int = _number(1, 1, 1024)
    nodes: int = _number(1, 1, 10_000)
    strategy: Literal["ddp", "fsdp"] = "ddp"
    threads: int | None = _number(None, 1, 1024)
    log_every: int = _number(50, 1, 10**9)
    valid_every: int = _number(1000, 1, 10**9)
    valid_bleu_lines: int = _number(200, 0, 10**9)
    checkpoint_every: int = _number(1000, 1, 10**9)
    keep: int = _number(5, 1, 10**9)
    average: int = _number(5, 1, 10**9)
    patience: int = _number(0, 0, 10**9)
    init_from: str = ""

    @property
    def processes(self) -> int:
        """Of a run, one a device."""
        return self.devices * self.nodes

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.average <= self.keep,
            f"cannot average {self.average} checkpoints when only {self.keep} are kept (keep)",
        )
        require(self.strategy != "fsdp" or self.processes > 1, "strategy is fsdp, which needs several devices or nodes")


@dataclass(frozen=True, kw_only=True)
class SearchConfig(_Config):
    """How translations are searched for.

    Args:
        beam_size: hypotheses a sentence; 1 is greedy.
        length_penalty: what a score is divided by: "gnmt" ((5 + length) / 6)^alpha, "average" length^alpha, "none" 1.
        alpha: exponent of the length penalty.
        early_stopping: end a sentence's search as soon as beam_size translations are whole, as fairseq and CTranslate2
            do, not only when nothing better can come.
        max_length_ratio: a translation has at most this many pieces a source piece …
        max_length_extra: … plus this many.
    """

    beam_size: int = _number(4, 1, 1000)
    length_penalty: Literal["gnmt", "average", "none"] = "gnmt"
    alpha: float = _number(0.6, 0, 5)
    early_stopping: bool = False
    max_length_ratio: float = _number(2.0, 0, 100)
    max_length_extra: int = _number(50, 0, 10**5)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.max_length_ratio + self.max_length_extra >= 1, "a translation needs room for at least one piece")


@dataclass(frozen=True, kw_only=True)
class Calibration(_Config):
    """How the mean log-probability of a translation's pieces is made a confidence: σ(bias + slope · mean).

    Args:
        bias: null: not calibrated.
        slope: null: not calibrated.
    """

    bias: float | None = _number(None, -100, 100)
    slope: float | None = _number(None, -100, 100)


@dataclass(frozen=True, kw_only=True)
class Recipe(_Config):
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
    seed: int = _number(1, 0, 2**63 - 1)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.out), "out must name a directory")

    @property
    def parts(self) -> int:
        """Micro-batches of a step, over all processes."""
        return self.data.accumulate * self.train.processes


def as_dict(config: Any) -> Any:
    """A config as nested plain dictionaries, for YAML."""
    if not is_dataclass(config):
        return config
    return {f.name: as_dict(getattr(config, f.name)) for f in fields(config)}


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
    """The recipe as YAML that `settings.read_recipe` reads back."""
    return yaml.safe_dump(as_dict(recipe), sort_keys=False, allow_unicode=True)
