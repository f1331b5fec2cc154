"""Markdown files: the text of paragraphs, headings, list items and cells of tables.

markdown-it-py divides a file into blocks. Code, HTML, front matter, definitions of links and everything around the text
stay as they are. In a text, emphasis and links are tags around words; code, addresses, images, mathematics and HTML are
single tags. A paragraph that its translation changes becomes one line per hard line break.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

from markdown_it import MarkdownIt
from markdown_it.common.utils import normalizeReference

from relattn_mt.documents.lexer import TokenText, divided
from relattn_mt.text.marked import Marked, pair_tags
from relattn_mt.text.patterns import BLOCK, CODE, WEB_ADDRESS

_FRONT = re.compile(r"\A(---|\+\+\+)[ \t]*\r?\n(?:.*\n)*?(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z)")
_LINE_ENDS = re.compile(r"(?<=\n)|(?<=\r)(?!\n)")
_ADDRESS = r"(?:<[^<>\n]*>|(?:[^()\s<]|\([^()\s]*\))*)"
_TITLE = r"""(?:\s+(?:"[^"]*"|'[^']*'|\([^()]*\)))?"""
_PLACE = rf"\(\s*{_ADDRESS}{_TITLE}\s*\)|\[[^\[\]]*\]"
_ESCAPE = re.compile(r"\\[!-/:-@\[-`{-~]")
_ADMONITION = r"(?:\[![\w-]+\]|!!!|\?\?\?|:::|===(?= [\x22]))"  # the line that begins a note
_NOTE = re.compile(r"^([ \t]*)(?=(?:!!!|\?\?\?\+?|===)[ ]+[\w\x22])", re.MULTILINE)
# of MDX: statements of several lines, which end where a bracket is closed at the beginning of a line
_CODE = re.compile(
    r"^(?:import\b|export (?:const|let|var|default|(?:async )?function|class|type|interface)\b|export (?=[{*]))"
    r"[^\n]*[\[({][ \t\r]*\n(?:(?![\])}]|import\b|export\b)[^\n]*\n)*+"
    r"[\])}]++[^\n\w]*+(?:from\b[^\n]*)?$",
    re.MULTILINE,
)
_INLINE = re.compile(
    rf"(?P<code>{'|'.join(CODE)})"
    rf"|(?P<escape>{_ESCAPE.pattern})"
    rf"|(?P<break>(?:(?<! ) {{2,}}|\\)\n[ \t]*|\A{_ADMONITION}[^\n]*(?:\n|\Z)"
    r"|\n:::[ \t]*\Z|(?:\A|\n)\[\^[^\[\]\s]+\]:|\n[:~][ \t]+|\n(?=\*\[[^\[\]]+\]:)"
    r"|(?:\A|\n)\{[{%<][^\n]*[}%>]\}[ \t]*(?:\n|\Z)"
    # of MDX
    r"|(?:\A|\n)(?:import\b[^\n]*['\"][^'\"\n]+['\"];?|export\s+(?:const|let|var|function|class|default|[*{])[^\n]*)"
    r"[ \t]*(?=\n|\Z))"
    r"|(?P<single>(?<!`)(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)"
    r"|\$\$[^$]+\$\$|\$(?![\s$])[^$\n]*(?<!\s)\$(?!\d)"
    rf"|!\[[^\[\]]*\](?:{_PLACE})|\[\^[^\[\]\s]+\]|\A\[[ xX]\](?=\s)"
    rf"|{WEB_ADDRESS}|<https?://[^<>\s]*>|:[a-z0-9_+-]+:(?!\w))"
    r"|(?P<reference>\[[^\[\]]+\](?:\[\])?(?![\[(]))"
    rf"|(?P<open>\[)|(?P<close>\](?:{_PLACE}))"
    r"|(?P<tag></?[A-Za-z][^<>]*>|<!--(?:(?!<!--).)*?-->)"
    r"|(?P<mark>\*+|(?<![^\W_])_+|_+(?![^\W_])|~~)",
    re.DOTALL,
)
_NAME = re.compile(r"<(/?)([A-Za-z][\w-]*)")
_SOFT_BREAK = re.compile(r"(?<![ \t])[ \t]*\n[ \t]*")
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.*?)[ \t]*#*[ \t]*\r?$", re.MULTILINE)
_FENCED = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?^ {0,3}\1", re.MULTILINE | re.DOTALL)
_ANCHOR = re.compile(r"""(\]\(<?#|\]:[ \t]*<?#|\shref=["']?#)([^\s()<>"']+)""")
_SPECIAL = "\\`*_[]<$|"
_BLOCK = re.compile(r"(\d{1,9})(?=[.)](?:\s|$))|(?=[-+#>=]|~{3})")  # at the beginning of a line


