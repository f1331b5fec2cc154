"""Files of each kind: their texts, and the file with translations."""

import gc
import io
import itertools
import random
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from html import unescape
from operator import itemgetter
from typing import Any

import docx
import pytest
import srt
from docx.enum.text import WD_BREAK
from docx.opc.constants import CONTENT_TYPE, RELATIONSHIP_TYPE
from docx.opc.packuri import PackURI
from docx.opc.part import Part
from docx.oxml import parse_xml
from lxml import etree
from relattn_mt.documents.read import FORMATS, document_texts, fill_document, read_document
from relattn_mt.support.errors import InputError
from relattn_mt.text.marked import Marked
from relattn_mt.text.sentences import split

from testing.document_files import Maker, archive, members_of
from testing.marked import Notated, marked, notation

SUBTITLES = (
    "1\n00:00:01,000 --> 00:00:02,000\nOne <i>two</i>\nthree & 4 <3\n\n"
    "2\n00:00:03,000 --> 00:00:04,000\n- four\n- five six\n\n"
)


def word_file() -> bytes:
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


def read(name: str, content: bytes) -> Notated:
    return Notated(read_document(name, content, 10_000_000))


@pytest.mark.parametrize(
    ("name", "content"), [("a.txt", "One.\r\n\r\n Two. \n"), ("a.html", "<p>One <b>two</b></p>"), ("a.SRT", SUBTITLES)]
)
def test_unchanged_texts_give_the_same_file(name: str, content: str) -> None:
    document = read(name, content.encode())
    assert document.fill(document.texts) == content


def test_subtitles_keep_times_lines_and_tags() -> None:
    document = read("a.srt", SUBTITLES.encode())
    subtitles = list(srt.parse(document.fill([text.upper().replace("M0", "m0") for text in document.texts])))
    assert [each.content for each in subtitles] == ["ONE <i>TWO</i>\nTHREE & 4 <3", "- FOUR\n- FIVE SIX"]
    assert [each.start.total_seconds() for each in subtitles] == [1, 3]
    assert read("a.srt", SUBTITLES.encode()).fill(["x", "y", "z"]).count("\n\n") == 2  # one word for two lines


def test_a_sentence_over_several_subtitles_is_one_text() -> None:
    """It is divided among them again, in proportion to their lengths."""
    contents = [
        "I have never seen",
        "such a large and\nbeautiful house before.",
        "Really?",
        "<i>No way</i>",
        "and",
        "- so\n- on",
    ]
    starts = [1, 3, 5, 7, 9, 11]
    file = "".join(
        f"{i}\n00:00:{start:02},000 --> 00:00:{start + 1:02},000\n{text}\n\n"
        for i, (start, text) in enumerate(zip(starts, contents, strict=True), start=1)
    )
    document = read("a.srt", file.encode())
    assert document.texts[:2] == ["I have never seen such a large and beautiful house before.", "Really?"]
    assert document.fill(document.texts) == file
    document = read("a.srt", file.encode())
    long = "Ich habe noch nie ein so großes und noch dazu so schönes Haus gesehen."
    subtitles = list(srt.parse(document.fill([long, *document.texts[1:]])))
    assert " ".join(" ".join(each.content for each in subtitles[:2]).split()) == long
    assert all(len(line) <= 42 for each in subtitles for line in each.content.split("\n"))
    assert 15 < len(subtitles[0].content) < 40
    assert [each.start.total_seconds() for each in subtitles] == starts


WEBVTT = """WEBVTT - a film
Kind: captions

STYLE
::cue(.loud) { color: red }

NOTE nothing here --> is said
is translated

intro
00:01.000 --> 00:02.500 line:0 position:20%
<v Mary Ann>Fish &amp; chips cost &lt;b&gt; <c.loud>£5</c>,
don't they?&nbsp;

01:00:03.000 --> 01:00:04.000
- Yes. <00:00:03.500>Now.
- AT&amp;T --&gt; we
"""


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.vtt", WEBVTT),
        ("a.vtt", "WEBVTT"),
        ("a.vtt", WEBVTT.replace("&amp;", "&")),
        ("a.vtt", WEBVTT.replace("AT&amp;T", "A &amp;lt; &lrm;&amp;")),
        ("a.srt", SUBTITLES.replace("1\n", "7  \n", 1).replace(" --> ", " -->  ")),
        (
            "a.srt",
            "0:0:1,0 --> 0:0:2,000 X1:40 Y1:20\n{\\an8}<i>{\\i1}A</i> long line of text,\n<FONT size='2'>it</FONT>\n\n",
        ),
        (
            "a.srt",
            "\n\n1\n00:00:01,000 --> 00:00:02,000\nFirst\n\n1984\n\n\n2\n00:00:03,000 --> 00:00:04,000\n<i>♪</i>\n",
        ),
        ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\n  – <b>No</b> </i>end and\n  — I, a <b>x <i>y</b> z</i>  .  "),
        ("a.srt", ""),
    ],
)
def test_subtitles_with_the_same_texts_are_the_same(name: str, content: str, line_end: str) -> None:
    """Times, numbers, notes, positions, tags, entities, dashes, spaces and line ends do not change."""
    content = content.replace("\n", line_end)
    document = read(name, content.encode())
    assert document.fill(document.texts) == content


