"""Configuration of a run, as frozen dataclasses. They define recipes, flags, help texts and errors.

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
    """Return a field whose values must follow rules, except null."""
    return field(default=default, metadata={"rules": rules})


def _number(default: float | None, least: float, most: float) -> Any:
    """Return a field with values from `least` to `most`, which is larger than any useful value and never overflows."""
    return _field(default, (f"at least {least}", lambda x: x >= least), (f"at most {most:,}", lambda x: x <= most))


def _fraction(default: float) -> Any:
    return _field(default, ("in [0, 1)", lambda x: 0 <= x < 1))


@dataclass(frozen=True, kw_only=True)
class _Config:
    """Base of all configurations. It checks the rules of each field, and that text can be stored as UTF-8.

    It is a dataclass itself, because jsonargparse takes a class with any other base as the name of a class to import.
    """

    def __post_init__(self) -> None:
        for setting in fields(self):
            name, value = setting.name, getattr(self, setting.name)
            for what, holds in setting.metadata.get("rules", ()) if value is not None else ():
                require(holds(value), f"{name} must be {what}, got {one_line(value, 40)}")
            if isinstance(value, str):
                require(_is_text(value), f"{name} must be UTF-8 without NUL, got {one_line(ascii(value), 100)}")


def _is_text(value: str) -> bool:
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:  # a surrogate, which stands for a byte of a path that is not UTF-8
        return False


@dataclass(frozen=True, kw_only=True)
class ModelConfig(_Config):
    """Encoder–decoder Transformer (Vaswani et al. 2017) and its position scheme.

    Args:
        dim: Model dimension, of embeddings and residual connections.
        heads: Number of attention heads. It must divide dim.
        feed_forward_dim: Inner dimension of the feed-forward layers.
        encoder_layers: Number of encoder layers.
        decoder_layers: Number of decoder layers.
        norm: Layer normalization before each sub-layer ("pre") or after its residual connection ("post", as in the
            paper).
        dropout: Dropout probability on embeddings and on the output of every sub-layer.
        attention_dropout: Dropout probability on attention probabilities.
        activation_dropout: Dropout probability inside the feed-forward layers, after the activation.
        activation: Activation of the feed-forward layers. "gelu_tanh" is the tanh approximation of GELU, "swish" is
            SiLU.
        shared_embeddings: Which matrices are shared: source, target and output ("all"), target and output ("target"),
            source and target ("inputs"), or none.
        scaled_embeddings: Multiply embeddings by √dim before positions are added, as in the paper.
        output_bias: Add a bias to the logits.
        norm_epsilon: Constant that layer normalization adds to the variance.
        positions: Position scheme. "none" is a baseline that cannot tell word order.
        clip: For relative positions, the clipping distance k. By default 16. With clip_right, the distance to the left.
        clip_right: For relative positions, the clipping distance to the right. By default the same as clip.
        beyond: For relative positions, whether pairs beyond the clipping distance use the last row of a table ("clip",
            the default) or no relative term ("zero").
        relative_tables: For relative positions, which tables are learned: aK and aV ("both", the default), only aK
            ("keys") or only aV ("values").
        tables_per_head: For relative positions, learn one table per head, as the paper's base model, instead of one per
            layer. By default false.
        max_positions: For learned positions, the maximum sequence length in tokens. By default 1024. Other schemes have
            no limit.
        kernel_size: For "cnn", the number of positions that a convolution covers. It must be odd. By default 3.
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
    """Training and validation text, and how it is batched.

    Args:
        src_lang: Source language code; a locale if the built-in corpus is used.
        tgt_lang: Target language code.
        train_src: Training text, source side, one sentence per line, plain or compressed by gzip or bzip2. By default,
            the built-in corpus.
        train_tgt: Training text, target side.
        valid_src: Validation text, source side. By default none. The built-in corpus has its own.
        valid_tgt: Validation text, target side.
        train_list: File that lists several corpora, instead of train_src and train_tgt: one per line, as source file,
            target file and optionally a weight, separated by tabs. Paths are relative to the file.
        valid_list: File that lists several validation sets in the same form, without weights. patience looks at the
            first.
        temperature: With several corpora, an epoch draws from each in proportion to (pairs · weight)^(1 / temperature).
        builtin_lines: Number of training lines drawn from the built-in corpus.
        vocab_size: Maximum number of SentencePiece tokens, shared by both sides.
        vocab_lines: Maximum number of lines, of both sides, to learn the vocabulary from. If there are more, they are
            drawn at random.
        max_tokens: Maximum number of tokens per micro-batch, counted on the longer side, padding included.
        max_length: Skip training pairs with more tokens than this on either side.
        max_words: Skip training pairs with more words than this on either side. By default no limit.
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
    builtin_lines: int = _number(20_000, 1, 10**9)
    vocab_size: int = _number(8000, 1, 2**20)
    vocab_lines: int = _number(500_000, 1, 10**9)
    max_tokens: int = _number(4096, 1, 10**9)
    max_length: int = _number(256, 1, 10**6)
    max_words: int | None = _number(None, 1, 10**9)

    def __post_init__(self) -> None:
        super().__post_init__()
        for split in ("train", "valid"):
            src, tgt = getattr(self, f"{split}_src"), getattr(self, f"{split}_tgt")
            require(bool(src) == bool(tgt), f"{split}_src and {split}_tgt go together, got '{src}' and '{tgt}'")
            require(not (src and getattr(self, f"{split}_list")), f"{split}_list is in place of {split}_src; got both")
        valid = "valid_src" if self.valid_src else "valid_list"
        require(not self.builtin or not getattr(self, valid), f"{valid} is given, but train_src is not")

    @property
    def builtin(self) -> bool:
        """Whether training text comes from the built-in corpus."""
        return not (self.train_src or self.train_list)


@dataclass(frozen=True, kw_only=True)
class CleaningConfig(_Config):
    """Rules of `relattn prepare`: which pairs are dropped. null disables a rule.

    Args:
        max_words: Drop pairs with more words than this on either side. In Chinese, Japanese and Thai, each character
            counts as a word.
        max_characters: Drop pairs with more characters than this on either side.
        max_ratio: Drop pairs where one side has more than max_ratio × (words of the other + 1) words, and one side is
            more than max_ratio times as long as the other in bytes of UTF-8.
        min_script: Drop pairs where less than this share of a side's letters is in the scripts of its language.
        ngram: Drop pairs where a side shares this many consecutive words with a held-out line.
        keep_duplicates: Keep repeated pairs.
    """

    max_words: int | None = _number(250, 1, 10**6)
    max_characters: int | None = _number(5000, 1, 2**26)
    max_ratio: float | None = _number(3.0, 1, 10**6)
    min_script: float | None = _number(0.5, 0, 1)
    ngram: int | None = _number(13, 1, 1000)
    keep_duplicates: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainConfig(_Config):
    """Optimizer, learning-rate schedule, devices, validation and checkpoints.

    Args:
        steps: Number of optimizer steps.
        accumulate: Number of micro-batches per optimizer step and process.
        warmup_steps: Number of steps over which the learning rate rises. After that it falls as step^-0.5.
        learning_rate_factor: Factor on the schedule d^-0.5 · min(step^-0.5, step · warmup^-1.5).
        label_smoothing: Probability mass that is spread over the vocabulary.
        gradient_clip: Maximum gradient norm. 0 disables clipping.
        precision: Precision of the forward and backward passes; weights stay in fp32. "fp16-mixed" scales the loss. A
            step with infinite gradients is skipped, and the scale is halved.
        activation_checkpointing: Keep only the input of each layer, and recompute the rest in the backward pass. This
            takes less memory and more time, with the same results.
        compile: Compile the model with torch.compile. This takes minutes at the start; results differ by rounding.
        accelerator: Device type to train on.
        devices: Number of processes per node, one per device.
        nodes: Number of machines. torchrun or SLURM starts the processes.
        strategy: With several processes, each has the whole model ("ddp"), or a shard of every parameter, gradient and
            optimizer state ("fsdp").
        threads: Number of CPU threads per process. By default, as PyTorch chooses.
        log_every: Number of steps between rows of log.csv.
        valid_every: Number of steps between validations (loss and BLEU).
        valid_bleu_lines: Number of validation lines to translate greedily for the BLEU in the log. 0 skips it.
        checkpoint_every: Number of steps between checkpoints.
        keep: Number of newest checkpoints to keep.
        average: Number of checkpoints to average into the bundle. 1 uses the last weights.
        patience: Stop after this many validations without a lower loss. 0 never stops early.
        init_from: Bundle to take initial weights and tokenizer from. By default, weights are drawn at random.
    """

    steps: int = _number(100_000, 1, 10**9)
    accumulate: int = _number(1, 1, 10**6)
    warmup_steps: int = _number(4000, 1, 10**9)
    learning_rate_factor: float = _field(1.0, ("positive", lambda x: x > 0), ("at most 1e6", lambda x: x <= 1e6))
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
    """Beam search.

    Args:
        beam_size: Number of hypotheses kept per sentence. 1 is greedy search.
        length_penalty: Divisor of a hypothesis's log-probability: "gnmt" ((5 + length) / 6)^alpha, "average"
            length^alpha, or "none".
        alpha: Exponent of the length penalty. Larger values prefer longer translations.
        early_stopping: End the search of a sentence as soon as beam_size hypotheses have finished, as fairseq and
            CTranslate2 do, not only when no better one can come.
        max_length_ratio: A translation has at most max_length_ratio × source tokens + max_length_extra tokens.
        max_length_extra: See max_length_ratio.
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
    """Parameters that turn a translation's mean log-probability per token into a confidence: σ(bias + slope · mean).

    Args:
        bias: Bias. null: not calibrated.
        slope: Slope. null: not calibrated.
    """

    bias: float | None = _number(None, -100, 100)
    slope: float | None = _number(None, -100, 100)


@dataclass(frozen=True, kw_only=True)
class Recipe(_Config):
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
        return self.train.accumulate * self.train.processes


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
