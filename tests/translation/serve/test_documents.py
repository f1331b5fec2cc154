"""Files of each kind: their texts, and the file with translations."""

import io
import zipfile

import docx
import pytest
import srt
from docx.enum.text import WD_BREAK

from relattn.translation.errors import InputError
from relattn.translation.serve.text.documents import FORMATS, Document, read_document
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


def test_unpacked_size_is_limited() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b"0" * 20_000_000)
    with pytest.raises(InputError, match="at most 10,000,000 bytes"):
        read("a.docx", out.getvalue())


@pytest.mark.parametrize("name", ["a.pdf", "a", "", "../../etc/passwd", "a.docx.exe"])
def test_other_suffixes_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="end in"):
        read(name, b"x")


@pytest.mark.parametrize("suffix", FORMATS)
def test_damaged_file_is_refused(suffix: str) -> None:
    for content in (b"\xff\xfe\x00", word_file()[:-200], *([b"PK\x03\x04"] if suffix in (".srt", ".docx") else [])):
        with pytest.raises(InputError) as error:
            read(f"a{suffix}", content)
        assert "\n" not in str(error.value)