def test_webvtt_texts_have_placeholders_for_tags_and_plain_characters() -> None:
    document = read("a.vtt", WEBVTT.encode())
    fish, yes, company = document.texts
    assert fish == "Fish & chips cost <b> <m0>£5</m0>, don't they?\xa0"
    assert yes == "Yes. <m0/>Now."
    assert company == "AT&T --> we"
    filled = document.fill(["<m0>5 & 6</m0> <3 --> &amp; kosten", yes, company])
    assert "<v Mary Ann><c.loud>5 &amp; 6</c> &lt;3 --&gt;\n&amp;amp; kosten\n\n01:" in filled


def test_a_pause_ends_a_text() -> None:
    file = "1\n00:00:01,000 --> 00:00:02,000\nto be\n\n2\n00:00:09,000 --> 00:00:10,000\ncontinued\n\n"
    assert read("a.srt", file.encode()).texts == ["to be", "continued"]


def test_word_document_keeps_formats_tables_and_footers() -> None:
    document = read("a.docx", word_file())
    assert document.texts == ["A title", "The <m0>red</m0>", " house & <b>", "In a", "cell", "In the footer"]
    result = document.fill(["Ein Titel", "<m0>rot</m0>Das ", " Haus & <b>", "In einer", "Zelle", "Unten"])
    result = docx.Document(io.BytesIO(result))
    assert [paragraph.text for paragraph in result.paragraphs] == ["Ein Titel", "rotDas  Haus & <b>", ""]
    runs = [(run.text, run.bold) for run in result.paragraphs[1].runs]
    assert runs == [("rot", True), ("Das ", None), ("", None), (" Haus & <b>", None)]
    assert result.tables[0].cell(0, 0).text == "In einer\nZelle"
    assert result.sections[0].footer.paragraphs[0].text == "Unten"


NOTES = """<w:footnotes xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">
<w:footnote w:id="1"><w:p><w:r><w:footnoteRef/></w:r><w:r><w:t>A note</w:t></w:r></w:p></w:footnote></w:footnotes>"""
CHANGES = """<w:p xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:r><w:t>One </w:t></w:r>
<w:ins w:id="1" w:author="x"><w:r><w:t>new </w:t></w:r></w:ins>
<w:del w:id="2" w:author="x"><w:r><w:delText>old </w:delText></w:r></w:del>
<w:sdt><w:sdtPr><w:alias w:val="x"/></w:sdtPr><w:sdtContent><w:r><w:t>control</w:t></w:r></w:sdtContent></w:sdt>
</w:p>"""


def test_word_document_is_whole() -> None:
    """Headers of a first page, footnotes, tracked changes and content controls are translated in their places."""
    document, out = docx.Document(), io.BytesIO()
    section = document.sections[0]
    section.different_first_page_header_footer = True
    section.first_page_header.paragraphs[0].text = "On the first page"
    section.header.paragraphs[0].text = "On the others"
    document.element.body.insert(0, parse_xml(CHANGES))
    package = document.part.package
    notes = Part(PackURI("/word/footnotes.xml"), CONTENT_TYPE.WML_FOOTNOTES, NOTES.encode(), package)
    document.part.relate_to(notes, RELATIONSHIP_TYPE.FOOTNOTES)
    document.save(out)
    document = read("a.docx", out.getvalue())
    texts = sorted(document.texts)
    assert texts == ["A note", "On the first page", "On the others", "One <m0>new </m0><m1/><m2>control</m2>"]
    filled = document.fill([text.upper().replace("<M", "<m").replace("</M", "</m") for text in document.texts])
    with zipfile.ZipFile(io.BytesIO(filled)) as archive:
        xml = {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".xml")}
    body = xml["word/document.xml"]
    assert "<w:t>A NOTE</w:t>" in xml["word/footnotes.xml"]
    assert ">ON THE FIRST PAGE<" in "".join(xml.values())
    assert all(each in body for each in ("<w:ins ", "<w:sdtContent>"))
    assert body.index(">ONE ") < body.index(">NEW ") < body.index(">old ") < body.index(">CONTROL")


def test_run_with_several_sentences() -> None:
    """A run whose text surrounds other text after translation is copied."""
    document, out = docx.Document(), io.BytesIO()
    paragraph = document.add_paragraph()
    for text, bold in (("One. Two ", True), ("three", None), (" four, five.", False)):
        paragraph.add_run(text).bold = bold
    document.save(out)
    read_back = read("a.docx", out.getvalue())
    assert read_back.texts == ["<m0>One. Two </m0><m1>three</m1> four, five."]
    filled = read_back.fill(["<m0>Eins.</m0> <m1>drei</m1><m0> zwei </m0>vier.<m0>!</m0>"])
    (paragraph,) = docx.Document(io.BytesIO(filled)).paragraphs
    runs = [(run.text, run.bold) for run in paragraph.runs]
    assert runs == [("Eins.", True), (" ", False), ("drei", None), (" zwei ", True), ("vier.", False), ("!", True)]


WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def run(text: str, properties: str = "") -> str:
    return f'<w:r w:rsidR="1"><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def field(code: str, result: str, begin: str = "begin", end: str = "end") -> str:
    marks = [f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in (begin, "separate", end)]
    return f"{marks[0]}<w:r><w:instrText> {code} </w:instrText></w:r>{marks[1]}{result}{marks[2]}"


