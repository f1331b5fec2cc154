"""Extraction of the texts to translate from documents of Word, PowerPoint and Excel, and insertion of translations.

A paragraph is divided at tabs and breaks. Each part is a text with tags (`TokenText`), in which runs do not matter:
text in the most frequent format has no tags, and text in another format has a pair of them, as `<b>` in HTML. Links,
content controls, tracked insertions, bookmarks and comments are pairs too. Anything else has a single tag: pictures,
references to notes, deleted text, and fields with their result, which Word computes. A paragraph is built anew if its
text changes. All others stay as they are. A paragraph of a slide (DrawingML) and a text with formats of a workbook
(SpreadsheetML) have runs too.
"""

from __future__ import annotations

import copy
import itertools
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lxml import etree

from relattn_mt.documents.archives import Archive
from relattn_mt.documents.formulas import Comparisons
from relattn_mt.documents.lexer import INVALID, Message, TextToken, TokenText
from relattn_mt.support.errors import InputError, reading, require
from relattn_mt.text.marked import Marked
from relattn_mt.text.patterns import has_text

_WITH_RUNS = {  # elements with runs, by language
    "wordprocessingml": ("p",),
    "drawingml": ("p",),
    "spreadsheetml": ("si", "is", "text"),  # a shared string, one in a cell, a comment
}
_NAMESPACES = {  # elements with runs, by namespace
    namespace: names
    for language, names in _WITH_RUNS.items()
    for namespace in (
        f"http://schemas.openxmlformats.org/{language}/2006/main",
        f"http://purl.oclc.org/ooxml/{language}/main",
    )
}
_PARAGRAPHS = [f"{{{namespace}}}{name}" for namespace, names in _NAMESPACES.items() for name in names]
_MAIN = {  # kinds of documents, and the content types of their parts with text
    ".docx": ("a Word document", r"wordprocessingml\.(document\.main|footnotes|endnotes|header|footer)"),
    ".pptx": ("a PowerPoint document", r"presentationml\.(presentation\.main|slide|notesSlide)"),
    ".xlsx": ("an Excel document", r"spreadsheetml\.(sheet\.main|sharedStrings|worksheet|comments)"),
}
_DRAWINGS = r"drawingml\.(chart|diagramData|diagramDrawing)|drawing"
# parts that refer to cells by their texts
_REFERRING = re.compile(r"\.spreadsheetml\.(sheet\.main|table|pivotCacheDefinition)\+xml$")
_RANGE = re.compile("(.+)(Start|End)")  # name of a mark at the start or end of a range
_FORMULAS = "{*}f", "{*}formula", "{*}definedName", "{*}calculatedColumnFormula", "{*}formula1", "{*}formula2"
_OF_CHARTS = re.compile(r"/charts/_rels/[^/]+\.rels$")  # members with the names of their workbooks
_ESCAPED = re.compile("_x[0-9A-Fa-f]{4}_")  # a character in SpreadsheetML
_CONTAINERS = {"hyperlink", "ins", "moveTo", "sdt", "smartTag", "customXml", "dir", "bdo", "fldSimple"}
_COPIED = {"hyperlink", "ins", "moveTo"}  # containers that may occur twice
_PROPERTIES = {"pPr", "rPr", "sdtPr", "sdtEndPr", "smartTagPr", "customXmlPr", "fldData", "endParaRPr"}
_TRANSIENT = {"proofErr", "lastRenderedPageBreak", "softHyphen"}  # they belong to the words of the source
_BREAKS = {"tab", "ptab", "br", "cr"}
_FIELDS = {"HYPERLINK", "FORMTEXT", "TOC"}  # fields whose result is text that somebody wrote
_FILLED_CONTROLS = {"date", "dropDownList", "comboBox", "checkbox", "dataBinding", "citation", "picture", "equation"}
_IGNORED_FORMATS = {"lang", "altLang", "noProof", "dirty", "err", "smtClean"}
_MAX_DEPTH = 20  # of fields within fields


