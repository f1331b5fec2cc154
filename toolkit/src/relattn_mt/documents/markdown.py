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
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

from markdown_it import MarkdownIt
from markdown_it.common.utils import normalizeReference
from markdown_it.token import Token as Block

from relattn_mt.documents.lexer import TextPart, TextToken, TokenText
from relattn_mt.support.types import Span
from relattn_mt.text.marked import Marked
from relattn_mt.text.patterns import BLOCK, CODE, WEB_ADDRESS

# Unlike a thematic break, the opening mark of YAML has no blank line after it.
_FRONT = re.compile(
    r"\A(---(?!\s*?\n\s*?\n(?!\s*[\w-]+:\s))|\+\+\+)[ \t]*\r?\n(?:.*\n)*?(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z)"
)
_LINE_ENDS = re.compile(r"(?<=\n)|(?<=\r)(?!\n)")
_ADDRESS = r"(?:<[^<>\n]*>|(?:[^()\s<]|\([^()\s]*\))*)"
_TITLE = r"""(?:\s+(?:"[^"]*"|'[^']*'|\([^()]*\)))?"""
_PLACE = rf"\(\s*{_ADDRESS}{_TITLE}\s*\)|\[[^\[\]]*\]"
# code within a paragraph: between two runs of as many backticks
_TICKS = r"(?<!`)(?P<ticks>`++)(?:[^`\n]++|\n(?!\s*?\n)|(?!(?P=ticks)(?!`))`++)*+(?P=ticks)"
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
    rf"|(?P<single>{_TICKS}"
    r"|\$\$[^$]+\$\$|\$(?![\s$])[^$\n]*(?<!\s)\$(?!\d)"
    rf"|!\[[^\[\]]*\](?:{_PLACE})|\[\^[^\[\]\s]+\]|\A\[[ xX]\](?=\s)"
    rf"|{WEB_ADDRESS}|<https?://[^<>\s]*>|:[a-z0-9_+-]+:(?!\w))"
    r"|(?P<reference>\[[^\[\]]+\](?:\[\])?(?![\[(]))"
    rf"|(?P<open>\[)|(?P<close>\](?:{_PLACE}))"
    r"|(?P<tag></?[A-Za-z][^<>]*>|<!--(?:(?!<!--).)*?-->)"
    # Longer runs are text, such as a blank to fill in.
    r"|(?P<mark>(?<!\*)\*{1,3}(?!\*)|(?<!_)_{1,3}(?!\w)|(?<!\w)_{1,3}(?!_)|(?<!~)~~(?!~))",
    re.DOTALL,
)
# beginnings of names of tags, which a number follows
_LINK = "a "
_EMPHASIS = "b "
_NAME = re.compile(r"<(/?)([A-Za-z][\w-]*)")
_SOFT_BREAK = re.compile(r"(?<![ \t])[ \t]*\n[ \t]*")
_ANCHOR = re.compile(
    rf"(?P<code>{'|'.join(CODE)}|{_ESCAPE.pattern}|{_TICKS})"
    r"""|(?P<link>\]\(<?#|\]:[ \t]*<?#|\shref=["']?#)(?P<id>[^\s()<>"']+)""",
    re.DOTALL,
)
_SPECIAL = "\\`*_[]<$|"
_BLOCK = re.compile(r"(\d{1,9})(?=[.)](?:\s|$))|(?=[-+#>=]|~{3})")  # at the beginning of a line


@dataclass(frozen=True, kw_only=True)
class _Token(TextToken):
    """Token with its range in the file."""

    begin: int
    end: int