def word_file_of(*paragraphs: str) -> bytes:
    document, out = docx.Document(), io.BytesIO()
    body = f'<w:body xmlns:w="{WORD}">{"".join(f"<w:p><w:pPr/>{each}</w:p>" for each in paragraphs)}</w:body>'
    document.element.replace(document.element.body, parse_xml(body))
    document.save(out)
    return out.getvalue()


def shown(element: Any, *, upper: bool = False) -> str:
    """Return a paragraph as text, such as `One [b:two]{hyperlink three}<tab>`, without its division into runs."""
    groups = itertools.groupby(_shown(element, "", upper), key=itemgetter(0))
    texts = ((formats, "".join(text for _, text in group)) for formats, group in groups)
    return "".join(f"[{formats}:{text}]" if formats else text for formats, text in texts)


def _shown(element: Any, formats: str, upper: bool) -> Iterator[tuple[str, str]]:
    for child in element:
        name = etree.QName(child).localname if isinstance(child.tag, str) else ""
        if name == "t":  # a space has no format, but a blank may be underlined
            text = child.text.upper() if upper else child.text
            is_blank = "u" in formats and len(text) > 1 and not text.strip()
            yield from ((formats if each.strip() or is_blank else "", each) for each in text)
        elif name == "r":
            names = [etree.QName(each).localname for each in child.iterfind("{*}rPr/*")]
            yield from _shown(child, "".join(each for each in names if each != "lang"), upper)
        elif name == "fldChar":
            yield "", {"begin": "{", "end": "}"}.get(child.get(f"{{{WORD}}}fldCharType"), "|")
        elif name in ("hyperlink", "ins", "sdt", "fldSimple"):
            yield "", f"{{{name} "
            yield from _shown(child, formats, upper)
            yield "", "}"
        elif name in ("del", "instrText"):
            yield "", f"<{name}{''.join(child.itertext())}>"
        elif name == "sdtContent":
            yield from _shown(child, formats, upper)
        elif name.endswith(("Start", "End")) or name in ("tab", "br", "drawing", "footnoteReference"):
            yield "", f"<{name}>"


DELETED = "<w:r><w:delText>old </w:delText></w:r>"
NOTE = '<w:r><w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:footnoteReference w:id="2"/></w:r>'
PIECES = [
    *(run(text) for text in ("One two. ", " &lt;b&gt; &amp;amp; ", "w", "ord", " ", "   ", "  three", ".")),
    *(run(text) for text in ("&lt;m0&gt;", "(")),
    *(run(text, "<w:b/>") for text in ("May", " 5, 2024", " ", "bo", "ld. Next")),
    run("rd", '<w:lang w:val="de"/>'),
    run("u", "<w:u/><w:i/>"),
    run("     ", "<w:u/>"),
    "<w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:t>c </w:t></w:r>",
    "<w:r><w:tab/></w:r>",
    '<w:r><w:rPr><w:i/></w:rPr><w:br w:type="page"/></w:r>',
    "<w:r><w:softHyphen/></w:r>",
    '<w:r><w:drawing/><w:t xml:space="preserve"> of </w:t></w:r>',
    NOTE,
    "<w:proofErr/>",
    '<w:bookmarkStart w:id="1"/>',
    '<w:bookmarkEnd w:id="1"/>',
    f'<w:commentRangeStart w:id="2"/>{run("note")}<w:commentRangeEnd w:id="2"/>',
    f'<w:hyperlink w:anchor="x">{run("a ", "<w:i/>")}{run("link")}</w:hyperlink>',
    f'<w:hyperlink w:anchor="x">{run("a")}<w:r><w:tab/></w:r>{field("PAGEREF x", run("7"))}</w:hyperlink>',
    f'<w:ins w:id="3">{run("new", "<w:b/>")}{run(" text")}<w:del w:id="4">{DELETED}</w:del></w:ins>',
    f'<w:del w:id="5">{DELETED}</w:del>',
    f'<w:sdt><w:sdtPr><w:alias w:val="x"/></w:sdtPr><w:sdtContent>{run("control")}</w:sdtContent></w:sdt>',
    field('HYPERLINK "x"', run("site ") + run("of", "<w:b/>")),
    field("TOC", run("Contents"), "begin", "separate"),  # ends in another paragraph
    "<!-- a comment -->",
]  # fmt: skip
COMPUTED = [
    field("REF May", run("May", "<w:b/>")),
    field("IF 1", run("a") + field("PAGE", run("2"))),
    f'<w:fldSimple w:instr="DATE">{run("today")}</w:fldSimple>',
]


def paragraphs_of(file: bytes) -> list[Any]:
    return list(docx.Document(io.BytesIO(file)).element.body.iter("{*}p"))


def test_word_paragraphs_with_the_same_words_are_the_same() -> None:
    """In 500 paragraphs of pieces of all kinds, and if all words become capitals: text, formats, order, fields."""
    draw = random.Random(1)
    file = word_file_of(*("".join(draw.choices(PIECES, k=draw.randint(1, 9))) for _ in range(500)), *COMPUTED)
    same = read_document("a.docx", file, 10_000_000)
    split_texts = [split(text, "en") for text in same.texts]
    filled = same.fill([each.join(each.sentences) for each in split_texts])
    assert [*map(etree.tostring, paragraphs_of(filled))] == [*map(etree.tostring, paragraphs_of(file))]
    capitals = read_document("a.docx", file, 10_000_000)
    filled = capitals.fill([Marked(text.text.upper(), text.marks) for text in capitals.texts])
    for before, after in zip(paragraphs_of(file)[:500], paragraphs_of(filled), strict=False):
        assert shown(after) == shown(before, upper=True), etree.tostring(before)
    assert list(map(shown, paragraphs_of(filled)[500:])) == list(map(shown, paragraphs_of(file)[500:]))