@dataclass(frozen=True)
class _Token:
    """A piece of text, or a tag (`text` is None), and its range in the file."""

    text: str | None
    begin: int
    end: int
    name: str = ""  # of a tag that may be one of a pair
    is_closing: bool = False


class Markdown:
    """Markdown file whose texts can be replaced.

    Args:
        content: The file.

    Attributes:
        texts: Texts to translate.
    """

    def __init__(self, content: str) -> None:
        self._content = content
        self._segments: list[tuple[Sequence[_Token], TokenText]] = []
        for lines, references in _texts(content):
            for segment in chain.from_iterable(map(_divided, filter(None, _segments(lines, content, references)))):
                tags = [(i, each.name, each.is_closing) for i, each in enumerate(segment) if each.name]
                tokens = [each.text for each in segment]
                sources = [content[each.begin : each.end] for each in segment]
                breaks = {i for i, text in enumerate(tokens) if text is None and BLOCK.fullmatch(sources[i])}
                tagged = TokenText(tokens, pair_tags(tags), breaks)
                self._segments.append((segment, tagged))
        self.texts = [text for _, each in self._segments for text in each.texts]

    def fill(self, translations: Sequence[Marked]) -> str:
        """Return the file with its texts replaced."""
        remaining = iter(translations)
        parts = []
        done = 0
        for segment, text in self._segments:
            begin = segment[0].begin
            end = segment[-1].end
            sources = [self._content[each.begin : each.end] for each in segment]
            texts = "".join(source for source, each in zip(sources, segment, strict=True) if each.text is not None)
            plain = set(_ESCAPE.sub("", texts)) - set("".join(_ESCAPE.findall(texts)))  # what needs no escape here
            special = re.compile("[" + re.escape("".join(set(_SPECIAL) - plain)) + "]|&(?=#?\\w+;)")
            # opened: the name of emphasis that has no text yet, which would be text
            pieces = list[str]()
            opened = ""
            for piece in filter(lambda each: each != "", text.replaced(remaining)):
                name = segment[piece].name if isinstance(piece, int) and segment[piece].name[:1] in {*"*_~"} else ""
                if name and name == opened:
                    pieces.pop()
                else:
                    pieces.append(sources[piece] if isinstance(piece, int) else special.sub(r"\\\g<0>", piece))
                opened = name if name != opened else ""
            filled = "".join(pieces)
            if filled != "".join(sources):
                filled = _BLOCK.sub(r"\1\\", filled, count=1) if _BLOCK.match(filled) else filled
                parts += [self._content[done:begin], filled]
                done = end
        return _with_anchors(self._content, "".join([*parts, self._content[done:]]))


def _with_anchors(source: str, filled: str) -> str:
    """Return a translated file whose links to its headings have their new ids, if sites make them of the text."""
    ids, new_ids = map(_heading_ids, (source, filled))
    renamed = dict(zip(ids, new_ids, strict=False)) if len(ids) == len(new_ids) else {}
    return _ANCHOR.sub(lambda found: found[1] + renamed.get(found[2], found[2]), filled)


def _heading_ids(text: str) -> list[str]:
    """Return the id of each heading, as GitHub and generators of sites make it."""
    ids = []
    counts: Counter[str] = Counter()
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        name = re.sub(r"\]\([^()]*\)|[^\w\s-]", "", heading.lower()).strip().replace(" ", "-")
        ids.append(f"{name}-{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return ids


def _texts(content: str) -> Iterator[tuple[list[tuple[int, int]], set[str]]]:
    """Yield the lines of each text, as ranges in the file, and the names of the links that the file defines."""
    front = _FRONT.match(content)
    offset = front.end() if front else 0
    source = content[offset:].replace("[^", "(^")  # a footnote is text, and not the definition of a link
    source = _CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)
    lines = _LINE_ENDS.split(source)
    begins = [offset, *accumulate(map(len, lines), initial=offset)][1:]
    environment: dict[str, dict[str, object]] = {}
    parser = MarkdownIt("commonmark").enable("table").disable("inline")
    done: dict[int, int] = {}  # where the last cell of a line of a table ended
    before = ""
    # To the parser, a note is an item of a list, so that indented text after a blank line belongs to it.
    for token in parser.parse(_NOTE.sub(r"\1-   ", source), environment):
        kind = before
        before = token.type
        if token.type != "inline" or token.map is None:
            continue
        found = []
        for number, part in enumerate(token.content.split("\n"), start=token.map[0]):
            text = part.strip()
            line = lines[number].rstrip()
            if kind in ("th_open", "td_open"):
                place = line.find(text, done.get(number, 0))
            else:
                place = line.rfind(text) if kind == "heading_open" else len(line) - len(text)
            if not text or place < 0 or not line.startswith(text, place):
                break  # the parser has changed it, such as a tab
            done[number] = place + len(text)
            begin = begins[number] + place
            found.append((begin, begin + len(text) + len(part) - len(part.rstrip())))
        else:
            yield found, set(environment.get("references", ()))