class Markdown:
    """Markdown file whose texts can be replaced.

    Args:
        content: The file.

    Attributes:
        texts: Texts to translate.
    """

    def __init__(self, content: str) -> None:
        self._content = content
        self._parts: list[tuple[Sequence[_Token], TextPart]] = []
        lines, begins, blocks, references = _parsed(content)
        self._ids = _heading_ids(blocks)
        for ranges in _texts(lines, begins, blocks):
            for tokens in filter(None, _segments(ranges, content, references)):
                self._parts += [(tokens, part) for part in TokenText(tokens).parts]
        self.texts = [text for _, part in self._parts for text in part.texts]

    def fill(self, translations: Sequence[Marked]) -> str:
        """Return the file with its texts replaced."""
        remaining = iter(translations)
        pieces = []
        done = 0
        for tokens, part in self._parts:
            texts = list(islice(remaining, len(part.texts)))
            if texts == part.texts:
                continue
            begin = tokens[part.indices.start].begin
            filled = self._filled(tokens, part, iter(texts))
            filled = _BLOCK.sub(r"\1\\", filled, count=1) if _BLOCK.match(filled) else filled
            pieces += [self._content[done:begin], filled]
            done = tokens[part.indices.stop - 1].end
        return _with_anchors("".join([*pieces, self._content[done:]]), self._ids)

    def _filled(self, tokens: Sequence[_Token], part: TextPart, translations: Iterator[Marked]) -> str:
        """Return the source of a part with the next translations in the places of its texts."""
        texts = "".join(self._source(tokens[i]) for i in part.indices if tokens[i].text is not None)
        plain = set(_ESCAPE.sub("", texts)) - set("".join(_ESCAPE.findall(texts)))  # what needs no escape here
        special = re.compile("[" + re.escape("".join(set(_SPECIAL) - plain)) + "]|&(?=#?\\w+;)")
        pieces: list[str] = []
        opened = ""  # name of emphasis that has no text yet
        for piece in part.replaced(translations):
            if piece == "":
                continue
            name = ""
            if isinstance(piece, str):
                pieces.append(special.sub(r"\\\g<0>", piece))
            else:
                pieces.append(self._source(tokens[piece]))
                name = tokens[piece].name if tokens[piece].name.startswith(_EMPHASIS) else ""
            if name and name == opened:  # both marks together would be text
                del pieces[-2:]
                name = ""
            opened = name
        return "".join(pieces)

    def _source(self, token: _Token) -> str:
        return self._content[token.begin : token.end]


def _with_anchors(filled: str, ids: Sequence[str]) -> str:
    """Return a translated file whose links to its headings have their new ids, if sites make them of the text."""
    if not ids:
        return filled
    _, begins, blocks, _ = _parsed(filled)
    new_ids = _heading_ids(blocks)
    renamed = dict(zip(ids, new_ids, strict=False)) if len(ids) == len(new_ids) else {}

    def with_new_id(found: re.Match[str]) -> str:
        return found["code"] or found["link"] + renamed.get(found["id"], found["id"])

    done = begins[0]
    pieces = [filled[:done]]
    for block in blocks:
        if block.map is None or block.type not in ("inline", "fence", "code_block"):
            continue
        begin, end = (begins[line] for line in block.map)
        if begin >= done:  # else another cell of the same row
            content = filled[begin:end]
            is_text = block.type == "inline"
            pieces += [_ANCHOR.sub(with_new_id, filled[done:begin])]
            pieces += [_ANCHOR.sub(with_new_id, content) if is_text else content]
            done = end
    return "".join([*pieces, _ANCHOR.sub(with_new_id, filled[done:])])


def _heading_ids(blocks: Sequence[Block]) -> list[str]:
    """Return the id of each heading, as GitHub and generators of sites make it."""
    ids = []
    counts: Counter[str] = Counter()
    for opening, block in pairwise(blocks):
        if opening.type != "heading_open":
            continue
        name = re.sub(r"\]\([^()]*\)|[^\w\s-]", "", block.content.lower()).strip()
        name = re.sub(r"\s", "-", name)
        ids.append(f"{name}-{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return ids


def _parsed(content: str) -> tuple[list[str], list[int], list[Block], set[str]]:
    """Return what is after the front matter: lines, where they begin in the file, blocks, names of links it defines."""
    front = _FRONT.match(content)
    offset = front.end() if front else 0
    source = content[offset:].replace("[^", "(^")  # a footnote is text, and not the definition of a link
    source = _CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)
    lines = _LINE_ENDS.split(source)
    begins = list(accumulate(map(len, lines), initial=offset))
    environment: dict[str, dict[str, object]] = {}
    parser = MarkdownIt("commonmark").enable("table").disable("inline")
    # To the parser, a note is an item of a list, so that indented text after a blank line belongs to it.
    blocks = parser.parse(_NOTE.sub(r"\1-   ", source), environment)
    return lines, begins, blocks, set(environment.get("references", ()))


