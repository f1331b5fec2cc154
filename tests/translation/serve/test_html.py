"""Texts of HTML, and HTML with their translations."""

import pytest
from bs4 import BeautifulSoup
from bs4.element import NavigableString
from hypothesis import given, settings
from hypothesis import strategies as st

from relattn.translation.data.text_files import has_text
from relattn.translation.errors import InputError
from relattn.translation.serve.text.html import MAX_TAGS, Markup

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


@pytest.mark.parametrize("keep_tags", [False, True])
@pytest.mark.parametrize("page", SAME)
def test_unchanged_texts_give_the_same_page(page: str, keep_tags: bool) -> None:
    markup = Markup(page, keep_tags=keep_tags)
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
    found = " ".join(Markup(page, keep_tags=False).texts).split()
    assert sorted(found) == sorted(word for word in [*expected, *attributes] if has_text(word) or word in found)


def _values(soup: BeautifulSoup, name: str) -> list[str]:
    return [word for tag in soup.find_all(attrs={name: True}) for word in str(tag[name]).split()]


def test_only_the_text_changes() -> None:
    """Tags and attributes stay, except for attributes that a reader sees."""
    page = """<p title='a "b" &amp; c' lang=en>one&nbsp;<b>two</b> three<img alt=four src=a?b&amp;c></p>
<input type=submit value=five placeholder=""><input type=text value=six><meta name=description content="seven">
<p class="x notranslate">eight <b title=nine>ten</b><p>eleven <span translate=no>twelve</span> thirteen
<div translate=no>a<p>b<p translate=yes>fourteen</div><li class=notranslate>x<li>fifteen"""
    markup = Markup(page, keep_tags=True)
    assert markup.texts == [
        *("one\xa0<mm0>two</mm0> three", "eleven <mm0/> thirteen ", "fourteen", "fifteen"),
        *('a "b" & c', "four", "five", "seven"),
    ]
    filled = markup.fill(["A <mm0>B</mm0> & C", "D <mm0/> E", "F", "G", 'h"', "i", "<j>", "seven"])
    expected = page.replace("one&nbsp;<b>two</b> three", "A <b>B</b> &amp; C").replace("fifteen", "G")
    expected = expected.replace("eleven <span", "D <span").replace("</span> thirteen\n", "</span> E")
    expected = (
        expected.replace("'a \"b\" &amp; c'", '"h&quot;"').replace("alt=four", 'alt="i"').replace("fourteen", "F")
    )
    assert filled == expected.replace("value=five", 'value="&lt;j&gt;"')


def test_texts_of_a_page() -> None:
    assert Markup(PAGE, keep_tags=True).texts == [
        *("The title", "One <mm0>two <mm1>three</mm1></mm0> four", "five <mm0>six</mm0>.", "seven"),
        *(" eight <mm0/> nine", "ten", "a <mm0/> b <m0> & c"),
    ]
    texts = Markup("<p>One <b>two</b> three <code>x</code></p>", keep_tags=False).texts
    assert texts == ["One ", "two", " three "]


def test_elements_follow_their_placeholders() -> None:
    page = Markup('<p>The <b>red</b> <a href="x">house</a></p>', keep_tags=True)
    assert page.texts == ["The <m0>red</m0> <m1>house</m1>"]
    filled = page.fill(["La <m1>casa</m1> <m0>roja & <x></m0>"])
    assert filled == '<p>La <a href="x">casa</a> <b>roja &amp; &lt;x&gt;</b></p>'
    for name in ("m7", "/m7", "m7/", "m1", "m0/"):  # not placeholders, so they are text
        page = Markup("<p>The <b>red</b> <img>house</p>", keep_tags=True)
        assert page.texts == ["The <m0>red</m0> <m1/>house"]
        assert page.fill([f"a <{name}>b"]) == f"<p>a &lt;{name}&gt;b</p>"


PLACEHOLDERS = ["<m0>", "</m0>", "<m1>", "</m1>", "<m2/>", "a", "b c", "<x>", "&"]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(PLACEHOLDERS), max_size=10).map("".join))
def test_any_translation_gives_valid_html(translation: str) -> None:
    html = Markup("<p>The <b>red</b> <i>house</i><img/> is</p>", keep_tags=True).fill([translation])
    assert str(BeautifulSoup(html, "html.parser")) == html


BROKEN = ["<", "<b", "</p>", "<![CDATA[x", "<!--", "&#xd800;", "<p =>", "<a b='", "]]>", "<i>", "x", "<td>"]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(BROKEN), max_size=5).map("".join))
def test_broken_html_is_accepted(html: str) -> None:
    page = Markup(html, keep_tags=True)
    assert isinstance(page.fill(page.texts), str)


def test_number_of_tags_is_limited() -> None:
    deep = "<div>" * (MAX_TAGS // 2) + "x" + "</div>" * (MAX_TAGS // 2)
    assert Markup(deep, keep_tags=True).texts == ["x"]
    with pytest.raises(InputError, match="tags"):
        Markup(f"{deep}<b>", keep_tags=True)
