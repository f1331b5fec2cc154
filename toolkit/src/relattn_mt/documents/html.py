"""Extraction of the texts to translate from HTML, and insertion of their translations.

The source is divided into tags, comments and text as in the HTML standard (section 13.2.5), and only what is translated
changes: text, and attributes that a reader sees. Text with inline elements (`<b>`, `<a href=…>`) is one text with
marks (`TokenText`). Scripts, code and elements with `translate="no"` or the class `notranslate` are left
unchanged. XML is read in the same way, with `Rules` that say which of its elements have text.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from relattn_mt.documents.lexer import FORMATS, INVALID, TextToken, TokenText, pairs_of
from relattn_mt.support.errors import require
from relattn_mt.text.marked import Marked
from relattn_mt.text.patterns import has_text

_CODE = "code", "kbd", "samp", "var"
_UNTRANSLATED = {*_CODE, "script", "style", "pre", "textarea", "svg", "math", "template"}
_RAW = {"script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes", "math"}  # tags inside are text
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"}
_INLINE = {
    *_CODE,
    "math",
    *FORMATS,
    *("a", "abbr", "acronym", "bdi", "bdo", "cite", "data", "dfn", "label", "q", "span", "time"),
}
_BLOCKS = "address article aside blockquote details dialog div dl fieldset figcaption figure footer form h1 h2 h3 h4"
_BLOCKS += " h5 h6 header hgroup hr main menu nav ol p pre search section table ul"
_ROWS = "tr tbody thead tfoot"
_CLOSED_BY = {  # elements whose end tag may be left out, and the start tags that close them
    "p": _BLOCKS,
    "li": "li",
    **dict.fromkeys(("dt", "dd"), "dt dd"),
    "option": "option optgroup",
    "optgroup": "optgroup",
    **dict.fromkeys(("td", "th"), f"td th {_ROWS}"),
    "tr": _ROWS,
    **dict.fromkeys(("tbody", "thead", "tfoot"), "tbody thead tfoot"),
    **dict.fromkeys(("rt", "rp"), "rt rp"),
}
_CLOSES = {name: frozenset(names.split()) for name, names in _CLOSED_BY.items()}
_VISIBLE = {"title", "alt", "placeholder", "label", "abbr", "aria-label"}  # attributes with text
_BUTTONS = {"button", "submit", "reset"}  # inputs whose value is text
_META = {"description", "keywords", "og:title", "og:description", "twitter:title", "twitter:description"}
_CDATA = "<![CDATA["
_SPACE = re.compile(r"[ \t\r\n\f]+")
_NAME = re.compile(r"</?([A-Za-z][^\s/>]*)")
_ATTRIBUTE = re.compile(r"""[\s/]*([^\s/>][^\s/>=]*)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s>"'][^\s>]*))?""")
_LETTER = re.compile(r"[^\W\d_]")
_TAG_END = re.compile(r"[\s/]*>")
_COMMENT = r"<!--(?:-?>|.*?(?:--!?>|\Z))|<(?:[!?]|/(?=.))[^>]*>?"  # and declarations
_SECTION = r"<!\[CDATA\[.*?(?:\]\]>|\Z)|<(?=\?).*?(?:\?>|\Z)"  # and processing instructions
_OF_HTML = re.compile(_COMMENT, re.DOTALL)
_OF_XML = re.compile(f"{_SECTION}|{_COMMENT}", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules for finding the texts of XML.

    Attributes:
        paragraphs: Elements that contain text. An element inside a paragraph that is none of the following is an
            object: a tag stands for it in the text, and it may contain paragraphs.
        inline: Elements around words.
        breaks: Elements across which no text moves.
        spaces: Elements that separate words.
        skipped: Elements whose contents are left unchanged.
    """

    paragraphs: frozenset[str]
    inline: frozenset[str] = frozenset()
    breaks: frozenset[str] = frozenset()
    spaces: frozenset[str] = frozenset()
    skipped: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Token:
    """A tag, a comment or a piece of text.

    Attributes:
        source: As it is in the document.
        name: Name of a tag, in lower case in HTML; empty for anything else.
        is_closing: Whether it is an end tag.
        is_void: Whether it is a tag without an end tag.
        is_text: Whether it is a piece of text.
        attributes: Lower-case name, value, and its range in the source with quotes, of each attribute with a value.
    """

    source: str
    name: str = ""
    is_closing: bool = False
    is_void: bool = False
    is_text: bool = False
    attributes: list[tuple[str, str, int, int]] = field(default_factory=list)

    def get(self, name: str) -> str | None:
        """Return the value of an attribute."""
        return next((value for each, value, *_ in self.attributes if each == name), None)


class Markup:
    """HTML document or fragment whose texts can be replaced.

    Args:
        source: HTML, which may be malformed, as in a browser.
        rules: Rules of XML; None for HTML.
        is_xml: Whether it is XHTML, with the texts of HTML.
        keeps_space: Whether ends of lines and runs of spaces are text.

    Attributes:
        texts: Texts to translate: those of the document, and then those of attributes.

    Raises:
        InputError: XML is not well-formed.
    """

    def __init__(
        self, source: str, rules: Rules | None = None, *, is_xml: bool = False, keeps_space: bool = False
    ) -> None:
        self._tokens = list(tokens_of(source, is_xml or rules is not None))
        self._runs: list[tuple[list[range], TokenText]] = []  # tokens of each part of a text, and the text
        self._attributes: list[tuple[int, int, int]] = []  # token, and range of a value in its source
        self.texts: list[Marked] = []
        translated = [True] * len(self._tokens) if rules else list(_translated(self._tokens))
        separating = {"img"} if rules is None else rules.spaces

        def part_of_text(part: range) -> TextToken:
            token = self._tokens[part.start]
            if token.is_text and translated[part.start]:
                text = characters(token.source)
                return TextToken(text if keeps_space else _SPACE.sub(" ", text))
            is_single = token.is_void or len(part) > 1
            name = "" if is_single else token.name
            return TextToken(name=name, is_closing=token.is_closing, is_space=token.name in separating)

        fewest = 1 if rules else 2  # in HTML, one tag divides no sentence
        for run in _runs_of_xml(self._tokens, rules) if rules else _runs(self._tokens):
            parts = [part_of_text(part) for part in run]
            for indices in _balanced(parts, fewest):
                text = TokenText([parts[i] for i in indices])
                self._runs.append(([run[i] for i in indices], text))
                self.texts += text.texts
        if rules is None:
            self._add_attributes(translated)

    def _add_attributes(self, translated: Sequence[bool]) -> None:
        for i, token in enumerate(self._tokens):
            for name, value, begin, end in token.attributes:
                if translated[i] and has_text(value) and _is_visible(token, name):
                    self._attributes.append((i, begin, end))
                    self.texts.append(Marked(_SPACE.sub(" ", value)))

    def attributes(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the value of each attribute."""
        for token in self._tokens:
            for name, value, *_ in token.attributes:
                yield name, value

    def fill(self, translations: Sequence[Marked]) -> str:
        """Return the HTML with its texts replaced. What a translation does not change stays as it is."""
        count = len(self.texts) - len(self._attributes)
        sources = [token.source for token in self._tokens]
        changed = zip(self._attributes, self.texts[count:], translations[count:], strict=True)
        for (i, begin, end), before, translation in reversed(list(changed)):
            if translation != before:
                value = f'"{html.escape(translation.text)}"'
                sources[i] = sources[i][:begin] + value + sources[i][end:]
        remaining = iter(translations)
        for parts, text in self._runs:  # that of an object is before that around it
            filled = text.fill(remaining, ["".join(sources[part.start : part.stop]) for part in parts], escape)
            begin = parts[0].start
            end = parts[-1].stop
            sources[begin:end] = [filled, *[""] * (end - begin - 1)]
        return "".join(sources)


xhtml = partial(Markup, is_xml=True)


def escape(text: str) -> str:
    """Return the source of a text in HTML or XML."""
    return html.escape(INVALID.sub("", text), quote=False)


def page_texts(pages: Sequence[str]) -> list[list[Marked]]:
    """Return the texts of each page."""
    return [Markup(page).texts for page in pages]


def fill_pages(pages: Sequence[str], translations: Sequence[Sequence[Sequence[Marked]]]) -> list[list[str]]:
    """Return the different translations of each page, given those of its texts, per page and best first."""
    filled = []
    for page, ranked in zip(pages, translations, strict=True):
        markup = Markup(page)
        filled.append(list(dict.fromkeys(map(markup.fill, ranked))))
    return filled


def characters(source: str) -> str:
    """Return the characters of a piece of text, which may be a section of XML without entities."""
    if source.startswith(_CDATA):
        return source.removeprefix(_CDATA).removesuffix("]]>")
    return html.unescape(source)


def tokens_of(source: str, is_xml: bool) -> Iterator[Token]:
    """Yield the tokens of a document. Their sources are the whole document."""
    end = 0  # of the last token
    at = source.find("<")
    while at >= 0:
        token = _token_at(source, at, is_xml)
        if token is None:
            at = source.find("<", at + 1)
            continue
        if at > end:
            yield Token(source[end:at], is_text=True)
        yield token
        end = at + len(token.source)
        is_opening = not (token.is_closing or token.is_void)
        if is_opening and (token.name == "math" if is_xml else token.name in _RAW):
            begin = end
            end = re.compile(rf"</{token.name}(?=[\s/>])|\Z", re.IGNORECASE).search(source, begin).start()  # type: ignore[union-attr]
            if end > begin:
                yield Token(source[begin:end], is_text=token.name == "title")
        at = source.find("<", end)
    if end < len(source):
        yield Token(source[end:], is_text=True)


def _token_at(source: str, at: int, is_xml: bool) -> Token | None:
    """Return the tag or comment that begins at a "<", or None for text."""
    opening = _NAME.match(source, at)
    if opening is None:
        comment = (_OF_XML if is_xml else _OF_HTML).match(source, at)
        return comment and Token(comment[0], is_text=is_xml and comment[0].startswith(_CDATA))
    attributes = []
    end = opening.end()
    while (closing := _TAG_END.match(source, end)) is None:
        attribute = _ATTRIBUTE.match(source, end)
        if attribute is None or attribute.end() == len(source):  # the document ends in the tag
            return Token(source[at:])
        end = attribute.end()
        if attribute[2] is not None:
            value = attribute[2][1:-1] if attribute[2][0] in "\"'" else attribute[2]
            attributes.append((attribute[1].lower(), html.unescape(value), attribute.start(2) - at, end - at))
    tag = source[at : closing.end()]
    name = opening[1] if is_xml else opening[1].lower()
    is_void = tag[-2] == "/" if is_xml else name in _VOID
    return Token(tag, name, tag[1] == "/", is_void, attributes=attributes)


def _translated(tokens: Sequence[Token]) -> Iterator[bool]:
    """Yield for each token whether the element that it is in, or begins, is translated."""
    opened: list[tuple[str, bool]] = [("", True)]
    counts: Counter[str] = Counter()

    def close() -> None:
        counts[opened.pop()[0]] -= 1

    for token in tokens:
        if not token.name:
            yield opened[-1][1]
            continue
        if token.is_closing:
            yield opened[-1][1]
            while counts[token.name]:
                is_last = opened[-1][0] == token.name
                close()
                if is_last:
                    break
            continue
        while token.name in _CLOSES.get(opened[-1][0], ()):
            close()
        state = opened[-1][1]
        if token.name in _UNTRANSLATED or "notranslate" in (token.get("class") or "").split():
            state = False
        value = token.get("translate")
        if value is not None and value.lower() in ("", "yes", "no"):
            state = value.lower() != "no"
        yield state
        if not token.is_void:
            opened.append((token.name, state))
            counts[token.name] += 1


def _runs(tokens: Sequence[Token]) -> Iterator[list[range]]:
    """Yield the tokens between tags of elements that are not inline, each as a range."""
    begin = 0
    for i, token in enumerate([*tokens, Token("", name="end")]):
        if token.name and token.name not in _INLINE and not _is_in_sentence(tokens, i):
            yield [range(part, part + 1) for part in range(begin, i)]
            begin = i + 1


def _is_in_sentence(tokens: Sequence[Token], at: int) -> bool:
    """Return whether a tag is that of a button between words, as in Press the <button>Save</button> now."""
    if at == len(tokens) or tokens[at].name != "button":
        return False
    first = at - 2 if tokens[at].is_closing else at
    around = tokens[max(0, first - 1) : first + 4]
    is_alone = [each.is_text for each in around] == [True, False, True, False, True]
    return is_alone and all(_LETTER.search(each.source) for each in around[::2])


@dataclass
class _Opened:
    """Element of XML that is open: its name, its first token, the parts of its text so far, whether it is skipped."""

    name: str
    begin: int
    run: list[range] | None
    is_skipped: bool


def _runs_of_xml(tokens: Sequence[Token], rules: Rules) -> Iterator[list[range]]:
    """Yield the parts of each paragraph between breaks, each as a range of tokens. Those in an object come first."""
    opened = [_Opened("", 0, None, False)]
    for i, token in enumerate(tokens):
        outer = opened[-1]
        begin = i
        if token.is_closing:
            inner = opened.pop()
            require(inner.name == token.name, "XML must be well-formed")
            outer = opened[-1]
            if inner.run is not outer.run:
                begin = inner.begin
                if inner.run:
                    yield inner.run
        elif token.name and not token.is_void:
            is_kept = token.get("mtype") == "protected" or token.get("translate") == "no"  # of XLIFF
            is_skipped = outer.is_skipped or token.name in rules.skipped
            if token.name in rules.inline and outer.run is not None and not is_kept:
                opened.append(_Opened(token.name, i, outer.run, is_skipped))
            else:
                is_paragraph = token.name in rules.paragraphs and not is_skipped
                opened.append(_Opened(token.name, i, [] if is_paragraph else None, is_skipped))
                continue  # an object has its place when it ends
        if outer.run is None:
            continue
        if token.name in rules.breaks:
            yield outer.run
            outer.run.clear()
        else:
            outer.run.append(range(begin, i + 1))
    require(len(opened) == 1, "XML must be well-formed")


def _balanced(parts: Sequence[TextToken], fewest: int) -> Iterator[range]:
    """Yield the indices of the parts between tags without partners, so that elements stay nested.

    Fewer than `fewest` tags divide nothing.
    """
    tags = [i for i, part in enumerate(parts) if part.name]
    edges = [len(parts)]
    if len(tags) >= fewest:
        partners = pairs_of(parts, range(len(parts)))
        edges = [*(i for i in tags if i not in partners), len(parts)]
    begin = 0
    for edge in edges:
        if edge > begin:
            yield range(begin, edge)
        begin = edge + 1


def _is_visible(tag: Token, attribute: str) -> bool:
    """Return whether readers see the value of an attribute."""
    if attribute == "value":
        return tag.name == "input" and (tag.get("type") or "").lower() in _BUTTONS
    if attribute == "content":
        return tag.name == "meta" and (tag.get("name") or tag.get("property") or "").lower() in _META
    return attribute in _VISIBLE and not tag.is_closing