@dataclass(frozen=True)
class _Atom:
    """Child of a paragraph or container, or, in a run, a child of that run."""

    element: Any
    run: Any = None

    @property
    def name(self) -> str:
        return _name(self.element)


@dataclass(frozen=True)
class _Token(TextToken):
    """Part of a paragraph: text, a single tag, or one tag of a pair.

    Attributes:
        format: The `w:rPr` of text, or of the text in a pair, None if it has none.
        atoms: What a tag stands for.
        container: Element around the text of a pair.
        kind: "format", "container", "field" or "range" for a pair; empty for a single tag.
    """

    format: Any = None
    atoms: Sequence[_Atom] = ()
    container: Any = None
    kind: str = ""


class OfficeDocument:
    """Document of Word, PowerPoint or Excel whose texts can be replaced.

    The names of columns in tables of Excel, and texts that its formulas, lists and filters compare with cells, are left
    unchanged. A chart of a slide has its own workbook, which is translated too, so both have the same texts.

    Args:
        archive: The file.
        suffix: ".docx", ".pptx" or ".xlsx".

    Attributes:
        texts: Texts to translate.
        kept: Texts that stay, because others refer to them.

    Raises:
        InputError: The file is not such a document.
    """

    def __init__(self, archive: Archive, suffix: str) -> None:
        self._archive = archive
        self._roots, self._compared = _open(archive, suffix)
        self._workbooks = _workbooks(archive)
        for workbook in self._workbooks.values():
            self._compared.update(workbook._compared)
        self._paragraphs: list[tuple[str, _Paragraph | _Cell]] = []
        kept = [text for workbook in self._workbooks.values() for text in workbook.kept]
        for part, element in self._elements():
            content = "".join(element.itertext())
            if content in self._compared:
                kept.append(content)
                continue
            tokens = _tokens(element)
            self._paragraphs.append((part, _Paragraph(element, tokens) if tokens else _Cell(element)))
        own = [text for _, paragraph in self._paragraphs for text in paragraph.texts]
        self.texts: list[Marked] = [*own, *(text for workbook in self._workbooks.values() for text in workbook.texts)]
        self.kept: list[str] = list(dict.fromkeys(kept))

    def _elements(self) -> Iterator[tuple[str, Any]]:
        """Yield the parts and the elements with text, also the texts of cells that a chart shows."""
        for part, root in self._roots.items():
            for element in root.iter(*_PARAGRAPHS):
                yield part, element
            for cache in root.iter("{*}strCache", "{*}multiLvlStrCache"):
                for point in cache.iter("{*}pt"):
                    yield part, point

    def fill(self, translations: Sequence[Marked]) -> bytes:
        """Return the file with its texts replaced. Call it once."""
        remaining = iter(translations)
        changed = set()
        for part, paragraph in self._paragraphs:
            filled = list(itertools.islice(remaining, len(paragraph.texts)))
            if filled != paragraph.texts:
                paragraph.fill(filled)
                changed.add(part)
        members = {}
        for part in changed:
            tree = self._roots[part].getroottree()
            members[part] = etree.tostring(tree, encoding="UTF-8", standalone=True)
        for name, workbook in self._workbooks.items():
            members[name] = workbook.fill(list(itertools.islice(remaining, len(workbook.texts))))
        return self._archive.with_members(members)


def _workbooks(archive: Archive) -> dict[str, OfficeDocument]:
    """Return the workbooks of the charts in a document, by the names of their members, those that can be read."""
    workbooks = {}
    for member in filter(_OF_CHARTS.search, archive.members):
        with reading("the file", "the relations of its charts are not XML"):
            relations = _parse(archive.members[member])
        for relation in relations:
            name = posixpath.normpath(posixpath.join(member, "../..", relation.get("Target", "")))
            if name.endswith(".xlsx") and name in archive.members:
                with suppress(InputError):
                    inner = Archive(archive.members[name], archive.left)
                    archive.left = inner.left
                    workbooks[name] = OfficeDocument(inner, ".xlsx")
    return workbooks


