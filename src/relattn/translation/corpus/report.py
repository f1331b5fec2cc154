"""Statistics of a cleaned corpus, and the data card that is written next to the text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from relattn.translation.corpus.catalog import CATALOG
from relattn.translation.corpus.filters import OPTIONS, REASONS
from relattn.translation.errors import one_line

_EXAMPLES = 3  # per reason
_EXAMPLE_LENGTH = 100  # characters per side


class Example(NamedTuple):
    """A dropped pair: its number in the corpus, from 1, and the beginnings of its sides."""

    number: int
    src: str
    tgt: str


@dataclass
class FilterStats:
    """Numbers of kept and dropped pairs.

    Attributes:
        kept: number of pairs that were kept.
        dropped: number of dropped pairs for each reason.
        examples: the first few dropped pairs for each reason.
    """

    kept: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    examples: dict[str, list[Example]] = field(default_factory=lambda: {reason: [] for reason in REASONS})

    @property
    def read(self) -> int:
        """Number of all pairs."""
        return self.kept + sum(self.dropped.values())

    def drop(self, reason: str, number: int, src: str, tgt: str) -> None:
        """Count a dropped pair."""
        self.dropped[reason] += 1
        if len(self.examples[reason]) < _EXAMPLES:
            self.examples[reason].append(Example(number, _shortened(src), _shortened(tgt)))

    def add(self, following: FilterStats) -> None:
        """Add the statistics of the pairs that follow."""
        self.kept += following.kept
        for reason in REASONS:
            self.dropped[reason] += following.dropped[reason]
            self.examples[reason] = (self.examples[reason] + following.examples[reason])[:_EXAMPLES]

    @staticmethod
    def from_json(content: dict[str, Any]) -> FilterStats:
        """Return statistics from the result of `dataclasses.asdict`, after it was written as JSON and read."""
        examples = {reason: [Example(*example) for example in content["examples"][reason]] for reason in REASONS}
        return FilterStats(content["kept"], content["dropped"], examples)

    def table(self) -> list[tuple[str, str, str]]:
        """Return rows of a name, a number of pairs and its share of all pairs; reasons without pairs are left out."""
        rows = [("read", self.read), ("kept", self.kept)]
        rows += [(reason, count) for reason, count in self.dropped.items() if count]
        return [(name, f"{count:,}", f"{100 * count / max(1, self.read):.2f} %") for name, count in rows]

    def example_lines(self) -> Iterable[tuple[str, list[str]]]:
        """Yield each reason that has examples, with their lines."""
        for reason, examples in self.examples.items():
            if examples:
                yield reason, [f"{number}: {src} ||| {tgt}" for number, src, tgt in examples]

    def __str__(self) -> str:
        lines = [f"{name:<10}{count:>13}{share:>11}" for name, count, share in self.table()]
        for reason, examples in self.example_lines():
            lines += ["", f"{reason}: {REASONS[reason]}", *(f"  {example}" for example in examples)]
        return "\n".join(lines)


def _shortened(text: str) -> str:
    """Return the beginning of a text, with escapes in place of characters that cannot be printed."""
    start = text[: _EXAMPLE_LENGTH + 1]
    return one_line(start, _EXAMPLE_LENGTH) if start else ""


def data_card(record: dict[str, Any]) -> str:
    """Return the data card as Markdown: origin of the text, rules, statistics, and checksums of the files.

    Args:
        record: content of prepared.json. The same record gives the same card.
    """
    settings = record["settings"]
    stats = FilterStats.from_json(record["stats"])
    src, tgt = settings["languages"]
    name = settings.get("corpus", "Parallel text")
    sections = [f"# {name}: {src} to {tgt}, prepared", _origin(settings, record["origin"])]
    sections += ["## Dropped pairs", _table(("", "pairs", "share"), stats.table())]
    sections += ["A pair is dropped for the first reason that applies:", _rules(settings["cleaning"])]
    for reason, examples in stats.example_lines():
        sections.append(f"The first pairs dropped as `{reason}`, with their numbers in the corpus:")
        sections.append("\n".join(f"    {example}" for example in examples))
    files = [(f"`{name}`", f"{file['lines']:,}", f"`{file['sha256']}`") for name, file in record["files"].items()]
    sections += ["## Files", _table(("file", "lines", "SHA-256"), files)]
    return "\n\n".join(sections) + "\n"


def _origin(settings: dict[str, Any], origin: dict[str, Any]) -> str:
    """Return the section about the files that the text was made from."""
    if "corpus" not in settings:
        digests = settings["text"]
        files = [(f"`{file}`", role, f"`{digests[role]}`") for role, file in origin["files"].items()]
        return "Made from\n\n" + _table(("file", "role", "SHA-256 of its text"), files)
    corpus, remote = CATALOG[settings["corpus"]], origin["files"]
    files = [(f"`{file['name']}`", f"{file['size']:,}", f"`{file['checksum']}`") for file in remote]
    test_sets = [f"`{text.name}` is {f'sacreBLEU’s {text.sacrebleu}' if text.sacrebleu else text.file}"
                 for text in corpus.held_out]  # fmt: skip
    return (
        f"Made from the data set `{corpus.repository}` of the Hugging Face hub at commit `{remote[0]['commit']}`:\n\n"
        + _table(("file", "bytes", "SHA-256, or Git's SHA-1"), files)
        + f"\n\nHeld out: {'; '.join(test_sets)}."
    )


def _rules(cleaning: dict[str, Any]) -> str:
    """Return a table of the reasons and the values of their options."""
    rows = []
    for reason, meaning in REASONS.items():
        options = ", ".join(f"{name} {json.dumps(cleaning[name])}" for name in OPTIONS.get(reason, ()))
        rows.append((f"`{reason}`", meaning, options))
    return _table(("reason", "meaning", "settings"), rows)


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, ("---",) * len(columns), *rows])
