"""Statistics of a cleaned corpus, and the data card that is written next to the text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from relattn_mt.corpus.filters import REASONS
from relattn_mt.support.errors import one_line

_EXAMPLES = 3  # per reason
_EXAMPLE_LENGTH = 100  # characters per side


@dataclass
class FilterStats:
    """Numbers of kept and dropped pairs.

    Attributes:
        kept: Number of pairs that were kept.
        dropped: Number of dropped pairs for each reason.
        examples: The first few dropped pairs for each reason, as "number: source ||| target" with numbers from 1.
    """

    kept: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    examples: dict[str, list[str]] = field(default_factory=lambda: {reason: [] for reason in REASONS})

    @property
    def read(self) -> int:
        """Number of all pairs."""
        return self.kept + sum(self.dropped.values())

    def drop(self, reason: str, number: int, src: str, tgt: str) -> None:
        """Count a dropped pair."""
        self.dropped[reason] += 1
        if len(self.examples[reason]) < _EXAMPLES:
            self.examples[reason].append(f"{number}: {_shortened(src)} ||| {_shortened(tgt)}")

    def add(self, following: FilterStats) -> None:
        """Add the statistics of the pairs that follow."""
        self.kept += following.kept
        for reason in REASONS:
            self.dropped[reason] += following.dropped[reason]
            self.examples[reason] = (self.examples[reason] + following.examples[reason])[:_EXAMPLES]

    def table(self) -> list[tuple[str, str, str]]:
        """Return rows of a name, a number of pairs and its share of all pairs; reasons without pairs are left out."""
        rows = [("read", self.read), ("kept", self.kept)]
        rows += [(reason, count) for reason, count in self.dropped.items() if count]
        return [(name, f"{count:,}", f"{100 * count / max(1, self.read):.2f} %") for name, count in rows]

    def __str__(self) -> str:
        lines = [f"{name:<10}{count:>13}{share:>11}" for name, count, share in self.table()]
        for reason, examples in self.examples.items():
            if examples:
                lines += ["", f"{reason}: {REASONS[reason]}", *(f"  {example}" for example in examples)]
        return "\n".join(lines)


def _shortened(text: str) -> str:
    """Return the beginning of a text, with escapes in place of characters that cannot be printed."""
    start = text[: _EXAMPLE_LENGTH + 1]
    return one_line(start, _EXAMPLE_LENGTH) if start else ""


def data_card(record: dict[str, Any]) -> str:
    """Return the data card as Markdown: origin of the text, rules, statistics, and checksums of the files."""
    settings = record["settings"]
    stats = FilterStats(**record["stats"])
    src, tgt = settings["languages"]
    sections = [f"# Parallel text: {src} to {tgt}, prepared"]
    sections.append(_origin(settings, record["origin"]))
    sections += ["## Dropped pairs", _table(("", "pairs", "share"), stats.table())]
    applicable = [reason for reason in REASONS if reason != "score" or "min_score" in settings["cleaning"]]
    reasons = [(f"`{reason}`", REASONS[reason]) for reason in applicable]
    sections += ["A pair is dropped for the first reason that applies:", _table(("reason", "meaning"), reasons)]
    options = [f"`{name}: {json.dumps(value)}`" for name, value in settings["cleaning"].items()]
    sections.append(f"Settings: {', '.join(options)}")
    for reason, examples in stats.examples.items():
        if examples:
            sections.append(f"The first pairs dropped as `{reason}`, with their numbers in the corpus:")
            sections.append("\n".join(f"    {example}" for example in examples))
    files = [(f"`{name}`", f"{file['lines']:,}", f"`{file['sha256']}`") for name, file in record["files"].items()]
    sections += ["## Files", _table(("file", "lines", "SHA-256"), files)]
    return "\n\n".join(sections) + "\n"


def _origin(settings: dict[str, Any], origin: dict[str, Any]) -> str:
    """Return the section about the files that the text was made from."""
    digests = settings["text"]
    files = [(f"`{file}`", role, f"`{digests[role]}`") for role, file in origin["files"].items()]
    text = "Made from\n\n" + _table(("file", "role", "SHA-256 of its text"), files)
    return text + (_teacher(settings, origin["teacher"]) if "teacher" in settings else "")


def _teacher(settings: dict[str, Any], name: str) -> str:
    """Return how a synthetic side was made."""
    options = [f"`{name}: {json.dumps(value, ensure_ascii=False)}`" for name, value in settings["translation"].items()]
    table = _table(("model", "SHA-256 of its weights"), [(f"`{name}`", f"`{settings['teacher']}`")])
    return f"\n\nThe {settings['synthetic']} side is synthetic, translated by\n\n{table}\n\nwith {', '.join(options)}"


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, ("---",) * len(columns), *escaped])
