"""A text with marks: what a document has between its words, such as the tags of a page, beside the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["open", "close", "single", "space"]
PAIRED = ("open", "close")
MARK = "\N{OBJECT REPLACEMENT CHARACTER}"  # returned for a mark where a character is asked for


class Mark(NamedTuple):
    """A place in a text at which something stands that is not text.

    Attributes:
        at: Number of characters before it.
        kind: "open" or "close" for one of a pair, "space" if it separates words, otherwise "single".
        item: What it stands for, a number that the document has chosen. The marks of a pair have the same.
    """

    at: int
    kind: Kind
    item: int


@dataclass(frozen=True)
class Marked:
    """A text with marks.

    Attributes:
        text: The characters.
        marks: The marks, in their order in the text.
    """

    text: str = ""
    marks: tuple[Mark, ...] = ()

    @property
    def head(self) -> str:
        """The first character; `MARK` if a mark is before it, and empty if there is neither."""
        return MARK if self.marks and self.marks[0].at == 0 else self.text[:1]

    @property
    def tail(self) -> str:
        """The last character; `MARK` if a mark is after it, and empty if there is neither."""
        return MARK if self.marks and self.marks[-1].at == len(self.text) else self.text[-1:]

    @property
    def pairs(self) -> dict[int, int]:
        """The marks of each pair by their index, in both directions."""
        return pair_tags([(i, m.item, m.kind == "close") for i, m in enumerate(self.marks) if m.kind in PAIRED])

    def part(self, begin: int, end: int, first: int, stop: int) -> Marked:
        """Return the characters from `begin` to before `end` with the marks from `first` to before `stop`."""
        marks = self.marks[first:stop]
        return Marked(self.text[begin:end], tuple([Mark(at - begin, kind, item) for at, kind, item in marks]))


def join(parts: Iterable[Marked | str]) -> Marked:
    """Return the parts of a text as one."""
    texts: list[str] = []
    marks: list[Mark] = []
    length = 0
    for part in parts:
        if isinstance(part, Marked):
            marks += [Mark(at + length, kind, item) for at, kind, item in part.marks]
            part = part.text
        texts.append(part)
        length += len(part)
    return Marked("".join(texts), tuple(marks))


def pair_tags(tags: Sequence[tuple[int, Hashable, bool]]) -> dict[int, int]:
    """Return the pairs of tags, in both directions. Pairs are nested; inner pairs come first.

    Args:
        tags: Number, name and whether it is a closing tag, of each tag that may belong to a pair.
    """
    partners: dict[int, int] = {}
    opened: list[tuple[Hashable, int]] = []
    counts: Counter[Hashable] = Counter()
    for number, name, is_closing in tags:
        if not is_closing:
            opened.append((name, number))
            counts[name] += 1
        elif counts[name]:
            other: Hashable = None
            while other != name:
                other, start = opened.pop()
                counts[other] -= 1
            partners |= {start: number, number: start}
    return partners
