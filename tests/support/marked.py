"""A notation for texts with marks: `<m0>` and `</m0>` for a pair, `<m1/>` for a single mark; and a tokenizer."""

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from relattn_mt.documents.read import read_document
from relattn_mt.text.marked import Kind, Mark, Marked
from relattn_mt.tokens.tokenizer import SPACE_MARK, SpecialTokens

MARK = re.compile(r"<(/?)m(\d+)(/?)>")


def marked(notation: str, items: Sequence[int] | None = None) -> Marked:
    """Return a text of its notation. Numbers are indices of `items`, or items without them; others are text."""
    texts, marks, length, end = list[str](), list[Mark](), 0, 0
    for found in MARK.finditer(notation):
        number = int(found[2])
        if items is None or number < len(items):
            texts.append(notation[end : found.start()])
            length, end = length + len(texts[-1]), found.end()
            kind: Kind = "close" if found[1] else "single" if found[3] else "open"
            marks.append(Mark(length, kind, number if items is None else items[number]))
    return Marked("".join([*texts, notation[end:]]), tuple(marks))


def notation(text: Marked) -> str:
    """Return the notation of a text. Its items are numbered in their order."""
    numbers = {item: number for number, item in enumerate(items_of(text))}
    parts, end = list[str](), 0
    for mark in text.marks:
        name = f"m{numbers[mark.item]}"
        parts += [text.text[end : mark.at], {"open": f"<{name}>", "close": f"</{name}>"}.get(mark.kind, f"<{name}/>")]
        end = mark.at
    return "".join([*parts, text.text[end:]])


def items_of(text: Marked) -> list[int]:
    return list(dict.fromkeys(mark.item for mark in text.marks))


class Notated:
    """A document whose texts are in the notation.

    Args:
        document: The document.
    """

    def __init__(self, document: Any) -> None:
        self._document = document
        self.texts = [notation(text) for text in document.texts]

    def fill(self, translations: Sequence[str]) -> Any:
        sources = zip(translations, self._document.texts, strict=True)
        return self._document.fill([marked(each, items_of(source)) for each, source in sources])


class _Pieces:
    """Pieces of `Characters` by id; none of them is iterated."""

    def __getitem__(self, i: int) -> str:
        return SPACE_MARK if i == ord(" ") else chr(i)

    def __iter__(self) -> Iterator[str]:
        return iter(())


class Characters:
    """Tokenizer whose pieces are characters."""

    special = SpecialTokens()
    vocabularies = (_Pieces(), _Pieces())
    vocab_sizes = (sys.maxunicode + 1,) * 2

    def encode(self, line: str) -> list[int]:
        return [ord(character) for character in line]

    encode_target = encode

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))

    def normalize(self, line: str) -> str:
        return line


def read(name: str, content: bytes) -> Notated:
    """Read a file of up to 10 million characters."""
    return Notated(read_document(name, content, 10_000_000))
