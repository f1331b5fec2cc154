"""XLIFF files, versions 1.2 and 2: the source of each unit without a translation is a text, which fills its target."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from relattn_mt.documents.html import Markup, Rules, Token, characters, escape, tokens_of
from relattn_mt.documents.lexer import Message, with_letters
from relattn_mt.support.errors import require
from relattn_mt.support.types import Span
from relattn_mt.text.marked import Marked
from relattn_mt.text.patterns import markup_pattern

_INLINE = frozenset({"g", "pc", "mrk"})
_SPACES = frozenset({"x", "ph"})
_RULES = Rules(paragraphs=frozenset({"source"}), inline=_INLINE, spaces=_SPACES)
_SEGMENTS = Rules(paragraphs=frozenset({"mrk"}), inline=_INLINE, spaces=_SPACES)  # of a source that was segmented
_TAG = re.compile(r"</?[A-Za-z][^<>]*>|&#?\w+;")
_UNITS = {"trans-unit", "segment"}
# States of a target that is filled although it is not empty.
_TO_TRANSLATE = {"new", "needs-translation", "needs-l10n", "needs-adaptation"}
_QUALIFIERS = {"state-qualifier", "substate"}
_NAME = re.compile(r"\s+[^\s=]+\s*=\s*\Z")  # of an attribute
_KEEPS_SPACE = {"default": False, "preserve": True}  # by the value of xml:space


@dataclass
class _Element:
    """Element that is open, with the ranges of tokens of its children `source`, `seg-source` and `target`."""

    name: str
    begin: int
    is_translated: bool
    keeps_space: bool
    children: dict[str, Span] = field(default_factory=dict)


class Xliff:
    """XLIFF file whose targets can be filled. Targets with a text are left unchanged, unless their state is initial.

    The state of what was filled, if it has one, becomes "translated". So it is left unchanged when the filled file is
    translated again.

    Args:
        content: The file.

    Attributes:
        texts: Texts to translate.

    Raises:
        InputError: The file is not XLIFF.
    """

    def __init__(self, content: str) -> None:
        self._tokens = list(tokens_of(content, True))
        root = next((token.name for token in self._tokens if token.name), "")
        require(root == "xliff", f"the file must be XLIFF without namespace prefixes, got {root[:40] or 'no element'}")
        tools = [token.get("tool-id") or "" for token in self._tokens if token.name == "tool"]
        self._is_lines = any(tool.startswith("com.apple.") for tool in tools)  # an end of a line is one of the string
        self._units = [(unit, self._read(unit)) for unit in _units(self._tokens)]
        self.texts = [text for _, source in self._units for text in source.texts]

    def fill(self, translations: Sequence[Marked]) -> str:
        """Return the file with its targets filled."""
        sources = [token.source for token in self._tokens]
        remaining = iter(translations)
        for unit, source in self._units:
            own = list(islice(remaining, len(source.texts)))
            if isinstance(source, Message):
                self._set_target(sources, unit, escape(source.fill(iter(own))))
            elif own:
                filled = source.fill(own)
                self._set_target(sources, unit, filled[filled.index(">") + 1 : filled.rindex("</")])
        return "".join(sources)

    def _read(self, unit: _Element) -> Markup | Message:
        """Return the texts of a source. One with tags that are escaped or in CDATA is like a string of a program."""
        begin, end = unit.children.get("seg-source", (0, 0))
        is_segmented = any(token.get("mtype") == "seg" for token in self._tokens[begin:end])
        if not is_segmented:
            begin, end = unit.children["source"]
        tokens = self._tokens[begin + 1 : end - 1]
        text = "".join(characters(token.source) for token in tokens)
        if _TAG.search(text) and all(token.is_text for token in tokens):
            return Message(with_letters(text), markup_pattern())
        source = "".join(token.source for token in self._tokens[begin:end])
        own = _KEEPS_SPACE.get(self._tokens[begin].get("xml:space") or "", unit.keeps_space or self._is_lines)
        return Markup(source, _SEGMENTS if is_segmented else _RULES, keeps_space=own)

    def _set_target(self, sources: list[str], unit: _Element, text: str) -> None:
        """Replace the source of a target, or write one after the source of the unit, with the same indentation."""
        sources[unit.begin] = _as_translated(self._tokens[unit.begin])
        if "target" in unit.children:
            begin, end = unit.children["target"]
            target = self._tokens[begin]
            tag = _as_translated(target).removesuffix("/>").removesuffix(">").rstrip()
            sources[begin:end] = [f"{tag}>{text}</{target.name}>", *[""] * (end - begin - 1)]
            return
        begin, end = unit.children["source"]
        before = self._tokens[begin - 1]
        space = before.source if before.is_text and not before.source.strip() else ""
        _, end = unit.children.get("seg-source", (begin, end))
        sources[end - 1] += f"{space}<target>{text}</target>"


def _as_translated(token: Token) -> str:
    """Return the source of a tag whose state, if it has one, is "translated". What qualified the state is removed."""
    source = token.source
    if token.get("state") is None:
        return source
    for name, _, begin, end in reversed(token.attributes):
        if name == "state":
            source = f'{source[:begin]}"translated"{source[end:]}'
        elif name in _QUALIFIERS:
            source = _NAME.sub("", source[:begin]) + source[end:]
    return source


def _text(tokens: Sequence[Token]) -> str:
    return "".join(token.source for token in tokens if token.is_text)


def _units(tokens: Sequence[Token]) -> Iterator[_Element]:
    """Yield each unit to translate."""
    opened = [_Element("", 0, True, False)]
    for i, token in enumerate(tokens):
        outer = opened[-1]
        if token.is_closing:
            inner = opened.pop()
            require(inner.name == token.name, "XML must be well-formed")
            opened[-1].children.setdefault(token.name, (inner.begin, i + 1))
            if token.name in _UNITS and inner.is_translated and "source" in inner.children:
                target = tokens[slice(*inner.children.get("target", (0, 0)))]
                is_empty = not _text(target).strip()
                is_source = _text(target) == _text(tokens[slice(*inner.children["source"])])
                is_initial = tokens[inner.begin].get("state") == "initial" and is_source
                if is_empty or is_initial or target[0].get("state") in _TO_TRANSLATE:
                    yield inner
        elif token.is_void:
            outer.children.setdefault(token.name, (i, i + 1))
        elif token.name:
            is_translated = {"no": False, "yes": True}.get(token.get("translate") or "", outer.is_translated)
            space = _KEEPS_SPACE.get(token.get("xml:space") or "", outer.keeps_space)
            opened.append(_Element(token.name, i, is_translated, space))
    require(len(opened) == 1, "XML must be well-formed")