def _segments(lines: Sequence[tuple[int, int]], content: str, references: set[str]) -> Iterator[list[_Token]]:
    """Yield the tokens of a text, of ranges in the file, between hard line breaks. `references` are names of links."""
    text = "\n".join(content[begin:end] for begin, end in lines)
    starts = [0, *accumulate(end - begin + 1 for begin, end in lines)][:-1]  # of each line in the text

    def place(offset: int) -> int:
        line = bisect_right(starts, offset) - 1
        return lines[line][0] + offset - starts[line]

    tokens: list[_Token] = []
    openings: list[int] = []  # tokens with "["
    marks: list[tuple[str, int]] = []  # kinds and tokens of open emphasis
    counts: Counter[str] = Counter()  # of open emphasis by kind
    done = 0

    def add_text(begin: int, end: int) -> None:
        if begin < end:
            plain = _SOFT_BREAK.sub(" ", html.unescape(text[begin:end]))
            tokens.append(_Token(plain, place(begin), place(end)))

    for found in _INLINE.finditer(text):
        kind, (begin, end), source = found.lastgroup, found.span(), found[0]
        if kind == "reference" and normalizeReference(source.removesuffix("[]")[1:-1]) not in references:
            continue
        name = ""
        is_closing = False
        if kind == "close":
            if not openings:
                continue
            name = f"[{openings.pop()}"
            is_closing = True
        elif kind == "tag" and (tag := _NAME.match(source)):
            name = "" if source.endswith("/>") else tag[2].lower()
            is_closing = bool(tag[1])
        elif kind == "mark":
            can_open = not text[end : end + 1].isspace() and end < len(text)
            can_close = begin > 0 and not text[begin - 1].isspace()
            if can_close and counts[source]:
                kept = ""
                number = 0
                while kept != source:  # those within it stay open, and are text
                    kept, number = marks.pop()
                    counts[kept] -= 1
                name = f"{source}{number}"
                is_closing = True
            elif not can_open:
                continue
        add_text(done, begin)
        done = end
        token = _Token(None, place(begin), place(end), name, is_closing)
        if kind == "escape":
            token = _Token(source[1], token.begin, token.end)
        elif kind == "break":
            yield _with_pairs(tokens)
            tokens = []
            openings = []
            marks = []
            counts = Counter()
            continue
        elif kind == "open":
            openings.append(len(tokens))
            token = replace(token, name=f"[{len(tokens)}")
        elif kind == "mark" and not is_closing:
            marks.append((source, len(tokens)))
            counts[source] += 1
            token = replace(token, name=f"{source}{len(tokens)}")
        tokens.append(token)
    add_text(done, len(text))
    yield _with_pairs(tokens)


def _divided(tokens: Sequence[_Token]) -> Iterator[Sequence[_Token]]:
    """Yield the parts of a text between words that touch. Emphasis divides no word."""
    tags = [(i, each.name, each.is_closing) for i, each in enumerate(tokens) if each.name]
    kinds = {"[": "a", **dict.fromkeys("*_~", "b")}
    tags = [(i, kinds.get(name[0], name), is_closing) for i, name, is_closing in tags]
    for begin, end, _ in divided([each.text for each in tokens], tags):
        yield tokens[begin:end]


def _with_pairs(tokens: Sequence[_Token]) -> list[_Token]:
    """Return tokens in which an opening bracket or mark that is not closed is text. Text that touches is joined."""
    counts = Counter(each.name for each in tokens)
    joined: list[_Token] = []
    for token in tokens:
        text = token.text
        if token.name and token.name[0] in "[*_~" and counts[token.name] == 1:
            text = token.name.rstrip("0123456789")
        if text is not None and joined and joined[-1].text is not None:
            joined[-1] = _Token(joined[-1].text + text, joined[-1].begin, token.end)
        else:
            joined.append(token if text == token.text else _Token(text, token.begin, token.end))
    return joined