def _open(archive: Archive, suffix: str) -> tuple[dict[str, Any], Comparisons]:
    """Return the XML of each part with text, and what a workbook compares with cells."""
    document, pattern = _MAIN[suffix]
    with_text = re.compile(rf"\.({pattern}|{_DRAWINGS})\+xml$")
    roots = {}
    others = []
    with reading("the file", f"not {document}"):
        overrides = _parse(archive.members["[Content_Types].xml"]).iter("{*}Override")
        kinds = {part.get("PartName", "").lstrip("/"): part.get("ContentType", "") for part in overrides}
        parts = [name for name in kinds if name in archive.members]
        parts.sort(key=lambda name: ".main+" not in kinds[name])
        require(parts and re.search(pattern, kinds[parts[0]]), f"the file must be {document}")
        for name in parts:
            if with_text.search(kinds[name]) and ".sheet.main" not in kinds[name]:
                roots[name] = _parse(archive.members[name])
            elif _REFERRING.search(kinds[name]):
                others.append(_parse(archive.members[name]))
    return roots, _comparisons([*roots.values(), *others] if suffix == ".xlsx" else [])


def _comparisons(roots: Iterable[Any]) -> Comparisons:
    """Return what the XML of a workbook compares with cells, the names of columns, and others that a cell may give."""
    compared = Comparisons()
    named = []
    gives_names = False
    for root in roots:
        for element in root.iter(*_FORMULAS):
            formula = "".join(element.itertext())
            compared.add_formula(formula, is_list="formula1" in element.tag)
            gives_names = gives_names or "INDIRECT(" in formula.upper()
        named += root.iter("{*}sheet", "{*}definedName", "{*}table")
        for element in root.iter("{*}filter", "{*}customFilter"):
            compared.add(element.get("val", ""))
        for element in root.iter("{*}tableColumn", "{*}cacheField"):
            compared.add(_ESCAPED.sub(lambda match: chr(int(match[0][2:6], 16)), element.get("name", "")))
    for element in named if gives_names else ():
        compared.add(element.get("name", ""))
    return compared


def _parse(content: bytes) -> Any:
    """Return the root of XML without a document type, which could define entities.

    Comments and processing instructions are removed: they would divide a text, and have no meaning in these files.
    """
    parser = etree.XMLParser(resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True)
    root = etree.fromstring(content, parser)
    require(not root.getroottree().docinfo.doctype, "the XML of a document must have no document type")
    return root


def _name(element: Any) -> str:
    """Return the name of an element of Word without its namespace; empty for any other element."""
    namespace, _, name = element.tag[1:].rpartition("}")
    return name if namespace in _NAMESPACES else ""


def _attribute(element: Any, name: str) -> str:
    """Return an attribute of Word; empty if there is none."""
    namespace = etree.QName(element).namespace  # which its attributes have, too
    return str(element.get(f"{{{namespace}}}{name}", ""))


def _atoms(parent: Any) -> Iterator[_Atom]:
    """Yield the parts of a paragraph or container that have a place in it."""
    for child in parent:
        if _name(child) == "r":
            yield from (_Atom(each, child) for each in child if _name(each) not in {"rPr", *_TRANSIENT})
        elif _name(child) not in _PROPERTIES | _TRANSIENT:
            yield _Atom(child)


def _child(element: Any, name: str) -> Any:
    """Return the first child with a name; None if there is none."""
    return next((child for child in element if _name(child) == name), None)


def _key(format_: Any) -> bytes:
    """Return a key that is equal for formats that look the same."""
    if format_ is None:
        return b""
    attributes = sorted(f"{name}={value};" for name, value in format_.attrib.items() if name not in _IGNORED_FORMATS)
    children = (etree.tostring(each, with_tail=False) for each in format_ if _name(each) not in _IGNORED_FORMATS)
    return "".join(attributes).encode() + b"".join(children)


def _tokens(paragraph: Any) -> list[_Token]:
    """Return the tokens of a paragraph; none if it has no runs, as a cell without formats."""
    if etree.QName(paragraph).localname != "p" and _child(paragraph, "r") is None:
        return []
    return _tokens_of(list(_atoms(paragraph)), 0)


