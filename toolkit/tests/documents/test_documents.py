"""Files of each kind: their texts, and the file with translations."""

import gc
import time
from collections.abc import Callable, Iterator
from functools import partial
from html import unescape

import pytest
import srt
from relattn_mt.documents.read import FORMATS, document_texts, fill_document, read_document
from relattn_mt.support.errors import InputError
from relattn_mt.text.marked import Marked

from tests.support.document_files import archive, word_file
from tests.support.marked import marked, notation, read

SUBTITLES = (
    "1\n00:00:01,000 --> 00:00:02,000\nOne <i>two</i>\nthree & 4 <3\n\n"
    "2\n00:00:03,000 --> 00:00:04,000\n- four\n- five six\n\n"
)


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


def test_what_a_second_speaker_says_is_a_text_of_its_own() -> None:
    """A dash begins any of the lines of a subtitle."""
    for content in ("- No, you\nhave not.", "have never seen\n- No, you have."):
        file = f"1\n00:00:01,000 --> 00:00:02,000\nBut I\n\n2\n00:00:03,000 --> 00:00:04,000\n{content}\n\n"
        document = read("a.srt", file.encode())
        assert document.texts[0] == "But I"
        assert document.fill(document.texts) == file


def test_a_sentence_over_several_subtitles_is_one_text() -> None:
    """It is divided among them again, in proportion to their lengths."""
    contents = [
        "I have never seen",
        "such a large and\nbeautiful house before.",
        "“Really?”",
        "Yes.",
        "<i>No way</i>",
        "and",
        "- so\n- on",
    ]
    starts = [1, 3, 5, 7, 9, 11, 13]
    file = "".join(
        f"{i}\n00:00:{start:02},000 --> 00:00:{start + 1:02},000\n{text}\n\n"
        for i, (start, text) in enumerate(zip(starts, contents, strict=True), start=1)
    )
    document = read("a.srt", file.encode())
    first = "I have never seen such a large and beautiful house before."
    assert document.texts[:3] == [first, "“Really?”", "Yes."]
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
        ("a.srt", "1\r00:00:01,000 --> 00:00:02,000\r\nOne\ntwo\rthree\n\r\n"),
        ("a.vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\none <c\n.loud>two</c> three\n"),
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


@pytest.fixture
def no_collection() -> Iterator[None]:
    """No garbage collection, whose time depends on what other tests have left."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_time_is_linear_in_the_size() -> None:
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
        "a.md": lambda size: "<code>word " * size,
        "b.md": lambda size: "mailto:" * size,
    }
    for name, content in files.items():
        seconds = []
        for size in (500, 1_500, 6_000):
            began = time.thread_time()
            document = read(name, content(size).encode())
            document.fill(document.texts)
            seconds.append(time.thread_time() - began)
        assert seconds[2] < 10 * seconds[1] + 0.1, (name, seconds)


@pytest.mark.parametrize(
    ("name", "opening", "closing", "file"),
    [
        ("a.html", "<b>a ", "</b>", "<p>{} b"),
        ("a.md", "[a ", "](x)", "{} b"),
        ("a.json", "<b>a ", "</b>", '["{} b"]'),
        ("a.xlf", "<g>a ", "</g>", "<xliff><trans-unit><source>{} b</source></trans-unit></xliff>"),
        ("a.odt", "<text:span>a ", "</text:span>", "<office:x><text:p>{} b</text:p></office:x>"),
    ],
)
def test_elements_around_words_are_nested_at_most_256_deep(name: str, opening: str, closing: str, file: str) -> None:
    """Each is a mark of every sentence in it. One that encloses all words is none."""
    for depth in (256, 257):
        content = file.replace("{}", opening * depth + closing * depth).encode()
        if name == "a.odt":
            content = archive({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": content})
        if depth == 257:
            with pytest.raises(InputError, match="256 deep"):
                read(name, content)
        else:
            assert len(read(name, content).texts) == 1


def test_marks_of_markdown_are_no_text() -> None:
    """To the parser, a line of control characters is blank, and a paragraph begins before it."""
    for content in ("> > \x0b\nab\n", "> 1. \x0c\nab\n", "- a\n\n- \x0b\n\\\n"):
        assert {*read("a.md", content.encode()).texts} <= {"a", "ab"}


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


@pytest.mark.parametrize("run", ["~~~~", "~~~", "~", "****", "*****", "____", "__________"])
def test_runs_of_markdown_that_are_no_marks_stay(run: str) -> None:
    """Also where a sentence beside them changes."""
    forms = [
        "Wait {} you.",
        "Size {}5 cm{} of x.",
        "A ({}). B ({}) **c**.",
        "A{}b. B{}.",
        "An {}, a {}",
        "**a** {} **b{}**",
    ]
    for form in forms:
        content = form.replace("{}", run)
        document = read_document("a.md", content.encode(), 10**6)
        assert document.fill(document.texts) == content
        assert document.fill([Marked(text.text.upper(), text.marks) for text in document.texts]) == content.upper()
        assert run in document.texts[0].text


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
    texts, _ = document_texts("a.po", content.encode("latin-1"), 10_000, 10_000)
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
    prefixed = "<x:xliff xmlns:x='urn:x'><x:trans-unit><x:source>a</x:source></x:trans-unit></x:xliff>"
    for wrong in ("", "<a/>", "<xliff><a></xliff>", "<xliff>", prefixed):
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
          (("windows-1252", "cp1252"), ("latin1", "cp1252"), ("Shift_JIS", "shift_jis"), ("utf-8", "utf-8"),
           ("utf-8-sig", "utf-8"), ("utf-16", "utf-8"))),
    ],
)  # fmt: skip
def test_files_keep_their_encoding(name: str, encoding: str, mark: bytes) -> None:
    """HTML may declare it. Characters that it does not have become references."""
    letter = "дом" if encoding == "shift_jis" else "„é€“" if encoding == "cp1252" else "é中😀"
    html = f"<meta http-equiv=x content='text/html; charset={name[:-5]}'><p>{letter}</p>"
    text = html if name.endswith(".html") else f"1\n00:00:01,000 --> 00:00:02,000\n{letter}\n"
    content = mark + text.encode(encoding)
    texts, _ = document_texts(name, content, 10_000, 10_000)
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


NO_CHARSETS = ["idna", "punycode", "undefined", "base64", "rot13", "cp037", "x" * 40]  # most are codecs of Python


def test_unknown_charset_is_refused() -> None:
    for content, message in (
        (b"<meta charset=x-none>a", "unknown charset: x-none"),
        *((b"<meta charset=%b>a" % name.encode(), f"unknown charset: {name}") for name in NO_CHARSETS),
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
    assert document.fill(["eins"]) == pattern.format(escape, "eins").replace('msgid "one', '#, fuzzy\nmsgid "one')


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
