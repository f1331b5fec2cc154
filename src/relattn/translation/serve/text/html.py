"""Extraction of the texts to translate from HTML, and insertion of their translations.

Text with inline elements (`<b>`, `<a href=…>`) is one text, with a placeholder tag such as `<m0>` for each element. A
translator that keeps tags moves the placeholders along with the words. For one that does not, each piece of text
between two tags is a separate text. Scripts, code and elements with `translate="no"` are left unchanged.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from bs4 import BeautifulSoup
from bs4.element import NavigableString, PageElement, PreformattedString, Tag

from relattn.translation.data.text_files import has_text
from relattn.translation.errors import reading, require

MAX_DEPTH = 100  # nested elements
MAX_TAGS = 50_000  # checked before parsing
MAX_PREFIX = 20  # characters in the names of placeholders
_CODE = "code", "kbd", "samp", "var"
_UNTRANSLATED = {*_CODE, "script", "style", "pre", "textarea", "svg", "math", "template", "noscript"}
_INLINE = {
    *_CODE,
    *("a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "data", "del", "dfn", "em", "font", "i", "img"),
    *("ins", "label", "mark", "q", "s", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u", "wbr"),
}
_SPACE = re.compile(r"[ \t\r\n\f]+")


class Markup:
    """HTML document or fragment whose texts can be replaced.

    Args:
        html: HTML, which may be malformed, as in a browser.
        keep_tags: whether text with inline elements is one text with placeholder tags, or one text per piece.

    Attributes:
        texts: texts to translate.

    Raises:
        InputError: the HTML cannot be parsed, or has too many elements or nested elements.
    """

    def __init__(self, html: str, *, keep_tags: bool) -> None:
        require(html.count("<") <= MAX_TAGS, f"HTML must have at most {MAX_TAGS:,} tags")
        with reading("html", "cannot be parsed"):
            self._soup = BeautifulSoup(html, "html.parser")
        self._keep_tags = keep_tags
        self._prefix = unused_prefix(html)
        self._locations: list[tuple[list[PageElement], dict[str, Any]]] = []  # nodes of a text, elements by placeholder
        self.texts: list[str] = []
        self._collect(self._soup, 0)

    def fill(self, translations: Sequence[str]) -> str:
        """Return the HTML with its texts replaced. This can be done once."""
        for (nodes, elements), translation in zip(self._locations, translations, strict=True):
            first, *remaining = nodes
            for node in remaining:  # before the new nodes are inserted, which bs4 would step over each time
                node.extract()
            first.replace_with(*self._parse(translation, elements))
        return self._soup.decode(formatter="minimal")

    def _collect(self, parent: Tag, depth: int) -> None:
        """Collect the texts of an element."""
        require(depth <= MAX_DEPTH, f"HTML must have at most {MAX_DEPTH} nested elements")
        for is_inline, group in groupby(parent.children, lambda node: _is_inline(node, 0)):
            run: list[Any] = list(group)
            nodes = [node for node in run if (has_text(_text(node)) if is_inline else not _is_untranslated(node))]
            is_text = any(isinstance(node, NavigableString) for node in nodes) or (is_inline and len(nodes) > 1)
            if self._keep_tags and is_text:
                elements: dict[str, Any] = {}
                self.texts.append("".join(self._with_placeholders(node, elements) for node in run))
                self._locations.append((run, elements))
                continue
            for node in nodes:
                if isinstance(node, Tag):
                    self._collect(node, depth + 1)
                else:
                    self.texts.append(_SPACE.sub(" ", str(node)))
                    self._locations.append(([node], {}))

    def _with_placeholders(self, node: PageElement, elements: dict[str, Any]) -> str:
        """Return the text of a node with placeholder tags, and add their elements to `elements`."""
        if isinstance(node, NavigableString) and not isinstance(node, PreformattedString):
            return _SPACE.sub(" ", str(node))
        name = f"{self._prefix}{len(elements)}"
        if not isinstance(node, Tag) or not has_text(_text(node)):
            elements[f"<{name}/>"] = node
            return f"<{name}/>"
        elements[f"<{name}>"] = node
        return f"<{name}>{''.join(self._with_placeholders(child, elements) for child in node.children)}</{name}>"

    def _parse(self, translation: str, elements: dict[str, Any]) -> list[PageElement]:
        """Return the nodes of a translation with placeholder tags. Any other tag in it is text."""
        top: list[PageElement] = []
        opened: list[tuple[str, Any]] = [("", top)]  # placeholder and node; new nodes are appended to the last node
        for part in filter(None, re.split(rf"(</?{self._prefix}\d+/?>)", translation)):
            _, node = opened[-1]
            start = part.replace("</", "<")
            if start not in elements:
                node.append(NavigableString(part))
            elif part.endswith("/>"):
                node.append(copy.copy(elements[part]))
            elif start == part:
                empty = elements[part].copy_self()  # its content would be copied once per nesting level
                node.append(empty)
                opened.append((part, empty))
            elif any(start == opened_tag for opened_tag, _ in opened):
                while opened.pop()[0] != start:
                    pass
        return top


def page_texts(pages: Sequence[str], keep_tags: bool) -> list[list[str]]:
    """Return the texts of each page."""
    return [Markup(page, keep_tags=keep_tags).texts for page in pages]


def fill_pages(
    pages: Sequence[str], keep_tags: bool, translations: Sequence[Sequence[Sequence[str]]]
) -> list[list[str]]:
    """Return the different translations of each page, given those of its texts, per page and best first."""
    return [
        list(dict.fromkeys(Markup(page, keep_tags=keep_tags).fill(texts) for texts in ranked))
        for page, ranked in zip(pages, translations, strict=True)
    ]


def unused_prefix(html: str) -> str:
    """Return a prefix for names of placeholders with which no tag of the HTML begins."""
    longest = max(map(len, re.findall(r"(?:[</]|lt;)(m+)", html)), default=0)
    require(longest < MAX_PREFIX, f"HTML must have no names that begin with {MAX_PREFIX} times the letter m")
    return "m" * (longest + 1)


def _is_inline(node: PageElement, depth: int) -> bool:
    """Return whether a node is text, or an inline element that contains only inline nodes."""
    if not isinstance(node, Tag):
        return True
    return node.name in _INLINE and depth < MAX_DEPTH and all(_is_inline(child, depth + 1) for child in node.children)


def _is_untranslated(node: Tag) -> bool:
    return node.name in _UNTRANSLATED or node.get("translate") == "no"


def _text(node: PageElement) -> str:
    """Return the text of a node that is to be translated."""
    if isinstance(node, PreformattedString):
        return ""
    if isinstance(node, Tag):
        return "" if _is_untranslated(node) else "".join(map(_text, node.children))
    return str(node)
