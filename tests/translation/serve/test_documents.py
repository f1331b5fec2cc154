"""Files of each kind: read, filled and written."""

import io
import zipfile

import docx
import pytest
import srt

from relattn.translation.errors import InputError
from relattn.translation.serve.text.documents import FORMATS, read_document


def word_file() -> bytes:
    document = docx.Document()
    document.add_heading("A title", 1)
    paragraph = document.add_paragraph("The ")
    paragraph.add_run("red").bold = True
    paragraph.add_run(" house & <b>")
    document.add_paragraph("")
    document.add_table(1, 1).cell(0, 0).text = "In a cell"
    document.sections[0].footer.paragraphs[0].text = "At the foot"
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


SUBTITLES = (
    "1\n00:00:01,000 --> 00:00:02,000\nOne <i>two</i>\nthree & 4 <3\n\n"
    "2\n00:00:03,000 --> 00:00:04,000\n- four\n- five six\n\n"
)


def opened(name: str, content: bytes, *, keep_tags: bool = True):
    return read_document(name, content, keep_tags=keep_tags, unpacked=10_000_000)


@pytest.mark.parametrize("keep_tags", [False, True])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"One.\r\n\r\n Two. \n"),
        ("a.html", b"<p>One <b>two</b></p>"),
        ("a.SRT", SUBTITLES.encode()),
    ],
)
def test_untranslated_it_is_the_same(name: str, content: bytes, keep_tags: bool) -> None:
    document = opened(name, content, keep_tags=keep_tags)
    assert document.fill(document.texts) == content.decode()


def test_subtitles_keep_their_times_and_tags() -> None:
    document = opened("a.srt", SUBTITLES.encode())
    found = list(srt.parse(document.fill([text.upper().replace("M0", "m0") for text in document.texts])))
    assert [each.content for each in found] == ["ONE <i>TWO</i>\nTHREE & 4 <3", "- FOUR\n- FIVE SIX"]
    assert [each.start.total_seconds() for each in found] == [1, 3]


def test_word_keeps_looks_tables_and_feet() -> None:
    document = opened("a.docx", word_file())
    assert document.texts == [
        "A title", "<m0>The </m0><m1>red</m1><m2> house & <b></m2>", "In a cell", "At the foot",
    ]  # fmt: skip
    done = document.fill(["Ein Titel", "<m1>rot</m1><m0>Das </m0><m2> Haus & <b></m2>", "In einer Zelle", "Am Fuß"])
    result = docx.Document(io.BytesIO(done))
    assert [paragraph.text for paragraph in result.paragraphs] == ["Ein Titel", "rotDas  Haus & <b>", ""]
    runs = result.paragraphs[1].runs
    assert [(run.text, run.bold) for run in runs] == [("rot", True), ("Das ", None), (" Haus & <b>", None)]
    assert result.tables[0].cell(0, 0).text == "In einer Zelle"
    assert result.sections[0].footer.paragraphs[0].text == "Am Fuß"


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b"0" * 20_000_000)
    with pytest.raises(InputError, match="at most 10,000,000 bytes"):
        opened("a.docx", out.getvalue())


@pytest.mark.parametrize("name", ["a.pdf", "a", "", "../../etc/passwd", "a.docx.exe"])
def test_other_kinds_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="end in"):
        opened(name, b"x")


@pytest.mark.parametrize("name", [f"a{ending}" for ending in FORMATS])
def test_damaged_files_are_refused_in_one_line(name: str) -> None:
    for content in (b"\xff\xfe\x00", word_file()[:-200], *([b"PK\x03\x04"] if name in ("a.srt", "a.docx") else [])):
        with pytest.raises(InputError) as error:
            opened(name, content)
        assert "\n" not in str(error.value)
