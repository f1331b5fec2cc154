"""Paragraphs of plain text."""

from relattn_mt.documents.plain_text import PlainText
from relattn_mt.text.marked import Marked

EMAIL = """Dear all,

the meeting that we had planned for Monday has been moved to the
3. May, because Mr. Smith is on a train until then. Please tell us
whether you can come.
Thanks!

> > Could you please send me the report of the last year, together
> > with all the tables?
> Yes.

- A first item that is long enough to be broken into two lines, as
  it is here
- A second item, which is also so long that it must be broken into
  two lines

   1) One
   2) Two\t
こんにちは、これは長い行ですが空白がないので一つの文として扱われますので、続きません。
次の行です。
"""


def test_lines_of_paragraphs_are_one_text() -> None:
    for content in (EMAIL, EMAIL.replace("\n", "\r\n"), EMAIL[:-1]):
        texts = [text.text.strip("\r\n") for text in PlainText(content).texts if text.text.strip()]
        assert texts[:2] == [
            "Dear all,",
            "the meeting that we had planned for Monday has been moved to the 3. May, because Mr. Smith is on a train "
            "until then. Please tell us whether you can come.",
        ]
        assert texts[2:6] == [
            "Thanks!",
            "Could you please send me the report of the last year, together with all the tables?",
            "Yes.",
            "A first item that is long enough to be broken into two lines, as it is here",
        ]
        assert texts[7:9] == ["One", "Two\t"]
        assert len(texts) == 10
        assert texts[-1].count("\n") == 1


def test_translations_are_broken_to_the_same_width() -> None:
    document = PlainText(EMAIL)
    assert document.fill(document.texts) == EMAIL
    longer = [Marked(text.text.replace("e", "ee")) for text in document.texts]
    lines = document.fill(longer).split("\n")
    assert max(len(line) for line in lines if " " in line) <= 66
    assert [line for line in lines if line.startswith(">")] == [
        "> > Could you pleeasee seend mee thee reeport of thee last yeear,",
        "> > togeetheer with all thee tablees?",
        "> Yees.",
    ]
    begin = next(i for i, line in enumerate(lines) if line.startswith("- A first"))
    assert [line[:2] for line in lines[begin : begin + 5]] == ["- ", "  ", "- ", "  ", ""]
    assert [line[:5] for line in lines if ")" in line] == ["   1)", "   2)"]