@pytest.mark.parametrize(
    ("pieces", "text", "translation", "expected"),
    [
        ([run("May", "<w:b/>"), run(" 5, 2024")], "<m0>May</m0> 5, 2024", "5. <m0>Mai</m0> 2024", "5. [b:Mai] 2024"),
        ([run("M"), "<w:proofErr/>", run("ay 5")], "May 5", "5. Mai", "5. Mai"),
        ([COMPUTED[0], run(" 5, 2024")], " 5, 2024", " 5. 2024", "{<instrText REF May >|[b:May]} 5. 2024"),
        ([run("On "), COMPUTED[0], run(" 5")], "On <m0/> 5", "Am 5. <m0/>", "Am 5. {<instrText REF May >|[b:May]}"),
        (
            [run("See "), NOTE, run(" or "), field("HYPERLINK x", run("site")), run(" now")],
            "See <m0/> or <m1>site</m1> now",
            "Nun <m1>Seite</m1> oder",
            "Nun {<instrText HYPERLINK x >|Seite} oder<footnoteReference>",
        ),
    ],
)
def test_word_formats_and_fields_stay_on_their_words(
    pieces: list[str], text: str, translation: str, expected: str
) -> None:
    document = read("a.docx", word_file_of("".join(pieces)))
    assert document.texts == [text]
    (paragraph,) = paragraphs_of(document.fill([translation]))
    assert shown(paragraph) == expected


def test_words_of_links_that_touch_are_apart() -> None:
    links = [f'<w:hyperlink w:anchor="x">{run(text)}</w:hyperlink>' for text in ("one", "Two", "three")]
    pieces = [run("See "), links[0], links[1], run("/"), links[2], field("HYPERLINK x", run("four")), run(" now")]
    document = read("a.docx", word_file_of("".join(pieces)))
    assert document.texts == ["See <m0>one</m0>", "<m0>Two</m0>/", "three", "<m0>four</m0> now"]
    (paragraph,) = paragraphs_of(document.fill(["<m0>eins</m0>", "<m0>zwei</m0>/", "drei", "<m0>vier</m0>"]))
    assert shown(paragraph) == "{hyperlink eins}{hyperlink zwei}/{hyperlink drei}{<instrText HYPERLINK x >|vier}"


REVISED = "".join(
    [
        run("One "),
        f'<w:ins w:id="1">{run("bold", "<w:b/>")}<w:r><w:drawing/></w:r>{run(" slanted", "<w:i/>")}',
        '<w:del w:id="3"><w:r><w:delText>gone</w:delText></w:r></w:del></w:ins>',
        '<w:del w:id="2"><w:r><w:delText>old </w:delText></w:r></w:del>',
        f'<w:hyperlink w:anchor="x"><w:ins w:id="4">{run(" a ")}{run("link")}</w:ins></w:hyperlink>',
    ]
)


@pytest.mark.parametrize(
    ("translation", "expected"),
    [
        (
            "Eins <m0><m2/> kursiv <m1>fett</m1><m3/></m0><m4/><m5><m6> ein Link</m6></m5>",
            "Eins {ins <drawing> [i:kursiv] [b:fett]<delgone>}<delold >{hyperlink {ins  ein Link}}",
        ),
        (  # words outside of the pairs, an insertion that moves and occurs twice, and nothing of the others
            "<m0>so <m1>fett</m1></m0> ist <m0>es</m0> Eins",
            "{ins [i:so] [b:fett]} ist {ins [i:es]} Eins<drawing><delgone><delold >{hyperlink {ins }}",
        ),
    ],
)
def test_formats_in_tracked_insertions(translation: str, expected: str) -> None:
    """Text of an insertion keeps its formats and stays in it, and deleted text is neither changed nor lost."""
    document = read("a.docx", word_file_of(REVISED))
    assert document.texts == ["One <m0><m1>bold</m1><m2/> slanted<m3/></m0><m4/><m5><m6> a link</m6></m5>"]
    (paragraph,) = paragraphs_of(document.fill([translation]))
    assert shown(paragraph) == expected


