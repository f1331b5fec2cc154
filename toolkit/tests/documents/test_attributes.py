"""Attributes that describe the language and the state of a file, after its texts were translated."""

import pytest
from relattn_mt.documents.read import read_document, with_translations
from relattn_mt.text.marked import Marked

from tests.support.document_files import archive, members_of


def translated(name: str, content: str, lang: str) -> str:
    """Return a file whose texts were translated into capital letters."""
    document = read_document(name, content.encode(), 10**6)
    texts = [Marked(text.text.upper(), text.marks) for text in document.texts]
    return with_translations(document, name, content.encode(), texts, lang).decode()


OLD = '<xliff version="1.2"><file {}><body><trans-unit id="1"><source>a</source>{}</trans-unit></body></file></xliff>'
NEW = '<xliff version="2.0" {}><file id="f"><unit id="1"><segment><source>a</source>{}</segment></unit></file></xliff>'


@pytest.mark.parametrize("suffix", [".xlf", ".xliff"])
@pytest.mark.parametrize(
    ("form", "attributes", "lang", "expected"),
    [
        (OLD, 'source-language="en"', "de", 'source-language="en" target-language="de"'),
        (
            OLD,
            "original='a>b' source-language='en'",
            "de",
            "original='a>b' source-language='en' target-language=\"de\"",
        ),
        (OLD, 'source-language="en" target-language="en"', "de", 'source-language="en" target-language="de"'),
        (OLD, 'target-language="" source-language="en"', "de", 'target-language="de" source-language="en"'),
        (OLD, 'source-language="en" target-language="de-AT"', "de", 'source-language="en" target-language="de-AT"'),
        (OLD, 'source-language="en" target-language="den"', "de", 'source-language="en" target-language="de"'),
        (OLD, 'original="a"', "de", 'original="a"'),
        (NEW, 'srcLang="en"', "de", 'srcLang="en" trgLang="de"'),
        (NEW, "srcLang = 'en'", "zh_Hant", "srcLang = 'en' trgLang=\"zh-Hant\""),
        (NEW, 'trgLang="fr" srcLang="en"', "pt-BR", 'trgLang="pt-BR" srcLang="en"'),
        (NEW, 'srcLang="en" trgLang="DE_at"', "de", 'srcLang="en" trgLang="DE_at"'),
    ],
)
def test_xliff_names_the_target_language(suffix, form, attributes, lang, expected):
    assert translated(f"a{suffix}", form.format(attributes, ""), lang) == form.format(expected, "<target>A</target>")


def test_xliff_with_nothing_to_translate_stays():
    content = OLD.format('source-language="en"', "<target>b</target>")
    assert translated("a.xlf", content, "de") == content


@pytest.mark.parametrize(
    ("attributes", "lang", "expected"),
    [
        ('lang="en" dir="ltr"', "ar", 'lang="ar" dir="rtl"'),
        ("dir=ltr lang=en", "he", "dir=rtl lang=he"),
        ("lang=en", "fa", 'lang=fa dir="rtl"'),
        ('lang="en"', "de", 'lang="de"'),
        ('lang="ar" dir="rtl"', "en", 'lang="en" dir="ltr"'),
        ("LANG='en' DIR='auto'", "ur", "LANG='ur' DIR='rtl'"),
        ('data-lang="x" lang="en" data-dir="y"', "de", 'data-lang="x" lang="de" data-dir="y"'),
        ('class="a>b" lang="en"', "arb_Arab", 'class="a>b" lang="arb-Arab" dir="rtl"'),
        ('lang="en" dir="ltr"', "az-Latn", 'lang="az-Latn" dir="ltr"'),
        ('dir="ltr"', "ar", 'dir="ltr"'),
        ('xml:lang="en" lang="en"', "yi", 'xml:lang="yi" lang="yi" dir="rtl"'),
    ],
)
def test_a_page_names_its_language_and_direction(attributes, lang, expected):
    for name in ("a.html", "a.htm", "a.xhtml"):
        page = "<html {}><body><p>a</p></body></html>"
        if name == "a.xhtml" and "=en" in attributes:
            continue
        assert translated(name, page.format(attributes), lang) == page.format(expected).replace("<p>a", "<p>A")


@pytest.mark.parametrize(("translation", "lang"), [("A", "de"), ("a", "en")])
def test_pages_of_a_book_that_change_name_their_language(translation, lang):
    page = '<html xmlns="x" xml:lang="{0}" lang="{0}"><p>{1}</p></html>'
    contents = "<ncx><docTitle><text>{}</text></docTitle></ncx>"
    others = {"mimetype": "application/epub+zip", "empty.xhtml": page.format("en", "")}

    def book(text: str, lang: str) -> dict[str, str]:
        changed = page.format(lang, text)
        return {**others, "a.xhtml": changed, "b/c.HTML": changed, "d.ncx": contents.format(text)}

    content = archive(book("a", "en"))
    document = read_document("a.epub", content, 10**6)
    filled = with_translations(document, "a.epub", content, [Marked(translation)] * 3, "de")
    members = {name: member.decode() for name, member in members_of(filled).items()}
    assert members == book(translation, lang)


HEADER = 'msgid ""\nmsgstr ""\n"Language-Team: en\\n"\n"Language: {}\\n"\n\n'