def _tokens_of(atoms: Sequence[_Atom], depth: int) -> list[_Token]:
    """Return the tokens of atoms with the same parent. Text in its most frequent format has no tags."""
    tokens: list[_Token] = []
    fields, unbalanced = _fields(atoms)
    ranges = _ranges(atoms)
    done = 0
    for i, atom in enumerate(atoms):
        name = atom.name
        if i < done:
            continue
        if i in fields:
            field = fields[i]
            done = field.end + 1
            if field.separator and field.name in _FIELDS and depth < _MAX_DEPTH:
                result = _tokens_of(atoms[field.separator + 1 : field.end], depth + 1)
                opening = atoms[i : field.separator + 1]
                tokens += _enclosed(result, "a", "field", before=opening, after=[atoms[field.end]])
            else:
                tokens.append(_Token(atoms=atoms[i:done]))
        elif atom.run is not None and name in ("t", "noBreakHyphen"):
            text = atom.element.text or "" if name == "t" else "-"
            tokens.append(_Token(text, format=_child(atom.run, "rPr"), atoms=[atom]))
        elif name in _BREAKS:
            tokens.append(_Token(atoms=[atom], is_break=True))
        elif _is_container(atom):
            content = _tokens_of(list(_atoms(_content(atom.element))), depth)
            link = "a" if name == "hyperlink" else "b"
            tokens += _enclosed(content, link, "container", container=atom.element)
        elif i in ranges:
            tokens.append(_Token(atoms=[atom], kind="range", name=ranges[i], is_closing=name.endswith("End")))
        else:
            tokens.append(_Token(atoms=[atom], is_break=i in unbalanced))
    return list(_with_formats(tokens))


def _enclosed(
    inner: list[_Token],
    name: str,
    kind: str,
    *,
    before: Sequence[_Atom] = (),
    after: Sequence[_Atom] = (),
    container: Any = None,
) -> list[_Token]:
    """Return tokens with a pair of tags around them. If no text moves across some of them, none moves across these."""
    opening = _Token(
        name=name,
        is_break=any(token.is_break for token in inner),
        format=_base_format(inner),
        atoms=before,
        container=container,
        kind=kind,
    )
    closing = _Token(name=name, is_closing=True, is_break=opening.is_break, atoms=after, kind=kind)
    return [opening, *inner, closing]


def _levels(tokens: Sequence[_Token]) -> Iterator[int]:
    """Yield the number of pairs around each token that have a format."""
    level = 0
    for token in tokens:
        yield level
        if token.kind not in ("", "range"):
            level += -1 if token.is_closing else 1


def _base_format(tokens: Sequence[_Token]) -> Any:
    """Return the format of text outside of the pairs, and of all text if there is none; None if it has none."""
    texts = [(level, i) for i, level in enumerate(_levels(tokens)) if tokens[i].text is not None]
    return tokens[min(texts)[1]].format if texts else None


@dataclass
class _Field:
    """Field in a paragraph: indices of its begin, its separator (0 if it has none) and its end, and its code."""

    begin: int
    separator: int = 0
    end: int = 0
    code: str = ""

    @property
    def name(self) -> str:
        return (self.code.split() or [""])[0].upper()


def _fields(atoms: Sequence[_Atom]) -> tuple[dict[int, _Field], set[int]]:
    """Return the fields by the index where they begin, and the marks of fields that begin or end elsewhere."""
    fields: dict[int, _Field] = {}
    opened: list[_Field] = []
    unbalanced: set[int] = set()
    for i, atom in enumerate(atoms):
        if atom.name == "instrText" and opened:
            opened[-1].code += atom.element.text or ""
        if atom.name != "fldChar":
            continue
        kind = _attribute(atom.element, "fldCharType")
        if kind == "begin":
            opened.append(_Field(i))
        elif not opened:
            unbalanced.add(i)
        elif kind == "separate":
            opened[-1].separator = i
        else:
            field = opened.pop()
            field.end = i
            fields[field.begin] = field
    for field in opened:
        unbalanced |= {field.begin, field.separator or field.begin}
    return fields, unbalanced