def test_time_is_linear_in_the_size(request: pytest.FixtureRequest) -> None:
    """Time of the largest of three files of a kind, per time of the second, whose size is a quarter."""
    files: dict[str, Callable[[int], str]] = {
        "a.srt": lambda size: "1\n00:00:01,000 --> 00:00:02,000\n" + "a < b\n" * size,
        "a.vtt": lambda size: "WEBVTT\n\n00:01.000 --> 00:02.000\n" + "<i>a</b> &amp;\n" * size,
        "b.vtt": lambda size: "WEBVTT\n\n" + "00:01.000 --> 00:02.000\nab <i\n\n" * size,
        "b.srt": lambda size: "1\n00:00:01,000 --> 00:00:02,000\n" + "ab\n" * size,
        "a.html": lambda size: "<p>" + "<!--" * size,
        "b.html": lambda size: "<p>" + "<b a='" * size,
        "d.html": lambda size: "<p>" + "<b>x<i>" * size,
        "e.html": lambda size: "<p " + "a \t" * size + "=1>x</p>" + "</b>" * size,
        "f.html": lambda size: "<script>x" * size + "<b>",
        "c.html": lambda size: "<p>" + "<i>/mmmmm lt;mmm</i>" * (size // 4),
    }
    gc.freeze()  # the garbage collector must not traverse the objects of other tests
    request.addfinalizer(gc.unfreeze)
    for name, content in files.items():
        seconds = []
        for size in (500, 1_500, 6_000):
            began = time.thread_time()
            document = read(name, content(size).encode())
            document.fill(document.texts)
            seconds.append(time.thread_time() - began)
        assert seconds[2] < 10 * seconds[1] + 0.1, (name, seconds)


ARCHIVES = (".docx", ".pptx", ".xlsx", ".odt", ".odp", ".epub")


def with_member(suffix: str, content: str) -> bytes:
    """Return an archive whose member with text has this content."""
    name = {".epub": "a.xhtml", ".odt": "content.xml", ".odp": "content.xml"}.get(suffix, "b.xml")
    members = {
        each: file for each, file in members_of(Maker(1).file(suffix)).items() if not each.endswith((".xml", "html"))
    }
    types = members_of(Maker(1).file(suffix)).get("[Content_Types].xml", b"").decode()
    types = types.replace("/s.xml", "/b.xml").replace("/s1.xml", "/b.xml")
    return archive(
        {**{each: file.decode() for each, file in members.items()}, "[Content_Types].xml": types, name: content}
    )


@pytest.mark.parametrize("suffix", ARCHIVES)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0" * 20_000_000, "at most 10,000,000 bytes"),
        ("<a>" * 100_000, None),
        ("<a>" * 100_000 + "</a>" * 100_000, None),
        ('<!DOCTYPE a [<!ENTITY x SYSTEM "/etc/passwd">]><text:p>&x;</text:p>', None),
        (f"<text:p>{'<text:span>' * 300}{'a' * 9_000_000}{'</text:span>' * 300}</text:p>", None),
    ],
)
def test_hostile_archives_are_refused_or_unchanged(suffix: str, content: str, message: str | None) -> None:
    """Large contents, deep nesting, entities, huge texts; with None, the file may also be returned."""
    file, error = with_member(suffix, content), ""
    try:
        document = read(f"a{suffix}", file)
    except InputError as caught:
        error = str(caught)
    assert error or message is None
    assert (message or "") in error
    assert "\n" not in error
    assert error or (document.fill(document.texts) == file and "root:" not in "".join(document.texts))


def test_archives_need_different_names() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file.writestr("a.xhtml", "x")
        file.writestr("a.xhtml", "y")
    with pytest.raises(InputError, match="names in a zip archive must be different"):
        read("a.epub", out.getvalue())


def runs_of(element: Any) -> list[tuple[str, str]]:
    """Return the text of each run, with the format that it has."""
    return [
        ("".join(run.itertext()), "".join(etree.QName(each).localname for each in run.iterfind("{*}rPr/*")))
        for run in element.iterfind("{*}r")
    ]


def office_file(suffix: str, content: str, **others: str) -> bytes:
    """Return a document of PowerPoint or Excel with one part with text, and other parts by their types."""
    main, kind, namespace, root = {
        ".pptx": ("presentationml.presentation.main", "presentationml.slide", "drawingml", "sld"),
        ".xlsx": ("spreadsheetml.sheet.main", "spreadsheetml.sharedStrings", "spreadsheetml", "sst"),
    }[suffix]
    types = {
        "main.xml": main,
        "a.xml": kind,
        "missing.xml": kind,
        **{f"{name}.xml": f"spreadsheetml.{name}" for name in others},
    }
    overrides = "".join(
        f'<Override PartName="/{name}" ContentType="application/vnd.openxmlformats-officedocument.{each}+xml"/>'
        for name, each in types.items()
    )
    parts = {f"{name}.xml": each for name, each in others.items()}
    text = f'<{root} xmlns="http://schemas.openxmlformats.org/{namespace}/2006/main">{content}</{root}>'
    return archive(
        {"[Content_Types].xml": f"<Types><!-- x -->{overrides}</Types>", "main.xml": "<x/>", "a.xml": text, **parts}
    )


def test_slides_keep_formats_fields_and_breaks() -> None:
    content = (
        '<p><pPr/><r><rPr lang="en"/><t>The </t></r><r><rPr lang="en" dirty="0"/><t>green </t></r>'
        '<r><rPr b="1"><x/></rPr><t>house</t></r><br/><r><t>page </t></r><fld id="1"><t>7</t></fld><endParaRPr/></p>'
    )
    document = read("a.pptx", office_file(".pptx", content))
    assert document.texts == ["The green <m0>house</m0>", "page "]
    filled = etree.fromstring(members_of(document.fill(["<m0>Haus</m0>, das grüne", "Seite"]))["a.xml"])[0]
    assert [etree.QName(each).localname for each in filled] == ["pPr", "r", "r", "br", "r", "fld", "endParaRPr"]
    assert runs_of(filled) == [("Haus", "x"), (", das grüne", ""), ("Seite", "")]
    assert filled.findtext("{*}fld/{*}t") == "7"
    assert not [name for each in filled.iter("{*}t") for name in each.attrib]


