"""Word, slides, workbooks and Open Document: formats, fields, notes and hostile archives."""

import io
import itertools
import random
import warnings
import zipfile
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import docx
import pytest
from docx.opc.constants import CONTENT_TYPE, RELATIONSHIP_TYPE
from docx.opc.packuri import PackURI
from docx.opc.part import Part
from docx.oxml import parse_xml
from lxml import etree
from relattn_mt.documents.read import read_document
from relattn_mt.support.errors import InputError
from relattn_mt.text.marked import Marked
from relattn_mt.text.sentences import split

from tests.support.document_files import Maker, archive, members_of, word_file
from tests.support.marked import read


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


def test_fields_within_fields_are_read_to_a_limit() -> None:
    """Fields are marks beside each other, so that no parser of XML limits how deep they are."""
    nested = run("text")
    for _ in range(1100):
        nested = field("TOC", nested)
    content = word_file_of(nested)
    document = read("a.docx", content)
    assert document.fill(document.texts) == content


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
        ("0" * 10_000_001, "at most 10,000,000 bytes"),
        ("<a>" * 5_000, None),
        ("<a>" * 5_000 + "</a>" * 5_000, None),
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
        '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><c><f>SUM("c d")</f><v>1</v></c>'
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


@pytest.mark.parametrize(
    ("formula", "kept"),
    [
        ('INDIRECT(F1&amp;"!A1")', {"January", "Prices"}),
        ('IF(LEFT(A1,4)="Good","Other","x")', {"Good morning", "Good", "Other"}),
        ('IF(RIGHT(A1,2)="er",1,0)', {"Other"}),
        ('IF(LEFT(A1,1)="o",1,0)', {"Other"}),
        ('IF(A1="Good",1,0)', {"Good"}),
    ],
)
def test_texts_that_formulas_refer_to_are_kept(formula: str, kept: set[str]) -> None:
    texts = ["January", "Prices", "Good morning", "Good", "Other"]
    content = "".join(f"<si><t>{text}</t></si>" for text in texts)
    worksheet = f"<worksheet><c><f>{formula}</f></c></worksheet>"
    table = '<table name="Prices"/>'
    workbook = '<workbook><sheets><sheet name="January"/></sheets></workbook>'
    parts = {"worksheet": worksheet, "table": table}
    file = office_file(".xlsx", content, **parts)
    file = archive({**members_of(file), "main.xml": workbook})
    document = read("a.xlsx", file)
    strings = etree.fromstring(members_of(document.fill([text.upper() for text in document.texts]))["a.xml"])
    assert [each.findtext("{*}t") for each in strings] == [text if text in kept else text.upper() for text in texts]


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


@pytest.mark.parametrize("node", ["<!-- a comment -->", "<?name value?>"])
def test_comments_and_instructions_of_xml_divide_no_text(node: str) -> None:
    files = {
        "a.docx": word_file_of(run(f"One {node}two")),
        "a.pptx": office_file(".pptx", f"<p><r><t>One {node}two</t></r></p>"),
        "b.xlsx": office_file(".xlsx", f"<si><r><t>One {node}two</t></r></si>"),
        "a.xlsx": office_file(".xlsx", f"<si><t>One {node}two</t></si>"),
    }
    for name, content in files.items():
        document = read(name, content)
        assert document.texts == ["One two"]
        assert document.fill(document.texts) == content
        filled = read(name, content).fill(["Eins zwei"])
        assert read(name, filled).texts == ["Eins zwei"]