def _ranges(atoms: Sequence[_Atom]) -> dict[int, str]:
    """Return the name of the pair of each mark at the start or end of a range, such as a bookmark or a comment."""
    starts: dict[str, int] = {}
    names: dict[int, str] = {}
    for i, atom in enumerate(atoms):
        mark = _RANGE.fullmatch(atom.name)
        if mark is None:
            continue
        name = f"b {mark[1]} {_attribute(atom.element, 'id')}"
        if mark[2] == "Start":
            starts[name] = i
        elif name in starts:
            names[starts.pop(name)] = name
            names[i] = name
    return names


def _is_container(atom: _Atom) -> bool:
    """Return whether the text of an element was written by somebody, and not computed by Word."""
    if atom.run is not None or atom.name not in _CONTAINERS:
        return False
    if atom.name == "fldSimple":
        return _Field(0, code=_attribute(atom.element, "instr")).name in _FIELDS
    properties = _child(atom.element, "sdtPr")
    return properties is None or not any(etree.QName(element).localname in _FILLED_CONTROLS for element in properties)


def _content(container: Any) -> Any:
    """Return the element that has the runs of a container."""
    content = _child(container, "sdtContent")
    return container if content is None else content


def _with_formats(tokens: Sequence[_Token]) -> Iterator[_Token]:
    """Yield tokens with pairs of tags around text that is not in the most frequent format. Text that touches is joined.

    A space between words takes that format. Other space in another format, such as an underlined blank, is a break.
    """
    counts: Counter[bytes] = Counter()  # of characters, by the key of their format
    formats: dict[bytes | None, Any] = {}
    keys: list[bytes | None] = []  # of the format of each text outside of pairs
    for token, level in zip(tokens, _levels(tokens), strict=True):
        key = None
        if token.text is not None and level == 0:
            key = _key(token.format)
            formats.setdefault(key, token.format)
            counts[key] += len(token.text.strip())
        keys.append(key)
    base = max(counts, key=lambda key: (counts[key], -len(key)), default=b"")  # of two, the simpler one
    is_edge = [True, *(token.is_break for token in tokens), True]
    chosen: list[_Token] = []
    for i, token in enumerate(tokens):
        text = token.text or ""
        is_blank = keys[i] not in (None, base) and not has_text(text)
        if is_blank and len(text) <= 1 and not (is_edge[i] or is_edge[i + 2]):
            keys[i] = base
        elif is_blank:
            keys[i] = None
            token = _Token(atoms=token.atoms, is_break=True)
        chosen.append(token)
    for key, group in itertools.groupby(zip(keys, chosen, strict=True), key=lambda pair: pair[0]):
        run = [token for _, token in group]
        if key is None:
            yield from run
            continue
        joined = _Token("".join(token.text or "" for token in run), format=formats[key])
        if key != base:
            yield _Token(name="b", format=joined.format, kind="format")
            yield joined
            yield _Token(name="b", kind="format", is_closing=True)
        elif joined.text:
            yield joined


class _Cell:
    """Text of a workbook without formats. The arguments and the attribute are those of `_Paragraph`."""

    def __init__(self, element: Any) -> None:
        self._element = next(element.iterchildren("{*}t", "{*}v"), None)
        text = "" if self._element is None else self._element.text or ""
        self._message = Message(text, _ESCAPED)
        self.texts = self._message.texts

    def fill(self, translations: Sequence[Marked]) -> None:
        """Replace the text."""
        if self._element is not None:
            _set_text(self._element, self._message.fill(iter(translations)))


def _set_text(element: Any, text: str) -> None:
    """Set the text of an element named `t`. Space at its ends is kept; DrawingML always keeps it."""
    element.text = INVALID.sub("", text)
    if element.text != element.text.strip() and "drawingml" not in etree.QName(element).namespace:
        element.set("{http://www.w3.org/XML/1998/namespace}space", "preserve")