def test_workbook_keeps_formulas_and_names_of_columns() -> None:
    """Strings that are shared or in a cell are texts. Names of columns are not, because formulas have them."""
    content = "<si><t>Price_x000D_\n of a house</t></si><si><t>Price</t></si>"
    content += "<si><r><t>a </t></r><r><rPr><b/></rPr><t>b</t></r></si>"
    sheet = (
        '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><c><f>SUM("a b")</f><v>1</v></c>'
        '<c t="inlineStr"><is><t>In a cell </t></is></c></worksheet>'
    )
    table = (
        '<table xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><tableColumn name="Price"/></table>'
    )
    document = read("a.xlsx", office_file(".xlsx", content, worksheet=sheet, table=table))
    assert document.texts == ["Price<m0/>\n of a house", "a <m0>b</m0>", "In a cell "]
    members = members_of(document.fill(["Preis<m0/>\n & Haus", "<m0>B</m0> a", "Im Feld "]))
    strings = etree.fromstring(members["a.xml"])
    assert [each.findtext("{*}t") for each in strings][:2] == ["Preis_x000D_\n & Haus", "Price"]
    assert runs_of(strings[2]) == [("B", "b"), (" a", "")]
    expected = sheet.replace("In a cell </t>", "Im Feld </t>").replace("<is><t>", '<is><t xml:space="preserve">')
    assert members["worksheet.xml"].decode().endswith(expected)
    assert members["table.xml"].decode() == table


def test_notes_of_open_documents_are_separate_texts() -> None:
    text = (
        "<x><text:p>One<text:note><text:note-citation>1</text:note-citation><text:p>A note</text:p></text:note> or "
        '<text:span a="b">two<text:tab/>three</text:span>&#10; four</text:p></x>'
    )
    document = read("a.odt", with_member(".odt", text))
    assert document.texts == ["A note", "One<m0/> or ", "two", "three", " four"]
    filled = members_of(document.fill(["Notiz", "Oder <m0/>eins", "zwei", "drei", "vier & <5"]))["content.xml"].decode()
    note = "<text:note><text:note-citation>1</text:note-citation><text:p>Notiz</text:p></text:note>"
    assert (
        filled
        == f'<x><text:p>Oder {note}eins<text:span a="b">zwei<text:tab/>drei</text:span>vier &amp; &lt;5</text:p></x>'
    )


def test_markdown_is_escaped() -> None:
    """A translation does not become a list, emphasis or a link; marks that were text stay so."""
    content = "> May 3 was *good* \\[x\\] 2 * 2\n> so\n\n- [a](b) c\n"
    document = read("a.md", content.encode())
    assert document.texts == ["May 3 was <m0>good</m0> [x] 2 * 2 so", "<m0>a</m0> c"]
    filled = document.fill(["3. Mai <m0>gut_er</m0> [x] * `y`", "- <m0>a</m0> &amp; <b>"])
    assert filled == "> 3\\. Mai *gut\\_er* \\[x\\] * \\`y\\`\n\n- \\- [a](b) \\&amp; \\<b>\n"


def test_markdown_notes_keep_their_first_line() -> None:
    for content in ("> [!NOTE]\n> One *two*.\n", "!!! note\n    One *two*.\n", "::: tip\nOne *two*.\n:::\n"):
        document = read("a.md", content.encode())
        assert document.texts == ["One <m0>two</m0>."]
        assert document.fill(["Eins <m0>zwei</m0>!"]) == content.replace("One *two*.", "Eins *zwei*!")
    document = read("a.md", b"~~Old~~ new\n")
    assert document.fill(["<m0>Alt</m0> neu"]) == "~~Alt~~ neu\n"
    document = read("a.md", b"a **very** b *x*, __y__ [z](w)\n")  # emphasis without words would be text
    assert document.fill(["a<m0></m0> b<m1></m1>, c <m3></m3><m2></m2>"]) == "a b, c [](w)\n"


def test_addresses_in_markdown_end_before_punctuation() -> None:
    content = b"A **https://x.org/a**. See https://x.org/a_(b), (www.x.org/c) or [x](https://x.org/a_(b)): go!\n"
    assert read("a.md", content).texts == ["A <m0/>. See <m1/>, (<m2/>) or <m3>x</m3>: go!"]


def test_po_file_is_filled() -> None:
    """An entry with a translation stays, and so does one that is marked as fuzzy. Plural forms are filled."""
    content = (
        'msgid ""\nmsgstr "Content-Type: text/plain; charset=latin-1\\n"\n\n#, fuzzy\nmsgid "a"\nmsgstr "b"\n\n'
        'msgctxt "menu"\nmsgid ""\n"Open %s\\n"\n"now \\"x\\""\nmsgstr ""\n\n'
        'msgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\nmsgstr[2] ""\n'
    )
    texts = document_texts("a.po", content.encode("latin-1"), 10_000, 10_000)
    assert [notation(text) for text in texts] == ['Open <m0/>\nnow "x"', " file", " files"]
    fill = partial(fill_document, "a.po", content.encode("latin-1"), 10_000)
    first = marked("Öffne\t<m0/>", [texts[0].marks[0].item])
    filled = fill([first, Marked(" Datei"), Marked(" Dateien")]).decode("latin-1")
    assert [line for line in filled.split("\n") if line.startswith("msgstr")][2:] == [
        'msgstr "Öffne\\t%s"',
        'msgstr[0] "%d Datei"',
        'msgstr[1] "%d Dateien"',
        'msgstr[2] "%d Dateien"',
    ]
    for rule, count in (
        ("", 1),
        ("n % 10 == 1 ? 0 : n < 5 ? 1 : 2", 3),
        ("(n%100==1 ? 0 : 1)", 2),
        ("(n==0 ? 0 : 1)", 2),
    ):
        header = f'msgid ""\nmsgstr "Plural-Forms: plural={rule};"\n\n'
        lines = 'msgid_plural "%d files"\n' + "".join(f'msgstr[{i}] ""\n' for i in range(count))
        document = read("a.po", f'{header}msgid "One file"\n{lines}'.encode())
        assert document.texts == [" files"]  # each form is for several numbers
        assert document.fill([" X"]).count('"%d X"') == count
        if count > 1:
            assert read("a.po", f'{header}msgid "%d file"\n{lines}'.encode()).texts == [" file", " files"]
    with pytest.raises(InputError, match="convert the file to UTF-8"):
        fill([Marked("中"), Marked(), Marked()])
    with pytest.raises(InputError, match="line 1 is not"):
        read("a.po", b'"a"\n')
    assert read("a.po", b"").texts == []


