"""Texts of HTML, and HTML with their translations."""

import re
from itertools import pairwise

import pytest
from bs4 import BeautifulSoup
from bs4.element import NavigableString
from hypothesis import given, settings
from hypothesis import strategies as st
from relattn_mt.documents import read
from relattn_mt.documents.html import Markup
from relattn_mt.documents.read import document_texts, read_document
from relattn_mt.support.errors import InputError
from relattn_mt.text.patterns import has_text

from tests.support.marked import Notated

PAGE = (
    '<!DOCTYPE html><html><head><title>The title</title><script>if (a < b) "x";</script></head><body>'
    '<p class="x">One <b>two <i>three</i></b> four<br>five <a href="/?a=1&amp;b=2">six</a>.</p><!-- no -->'
    "<ul><li>seven</li><li> eight <img src=x> nine</li></ul><p><b>ten</b></p>"
    '<p translate="no">not this</p><p>a <code>f(x)</code> b &lt;m0&gt; &amp; c</p></body></html>'
)


SAME = [
    PAGE,
    '<a href="/?a=1&section=2&copy=3&times=4&param=5&amp;b=6">one</a> &nbsp; two\r\n  &eacute;&#228; three &copy &lt &',
    "<ul>" + "<li>one <b>two</b>" * 150 + "</ul><p>33<p>34<select><option>a<option selected>b</select><dl><dt>x<dd>y",
    "<p>\n\tOne\n  <B CLASS=x>two</b >\n three<BR/>four<Img Src = 'a>b.png' alt=x></P  >\n",
    "<!doctype html><?php echo 'x'; ?> one <p\n>two",
    "one <!-- <b>no</b> --> two <![CDATA[ x ]]> three</> four </ five < six <7 a<b <!> <!--> seven",
    "<script>if (a</b/.test(x)) '<p>eight</p>'</script><style>a > b {}</style><textarea><b>x</textarea> nine",
    "<title>a <b>",
    "<table><tr><td>one<td>two<tr><th>three</table><x-y>four</x-y> <i><p>five</i></p> </b> six <b>",
    "one <b>two <a 'x=\"y",
    "",
    " ",
]


@pytest.mark.parametrize("page", SAME)
def test_unchanged_texts_give_the_same_page(page: str) -> None:
    markup = Markup(page)
    assert markup.fill(markup.texts) == page


@pytest.mark.parametrize("page", SAME)
def test_texts_are_those_of_a_browser(page: str) -> None:
    """The visible text of all pieces is what html5lib, which follows the standard, finds in the page."""
    hidden = ["script", "style", "textarea", "code"]
    soup = BeautifulSoup(page, "html5lib")
    for element in [*soup(hidden), *soup(translate="no")]:
        element.decompose()
    expected = [text for each in soup.find_all(string=True) if type(each) is NavigableString for text in each.split()]
    attributes = [value for name in ("alt", "title", "placeholder") for value in _values(soup, name)]
    pieces = []
    for text in Markup(page).texts:
        cuts = [0, *(mark.at for mark in text.marks), len(text.text)]
        pieces += [text.text[begin:end] for begin, end in pairwise(cuts)]
    found = " ".join(pieces).split()
    assert sorted(found) == sorted(word for word in [*expected, *attributes] if has_text(word) or word in found)


def _values(soup: BeautifulSoup, name: str) -> list[str]:
    return [word for tag in soup.find_all(attrs={name: True}) for word in str(tag[name]).split()]


def test_only_the_text_changes() -> None:
    """Tags and attributes stay, except for attributes that a reader sees."""
    page = """<p title='a "b" &amp; c' lang=en>one&nbsp;<b>two</b> three<img alt=four src=a?b&amp;c></p>
<input type=submit value=five placeholder=""><input type=text value=six><meta name=description content="seven">
<p class="x notranslate">eight <b title=nine>ten</b><p>eleven <span translate=no>twelve</span> thirteen
<div translate=no>a<p>b<p translate=yes>fourteen</div><li class=notranslate>x<li>fifteen"""
    markup = Notated(Markup(page))
    assert markup.texts == [
        *("one\xa0<m0>two</m0> three", "eleven <m0/> thirteen ", "fourteen", "fifteen"),
        *('a "b" & c', "four", "five", "seven"),
    ]
    filled = markup.fill(["A <m0>B</m0> & C", "D <m0/> E", "F", "G", 'h"', "i", "<j>", "seven"])
    expected = page.replace("one&nbsp;<b>two</b> three", "A <b>B</b> &amp; C").replace("fifteen", "G")
    expected = expected.replace("eleven <span", "D <span").replace("</span> thirteen\n", "</span> E")
    expected = (
        expected.replace("'a \"b\" &amp; c'", '"h&quot;"').replace("alt=four", 'alt="i"').replace("fourteen", "F")
    )
    assert filled == expected.replace("value=five", 'value="&lt;j&gt;"')


def test_texts_of_a_page() -> None:
    assert Notated(Markup(PAGE)).texts == [
        *("The title", "One <m0>two <m1>three</m1></m0> four", "five <m0>six</m0>.", "seven"),
        *(" eight <m0/> nine", "ten", "a <m0/> b <m0> & c"),
    ]


def test_elements_follow_their_placeholders() -> None:
    page = Notated(Markup('<p>The <b>red</b> <a href="x">house</a></p>'))
    assert page.texts == ["The <m0>red</m0> <m1>house</m1>"]
    filled = page.fill(["La <m1>casa</m1> <m0>roja & <x></m0>"])
    assert filled == '<p>La <a href="x">casa</a> <b>roja &amp; &lt;x&gt;</b></p>'


