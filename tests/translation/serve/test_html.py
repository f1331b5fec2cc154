"""Markup around translations: what is translated, and that its tags come out."""

import gc
import time
from collections.abc import Callable

import pytest
from bs4 import BeautifulSoup

from relattn.translation.errors import InputError
from relattn.translation.serve.text.html import MAX_DEPTH, Markup

PAGE = (
    '<!DOCTYPE html><html><head><title>The title</title><script>if (a < b) "x";</script></head><body>'
    '<p class="x">One <b>two <i>three</i></b> four<br>five <a href="/?a=1&amp;b=2">six</a>.</p><!-- no -->'
    "<ul><li>seven</li><li> eight <img src=x> nine</li></ul><p><b>ten</b></p>"
    '<p translate="no">not this</p><p>a <code>f(x)</code> b &lt;m0&gt; &amp; c</p></body></html>'
)


def tags(html: str) -> list[str]:
    return sorted(
        str(tag.name) + str(sorted(tag.attrs.items())) for tag in BeautifulSoup(html, "html.parser").find_all()
    )


@pytest.mark.parametrize("keep_tags", [False, True])
def test_untranslated_it_is_the_same(keep_tags: bool) -> None:
    page = Markup(PAGE, keep_tags=keep_tags)
    assert page.fill(page.texts) == BeautifulSoup(PAGE, "html.parser").decode()


def test_a_run_of_text_is_one_text_with_marks() -> None:
    assert Markup(PAGE, keep_tags=True).texts == [
        "The title",
        "One <mm0>two <mm1>three</mm1></mm0> four",
        "five <mm0>six</mm0>.",
        "seven",
        " eight <mm0/> nine",
        "ten",
        "a <mm0/> b <m0> & c",
    ]


def test_or_each_piece_of_text_is_one() -> None:
    texts = Markup("<p>One <b>two</b> three <code>x</code></p>", keep_tags=False).texts
    assert texts == ["One ", "two", " three "]


def test_marks_that_were_moved_take_their_tags_along() -> None:
    page = Markup('<p>The <b>red</b> <a href="x">house</a></p>', keep_tags=True)
    assert page.texts == ["The <m0>red</m0> <m1>house</m1>"]
    assert page.fill(["La <m1>casa</m1> <m0>roja & <x></m0>"]) == (
        '<p>La <a href="x">casa</a> <b>roja &amp; &lt;x&gt;</b></p>'
    )


@pytest.mark.parametrize("translation", ["a</m0>b<m0>", "<m1>a<m0>b</m1>c</m0>", "<m0>x", "</m1></m1><m0/><m1/>"])
def test_marks_that_cross_make_markup_that_is_whole(translation: str) -> None:
    page = Markup("<p>The <b>red</b> <i>house</i></p>", keep_tags=True)
    html = page.fill([translation])
    assert str(BeautifulSoup(html, "html.parser")) == html


@pytest.mark.parametrize("name", ["m7", "/m7", "m7/", "m1", "m0/"])
def test_tags_of_a_translation_that_no_placeholder_has_are_text(name: str) -> None:
    page = Markup("<p>The <b>red</b> house<img></p>", keep_tags=True)
    assert page.texts == ["The <m0>red</m0> house<m1/>"]
    assert page.fill([f"a <{name}>b"]) == f"<p>a &lt;{name}&gt;b</p>"


def test_elements_too_deep_are_refused_and_deep_ones_are_not() -> None:
    deep = "<div>" * (MAX_DEPTH - 1) + "x" + "</div>" * (MAX_DEPTH - 1)
    assert Markup(deep, keep_tags=True).texts == ["x"]
    for name in ("div", "b", "b><div"):
        with pytest.raises(InputError, match="nested elements"):
            Markup(f"<{name}>" * 5000 + "x", keep_tags=True)


@pytest.mark.parametrize("html", ["", "<", "<b", "</p>", "<![CDATA[x", "<!--", "&#xd800;", "<p =>", "<a b='", "]]>"])
def test_broken_markup_is_read_as_browsers_do(html: str) -> None:
    page = Markup(html, keep_tags=True)
    assert isinstance(page.fill(page.texts), str)


def seconds(work: Callable[[], object]) -> float:
    """Of this thread, without those of the garbage collector, which goes through all that other tests have left."""
    gc.disable()
    began = time.thread_time()
    work()
    took = time.thread_time() - began
    gc.enable()
    return took


@pytest.mark.parametrize("html", ["<b>x</b> " * 3000, ("<b>a" * 90 + "</b>" * 90) * 40], ids=["many", "nested"])
def test_filling_takes_no_longer_than_reading(html: str) -> None:
    page = Markup(html, keep_tags=True)
    reading = seconds(lambda: BeautifulSoup(html, "html.parser").decode())
    assert seconds(lambda: page.fill(page.texts)) < 4 * reading
