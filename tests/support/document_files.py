"""Files of all kinds, made of random words."""

import io
import itertools
import json
import random
import re
import textwrap
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

import docx
from docx.enum.text import WD_BREAK
from lxml import etree

WORDS = ["one", "two", "Mr. Smith", "e.g. this", "3.5", "Über", "中文", "“so”", "5%", "-", "(x"]
MORE_WORDS = [
    *WORDS,
    "a & b",
    "x < y",
    "{x}",
    "%s",
    "#tag",
    "https://example.org/a?b=C.d",
    "ASP.NET",
    "😀",
    "&amp;",
    "<",
]
ENDS = ["", "", "", ".", "!", "?", "…", ",", "。"]
SPACES = [" ", " ", " ", "  ", "\u00a0", "\u2009", "\u3000"]
LINE_ENDS = ["\t", "\n", "\r\n", "\r", "\n\n \n", "\v", "\u2028", "\x85", "\u200b"]


class Maker:
    """Makes texts and files. With the same seed, they differ only in their words, each of which is changed.

    Args:
        seed: Seed of a random generator.
        change: Function that changes words that are translated.
        is_exact: Whether a translation with other words has the same spaces and runs.
    """

    def __init__(self, seed: int, change: Callable[[str], str] = str, *, is_exact: bool = False) -> None:
        self.draw, self.change, self.is_exact = random.Random(seed), change, is_exact

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.draw.choice(choices)

    def some(self, *makers: Callable[[], str], most: int = 5, between: str = "") -> str:
        """Return what some of the functions return."""
        return between.join(self.pick(makers)() for _ in range(self.draw.randint(1, most)))

    def words(self) -> str:
        """Return some words."""
        return " ".join(map(self.change, self.draw.choices(WORDS[:7], k=self.draw.randint(1, 4))))

    def text(self, spaces: Sequence[str] = SPACES) -> str:
        """Return any words, marks and spaces."""
        if self.is_exact:
            return self.words()
        return self.some(lambda: self.pick(MORE_WORDS) + self.pick(ENDS) + self.pick(spaces), most=8)

    def xml(self, tags: Sequence[str], others: Sequence[str]) -> str:
        """Return words, elements with words, and other elements."""

        def element() -> str:
            tag = self.pick(tags)
            return f"<{tag}>{self.xml_text()}</{tag.split()[0]}>"

        between = " " if self.is_exact else ""
        return self.some(self.xml_text, element, lambda: self.xml_text() + self.pick(others), between=between)

    def xml_text(self) -> str:
        return escape(self.text(), quote=False)

    def html(self, *, is_xml: bool = False) -> str:
        others = ["<br/>", '<img alt="" src="?a=1&amp;b=2"/>', "<!-- no -->", '<a id="p1"/>', "<i>  </i>"]
        others += [] if is_xml else ["<br>", "<wbr>", "<a href=?a=1&section=2></a>", "</u>"]
        others += [] if is_xml or self.is_exact else ["&nbsp;", "&copy x"]

        def inner() -> str:
            return self.xml(["b", "i", 'a href="x"', 'span class="y"'], others)

        return self.some(
            lambda: f"<p>{inner()}</p>\n",
            lambda: f"<div>{inner()}<p>{inner()}</p>\r\n</div>",
            lambda: f"<ul>\n  <li>{inner()}{'</li>' if is_xml else '<li>'}</ul>",
            lambda: '<pre> no  x</pre><p translate="no">no</p>',
            lambda: "<script/>" if is_xml else "<script>x = '<b>'</script>",
            lambda: f'<p><img src="a" alt="{self.words()}" title="{self.words()}"/> {inner()}</p>',
            lambda: f'<p><input type="submit" value="{self.words()}" placeholder="{self.words()}"/></p>',
            lambda: f'<p title="{self.words()}">{self.same("{} <i>{}</i>")}</p>',
            lambda: f"<table><tr>{self.same('<td>{}</td><td>{}</td>')}</tr><tr><td/><th>{inner()}</th></tr></table>",
            lambda: (
                f'<div translate="no"><p>no</p><p translate="yes">{inner()}</p>no</div><p class="notranslate">no</p>'
            ),
            lambda: f"<dl><dt>{inner()}</dt><dd>{inner()}<br/>{inner()}</dd></dl><h2>{self.words()}</h2>",
            lambda: f"<p>{self.words()} &amp; {self.words()} &lt;5&gt; <code>no &amp; no</code> {self.words()}</p>",
            lambda: f"<select><option>{self.words()}</option><option>{self.words()}</option></select>",
        )

    def same(self, template: str) -> str:
        """Return a template with the same words in all places."""
        return template.replace("{}", self.words())

    def subtitles(self, head: str = "", comma: str = ",") -> str:
        end = self.pick(["\n", "\r\n"])

        def line() -> str:
            text = self.words()
            long = f"{text} {self.words()} {self.words()}"
            lines = [
                text,
                f"<i>{text}</i>",
                f"- {text}",
                f"<c.no>{text}</c>",
                f"{text} <b>{text}</b>",
                text,
                f"{text}.",
                long,
                f"{long}?",
            ]
            return self.pick(lines)

        times = [f"{i}{end}00:00:0{i}{comma}000 --> 00:00:0{i}{comma}900 X1:4{end}" for i in range(1, 9)]
        counts = [self.draw.randint(1, 3) for _ in times]
        subtitles = zip(times, counts, strict=True)
        return head + "".join(f"{time}{end.join(line() for _ in range(n))}{end}{end}" for time, n in subtitles)

    def paragraphs(self) -> str:
        """Return plain text with paragraphs, items and quotations, whose lines are broken to a width."""

        def broken(begin: str, following: str) -> str:
            words = " ".join(self.words() for _ in range(self.draw.randint(4, 9)))
            return textwrap.fill(words, 60, initial_indent=begin, subsequent_indent=following) + "\n\n"

        return self.some(
            lambda: broken("", ""),
            lambda: broken("- ", "  "),
            lambda: broken("> ", "> "),
            lambda: broken("> > ", "> > "),
            lambda: broken("  7) ", "     "),
            lambda: f"{self.words()}\n{self.words()}\t\n\n",
        )

    def markdown(self) -> str:
        pieces = [
            "`no  x`",
            "**{}**",
            "*{}*",
            "[{}](http://x.org/a_(b) 'no')",
            "![no](a.png)",
            "<b>{}</b>",
            "{}",
            "[{}][ref]",
        ]
        pieces += [
            "[ref]",
            "[^1]",
            "$a + b$",
            "https://example.org/a",
            r"\*{}\*",
            "{} * {}",
            "*{}",
            "{}\n  {}",
            "a_b_c",
        ]

        def text() -> str:
            parts = self.draw.choices(pieces[: -4 if self.is_exact else None], k=3)
            return " ".join(part.replace("{}", self.words()) for part in parts)

        front = self.pick(["", "---\ntitle: no\n---\n", "+++\ntitle = 'no'\n+++\n\n"])
        blocks = self.some(
            lambda: f"{'#' * self.draw.randint(1, 4)} {text()}{self.pick(['', ' ##'])}\n\n".replace("\n  ", " "),
            lambda: f"{text()}\n\n",
            lambda: f"{text()}  \n{text()}\\\n{text()}\n\n",
            lambda: f"> {text()}\n>\n> - {text()}\n\n",
            lambda: f"1. {text()}\n2. [ ] {text()}\n   - {text()}\n\n     {text()}\n\n         no\n\n",
            lambda: f"| {self.words()} | {self.words()} |\n|---|:-:|\n| {self.words()} | `no` |\n\n",
            lambda: "```python\nno = 1\n```\n\n    no\n\n<div>\nno\n</div>\n\n",
            lambda: f"{self.words()}\n=====\n\n",
            lambda: self.same("| {} | {} |\n|---|---|\n| {} | {} |\n") + f"| {self.words()} |  |\n\n",
            lambda: f"|{self.words()}|{text()}|\n|:--|--:|\n| **{self.words()}** | {self.words()} |\n\n",
            lambda: self.same("- {}\n- {}\n\n* {}\n\n{}\n---\n\n"),
            lambda: f"**{self.words()} *{self.words()}* {self.words()}** ~~{self.words()}~~\n\n",
            lambda: self.same("[{}](http://x.org/1) {} [{}](http://x.org/2)\n\n"),
            lambda: f"{self.words()}[^2]\n\n[^2]: {self.words()}\n[^3]: {self.words()}\n\n",
            lambda: f"> [!NOTE]\n> {text()}\n\n<!-- no -->\n\n> {self.words()}\n> > {self.words()}\n\n",
        )
        return f"{front}{blocks}[ref]: http://x.org 'no'\n"

    def json(self) -> str:
        strings = [
            "{name}",
            "%s",
            "<b>{}</b>",
            "{{x}} {}",
            "{}",
            "%1$s {}",
            "{n, plural, one {# x}}",
            r"\n{}\t",
            r"\"{}",
        ]

        def string() -> str:
            return '"' + self.pick(strings).replace("{}", self.words()) + '"'

        def value() -> str:
            choices = [string(), "1.50e5", "null", f"[{string()},\n {string()}]", f'{{ "no" :{string()} }}']
            choices += [self.same('["{}", "{}",[]]'), f'{{"one": {{"two":[ {string()} ]}}}}']
            choices += ['""', "[true,false]", f'"{self.words()} <br> {self.words()}"', f'" {self.words()}  "']
            return self.pick(choices)

        return "{" + ",\r\n\t".join(f'"no {i}": {value()}' for i in range(5)) + "}\n"

    def po(self, *, is_filled: bool) -> str:
        known = '#, fuzzy\nmsgctxt "no"\nmsgid "no"\nmsgstr "no"\n\n#~ msgid "no"\n#~ msgstr ""\n\n'
        parts = ['msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n']
        for mark in ("", r"\n", " %s", "{x}"):
            source, target = self.pair(lambda: self.words() + mark)  # noqa: B023
            target = target if is_filled else ""
            plural = f'msgid_plural "{source}"\nmsgstr[0] "{target}"\nmsgstr[1] "{target}"'
            partly = f'msgid_plural "{source}"\nmsgstr[0] ""\nmsgstr[1] "no"'
            three = f'{plural}\nmsgstr[2] "{target}"'
            forms = self.pick([plural, partly, three, f'msgstr "{target}"', 'msgstr ""\n"no"'])
            context = self.pick(["", 'msgctxt "no"\n', '#| msgid "no"\n', "#, c-format\n"])
            if is_filled and '"no"' not in forms:
                context = context.replace("#,", "#, fuzzy,") if "#," in context else f"#, fuzzy\n{context}"
            parts.append(f'#: a.c:1\n{context}msgid ""\n"{source}"\n{forms}\n\n')
        return known.join(parts)

    def xliff(self, *, is_filled: bool) -> str:
        parts = []
        for mark in ("", ' <g id="1">x</g>', '<x id="2"/>', " <ph>%s</ph> <mrk>x</mrk>"):
            source, target = self.pair(lambda: self.words() + mark.replace("x<", f"{self.words()}<"))  # noqa: B023
            empty, full = self.pick(
                [("", "\n <target>{}</target>"), ("<target/>", "<target>{}</target>")]
                + [
                    (f'<target state="new">{text}</target>', '<target state="translated">{}</target>')
                    for text in ("", "no")
                ]
            )
            target = full.replace("{}", target) if is_filled else empty
            parts.append(f'<trans-unit id="1">\n <source>{source}</source>{target}\n <note>no</note></trans-unit>')
            unit = '<trans-unit id="2"{}><source>no</source></trans-unit>'
            parts.append(self.pick(["", f'<group translate="no">{unit.replace("{}", "")}</group>']))
            parts.append(self.pick(["", unit.replace("{}", ' translate="no"')]))
            inner = f'<trans-unit id="3" translate="yes">\n <source>{source}</source>{target}</trans-unit>'
            parts.append(self.pick(["", f'<group translate="no">{unit.replace("{}", "")}{inner}</group>']))
            parts.append(self.pick(["", '<trans-unit id="4"><source>no</source><target>no no</target></trans-unit>']))
            others = [
                '<trans-unit id="5"><alt-trans><source>no</source></alt-trans>\n <source>§</source>¶</trans-unit>',
                "<unit><segment>\n <source>§</source>¶</segment><ignorable><source>no</source></ignorable></unit>",
                '<unit id="7" translate="no"><segment><source>no</source></segment></unit>',
                '<trans-unit id="8" xml:space="preserve">\n <source>§</source>¶</trans-unit>',
                '<group xml:space="preserve"><trans-unit id="9">\n <source>§</source>¶</trans-unit></group>',
                '<trans-unit id="10"><source>no</source><target state="translated">no</target></trans-unit>',
            ]
            parts.append(self.pick(others).replace("§", source).replace("¶", target))
        return f'<?xml version="1.0"?><xliff version="1.2"><file><body>{"".join(parts)}</body></file></xliff>'

    def pair(self, make: Callable[[], str]) -> tuple[str, str]:
        """Return a text with the words that it has, and with changed ones."""
        state, change = self.draw.getstate(), self.change
        target = make()
        self.draw.setstate(state)
        self.change = str
        source = make()
        self.change = change
        return source, target

    def office(self, suffix: str) -> bytes:
        """Return a document of Word, PowerPoint or Excel."""
        name, main, parts, namespace, root, paragraph, run, others, enclosing = OFFICE[suffix]

        def one_run() -> str:
            space = "" if suffix == ".pptx" else ' xml:space="preserve"'
            text = self.xml_text() + " " * self.is_exact  # words of two runs that touch would be one word
            formats = ["", "<b/>", "<i/>", '<b/><sz val="20"/>']
            return run.replace("$", self.pick(formats)).replace("{}", f"<t{space}>{text}</t>")

        def around() -> str:
            return self.pick(enclosing).replace("{}", one_run() + one_run())

        def element() -> str:
            objects = [each for each in others if not (self.is_exact and "proofErr" in each)]
            makers = [one_run, one_run, lambda: self.pick(objects)]
            return paragraph.replace("{}", self.some(*makers, *([around] if enclosing else [])))

        prefix = "application/vnd.openxmlformats-officedocument."
        names = [(f"/{name}", main), *((f"/{part}.xml", kind) for part, kind in parts)]
        types = "".join(f'<Override PartName="{n}" ContentType="{prefix}{kind}+xml"/>' for n, kind in names)
        members = {"[Content_Types].xml": f"<Types>{types}</Types>", name: "<x/>"}
        for part, _ in parts:
            members[f"{part}.xml"] = f'<{root} xmlns="{namespace}">{self.some(element)}</{root}>'
        return archive(members)

    def open_document(self, suffix: str) -> bytes:
        others = ["<text:s/>", "<text:tab/>", "<text:line-break/>", '<text:bookmark text:name="x"/>']
        others.append("<text:note><text:note-citation>1</text:note-citation><text:p>{}</text:p></text:note>")
        tags = ['text:span text:style-name="x"', 'text:a xlink:href="y"']

        def inner() -> str:
            return self.xml(tags, [each.replace("{}", self.xml_text()) for each in others])

        parts = (
            "<text:tracked-changes><text:p>no</text:p></text:tracked-changes>",
            "<text:h>{}</text:h>\n<text:p>{}</text:p>",
            "<table:table-row><table:table-cell><text:p>{}</text:p></table:table-cell>"
            '<table:table-cell table:formula="no"><text:p>{}</text:p></table:table-cell></table:table-row>',
            '<text:list><text:list-item><text:p text:style-name="a">{}</text:p></text:list-item></text:list>',
            '<text:p><text:bookmark-start text:name="x"/>{}<text:bookmark-end text:name="x"/></text:p>',
            "<draw:frame><draw:text-box><text:p/><text:p>{}</text:p></draw:text-box></draw:frame>",
            '<text:p><text:span text:style-name="x"><text:span text:style-name="z">{}</text:span></text:span></text:p>',
        )
        body = self.some(lambda: self.pick(parts).replace("{}", inner()))
        kind = {".odt": "text", ".odp": "presentation", ".ods": "spreadsheet"}[suffix]
        mimetype = f"application/vnd.oasis.opendocument.{kind}"
        return archive({"mimetype": mimetype, "content.xml": f"<?xml version='1.0'?>\n<office:x>{body}</office:x>"})

    def epub(self) -> bytes:
        head = '<?xml version="1.0" encoding="UTF-8"?><!DOCTYPE html><html><head><title/></head><body>'
        pages = {f"b/{i}.xhtml": f"{head}{self.html(is_xml=True)}</body></html>" for i in range(2)}
        labels = "".join(f"<navLabel><text>{self.xml_text()}</text></navLabel>" for _ in range(2))
        contents = f"<ncx><docTitle><text>{self.xml_text()}</text></docTitle>{labels}<meta content='no'/></ncx>"
        links = "".join(f'<li><a href="{i}.xhtml">{self.xml_text()}</a></li>' for i in range(2))
        pages["b/nav.xhtml"] = f"{head}<nav><ol>{links}</ol></nav></body></html>"
        package = "<package><metadata><dc:title>no</dc:title></metadata></package>"
        others = {"b/x.css": "no", "b/content.opf": package}
        return archive({"mimetype": "application/epub+zip", **others, **pages, "b/toc.ncx": contents})

    def file(self, suffix: str, *, is_filled: bool = False) -> bytes:
        """Return a file of a kind; with `is_filled`, as its translation must be."""
        match suffix:
            case ".txt" if self.is_exact:
                return self.paragraphs().encode()
            case ".txt":
                return self.text([*SPACES, *LINE_ENDS]).encode()
            case ".html" | ".htm":
                return self.html().encode(self.pick(["utf-8", "utf-16"]))
            case ".srt":
                return self.subtitles().encode()
            case ".vtt":
                style = self.pick(["", "STYLE\n::cue(.no) { color: red }\n\n", "REGION\nid:no\n\n"])
                return self.subtitles(f"WEBVTT - no\n\n{style}NOTE no\n\n", ".").encode()
            case ".md" | ".mdx" | ".markdown":
                return self.markdown().encode()
            case ".json" | ".arb":
                return self.json().encode()
            case ".jsonl":
                return "".join(
                    f"{json.dumps(json.loads(self.json()), ensure_ascii=False)}\n" for _ in range(2)
                ).encode()
            case ".xhtml":
                return self.html(is_xml=True).encode()
            case ".po" | ".pot":
                return self.po(is_filled=is_filled).encode()
            case ".xlf" | ".xliff":
                return self.xliff(is_filled=is_filled).encode()
            case ".odt" | ".odp" | ".ods":
                return self.open_document(suffix)
            case ".epub":
                return self.epub()
        return self.office(suffix)


