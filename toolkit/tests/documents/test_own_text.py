"""Files that refer to their own text: what refers to a text that was translated still does."""

import time
from typing import Any

import pytest
from relattn_mt.config import SearchConfig
from relattn_mt.documents.read import read_document
from relattn_mt.support.errors import InputError
from relattn_mt.text.marked import Marked
from relattn_mt.translate.documents import translate_document
from relattn_mt.translate.options import DEFAULTS
from relattn_mt.translate.translator import Translator

from tests.support.document_files import archive, members_of
from tests.support.engines import TextEngine
from tests.support.marked import Characters

NEW = {"My house": "Mein Haus", "above": "oben", "The end": "Das Ende", "One": "Eins", "Two": "Zwei", "a": "b"}


def translated(content: str) -> str:
    document = read_document("a.md", content.encode(), 10**6)
    return str(document.fill([Marked(NEW.get(text.text, text.text), text.marks) for text in document.texts]))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("- [My house](#my-house)\n\n## My house\n", "- [Mein Haus](#mein-haus)\n\n## Mein Haus\n"),
        ("# My house #\n\n[above](#my-house)\n", "# Mein Haus #\n\n[oben](#mein-haus)\n"),
        ("# One\n\n# One\n\n[above](#one-1)\n", "# Eins\n\n# Eins\n\n[oben](#eins-1)\n"),
        ("# One\n\n# Two\n\n[a](#two) [a](#one)\n", "# Eins\n\n# Zwei\n\n[a](#zwei) [a](#eins)\n"),
        ("[above](#my-house 'x')\n\n# My house\n", "[oben](#mein-haus 'x')\n\n# Mein Haus\n"),
        ("[above][x]\n\n[x]: #my-house\n\n# My house\n", "[oben][x]\n\n[x]: #mein-haus\n\n# Mein Haus\n"),
        ('<a href="#one">x</a>\n\n# One\n', '<a href="#eins">x</a>\n\n# Eins\n'),
        ("# One\r\n\r\n[above](#one)\r\n", "# Eins\r\n\r\n[oben](#eins)\r\n"),
        ("# One\n\n[above](b.md#one) [a](#other)\n", "# Eins\n\n[above](b.md#one) [a](#other)\n"),
        ("```sh\n# One\n```\n\n# One\n\n[above](#one)\n", "```sh\n# One\n```\n\n# Eins\n\n[oben](#eins)\n"),
        ("One\n===\n\nTwo\n---\n\n[a](#one) [a](#two)\n", "Eins\n===\n\nZwei\n---\n\n[a](#eins) [a](#zwei)\n"),
        ("My\nhouse\r\n  ----\r\n\r\n[above](#my-house)\r\n", "Mein Haus\r\n  ----\r\n\r\n[oben](#mein-haus)\r\n"),
        ("> # One\n\n- Two\n  ---\n\n[a](#one) [a](#two)\n", "> # Eins\n\n- Zwei\n  ---\n\n[a](#eins) [a](#zwei)\n"),
        ("# One\n\n- a ` b\n- [above](#one)\n- c `\n", "# Eins\n\n- a ` b\n- [oben](#eins)\n- c `\n"),
        ("# One\n\n|` x|\n|---|\n|[a](#one)|\n|c `|\n", "# Eins\n\n|` x|\n|---|\n|[b](#eins)|\n|c `|\n"),
        ("a `b\n\n# One\n\n[above](#one) `c`\n", "a `b\n\n# Eins\n\n[oben](#eins) `c`\n"),
    ],
)
def test_links_to_headings_of_markdown_follow_them(content, expected):
    assert translated(content) == expected


@pytest.mark.parametrize(
    "code",
    [
        "```\n{}\n```\n",
        "- x\n\n  ~~~~ md\n  {}\n\n  # One\n  ~~~~\n",
        "> ```\n> {}\n> ```\n",
        "    {}\n",
        "```\n{}\n",
        "`{}`\n",
        "x ``{} ` `` y\n",
        "`\n{}`\n",
        "<code>{}</code>\n",
    ],
)
def test_links_to_headings_stay_in_code(code):
    code = code.format("[x](#one) <a href='#one'>")
    for end in ("\n", "\r\n"):
        form = f"---\nx: [b](#one)\n---\n# {{}}\n\n[x](#{{}})\n\n{code}".replace("\n", end)
        assert translated(form.format("One", "one")) == form.format("Eins", "eins")


@pytest.mark.parametrize(
    "line",
    [
        "import Tabs from '@theme/Tabs';",
        'import {a, b} from "./a b"',
        "import './one.css';",
        "export const name = 'my friend';",
        "export default One;",
        "export function One() { return 'my house'; }",
        "export {a};",
        "export * from 'a';",
        "import {\n  one,\n  two\n} from './a b';",
        "export default function One({children}) {\n  const a = 'One';\n\n  return <p>One two</p>;\n}",
        "export const list = [\n  'my friend',\n\n    {a: 'my house'},\n];",
        "export const meta = {\ntitle: 'my house'\n}",
    ],
)
def test_code_of_mdx_stays(line):
    for content in (f"{line}\n\nOne\n", f"{line}\n{line}\n\nOne\n", f"One\n\n{line}\n"):
        document = read_document("a.md", content.encode(), 10**6)
        assert [text.text for text in document.texts] == ["One"]
        assert document.fill([Marked("Eins")]) == content.replace("One\n", "Eins\n")
    for text in ("import the book from here", "Export const is a word", "export a house", "import this: (\na house\n"):
        expected = text.strip().replace("\n", " ")
        assert [each.text for each in read_document("a.mdx", f"{text}\n".encode(), 10**6).texts] == [expected]


SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def workbook(references: str, *cells: str) -> bytes:
    """Return a workbook whose sheet has some cells after other elements."""
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    types = {"book": "sheet.main", "sheet": "worksheet"}
    overrides = "".join(
        f'<Override PartName="/{name}.xml" ContentType="{kind}.{each}+xml"/>' for name, each in types.items()
    )
    rows = "".join(f'<c t="inlineStr"><is><t>{cell}</t></is></c>' for cell in cells)
    return archive(
        {
            "[Content_Types].xml": f"<Types>{overrides}</Types>",
            "book.xml": f'<workbook xmlns="{SHEET}"/>',
            "sheet.xml": f'<worksheet xmlns="{SHEET}">{references}{rows}</worksheet>',
        }
    )


@pytest.mark.parametrize(
    ("reference", "kept"),
    [
        ('<c><f>IF(B1="Yes",1,0)</f></c>', ["Yes"]),
        ('<c><f>COUNTIF(B1:B2,"yes")</f></c>', ["Yes"]),
        ('<c><f>COUNTIF(B1:B2,"&lt;&gt;Yes")</f></c>', ["Yes"]),
        ('<c><f>COUNTIF(B1:B2,"O*")</f></c>', ["Open", "On the way"]),
        ('<c><f>COUNTIF(B1:B2,"?pen")</f></c>', ["Open"]),
        ('<c><f>COUNTIF(B1:B2,"*")</f></c>', []),
        ('<c><f>COUNTIF(B1:B2,"*e*a?d*")</f></c>', ['He said "no"']),
        ('<c><f>COUNTIF(B1:B2,"*n*w?y")</f></c>', ["On the way"]),
        ('<c><f>COUNTIF(B1:B2,"*e*e*e")</f></c>', []),
        ('<c><f>COUNTIF(B1:B2,"*e~**")</f></c>', []),
        ('<c><f>SEARCH("the",B1)</f></c>', ["On the way"]),
        ('<c><f>VLOOKUP("He said ""no""",B1:C9,2)</f></c>', ['He said "no"']),
        ("<c><f>SUM('Yes'!B1:B2)</f></c>", []),
        ("""<c><f>IF('It''s "Open"'!B1="Yes",1,0)</f></c>""", ["Yes"]),
        ('<dataValidation type="list"><formula1>"Yes,Open"</formula1></dataValidation>', ["Yes", "Open"]),
        (
            '<dataValidation><x:formula1 xmlns:x="x"><x:f>"Yes, Open"</x:f></x:formula1></dataValidation>',
            ["Yes", "Open"],
        ),
        ('<cfRule type="expression"><formula>$B1="Open"</formula></cfRule>', ["Open"]),
        ('<filterColumn><filters><filter val="Open"/></filters></filterColumn>', ["Open"]),
        ('<filterColumn><customFilters><customFilter val="*way"/></customFilters></filterColumn>', ["On the way"]),
        ("<c><f>B1&amp;B2</f></c>", []),
    ],
)
def test_cells_that_a_workbook_compares_with_something_stay(reference, kept):
    cells = ["Yes", "Open", "On the way", 'He said "no"']
    document = read_document("a.xlsx", workbook(reference, *cells), 10**6)
    assert document.kept == kept
    assert [text.text for text in document.texts] == [cell for cell in cells if cell not in kept]


def test_wildcards_take_little_time():
    reference = f'<c><f>COUNTIF(B1:B2,"{"*a" * 10}*b")+SEARCH("{"a*" * 10}b",B1)</f></c>'
    began = time.thread_time()
    assert read_document("a.xlsx", workbook(reference, "a" * 30), 10**6).kept == []
    assert time.thread_time() - began < 1


@pytest.mark.parametrize(
    ("reference", "kept"),
    [
        ('<table:table-cell table:formula="of:=IF([.B1]=&quot;Yes&quot;;1;0)"/>', ["Yes"]),
        ('<v table:condition="of:cell-content-is-in-list(&quot;Yes&quot;;&quot;Open&quot;)"/>', ["Yes", "Open"]),
        ('<table:filter-condition table:value="Open" table:operator="="/>', ["Open"]),
    ],
)
def test_cells_that_an_open_document_compares_with_something_stay(reference, kept):
    rows = "<text:p>Yes</text:p><text:p>No</text:p><text:p>Open</text:p>"
    content = f"<x>{reference}{rows}</x>"
    members = {"mimetype": "application/vnd.oasis.opendocument.spreadsheet", "content.xml": content}
    document = read_document("a.ods", archive(members), 10**6)
    assert document.kept == kept
    filled = members_of(document.fill([Marked(text.text.upper()) for text in document.texts]))["content.xml"].decode()
    for word in ("Yes", "No", "Open"):
        assert (f">{word}<" if word in kept else f">{word.upper()}<") in filled


