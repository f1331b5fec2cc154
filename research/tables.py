"""Tables and scales: which models are compared, on which corpus, and for how many steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from relattn_mt.config import SCHEMES, DataConfig, ModelConfig, Positions, Recipe, TrainConfig
from relattn_mt.config.settings import to_config
from relattn_mt.config.yaml import read_yaml
from relattn_mt.tokens.text_files import ParallelFiles

from research import baselines

Pairs = list[tuple[str, str]]
JOINED = 6  # lines of the validation text per long line


@dataclass(frozen=True)
class Entry:
    """A model of a table: its position scheme and the options that differ from the scheme's defaults.

    Attributes:
        label: Name of the model in the table.
        positions: Position scheme.
        options: Options of the scheme.
        paper: BLEU of this model in the paper (base model, English to German), if the paper has it.
    """

    label: str
    positions: Positions
    options: dict[str, Any] = field(default_factory=dict)
    paper: float | None = None

    @property
    def name(self) -> str:
        """Name in files. The same model has the same name in every table."""
        changed = [
            f"{name}={value}" for name, value in self.options.items() if value != SCHEMES[self.positions].options[name]
        ]
        return "-".join([self.positions, *changed])

    def model(self, base: ModelConfig) -> ModelConfig:
        """Return `base` with this position scheme. Options that are not set here are as in `base`, if it has them."""
        options = {name: getattr(base, name) for name in SCHEMES[self.positions].options}
        return base.with_positions(self.positions, **(options | self.options))


class Table(NamedTuple):
    """A list of models, which are compared with the first.

    Attributes:
        name: Name on the command line.
        title: Title of the page.
        entries: The models.
        source: Source of the paper's figures.
    """

    name: str
    title: str
    entries: tuple[Entry, ...]
    source: str


class Claim(NamedTuple):
    """A claim of the paper about two models: one has more BLEU, or their BLEU does not differ.

    Attributes:
        first, second: Names of the models, as `Entry.name`.
        relation: ">", "=" or "≤" (the first model has no more BLEU than the second).
    """

    first: str
    relation: Literal[">", "=", "≤"]
    second: str


class Scale(NamedTuple):
    """A corpus and a recipe, which all models of a table share.

    Attributes:
        name: Name on the command line.
        recipe: Recipe of every run, except for its position scheme, seed and directory.
        files: Texts that each model translates: name, source and target file, in the directory of the training text.
            No line is part of the training text.
        long_file: Text of long lines; by default, lines of the first text are joined.
        has_items: Whether lines are lists of items, as in the built-in corpus.
    """

    name: str
    recipe: Recipe
    files: tuple[tuple[str, str, str], ...]
    long_file: tuple[str, str, str] | None = None
    has_items: bool = False

    def texts(self) -> dict[str, Pairs]:
        """Return the texts that each model translates, by name."""
        return {name: self._read(src, tgt) for name, src, tgt in self.files}

    @property
    def long_name(self) -> str:
        """Name of the text of long lines."""
        return f"{self.files[0][0]}, {JOINED} lines joined" if self.long_file is None else self.long_file[0]

    def long(self) -> Pairs:
        """Return the text of long lines."""
        if self.long_file is None:
            return joined(self._read(*self.files[0][1:]), JOINED)
        return self._read(*self.long_file[1:])

    @property
    def valid_name(self) -> str:
        """Name of the validation text."""
        return Path(self.recipe.data.valid_src).name.partition(".")[0]

    @property
    def directory(self) -> Path:
        """Directory of all texts."""
        return Path(self.recipe.data.train_src).parent

    def _read(self, src: str, tgt: str) -> Pairs:
        return list(ParallelFiles(self.directory / src, self.directory / tgt))


def joined(pairs: Pairs, count: int) -> Pairs:
    """Join every `count` pairs into one. Remaining pairs are left out."""
    groups = [pairs[start : start + count] for start in range(0, len(pairs) - count + 1, count)]
    return [
        (" ".join(sources), " ".join(targets)) for sources, targets in (zip(*group, strict=True) for group in groups)
    ]


def in_directory(data: DataConfig, directory: str) -> DataConfig:
    """Return the same settings with all files in one directory."""
    paths = {name: Path(path).name for name, path in vars(data).items() if name.endswith(("_src", "_tgt"))}
    settings: dict[str, Any] = {name: str(Path(directory, file)) for name, file in paths.items()}
    return replace(data, **settings)


PAPER = {"relative": 26.8, "sinusoidal": 26.5}  # BLEU on newstest2014
VARIANTS = (  # models between the first scheme and the others
    Entry("relative, aK only", "relative", {"relative_tables": "keys"}),
    Entry("relative, aV only", "relative", {"relative_tables": "values"}),
    Entry("relative, zero beyond the window", "relative", {"beyond": "zero"}),
)
_SCHEMES = SCHEMES | baselines.SCHEMES
_SCHEMES["none"] = _SCHEMES.pop("none")  # the last row
_FIRST, *_OTHERS = (Entry(scheme.title, name, paper=PAPER.get(name)) for name, scheme in _SCHEMES.items())
ENTRIES = (_FIRST, *VARIANTS, *_OTHERS)
CLIPS = ((16, 25.8), (0, 12.5), (1, 25.5), (2, 25.8), (4, 25.9), (64, 25.9), (256, 25.8))  # k and BLEU in the paper
KEYS_AND_VALUES = (
    Entry("aK and aV", "relative", paper=25.8),
    Entry("aK only", "relative", {"relative_tables": "keys"}, 25.8),
    Entry("aV only", "relative", {"relative_tables": "values"}, 25.3),
    Entry("neither", "none", paper=12.5),
)

TABLES = {
    table.name: table
    for table in (
        Table("positions", "Position schemes", ENTRIES, "Table 1, base model, newstest2014"),
        Table(
            "clip",
            "The clipping distance k",
            tuple(Entry(f"k = {k}", "relative", {"clip": k}, bleu) for k, bleu in CLIPS),
            "Table 2, base model, newstest2013",
        ),
        Table(
            "tables",
            "Relative positions in keys and in values",
            KEYS_AND_VALUES,
            "Table 3, base model, newstest2013",
        ),
    )
}
_KEYS, _VALUES = "relative-relative_tables=keys", "relative-relative_tables=values"
CLAIMS = (
    Claim("relative", "=", _KEYS),
    Claim(_KEYS, ">", _VALUES),
    Claim(_VALUES, ">", "none"),
    Claim("relative", ">", "sinusoidal"),
    Claim("relative+sinusoidal", "≤", "relative"),
    *(Claim("relative", "=", f"relative-clip={k}") for k in (2, 4, 64, 256)),
)

_DEMO = Recipe(  # for minutes of training on two cores
    model=ModelConfig(
        dim=128,
        heads=4,
        feed_forward_dim=256,
        encoder_layers=2,
        decoder_layers=2,
        dropout=0.0,
        attention_dropout=0.0,
    ).with_positions("none"),
    data=DataConfig(
        train_src="data/demo/train.en",
        train_tgt="data/demo/train.de",
        valid_src="data/demo/valid.en",
        valid_tgt="data/demo/valid.de",
        vocab_size=1000,
        max_tokens=1200,
    ),
    train=TrainConfig(
        steps=2000,
        warmup_steps=600,
        threads=1,
        log_every=200,
        valid_every=500,
        valid_bleu_lines=50,
        checkpoint_every=100,
    ),
)
_MULTI30K = Recipe(  # the small Transformer that is common on this corpus, for 15 minutes of training on one core
    model=ModelConfig(dim=128, heads=4, feed_forward_dim=256, encoder_layers=4, decoder_layers=4),
    data=DataConfig(
        train_src="data/multi30k/train.en.gz",
        train_tgt="data/multi30k/train.de.gz",
        valid_src="data/multi30k/valid.en",
        valid_tgt="data/multi30k/valid.de",
        vocab_size=4000,
        max_tokens=2048,
    ),
    train=TrainConfig(steps=2000, warmup_steps=600, threads=1, log_every=100, valid_every=500, checkpoint_every=100),
)
_MEDIUM = replace(  # seven times as many pairs of several domains, the paper's development set, two hours on one core
    _MULTI30K,
    model=ModelConfig(dim=256, heads=4, feed_forward_dim=1024, encoder_layers=4, decoder_layers=4),
    data=replace(
        in_directory(_MULTI30K.data, "data/medium_en_de"),
        valid_src="data/medium_en_de/newstest2013.en.gz",
        valid_tgt="data/medium_en_de/newstest2013.de.gz",
        vocab_size=8000,
        max_tokens=4096,
    ),
    train=replace(_MULTI30K.train, steps=6000, warmup_steps=1000, precision="bf16-mixed"),
)
_WMT14 = Path(__file__).parents[1] / "recipes/wmt14-en-de-base.yaml"
_NEWSTEST2013 = "newstest2013", "newstest2013.en.gz", "newstest2013.de.gz"
_VALID = "valid", "valid.en", "valid.de"
_LONGER = replace(_MULTI30K, train=replace(_MULTI30K.train, steps=8000))

SCALES = {
    scale.name: scale
    for scale in (
        Scale("demo", _DEMO, (("test", "test.en", "test.de"),), ("long", "long.en", "long.de"), has_items=True),
        Scale("multi30k", _MULTI30K, (_VALID,)),
        Scale("multi30k-8000", _LONGER, (_VALID,)),
        Scale("medium", _MEDIUM, (_NEWSTEST2013, ("Tatoeba", "valid.en.gz", "valid.de.gz"))),
        Scale("wmt14", to_config(Recipe, read_yaml(_WMT14), _WMT14), (_NEWSTEST2013,)),
    )
}
