"""Files of each kind: their texts, and the file with translations."""

import gc
import io
import time
import zipfile
from collections.abc import Callable
from html import unescape

import docx
import pytest
import srt
from docx.enum.text import WD_BREAK
from docx.opc.constants import CONTENT_TYPE, RELATIONSHIP_TYPE
from docx.opc.packuri import PackURI
from docx.opc.part import Part
from docx.oxml import parse_xml
from lxml import etree

from relattn.translation.errors import InputError
from relattn.translation.serve.text.documents import (
    FORMATS,
    Document,
    document_texts,
    fill_document,
    read_document,
)
from relattn.translation.serve.text.html import Markup

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


def read(name: str, content: bytes, *, keep_tags: bool = True) -> Document | Markup:
    return read_document(name, content, keep_tags=keep_tags, unpacked=10_000_000)


@pytest.mark.parametrize("keep_tags", [False, True])
@pytest.mark.parametrize(
    ("name", "content"),
    [("a.txt", "One.\r\n\r\n Two. \n"), ("a.html", "<p>One <b>two</b></p>"), ("a.SRT", SUBTITLES)],
)
def test_unchanged_texts_give_the_same_file(name: str, content: str, keep_tags: bool) -> None:
    document = read(name, content.encode(), keep_tags=keep_tags)
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


@pytest.mark.parametrize("keep_tags", [False, True])
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
def test_subtitles_with_the_same_texts_are_the_same(name: str, content: str, line_end: str, keep_tags: bool) -> None:
    """Times, numbers, notes, positions, tags, entities, dashes, spaces and line ends do not change."""
    content = content.replace("\n", line_end)
    document = read(name, content.encode(), keep_tags=keep_tags)
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
    marked = "<m0>The </m0><m1>red</m1><m2> house & <b></m2>"
    assert document.texts == ["A title", marked, "In a", "cell", "In the footer"]
    result = document.fill(["Ein Titel", "<m1>rot</m1><m0>Das </m0><m2> Haus & <b></m2>", "In einer", "Zelle", "Unten"])
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
    assert texts == ["<m0>One </m0><m1>new </m1><m2>control</m2>", "A note", "On the first page", "On the others"]
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
    for text, bold in (("One. Two ", True), ("three", None), (" four.", False)):
        paragraph.add_run(text).bold = bold
    document.save(out)
    read_back = read("a.docx", out.getvalue())
    assert read_back.texts == ["<m0>One. Two </m0><m1>three</m1><m2> four.</m2>"]
    filled = read_back.fill(["<m0>Eins.</m0> <m1>drei</m1><m0> zwei </m0><m2>vier.</m2><m0>!</m0>"])
    (paragraph,) = docx.Document(io.BytesIO(filled)).paragraphs
    runs = [(run.text, run.bold) for run in paragraph.runs]
    assert runs == [("Eins. ", True), ("drei", None), (" zwei ", True), ("vier.", False), ("!", True)]


REVISED = """<w:p xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">
<w:r><w:t xml:space="preserve">One </w:t></w:r>
<w:ins w:id="1" w:author="x"><w:r><w:rPr><w:b/></w:rPr><w:t>bold</w:t></w:r><w:r><w:tab/><w:drawing/></w:r>
<w:r><w:rPr><w:i/></w:rPr><w:t xml:space="preserve"> slanted</w:t></w:r>
<w:del w:id="3" w:author="y"><w:r><w:delText>gone</w:delText></w:r></w:del></w:ins>
<w:del w:id="2" w:author="x"><w:r><w:rPr><w:b/></w:rPr><w:delText xml:space="preserve">old </w:delText></w:r></w:del>
<w:hyperlink><w:ins w:id="4" w:author="x"><w:r><w:t xml:space="preserve"> a </w:t></w:r><w:r><w:t>link</w:t></w:r>
</w:ins></w:hyperlink></w:p>"""


@pytest.mark.parametrize(
    ("translation", "expected"),
    [
        (
            "<m0>Eins </m0><m1><m3> kursiv</m3> <m2>fett</m2></m1><m4><m5> ein </m5><m6>Link</m6></m4>",
            "Eins |ins:i: kursiv |ins:b:fett|del:b:old |ins: ein |ins:Link",
        ),
        (  # words outside of the runs, and an insertion that moves
            "<m1>so <m2>fett</m2> und<m3> kursiv</m3></m1> ist <m0>Eins</m0><m4>am <m5>ein</m5><m6></m6></m4>",
            "ins:b:so fett und|ins:i: kursiv ist |Eins|del:b:old |ins:am ein|ins:",
        ),
    ],
)
def test_formats_in_tracked_insertions(translation: str, expected: str) -> None:
    """Runs of an insertion keep their formats and stay in it, and deleted text is neither changed nor moved."""
    document, out = docx.Document(), io.BytesIO()
    document.element.body.insert(0, parse_xml(REVISED))
    document.save(out)
    read_back = read("a.docx", out.getvalue())
    assert read_back.texts == ["<m0>One </m0><m1><m2>bold</m2><m3> slanted</m3></m1><m4><m5> a </m5><m6>link</m6></m4>"]
    (paragraph,) = docx.Document(io.BytesIO(read_back.fill([translation]))).element.body.iter("{*}p")
    shown = []
    for run in paragraph.iter("{*}r"):
        names = [etree.QName(each).localname for each in (run.getparent(), *run.iter("{*}b", "{*}i"))]
        text = "".join(each.text or "" for each in run.iter("{*}t", "{*}delText"))
        if "gone" not in text and run.find("{*}drawing") is None:
            shown.append(":".join([*(name for name in names if name != "p"), text]))
    assert "|".join(shown) == expected
    deleted = [each.getparent().getparent().getparent() for each in paragraph.iter("{*}delText")]
    assert [etree.QName(each).localname for each in deleted] == ["ins", "p"]


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


def test_unpacked_size_is_limited() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b"0" * 20_000_000)
    with pytest.raises(InputError, match="at most 10,000,000 bytes"):
        read("a.docx", out.getvalue())


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
    texts = document_texts(name, content, True, 10_000)
    assert letter in texts[-1]
    assert fill_document(name, content, True, 10_000, texts) == content
    if len(name) > 6:
        filled = fill_document(name, content, True, 10_000, [*texts[:-1], "中ö"])
        assert unescape(filled.decode(encoding)).endswith("<p>中ö</p>")


def test_unknown_charset_is_refused() -> None:
    for content, message in (
        (b"<meta charset=x-none>a", "unknown charset: x-none"),
        (b"<p>\xe9", "must be text in utf-8"),
    ):
        with pytest.raises(InputError, match=message):
            read("a.html", content)


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
