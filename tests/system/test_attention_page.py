"""The page of `python -m research attention` in chromium, with the numbers of the analysis in Python."""

import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from relattn_mt.translate.translator import Translator

from research.attention import Inspection, inspect
from research.attention_page import as_html, attention_of, serve
from tests.support.pages import BROWSER, TEXT, numbers, violations

pytestmark = pytest.mark.skipif(BROWSER is None, reason="the page is tested in chromium: apt-get install chromium")
SIZES = {"desktop": (1280, 900), "phone": (390, 740)}
SENTENCES = [TEXT, "one apple.", "two pears and two"]
MARKS = ("<s>", "</s>")


@pytest.fixture(params=SIZES)
def page(request: pytest.FixtureRequest, browser: Browser, analyzed: Translator, tmp_path: Path) -> Iterator[Page]:
    width, height = SIZES[request.param]
    errors: list[str] = []
    shown = [attention_of(analyzed, line) for line in SENTENCES]
    (tmp_path / "page.html").write_text(as_html(analyzed, shown), encoding="utf-8")
    with browser.new_context(
        viewport={"width": width, "height": height}, has_touch=request.param == "phone"
    ) as context:
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((tmp_path / "page.html").as_uri())
        expect(page.locator("#queries li").first).to_be_visible()
        yield page
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert errors == []


@pytest.fixture(scope="module")
def inspection(analyzed: Translator) -> Inspection:
    return inspect(analyzed, TEXT)


def test_linked_view(page: Page, inspection: Inspection) -> None:
    """The parts of each score, their sum and the attention are those of the analysis, on one scale."""
    page.uncheck("#merge")
    page.check("#marks")
    page.locator("#heads button").nth(2).click()
    view, pieces = inspection.encoder[0], inspection.source
    assert view.relative is not None
    expect(page.locator("#queries bdi")).to_have_text(pieces)
    content, relative, weights = view.content[2], view.relative[2], view.weights[2]
    rows = page.locator("#queries li")
    for i, select in ((1, "hover"), (3, "tap"), (2, "keyboard")):
        if select == "hover":
            rows.nth(i).hover()
        elif select == "tap" and page.viewport_size["width"] < 600:  # type: ignore[index]
            rows.nth(i).tap()
        else:
            page.focus("#queries")
            page.keyboard.press("Home")
            for _ in range(i):
                page.keyboard.press("ArrowDown")
        expect(rows.nth(i)).to_have_attribute("aria-selected", "true")
        best = int(weights[i].argmax())
        expect(page.locator("#keys li").nth(best)).to_have_attribute("aria-selected", "true")
        a, b, total, share = numbers(page.locator("#formula").text_content())[-4:]
        assert (a, b) == pytest.approx((content[i, best].item(), relative[i, best].item()), abs=0.0051)
        assert total == pytest.approx(a + b, abs=1e-9)
        assert share == pytest.approx(100 * weights[i, best].item(), abs=0.51)
    percents = [numbers(each)[0] for each in page.locator("#keys .percent").all_text_contents()]
    assert percents == pytest.approx((100 * weights[2]).tolist(), abs=1.01)
    assert page.locator("#lines path").count() == len(pieces)
    widths = [
        page.locator(f"#keys .bars .{name}").evaluate_all("bars => bars.map((bar) => parseFloat(bar.style.width))")
        for name in ("content", "distance")
    ]
    parts = [content[2].abs(), relative[2].abs()]
    scale = 50 / numbers(page.locator("#axis").text_content())[-1]
    for shown, values in zip(widths, parts, strict=True):
        assert shown == pytest.approx((scale * values).tolist(), abs=0.01 * scale)
    page.locator("#keys li").nth(0).click()
    assert "looks" not in (page.locator("#formula").text_content() or "")
    near = page.locator("#bars .near")
    assert near.get_attribute("data-distance") == "-2"
    assert page.locator("#bars div").count() == 5  # distances that the model tells apart


@pytest.mark.parametrize("part", ["encoder", "decoder", "cross"])
def test_pieces_are_joined_into_words(page: Page, inspection: Inspection, part: str) -> None:
    """Attention to a word is the sum over its pieces; scores are means over pairs of pieces."""
    page.select_option("#part", part)
    down = {"encoder": inspection.source, "decoder": inspection.target, "cross": inspection.written}[part]
    across = inspection.target if part == "decoder" else inspection.source
    expect(page.locator("#queries bdi")).to_have_text(
        "".join(each for each in down if each not in MARKS).split("▁")[1:]
    )
    layer = getattr(inspection, part)[0]
    weights = (layer if part == "cross" else layer.weights)[0]
    page.locator("#heads button").first.click()
    page.focus("#queries")
    page.keyboard.press("End")
    query = ranges(down)[-1]
    expected = [100 * weights[query][:, key].sum(1).mean().item() for key in ranges(across)]
    percents = [numbers(each)[0] for each in page.locator("#keys .percent").all_text_contents()]
    assert percents == pytest.approx(expected, abs=1.01)
    if part == "cross":
        expect(page.locator("#axis")).to_be_hidden()
        return
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    a, b = numbers((page.locator("#formula").text_content() or "").split(":", 1)[1])[:2]
    pairs = [matrix[0][query][:, ranges(across)[0]].mean().item() for matrix in (layer.content, layer.relative)]
    assert (a, b) == pytest.approx(pairs, abs=0.0051)
    page.check("#marks")
    assert page.locator("#queries bdi").all_text_contents().count(MARKS[part == "encoder"]) == 1


def ranges(pieces: list[str]) -> list[slice]:
    """Return the pieces of each word, without marks of the sentence."""
    begins = [i for i, piece in enumerate(pieces) if piece.startswith("▁") or piece in MARKS] + [len(pieces)]
    return [slice(i, j) for i, j in pairwise(begins) if pieces[i] not in MARKS]


def test_heads_and_sentences_are_chosen(page: Page) -> None:
    page.select_option("#sentence", "1")
    heads = page.locator("#heads button")
    expect(heads).to_have_count(3)
    assert heads.locator("canvas").first.evaluate("canvas => [canvas.width, canvas.height]") == [2, 2]
    heads.nth(2).click()
    expect(page.locator("#head-title")).to_have_text("Layer 1, head 3")
    page.select_option("#sentence", "2")
    expect(page.locator("#queries bdi")).to_have_text(["two", "pears", "and", "two"])
    expect(page.locator("#head-title")).to_have_text("Layer 1, head 3")


@pytest.mark.parametrize("colours", ["light", "dark", "forced"])
def test_page_is_accessible(page: Page, colours: str) -> None:
    if colours == "forced":
        page.emulate_media(forced_colors="active")
    else:
        page.emulate_media(color_scheme=colours)  # type: ignore[arg-type]
    for part in ("encoder", "decoder", "cross"):
        page.select_option("#part", part)
        assert violations(page) == []


def test_a_sentence_is_typed(browser: Browser, analyzed: Translator) -> None:
    server = serve(as_html(analyzed, [], asks=True), lambda line: attention_of(analyzed, line), port=0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with browser.new_context() as context:
            page = context.new_page()
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            for line in ("two pears", TEXT):
                page.fill("#text", line)
                page.keyboard.press("Enter")
                expect(page.locator("#queries bdi")).to_have_text(line.split())
            page.fill("#text", " ")
            page.keyboard.press("Enter")
            expect(page.locator("#note")).to_have_text("the sentence must not be blank")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
