"""What is compared: the models of each table, with the paper's own figures where it gives them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from relattn.translation.config import OPTIONS, ModelConfig, Positions


@dataclass(frozen=True)
class Entry:
    """A model of a table: its position scheme, and the options in which it departs from the scheme's own.

    Attributes:
        label: as printed.
        positions: the scheme.
        options: of the scheme.
        paper: BLEU of the paper's base model, English to German, where it has this one.
    """

    label: str
    positions: Positions
    options: dict[str, Any] = field(default_factory=dict)
    paper: float | None = None

    @property
    def name(self) -> str:
        """The same for the same model, whichever table it stands in."""
        usual = OPTIONS.get(self.positions, {})
        departures = {name: value for name, value in self.options.items() if value != usual[name]}
        return "-".join([self.positions, *(f"{name}={value}" for name, value in departures.items())])

    def model(self, config: ModelConfig) -> ModelConfig:
        """`config` with this scheme; options that both have are as they were where this entry does not say."""
        both = OPTIONS.get(self.positions, {}).keys() & OPTIONS.get(config.positions, {}).keys()
        return config.with_positions(self.positions, **{name: getattr(config, name) for name in both} | self.options)


@dataclass(frozen=True)
class Table:
    """A list of models; all are held against the first.

    Attributes:
        name: on the command line.
        title: of the page.
        entries: the models.
        source: where the paper's figures are from, or what else there is to be said of them.
        short: whether the models are trained on short sentences alone.
    """

    name: str
    title: str
    entries: tuple[Entry, ...]
    source: str
    short: bool = False


RELATIVE = Entry("relative", "relative", paper=26.8)
NONE = Entry("none", "none")
SCHEMES = (
    RELATIVE,
    Entry("relative, aK only", "relative", {"relative_tables": "keys"}),
    Entry("relative, aV only", "relative", {"relative_tables": "values"}),
    Entry("relative, zero beyond the window", "relative", {"beyond": "zero"}),
    Entry("relative + sinusoidal", "relative+sinusoidal"),
    Entry("sinusoidal", "sinusoidal", paper=26.5),
    Entry("learned", "learned"),
    Entry("Transformer-XL", "xl"),
    Entry("T5", "t5"),
    Entry("ALiBi", "alibi"),
    Entry("RoPE", "rope"),
    Entry("RoVE", "rove"),
    Entry("LSTM", "lstm"),
    Entry("CNN", "cnn"),
    NONE,
)

TABLES = {
    table.name: table
    for table in (
        Table("positions", "Position schemes", SCHEMES, "Table 1 of the paper: base model, newstest2014"),
        Table(
            "clip",
            "The clipping distance k",
            tuple(
                Entry(f"k = {k}", "relative", {"clip": k}, bleu)
                for k, bleu in ((16, 25.8), (0, 12.5), (1, 25.5), (2, 25.8), (4, 25.9), (64, 25.9), (256, 25.8))
            ),
            "Table 2 of the paper: base model, newstest2013",
        ),
        Table(
            "tables",
            "Relative positions in keys and in values",
            (
                Entry("aK and aV", "relative", paper=25.8),
                Entry("aK only", "relative", {"relative_tables": "keys"}, 25.8),
                Entry("aV only", "relative", {"relative_tables": "values"}, 25.3),
                Entry("neither", "none", paper=12.5),
            ),
            "Table 3 of the paper: base model, newstest2013",
        ),
        Table("length", "Trained short, tested long", SCHEMES, "the paper has no such table", short=True),
    )
}