def test_json_keeps_numbers_and_escapes() -> None:
    content = '{"key": ["\\u00e9 {x}", 1.0E5, "\\ud800", ""], "https://x": "a\\nb"}'
    document = read("a.json", content.encode())
    assert document.texts == ["é ", "a\nb"]
    assert document.fill(['ö"', "c"]) == content.replace("\\u00e9 ", '\\u00f6\\"').replace("a\\nb", "c")
    for wrong in (b"{", b"[" * 100_000, b'["a\n"]', b"1" * 5000):
        with pytest.raises(InputError, match="must be JSON"):
            read("a.json", wrong)


def test_no_text_moves_across_line_breaks() -> None:
    for name, form in (("a.json", '["{}"]'), ("a.md", "{}\n"), ("a.md", "| {} |\n|---|\n")):
        content = form.replace("{}", "<b>a<br>b</b> c<BR/><br />d<br class='x'>e")
        document = read(name, content.encode())
        assert document.texts == ["<m0>a", "b</m0> c", "", "d", "e"]
        filled = form.replace("{}", "A <b><br>C</b>B<BR/><br />D<br class='x'>E")
        assert document.fill(["A <m0>", "C</m0>B", "", "D", "E"]) == filled


def test_xliff_fills_targets_that_are_empty() -> None:
    units = [
        '<unit><segment><source>A <pc id="1">b</pc></source></segment>',
        "<segment><source>c</source><target>d</target></segment></unit>",
        '<trans-unit translate="no"><source>e</source></trans-unit>',
        "<trans-unit><alt-trans><source>f</source></alt-trans><source>g</source><seg-source>g</seg-source></trans-unit>",
    ]
    assert read(
        "a.xlf", b"<xliff><trans-unit><source>a</source><target state='needs-l10n'>b</target></trans-unit></xliff>"
    ).texts
    initial = "<xliff><segment state='initial'><source>a</source><target>{}</target></segment></xliff>"
    assert [read("a.xlf", initial.format(text).encode()).texts for text in "ab"] == [["a"], []]
    protected = "<xliff><trans-unit><source>a <mrk mtype='protected'>b</mrk> c</source></trans-unit></xliff>"
    assert read("a.xlf", protected.encode()).texts == ["a <m0/> c"]
    content = f"<xliff>{''.join(units)}</xliff>"
    document = read("a.xliff", content.encode())
    assert document.texts == ["A <m0>b</m0>", "g"]
    filled = document.fill(["<m0>B</m0> & a", "G"])
    expected = content.replace("</pc></source>", '</pc></source><target><pc id="1">B</pc> &amp; a</target>')
    assert filled == expected.replace("</seg-source>", "</seg-source><target>G</target>")
    for wrong in ("<a/>", "<xliff><a></xliff>", "<xliff>"):
        with pytest.raises(InputError, match="must be"):
            read("a.xlf", wrong.encode())


@pytest.mark.parametrize(
    ("unit", "filled"),
    [
        *(
            (
                f'<trans-unit id="1"><source>One</source><target state="{state}">x</target></trans-unit>',
                '<trans-unit id="1"><source>One</source><target state="translated">Eins</target></trans-unit>',
            )
            for state in ("new", "needs-translation", "needs-l10n", "needs-adaptation")
        ),
        (
            "<trans-unit><source>One</source><target state='final' />\n</trans-unit>",
            '<trans-unit><source>One</source><target state="translated">Eins</target>\n</trans-unit>',
        ),
        (
            '<trans-unit><source>One</source><target xml:lang="de" state = "new"'
            "\n state-qualifier = 'tm-suggestion'></target></trans-unit>",
            '<trans-unit><source>One</source><target xml:lang="de" state = "translated">Eins</target></trans-unit>',
        ),
        (
            "<segment id='1' state='initial' subState='x:y'><source>One</source><target>One</target></segment>",
            "<segment id='1' state=\"translated\"><source>One</source><target>Eins</target></segment>",
        ),
        (
            '<segment subState="x:y" state="initial"><source>One</source></segment>',
            '<segment state="translated"><source>One</source><target>Eins</target></segment>',
        ),
        (
            '<trans-unit><source>One &lt;b&gt;</source><target state="new"></target></trans-unit>',
            '<trans-unit><source>One &lt;b&gt;</source><target state="translated">Eins&lt;b&gt;</target></trans-unit>',
        ),
        (
            "<segment><source>One</source></segment>",
            "<segment><source>One</source><target>Eins</target></segment>",
        ),
    ],
)
def test_a_filled_target_of_xliff_is_translated_once(unit: str, filled: str) -> None:
    """Its state says that it was translated, so a second run keeps it, and what a person has written instead."""
    document = read("a.xlf", f"<xliff>{unit}</xliff>".encode())
    assert len(document.texts) == 1
    assert document.fill(["Eins"]) == f"<xliff>{filled}</xliff>"
    for content in (filled, filled.replace("Eins", "Zwei")):
        again = read("a.xlf", f"<xliff>{content}</xliff>".encode())
        assert again.texts == []
        assert again.fill([]) == f"<xliff>{content}</xliff>"