class _Paragraph:
    """Paragraph whose texts can be replaced.

    Args:
        element: The paragraph.
        tokens: Its tokens.
    """

    def __init__(self, element: Any, tokens: list[_Token]) -> None:
        self._element = element
        self._tokens = tokens
        self._segments: list[tuple[int, TokenText]] = []  # with the index of the first token
        edges = {0, len(tokens)}
        for i, token in enumerate(tokens):
            if token.is_break:
                edges |= {i, i + 1}
        for begin, end in itertools.pairwise(sorted(edges)):
            self._segments.append((begin, TokenText(tokens[begin:end])))
        self.texts = [text for _, segment in self._segments for text in segment.texts]

    def fill(self, translations: Sequence[Marked]) -> None:
        """Replace the texts."""
        remaining = iter(translations)
        builder = _Builder(self._element, self._tokens)
        for begin, segment in self._segments:
            for piece in segment.replaced(remaining):
                text = piece if isinstance(piece, str) else self._tokens[begin + piece].text
                if text is None:
                    builder.add_tag(begin + int(piece))
                elif text:
                    builder.add_text(text)
        builder.finish()


class _Builder:
    """Builds a paragraph anew.

    Args:
        paragraph: The paragraph, which keeps its properties only.
        tokens: Its tokens.
    """

    def __init__(self, paragraph: Any, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._namespace = etree.QName(paragraph).namespace
        for parent in (paragraph, *(_content(token.container) for token in tokens if token.container is not None)):
            for child in [each for each in parent if _name(each) not in _PROPERTIES]:
                parent.remove(child)
        self._opened: list[tuple[str, Any, Any]] = [("", paragraph, _base_format(tokens))]  # name, parent and format
        self._placed: set[int] = set()
        self._run: tuple[Any, Any, Any] = (None, None, None)  # parent, source and element of the last run

    def add_text(self, text: str) -> None:
        """Add text in the format of the last pair that is open."""
        _, _, format_ = self._opened[-1]
        run = self._run_of(format_, format_)
        if len(run) == 0 or _name(run[-1]) != "t":
            run.append(run.makeelement(f"{{{self._namespace}}}t"))
        _set_text(run[-1], (run[-1].text or "") + text)

    def add_tag(self, number: int) -> None:
        """Add what a tag stands for."""
        token = self._tokens[number]
        is_again = number in self._placed
        self._placed.add(number)
        if token.is_closing and any(name == token.name for name, *_ in self._opened):
            while self._opened.pop()[0] != token.name:
                pass
        for atom in token.atoms:
            if is_again and token.kind == "field":
                self._add_atom(copy.deepcopy(atom.element), atom.run)
            elif token.is_closing or not is_again:  # the last end of a range is its end
                self._add_atom(atom.element, atom.run)
        if token.kind and not token.is_closing:
            _, parent, format_ = self._opened[-1]
            if token.kind != "range":
                format_ = token.format
            if token.container is not None and (not is_again or _name(token.container) in _COPIED):
                container = token.container
                if is_again:
                    container = container.makeelement(container.tag, dict(container.attrib))
                parent.append(container)
                parent = _content(container)
            self._opened.append((token.name, parent, format_))

    def finish(self) -> None:
        """Add what a translation has lost, and what is last in a paragraph."""
        del self._opened[1:]
        for number, token in enumerate(self._tokens):
            if token.text is None and number not in self._placed:
                self.add_tag(number)
        paragraph = self._opened[0][1]
        last = _child(paragraph, "endParaRPr")
        if last is not None:
            paragraph.append(last)

    def _add_atom(self, element: Any, run: Any) -> None:
        parent = self._opened[-1][1] if run is None else self._run_of(run, _child(run, "rPr"))
        parent.append(element)

    def _run_of(self, source: Any, format_: Any) -> Any:
        """Return the last run if it has the same source and is still the last element, and otherwise a new run."""
        parent = self._opened[-1][1]
        last_parent, last_source, run = self._run
        if run is None or last_parent is not parent or last_source is not source or parent[-1] is not run:
            run = parent.makeelement(f"{{{self._namespace}}}r")
            if format_ is not None:
                run.append(copy.deepcopy(format_))
            parent.append(run)
            self._run = parent, source, run
        return run