S = "http://schemas.openxmlformats.org/{}/2006/main"
OFFICE = {  # main part, its type, other parts and types, namespace, root, paragraph, run, objects, elements around runs
    ".docx": (
        *(
            "a.xml",
            "wordprocessingml.document.main",
            [("b", "wordprocessingml.header"), ("c", "wordprocessingml.footnotes")],
        ),
        *(S.format("wordprocessingml"), "hdr", "<p><pPr/>{}</p>", "<r><rPr>$</rPr>{}</r>"),
        ["<r><tab/></r>", '<bookmarkStart id="1"/>', "<r><drawing/></r>", "<proofErr/>"],
        [
            '<bookmarkStart id="2"/>{}<bookmarkEnd id="2"/>',
            '<commentRangeStart id="3"/>{}<commentRangeEnd id="3"/>',
            '<hyperlink anchor="x">{}</hyperlink>',
            '<ins id="4">{}</ins>',
            "<sdt><sdtPr/><sdtContent>{}</sdtContent></sdt>",
            "<smartTag>{}</smartTag>",
        ],
    ),
    ".pptx": (
        *(
            "p.xml",
            "presentationml.presentation.main",
            [("s1", "presentationml.slide"), ("s2", "presentationml.notesSlide")],
        ),
        *(S.format("drawingml"), "sld", "<p><pPr/>{}<endParaRPr/></p>", "<r><rPr>$</rPr>{}</r>"),
        ["<br><rPr/></br>", '<fld id="x"><rPr/><t>7</t></fld>'],
        [],
    ),
    ".xlsx": (
        *("w.xml", "spreadsheetml.sheet.main", [("s", "spreadsheetml.sharedStrings"), ("c", "spreadsheetml.comments")]),
        *(S.format("spreadsheetml"), "sst", "<si>{}</si>", "<r><rPr>$</rPr>{}</r>"),
        ["<rPh><t>no</t></rPh>"],
        [],
    ),
}


