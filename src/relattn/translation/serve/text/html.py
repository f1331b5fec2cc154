"""What is to be translated in a text with markup, and the markup around its translation.

A run of text with the elements inside it (`<b>`, `<a href=…>`) is one text, in which a mark stands for each of their
tags; a translator that keeps tags puts the marks where the words have gone. For one that does not, each piece of text
is a text of its own. What is no text for people (scripts, code, `translate="no"`) stays as it is.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence

from bs4 import BeautifulSoup
from bs4.element import NavigableString, PageElement, PreformattedString, Tag
from bs4.formatter import HTMLFormatter

from relattn.translation.errors import InputError, reading

DEEPEST = 100  # elements within elements
_UNTOUCHED = {"script", "style", "code", "pre", "kbd", "samp", "var", "textarea", "svg", "math", "template", "noscript"}
_WITHIN = {
    *("a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "data", "del", "dfn", "em", "font", "i", "img"),
    *("ins", "label", "mark", "q", "s", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u", "wbr"),
    *("code", "kbd", "samp", "var"),
}
_SPACE = re.compile(r"[ \t\r\n\f]+")


class Markup:
    """HTML, or a piece of it.

    Args:
        html: whatever a browser takes.
        marks: whether a run of text is one text with marks, or each piece of it one of its own.

    Attributes:
        texts: what is to be translated.

    Raises:
        InputError: it cannot be read, or elements are too deep within each other.
    """

    def __init__(self, html: str, *, marks: bool) -> None:
        with reading("html", "cannot be read"):
            self._soup = BeautifulSoup(html, "html.parser")
        self._marks = marks
        self._name = _unused(html)
        self._places: list[tuple[list[PageElement], list[PageElement]]] = []  # nodes of a run, elements by their marks
        self.texts: list[str] = []
        self._walk(self._soup, 0)

    def filled(self, translations: Sequence[str], *, escaped: bool = True) -> str:
        """The HTML with translations in the places of its texts. It can be filled once.

        Args:
            translations: one for each text.
            escaped: whether & and < in them are written as HTML does.
        """
        for (nodes, elements), translation in zip(self._places, translations, strict=True):
            first, *others = nodes
            for node in others:  # before what is new is there, which bs4 would step over for each
                node.extract()
            first.replace_with(*self._nodes(translation, elements))
        return self._soup.decode(formatter="minimal" if escaped else HTMLFormatter(None))

    def _walk(self, parent: Tag, depth: int) -> None:
        """Take the texts in an element."""
        if depth > DEEPEST:
            raise InputError(f"HTML of more than {DEEPEST} elements within each other")
        run: list[PageElement] = []
        for child in [*parent.children, None]:
            if child is not None and _runs_on(child, 0):
                run.append(child)
                continue
            self._take(run, depth)
            run = []
            if isinstance(child, Tag) and not _untouched(child):
                self._walk(child, depth + 1)

    def _take(self, run: list[PageElement], depth: int) -> None:
        """Take a run of text, if it has any."""
        words = [node for node in run if _text(node).strip()]
        if not words:
            return
        if len(words) == 1 and isinstance(words[0], Tag):  # no words around it
            self._walk(words[0], depth + 1)
        elif self._marks:
            elements: list[PageElement] = []
            self.texts.append("".join(self._written(node, elements) for node in run))
            self._places.append((run, elements))
        else:
            for node in words:
                if isinstance(node, Tag):
                    self._walk(node, depth + 1)
                else:
                    self.texts.append(_SPACE.sub(" ", str(node)))
                    self._places.append(([node], []))

    def _written(self, node: PageElement, elements: list[PageElement]) -> str:
        """A node as text, in which marks stand for elements."""
        if isinstance(node, NavigableString) and not isinstance(node, PreformattedString):
            return _SPACE.sub(" ", str(node))
        mark = f"{self._name}{len(elements)}"
        elements.append(node)
        if not isinstance(node, Tag) or not _text(node).strip():
            return f"<{mark}/>"
        return f"<{mark}>{''.join(self._written(child, elements) for child in node.children)}</{mark}>"

    def _nodes(self, translation: str, elements: list[PageElement]) -> list[PageElement]:
        """The nodes of a translation with marks."""
        top: list[PageElement] = []
        opened: list[tuple[int, Tag]] = []

        def put(node: PageElement) -> None:
            if opened:
                opened[-1][1].append(node)
            else:
                top.append(node)

        end = 0
        for mark in re.finditer(rf"<(/?){self._name}(\d+)(/?)>", translation):
            if mark.start() > end:
                put(NavigableString(translation[end : mark.start()]))
            end, number = mark.end(), int(mark[2])
            if mark[3]:
                put(copy.copy(elements[number]))
            elif mark[1]:
                while any(number == one for one, _ in opened) and opened.pop()[0] != number:
                    pass
            else:
                element = elements[number]
                assert isinstance(element, Tag)
                empty = element.copy_self()  # a copy would have all that is in it, of each element within each other
                put(empty)
                opened.append((number, empty))
        if end < len(translation):
            put(NavigableString(translation[end:]))
        return top


def _unused(text: str) -> str:
    """A name for marks that no tag in a text begins with."""
    name = "m"
    while f"<{name}" in text or f"/{name}" in text or f"lt;{name}" in text:
        name += "m"
    return name


def _runs_on(node: PageElement, depth: int) -> bool:
    """Whether a node stands within a run of text: text, or an element in which nothing else than such is."""
    if not isinstance(node, Tag):
        return True
    return node.name in _WITHIN and depth < DEEPEST and all(_runs_on(child, depth + 1) for child in node.children)


def _untouched(node: Tag) -> bool:
    return node.name in _UNTOUCHED or node.get("translate") == "no"


def _text(node: PageElement) -> str:
    """The text of a node that is to be translated."""
    if isinstance(node, PreformattedString):
        return ""
    if isinstance(node, Tag):
        return "" if _untouched(node) else "".join(map(_text, node.children))
    return str(node)
