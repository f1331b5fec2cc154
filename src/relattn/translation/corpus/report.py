"""What became of a corpus's pairs: how many stayed, how many were dropped and why, with examples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from relattn.translation.corpus.filters import REASONS
from relattn.translation.errors import one_line

_EXAMPLES = 3  # kept of each reason
_SHOWN = 100  # characters of a side


class Example(NamedTuple):
    """A pair that was dropped: its number in the corpus, from 1, and its sides, shortened."""

    number: int
    src: str
    tgt: str


@dataclass
class Account:
    """What became of pairs, which are told one by one or joined from accounts of consecutive ones.

    Attributes:
        kept: pairs that stayed.
        dropped: pairs by reason.
        examples: the first few of each reason.
    """

    kept: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    examples: dict[str, list[Example]] = field(default_factory=lambda: {reason: [] for reason in REASONS})

    @property
    def read(self) -> int:
        """All pairs."""
        return self.kept + sum(self.dropped.values())

    def drop(self, reason: str, number: int, src: str, tgt: str) -> None:
        """Count a pair that is dropped."""
        self.dropped[reason] += 1
        if len(self.examples[reason]) < _EXAMPLES:
            self.examples[reason].append(Example(number, _shown(src), _shown(tgt)))

    def add(self, others: Account) -> None:
        """Take in the account of the pairs that follow."""
        self.kept += others.kept
        for reason in REASONS:
            self.dropped[reason] += others.dropped[reason]
            room = _EXAMPLES - len(self.examples[reason])
            self.examples[reason] += others.examples[reason][:room]

    def as_json(self) -> dict[str, Any]:
        """The account as `from_json` reads it."""
        return {"kept": self.kept, "dropped": self.dropped, "examples": self.examples}

    @staticmethod
    def from_json(content: dict[str, Any]) -> Account:
        """An account that `as_json` made."""
        examples = {reason: [Example(*e) for e in content["examples"][reason]] for reason in REASONS}
        return Account(content["kept"], {reason: content["dropped"][reason] for reason in REASONS}, examples)

    def table(self) -> list[tuple[str, str, str]]:
        """Rows of what, how many pairs, and their share of those read; reasons that dropped none are left out."""
        rows = [("read", self.read), ("kept", self.kept)]
        rows += [(reason, count) for reason, count in self.dropped.items() if count]
        return [(name, f"{count:,}", f"{100 * count / max(1, self.read):.2f} %") for name, count in rows]

    def __str__(self) -> str:
        lines = [f"{name:<10}{count:>13}{share:>11}" for name, count, share in self.table()]
        for reason, examples in self.examples.items():
            if examples:
                lines += ["", f"{reason}: {REASONS[reason]}"]
                lines += [f"  {number}: {src} ||| {tgt}" for number, src, tgt in examples]
        return "\n".join(lines)


def _shown(text: str) -> str:
    """The beginning of a text, with an escape for each character that has no shape."""
    start = text[: _SHOWN + 1]
    return one_line(start, _SHOWN) if start else ""