@pytest.mark.parametrize("state", ["translated", "signed-off", "final", "needs-review-translation", "x-edited"])
def test_translated_targets_of_xliff_stay(state: str) -> None:
    content = f'<xliff><trans-unit><source>One</source><target state="{state}">Eins</target></trans-unit></xliff>'
    document = read("a.xlf", content.encode())
    assert document.texts == []
    assert document.fill([]) == content


@pytest.mark.parametrize(
    ("name", "encoding", "mark"),
    [
        *((name, "utf-8", b"") for name in ("a.txt", "a.srt")),
        *((name, encoding, mark) for name in ("a.txt", "a.srt", "a.html") for encoding, mark in
          (("utf-8", b"\xef\xbb\xbf"), ("utf-16-le", b"\xff\xfe"), ("utf-16-be", b"\xfe\xff"))),
        *((f"{charset}.html", encoding, b"") for charset, encoding in
          (("windows-1252", "cp1252"), ("latin1", "cp1252"), ("Shift_JIS", "shift_jis"), ("utf-8", "utf-8"))),
    ],
)  # fmt: skip
def test_files_keep_their_encoding(name: str, encoding: str, mark: bytes) -> None:
    """HTML may declare it. Characters that it does not have become references."""
    letter = "дом" if encoding == "shift_jis" else "„é€“" if encoding == "cp1252" else "é中😀"
    html = f"<meta http-equiv=x content='text/html; charset={name[:-5]}'><p>{letter}</p>"
    text = html if name.endswith(".html") else f"1\n00:00:01,000 --> 00:00:02,000\n{letter}\n"
    content = mark + text.encode(encoding)
    texts = document_texts(name, content, 10_000, 10_000)
    assert letter in texts[-1].text
    assert fill_document(name, content, 10_000, texts) == content
    if len(name) > 6:
        filled = fill_document(name, content, 10_000, [*texts[:-1], Marked("中ö")])
        assert unescape(filled.decode(encoding)).endswith("<p>中ö</p>")


def test_a_charset_counts_at_the_beginning_of_a_page() -> None:
    """Where browsers look for it too: in the first 1,024 bytes."""
    for before, letter in ((b"", "Ã©"), (b" " * 1024, "é")):
        (text,) = read("a.html", before + b"<meta charset=latin1><p>\xc3\xa9</p>").texts
        assert text == letter


def test_unknown_charset_is_refused() -> None:
    for content, message in (
        (b"<meta charset=x-none>a", "unknown charset: x-none"),
        (b"<p>\xe9", "must be text in utf-8"),
    ):
        with pytest.raises(InputError, match=message):
            read("a.html", content)


@pytest.mark.parametrize("content", [
    *("<p>one</p>".encode(encoding) for encoding in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")),
    *("\ufeff<p>слово</p>".encode(encoding) for encoding in ("utf-32-le", "utf-32-be")),
    "слово".encode("utf-16-le"), "\ufeff<p>one \0</p>".encode("utf-16-le"), b"<p>one \0</p>", b"\0", bytes(100),
])  # fmt: skip
@pytest.mark.parametrize("suffix", [".txt", ".srt", ".html", ".md", ".po", ".xlf", ".json", ".xhtml"])
def test_text_in_utf_32_and_with_nul_is_refused(suffix: str, content: bytes) -> None:
    """UTF-16 without a byte order mark too."""
    with pytest.raises(InputError, match=r"^the file must be [^\n]*iconv[^\n]*$"):
        read(f"a{suffix}", content)


def test_strings_of_json_with_nul_stay() -> None:
    document = read("a.json", b'["one", "two \\u0000"]')
    assert document.texts == ["one"]
    assert document.fill(["eins"]) == '["eins", "two \\u0000"]'


@pytest.mark.parametrize("escape", ["\\0", "\\000", "\\x00"])
def test_entries_of_po_with_nul_stay_empty(escape: str) -> None:
    pattern = 'msgid "two {}"\nmsgstr ""\n\nmsgid "one"\nmsgstr "{}"\n'
    document = read("a.po", pattern.format(escape, "").encode())
    assert document.texts == ["one"]
    assert document.fill(["eins"]) == pattern.format(escape, "eins")


@pytest.mark.parametrize("name", ["a.pdf", "", "a.docx.exe"])
def test_other_suffixes_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="end in"):
        read(name, b"x")


@pytest.mark.parametrize("suffix", FORMATS)
def test_damaged_file_is_refused(suffix: str) -> None:
    for content in (b"\xff\xfe\x00", word_file()[:-200], *([b"PK\x03\x04"] if suffix in (".srt", ".docx") else [])):
        with pytest.raises(InputError) as error:
            read(f"a{suffix}", content)
        assert "\n" not in str(error.value)