def _texts(lines: Sequence[str], begins: Sequence[int], blocks: Sequence[Block]) -> Iterator[list[Span]]:
    """Yield the lines of each text, as ranges in the file."""
    done: dict[int, int] = {}  # where the last cell of a line of a table ended
    before = ""
    for token in blocks:
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
            yield found


def _segments(lines: Sequence[Span], content: str, references: set[str]) -> Iterator[list[_Token]]:
    """Yield the tokens of a text, of ranges in the file, between hard line breaks. `references` are names of links."""
    text = "\n".join(content[begin:end] for begin, end in lines)
    starts = [0, *accumulate(end - begin + 1 for begin, end in lines)][:-1]  # of each line in the text

    def place(offset: int) -> int:
        line = bisect_right(starts, offset) - 1
        return lines[line][0] + offset - starts[line]

    def token(begin: int, end: int, text: str | None, name: str = "", is_closing: bool = False) -> _Token:
        is_break = text is None and BLOCK.fullmatch(content[place(begin) : place(end)]) is not None
        return _Token(text, name, is_closing, is_break, begin=place(begin), end=place(end))

    def plain(begin: int, end: int) -> _Token:
        return token(begin, end, _SOFT_BREAK.sub(" ", html.unescape(text[begin:end])))

    tokens: list[_Token] = []
    opened = _OpenTags()
    done = 0
    for found in _INLINE.finditer(text):
        begin, end = found.span()
        kind = found.lastgroup
        if kind == "reference" and normalizeReference(found[0].removesuffix("[]")[1:-1]) not in references:
            continue
        if begin > done:
            tokens.append(plain(done, begin))
        done = end
        if kind == "break":
            yield _with_pairs(tokens, content)
            tokens = []
            opened = _OpenTags()
        elif kind == "escape":
            tokens.append(token(begin, end, found[0][1]))
        elif (tag := opened.tag(found, len(tokens))) is None:
            tokens.append(plain(begin, end))
        else:
            tokens.append(token(begin, end, None, *tag))
    if done < len(text):
        tokens.append(plain(done, len(text)))
    yield _with_pairs(tokens, content)


class _OpenTags:
    """Brackets of links and marks of emphasis that are open, by the numbers of their tokens."""

    def __init__(self) -> None:
        self._brackets: list[int] = []
        self._marks: list[tuple[str, int]] = []
        self._counts: Counter[str] = Counter()  # of open marks

    def tag(self, found: re.Match[str], number: int) -> tuple[str, bool] | None:
        """Return the name of a tag and whether it is a closing one; None if it is text."""
        match found.lastgroup:
            case "open":
                self._brackets.append(number)
                return f"{_LINK}{number}", False
            case "close":
                return (f"{_LINK}{self._brackets.pop()}", True) if self._brackets else None
            case "mark":
                return self._mark(found, number)
            case "tag" if (tag := _NAME.match(found[0])) and not found[0].endswith("/>"):
                return tag[2].lower(), bool(tag[1])
        return "", False

    def _mark(self, found: re.Match[str], number: int) -> tuple[str, bool] | None:
        """The same as `tag`, for a mark of emphasis."""
        source = found[0]
        begin, end = found.span()
        can_close = begin > 0 and not found.string[begin - 1].isspace()
        can_open = end < len(found.string) and not found.string[end].isspace()
        if can_close and self._counts[source]:
            kept = ""
            while kept != source:  # those within it stay open, and are text
                kept, number = self._marks.pop()
                self._counts[kept] -= 1
            return f"{_EMPHASIS}{number}", True
        if not can_open:
            return None
        self._marks.append((source, number))
        self._counts[source] += 1
        return f"{_EMPHASIS}{number}", False


def _with_pairs(tokens: Sequence[_Token], content: str) -> list[_Token]:
    """Return tokens in which an opening bracket or mark that is not closed is text. Text that touches is joined."""
    counts = Counter(token.name for token in tokens)
    joined: list[_Token] = []
    for token in tokens:
        text = token.text
        if token.name.startswith((_LINK, _EMPHASIS)) and counts[token.name] == 1:
            text = content[token.begin : token.end]
        if text is None:
            joined.append(token)
        elif joined and joined[-1].text is not None:
            joined[-1] = _Token(joined[-1].text + text, begin=joined[-1].begin, end=token.end)
        else:
            joined.append(_Token(text, begin=token.begin, end=token.end))
    return joined