def word_file() -> bytes:
    """Return a Word document with a title, runs, a break, a table and a footer."""
    document = docx.Document()
    document.add_heading("A title", 1)
    paragraph = document.add_paragraph("The ")
    paragraph.add_run("red").bold = True
    paragraph.add_run().add_break(WD_BREAK.PAGE)
    paragraph.add_run(" house & <b>")
    document.add_paragraph("")
    document.add_table(1, 1).cell(0, 0).text = "In a\ncell"
    document.sections[0].footer.paragraphs[0].text = "In the footer"
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def archive(members: Mapping[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_STORED if name == "mimetype" else None)
    return out.getvalue()


def members_of(content: bytes) -> dict[str, bytes]:
    """Return the members of an archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name: file.read(name) for name in file.namelist()}


def shown(content: bytes) -> Any:
    """Return the content of a part of Office as nested lists of words with formats, without spaces beside objects."""
    if b"openxmlformats.org" not in content[:400] or content.startswith(b"<Types"):
        return content
    return _shown(etree.fromstring(content))


def _shown(element: Any) -> Any:
    parts: list[Any] = []
    for child in element:
        name = etree.QName(child).localname
        if name == "r":
            properties = b"".join(map(etree.tostring, child.iterfind("{*}rPr/*"))).decode()
            for each in child:
                if etree.QName(each).localname != "rPr":
                    parts.append((properties, _text(each)) if each.tag.endswith("}t") else _shown(each))
        else:
            parts.append(_shown(child) if len(child) or not child.text else child.text)
    joined: list[Any] = []
    for part in itertools.chain.from_iterable(map(_words, parts)):
        if part != " " or (joined and isinstance(joined[-1], tuple)):
            if joined[-1:] == [" "] and not isinstance(part, tuple):
                joined.pop()
            joined.append(part)
    if joined[-1:] == [" "]:
        joined.pop()
    return [etree.QName(element).localname, dict(element.attrib), *joined]


def _text(element: Any) -> str:
    """Return the text that a program shows: without spaces at its ends, unless it says that these are kept."""
    keeps_space = "drawingml" in element.tag or "preserve" in element.attrib.values()
    text = element.text or ""
    return text if keeps_space else text.strip()


def _words(part: Any) -> Iterator[Any]:
    """Yield the words and spaces of a text; anything else as it is."""
    if isinstance(part, tuple):
        yield from (" " if each.isspace() else (part[0], each) for each in re.split("( +)", part[1]) if each)
    else:
        yield part
