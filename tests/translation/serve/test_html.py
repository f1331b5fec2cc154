"""Texts of HTML, and HTML with their translations."""

import pytest
from bs4 import BeautifulSoup
from hypothesis import given, settings
from hypothesis import strategies as st

from relattn.translation.errors import InputError
from relattn.translation.serve.text.html import MAX_DEPTH, Markup

PAGE = (
    '<!DOCTYPE html><html><head><title>The title</title><script>if (a < b) "x";</script></head><body>'
    '<p class="x">One <b>two <i>three</i></b> four<br>five <a href="/?a=1&amp;b=2">six</a>.</p><!-- no -->'
    "<ul><li>seven</li><li> eight <img src=x> nine</li></ul><p><b>ten</b></p>"
    '<p translate="no">not this</p><p>a <code>f(x)</code> b &lt;m0&gt; &amp; c</p></body></html>'
)


@pytest.mark.parametrize("keep_tags", [False, True])
def test_unchanged_texts_give_the_same_page(keep_tags: bool) -> None:
    page = Markup(PAGE, keep_tags=keep_tags)
    assert page.fill(page.texts) == BeautifulSoup(PAGE, "html.parser").decode()


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
        page = Markup("<p>The <b>red</b> house<img></p>", keep_tags=True)
        assert page.texts == ["The <m0>red</m0> house<m1/>"]
        assert page.fill([f"a <{name}>b"]) == f"<p>a &lt;{name}&gt;b</p>"


PLACEHOLDERS = ["<m0>", "</m0>", "<m1>", "</m1>", "<m2/>", "a", "b c", "<x>", "&"]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(PLACEHOLDERS), max_size=10).map("".join))
def test_any_translation_gives_valid_html(translation: str) -> None:
    html = Markup("<p>The <b>red</b> <i>house</i><img></p>", keep_tags=True).fill([translation])
    assert str(BeautifulSoup(html, "html.parser")) == html


BROKEN = ["<", "<b", "</p>", "<![CDATA[x", "<!--", "&#xd800;", "<p =>", "<a b='", "]]>", "<i>", "x", "<td>"]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(BROKEN), max_size=5).map("".join))
def test_broken_html_is_accepted(html: str) -> None:
    page = Markup(html, keep_tags=True)
    assert isinstance(page.fill(page.texts), str)


def test_nesting_is_limited() -> None:
    deep = "<div>" * (MAX_DEPTH - 1) + "x" + "</div>" * (MAX_DEPTH - 1)
    assert Markup(deep, keep_tags=True).texts == ["x"]
    for name in ("div", "b", "b><div"):
        with pytest.raises(InputError, match="nested elements"):
            Markup(f"<{name}>" * 1100 + "x", keep_tags=True)