@pytest.mark.parametrize(
    ("given", "lang", "expected"), [("", "de", "de"), ("en", "pt-BR", "pt_BR"), ("de_AT", "de", "de_AT")]
)
def test_locales(given, lang, expected):
    entry = '#, fuzzy\nmsgid "a"\nmsgstr "{}"\n'
    content = HEADER.format(given) + entry.format("").replace("#, fuzzy\n", "")
    assert translated("a.po", content, lang) == HEADER.format(expected) + entry.format("A")
    header = 'msgid ""\n"Language: en\\n"\nmsgstr "x"\n'  # a text that is translated already
    assert translated("a.po", content + header, lang) == translated("a.po", content, lang) + header
    content = '{"@@locale": "%s", "a": "%s"}'
    assert translated("a.arb", content % (given, "a b"), lang) == content % (expected, "A B")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ('msgid "a"', '#, fuzzy\nmsgid "a"'),
        ('#: a.c:1\nmsgctxt "x"\nmsgid "a"', '#: a.c:1\n#, fuzzy\nmsgctxt "x"\nmsgid "a"'),
        ('#. x\n#, c-format\nmsgid "a"', '#. x\n#, fuzzy, c-format\nmsgid "a"'),
        ('#, fuzzy, c-format\nmsgid "a"', '#, fuzzy, c-format\nmsgid "a"'),
        ('#: a.c:1\n#| msgid "b"\nmsgid "a"', '#: a.c:1\n#, fuzzy\n#| msgid "b"\nmsgid "a"'),
        ('#, c-format\n#| msgid "b"\nmsgid "a"', '#, fuzzy, c-format\n#| msgid "b"\nmsgid "a"'),
        ('msgid ""\n"a"', '#, fuzzy\nmsgid ""\n"a"'),
    ],
)
def test_filled_entries_of_po_files_are_fuzzy(entry, expected, end):
    for forms in ('\nmsgstr "{}"\n', '\nmsgid_plural "b"\nmsgstr[0] "{}"\nmsgstr[1] "{}"\n'):
        content = f"{entry}{forms.replace('{}', '')}".replace("\n", end)
        filled = forms.replace("{}", "A", 1).replace("{}", "B")
        document = read_document("a.po", content.encode(), 10**6)
        once = document.fill([Marked(text.text.upper()) for text in document.texts])
        assert once == f"{expected}{filled}".replace("\n", end)
        assert read_document("a.po", str(once).encode(), 10**6).texts == []
        document = read_document("a.po", content.encode(), 10**6, is_fuzzy=False)
        sure = document.fill([Marked(text.text.upper()) for text in document.texts])
        assert sure == f"{entry}{filled}".replace("\n", end)


@pytest.mark.parametrize(
    ("source", "segmented", "target"),
    [
        (
            "one. two.",
            '<mrk mtype="seg" mid="1">one.</mrk> <mrk mtype="seg" mid="2">two.</mrk>',
            '<mrk mtype="seg" mid="1">ONE.</mrk> <mrk mtype="seg" mid="2">TWO.</mrk>',
        ),
        (
            "<g id='1'>one</g>",
            "<g id='1'><mrk mtype='seg' mid='s1'>one</mrk></g>",
            "<g id='1'><mrk mtype='seg' mid='s1'>ONE</mrk></g>",
        ),
        (
            "a <g id='1'>b</g> c",
            "<mrk mtype='seg' mid='1'>a <g id='1'>b</g> <mrk mtype='term'>c</mrk><x id='2'/></mrk>",
            "<mrk mtype='seg' mid='1'>A <g id='1'>B</g> <mrk mtype='term'>C</mrk><x id='2'/></mrk>",
        ),
        ("a b", "a b", "A B"),
        ("a b", "a <mrk mtype='term'>b</mrk>", "A B"),
    ],
)
def test_segments_of_xliff_stay_in_the_target(source, segmented, target):
    form = f"<xliff><trans-unit><source>{source}</source><seg-source>{segmented}</seg-source>{{}}</trans-unit></xliff>"
    for empty in ("", "<target/>", "<target><mrk mtype='seg' mid='1'></mrk></target>"):
        assert translated("a.xlf", form.format(empty), "de") == form.format(f"<target>{target}</target>")


@pytest.mark.parametrize("text", ["a.\nb.\n\nc.", "a\n  b", "- a\n- b", " a "])
def test_ends_of_lines_in_xliff(text):
    """They stay where a source says so, and in strings of Xcode."""
    form = "<xliff><file>{}<trans-unit{}><source{}>{}</source>{}</trans-unit></file></xliff>"
    space = ' xml:space="{}"'
    tool = '<header><tool tool-id="com.apple.dt.xcode" tool-name="Xcode"/></header>'
    filled = f"<target>{text.upper()}</target>"
    for places in (
        ("", "", space.format("preserve")),
        ("", space.format("default"), space.format("preserve")),
        ("", space.format("preserve"), ""),
        (tool, "", ""),
    ):
        assert translated("a.xlf", form.format(*places, text, ""), "de") == form.format(*places, text, filled)
    for places in (("", "", ""), ("", space.format("preserve"), space.format("default"))):
        spaced = " ".join(filled.split()) if text != " a " else filled
        assert translated("a.xlf", form.format(*places, text, ""), "de") == form.format(*places, text, spaced)