def test_cells_that_stay_have_a_warning():
    tokenizer: Any = Characters()
    translator = Translator(TextEngine(tokenizer, str.upper), tokenizer, SearchConfig(beam_size=1))  # type: ignore[arg-type]
    content = workbook('<c><f>IF(B1="Yes",1,0)</f></c>', "Yes", "Open")
    segments = translate_document(translator, "a.xlsx", content, DEFAULTS).segments
    rows = [(each.source, each.translation.text, each.translation.warnings) for each in segments]
    assert rows == [("Open", "OPEN", ()), ("Yes", "Yes", ("kept",))]


@pytest.mark.parametrize("suffix", [".pptx", ".xlsx"])
def test_a_chart_has_the_texts_of_its_workbook(suffix):
    """The cells that a chart shows are copied into it, and a formula of its workbook keeps one of them."""
    kind = "application/vnd.openxmlformats-officedocument"
    cells = ["Sales", "Yes", "7"]
    main = {".pptx": "presentationml.presentation.main", ".xlsx": "spreadsheetml.sheet.main"}[suffix]
    points = "".join(f'<c:pt idx="{i}"><c:v>{cell}</c:v></c:pt>' for i, cell in enumerate(cells))
    caches = f"<c:strCache>{points}</c:strCache><c:numCache>{points}</c:numCache>"
    chart = f'<c:x xmlns:c="http://x/drawingml/2006/chart">{caches}</c:x>'
    reference = '<c><f>IF(B1="Yes",1,0)</f></c>'
    sheet = f'<worksheet xmlns="{SHEET}">{reference}<c><is><t>Sales</t></is></c></worksheet>'
    types = {"main": main, "x/charts/chart1": "drawingml.chart", "sheet": "spreadsheetml.worksheet"}
    overrides = "".join(
        f'<Override PartName="/{name}.xml" ContentType="{kind}.{each}+xml"/>' for name, each in types.items()
    )
    members = {
        "[Content_Types].xml": f"<Types>{overrides}</Types>",
        "main.xml": "<x/>",
        "x/charts/chart1.xml": chart,
        "x/charts/_rels/chart1.xml.rels": '<x><y Target="../embeddings/Book1.xlsx"/><y Target="colors.xml"/></x>',
    }
    members |= {"sheet.xml": sheet} if suffix == ".xlsx" else {"x/embeddings/Book1.xlsx": workbook(reference, *cells)}
    document = read_document(f"a{suffix}", archive(members), 10**6)
    assert document.kept == ["Yes"]
    filled = members_of(document.fill([Marked(text.text.upper()) for text in document.texts]))
    found = filled["x/charts/chart1.xml"].decode()
    assert found.replace("SALES", "Sales").endswith(chart)
    assert found.count("SALES") == 1
    inner = filled if suffix == ".xlsx" else members_of(filled["x/embeddings/Book1.xlsx"])
    assert ">SALES<" in inner["sheet.xml"].decode()


def test_a_workbook_of_a_chart_that_cannot_be_read_stays():
    book = workbook("", "Sales")
    members = {"x/charts/_rels/a.rels": '<x><y Target="../../a.xlsx"/></x>', "a.xlsx": b"no"}
    kind = "application/vnd.openxmlformats-officedocument.presentationml.presentation.main+xml"
    members |= {"[Content_Types].xml": f'<Types><Override PartName="/m.xml" ContentType="{kind}"/></Types>'}
    for content, texts in ((b"no", []), (book, ["Sales"])):
        file = archive({**members, "m.xml": "<x/>", "a.xlsx": content})
        document = read_document("a.pptx", file, 10**6)
        assert [text.text for text in document.texts] == texts
        assert members_of(document.fill(document.texts))["a.xlsx"] == content
    with pytest.raises(InputError, match="at most"):
        read_document("a.pptx", file, 100)


def test_relations_of_charts_are_xml():
    """They may have comments."""
    kind = "application/vnd.openxmlformats-officedocument.presentationml.presentation.main+xml"
    types = f'<Types><Override PartName="/m.xml" ContentType="{kind}"/></Types>'
    members = {"[Content_Types].xml": types, "m.xml": "<x/>", "a.xlsx": workbook("", "Sales")}
    relations = '<x><!-- a --><?b c?><y Target="../../a.xlsx"/></x>'
    document = read_document("a.pptx", archive({**members, "x/charts/_rels/a.rels": relations}), 10**6)
    assert [text.text for text in document.texts] == ["Sales"]
    for wrong in ("<a", "", f"<!DOCTYPE x>{relations}"):
        with pytest.raises(InputError):
            read_document("a.pptx", archive({**members, "x/charts/_rels/a.rels": wrong}), 10**6)