PLACEHOLDERS = ["<m0>", "</m0>", "<m1>", "</m1>", "<m2/>", "a", "b c", "<x>", "&"]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(PLACEHOLDERS), max_size=10).map("".join))
def test_any_translation_gives_valid_html(translation: str) -> None:
    html = Notated(Markup("<p>The <b>red</b> <i>house</i><img/> is</p>")).fill([translation])
    assert str(BeautifulSoup(html, "html.parser")) == html


BROKEN = ["<", "<b", "</p>", "<![CDATA[x", "<!--", "&#xd800;", "<p =>", "<a b='", "]]>", "<i>", "x", "<td>"]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(BROKEN), max_size=5).map("".join))
def test_broken_html_is_accepted(html: str) -> None:
    page = Markup(html)
    assert isinstance(page.fill(page.texts), str)


def test_one_tag_without_a_partner_divides_no_sentence() -> None:
    assert Notated(Markup("<p>one</b> two</p><p>three <i>four")).texts == ["one<m0/> two", "three <m0/>four"]
    assert Notated(Markup("<p>one</b> two <i>three")).texts == ["one", " two ", "three"]


@pytest.fixture
def few_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the tags within the texts of a file for the server to a number that takes little time."""
    monkeypatch.setattr(read, "MAX_TAGS", 5_000)


def test_number_of_tags_is_limited_for_a_server_only(few_tags: None) -> None:
    deep = "<div>" * 6_000 + "x" + "</div>" * 6_000
    assert Notated(Markup(deep)).texts == ["x"]
    assert document_texts("a.html", b"one <b>two</b> " * 2_500 + b"three", 10**9, 10**9)
    with pytest.raises(InputError, match="tags"):
        document_texts("a.html", b"one <b>two</b> " * 2_501 + b"three", 10**9, 10**9)


ITEMS, UNITS, PARAGRAPHS = 2_700, 900, 1_800
LARGE = {  # files that a server refused once
    "a.html": "<ul>" + "".join(f"<li>item {i}</li>\n" for i in range(ITEMS)) + "</ul>",
    "a.xlf": '<xliff version="1.2"><file><body>'
    + "".join(f'<trans-unit id="{i}"><source>item {i}</source><target/></trans-unit>\n' for i in range(UNITS))
    + "</body></file></xliff>",
    "a.md": "".join(f"one **{i}** two `{i}` three\n\n" for i in range(PARAGRAPHS)),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_files_are_read(name: str, few_tags: None) -> None:
    """Each item is a text, and the file is the same with its own texts as translations, but for empty targets."""
    content = LARGE[name].encode()
    document = read_document(name, content, 10**9)
    assert len(document.texts) == {"a.html": ITEMS, "a.xlf": UNITS, "a.md": PARAGRAPHS}[name]
    filled = document.fill(document.texts)
    if name == "a.xlf":
        filled = re.sub("<target>item [0-9]+</target>", "<target/>", str(filled))
    assert filled == LARGE[name]


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        ('<nav><a href="1">Home</a><a href="2">My house</a><a>Help</a></nav>', ["Home", "My house", "Help"]),
        ("<span>Open</span><span>Close</span>", ["Open", "Close"]),
        ("<h2>My house<span>2024</span></h2>", ["My house", "2024"]),
        ("<p>Version 2<span>New</span> <a>one</a><b> or <a>Two</a></b><label>Three</label></p>",
         ["Version 2", "<m0>New</m0> <m1>one</m1><m2> or <m3>Two</m3></m2>", "Three"]),
        # one word or one sentence
        ("<p>un<a>wise</a> CO<span>2</span>", ["un<m0>wise</m0> CO<m1>2</m1>"]),
        ("<p>a <span>H</span>ouse a<b>B</b>", ["a <m0>H</m0>ouse a<m1>B</m1>"]),
        ("<span>My ho</span><span>use</span>", ["<m0>My ho</m0><m1>use</m1>"]),
        ("<span>\u6211</span><span>\u5bb6</span>", ["<m0>\u6211</m0><m1>\u5bb6</m1>"]),
        ("<a>A</a>, <a>B</a> <a>C</a>", ["<m0>A</m0>, <m1>B</m1> <m2>C</m2>"]),
    ],
)  # fmt: skip
def test_words_of_separate_elements_are_separate(page: str, texts: list[str]) -> None:
    markup = Notated(Markup(page))
    assert markup.texts == texts
    assert markup.fill(texts) == page


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        ("<p>Press the <button>Save</button> now.</p>", ["Press the <m0>Save</m0> now."]),
        ("<p>Sure? <button>Yes</button> <button>No</button></p>", ["Sure? ", "Yes", "No"]),
        ("<p>Name <button>Edit</button></p>", ["Name ", "Edit"]),
        ("<button>One</button> <button>Two</button>", ["One", "Two"]),
        ("<p>Press <button><b>Save</b></button> now.</p>", ["Press ", "Save", " now."]),
        ("<p>Let <math><mi>x</mi><mo>&lt;</mo></math> be my friend.</p>", ["Let <m0/> be my friend."]),
        ("<math><mi>x</mi></math>", []),
    ],
)
def test_buttons_and_formulas_within_a_sentence_do_not_cut_it(page: str, texts: list[str]) -> None:
    for suffix in ("html", "xhtml"):
        content = f"<html><body>{page}</body></html>"
        assert Notated(read_document(f"a.{suffix}", content.encode(), 10**6)).texts == texts
