"""Statistics of a cleaned corpus."""

from __future__ import annotations

from dataclasses import dataclass, field

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

    def __str__(self) -> str:
        rows = {"read": self.read, "kept": self.kept}
        rows |= {reason: count for reason, count in self.dropped.items() if count}
        lines = []
        for name, count in rows.items():
            share = 100 * count / max(1, self.read)
            lines.append(f"{name:<10}{count:>13,}{share:>9.2f} %")
        for reason, examples in self.examples.items():
            if examples:
                lines += ["", f"{reason}: {REASONS[reason]}", *(f"  {example}" for example in examples)]
        return "\n".join(lines)


def _shortened(text: str) -> str:
    """Return the beginning of a text, with escapes in place of characters that cannot be printed."""
    start = text[: _EXAMPLE_LENGTH + 1]
    return one_line(start, _EXAMPLE_LENGTH) if start else ""
