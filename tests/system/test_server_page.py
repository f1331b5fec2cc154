"""The web page of a server in chromium: translation, files, attention, errors, keyboard, accessibility.

Numbers on the page are compared with those of the analysis in Python.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from relattn.translation import bundle, load
from relattn.translation.analysis.attention import Inspection, inspect
from relattn.translation.config import DataConfig, ModelConfig, Recipe, SearchConfig
from relattn.translation.data.batching import collate
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.formats.ctranslate2.write import export
from relattn.translation.model.transformer import Transformer
from relattn.translation.serve.app import make_app
from relattn.translation.serve.limits import Limits
from relattn.translation.serve.routing import Router
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.pipeline import Translator
from relattn.translation.translate.torch_translator import TorchTranslator

BROWSER = shutil.which("chromium")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="the page is tested in chromium: apt-get install chromium")
expect.set_options(timeout=30_000)  # milliseconds; a busy machine takes longer than the default of five seconds
SIZES = {"desktop": (1280, 900), "phone": (390, 740)}
TEXT = "one apple and two pears"
ITEMS = [  # number and noun in English and German
    ("one", "ein", "apple", "Apfel"),
    ("two", "zwei", "pears", "Birnen"),
    ("three", "drei", "apples", "Äpfel"),
    ("four", "vier", "cherries", "Kirschen"),
]
MARKS = ("<s>", "</s>")


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> TorchTranslator:
    """A small model that learned a few lines by heart, so that translations are words."""
    torch.manual_seed(1)
    pairs = [(f"{a} {x} and {b} {y}", f"{c} {u} und {d} {v}") for (a, c, x, u), (b, d, y, v) in product(ITEMS, ITEMS)]
    pairs += [(f"{a} {x}{end}", f"{c} {u}{end}") for a, c, x, u in ITEMS for end in ("", ".")]
    tokenizer = Tokenizer.train([line for pair in pairs for line in pair] * 5, 330, seed=1)
    recipe = Recipe(
        model=ModelConfig(
            dim=24, heads=3, feed_forward_dim=40, encoder_layers=1, decoder_layers=1, clip=2, dropout=0.0
        ),
        data=DataConfig(src_lang="en", tgt_lang="de"),
        search=SearchConfig(beam_size=3, max_length_ratio=1.25, max_length_extra=2),
    )
    model = Transformer(recipe.model, tokenizer.vocab_size)
    batch = collate(*([tokenizer.encode(line) for line in side] for side in zip(*pairs, strict=True)))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        logits = model(batch.src, batch.src_lengths, batch.tgt_in)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.tgt_out.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    path = tmp_path_factory.mktemp("page") / "bundle"
    card = "---\nwidget:\n- text: three apples and one apple\n---\n\n# A model\n"
    bundle.save(path, model=model, recipe=recipe, tokenizer=tokenizer, card=card)
    translator = load(path)
    assert isinstance(translator, TorchTranslator)
    return translator


@pytest.fixture(scope="module")
def address(translator: TorchTranslator) -> Iterator[str]:
    with serving({("en", "de"): translator, ("de", "en"): translator}) as address:
        yield address


@contextmanager
def serving(translators: dict[tuple[str, str], Translator]) -> Iterator[str]:
    app = make_app(Router(translators, Limits(characters=500)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=SIZES)
def page(request: pytest.FixtureRequest, browser: Browser, address: str) -> Iterator[Page]:
    width, height = SIZES[request.param]
    urls: list[str] = []
    errors: list[str] = []
    touch = request.param == "phone"
    with browser.new_context(viewport={"width": width, "height": height}, has_touch=touch) as context:
        page = context.new_page()
        page.on("request", lambda sent: urls.append(sent.url))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        expect(page.locator("#target")).to_have_value("en")
        yield page
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert all(url.startswith((address, "data:")) for url in urls)
        assert [error for error in errors if "Failed to load resource" not in error] == []  # which a test causes


def type_text(page: Page, text: str) -> None:
    page.fill("#text", text)
    expect(page.locator("#copy")).to_be_enabled()


def open_attention(page: Page, text: str = TEXT) -> None:
    type_text(page, text)
    page.click("summary")
    expect(page.locator("#queries li").first).to_be_visible()


def answer_with(page: Page, path: str, reply: Callable[[Route], None]) -> None:
    page.route(f"**/{path}", reply)


def numbers(text: str | None) -> list[float]:
    return [float(each) for each in re.findall(r"[+-]?\d+\.?\d*", (text or "").replace("−", "-"))]


def test_text_is_translated_when_typing_stops(page: Page, translator: TorchTranslator) -> None:
    expect(page.locator("#source")).to_have_value("auto")
    type_text(page, "one apple")
    expect(page.locator("#target")).to_have_value("de")  # the default, English, is the language of the text
    expect(page.locator("#status")).to_have_text("Detected: English")
    type_text(page, "one apple\n<b>two</b>")
    expected = translator.translate(["one apple", "<b>two</b>"])
    assert page.locator("#translation").text_content() == "\n".join(expected)
    assert page.locator("#translation b").count() == 0
    assert page.locator("#translation").get_attribute("lang") == "de"
    assert page.locator("#text").get_attribute("dir") == "auto"
    assert page.locator("#others li").count() >= 1
    expect(page.locator("#count")).to_contain_text("of 500 characters")
    heights = [page.locator(box).bounding_box()["height"] for box in ("#drop", "#drop + section")]  # type: ignore[index]
    assert heights[0] == heights[1] or page.viewport_size["width"] < 600  # type: ignore[index]
    page.click("#clear")
    expect(page.locator("#translation")).to_have_text("")
    assert page.evaluate("document.activeElement.id") == "text"
    page.click("text=three apples and one apple")  # from the card
    expect(page.locator("#copy")).to_be_enabled()


def test_the_model_of_the_package_translates_both_directions(browser: Browser) -> None:
    forth, back = (load("everyday-en-de", tgt_lang=language) for language in ("de", "en"))
    with serving({("en", "de"): forth, ("de", "en"): back}) as address, browser.new_context() as context:
        page = context.new_page()
        page.goto(address)
        for translator, name, other, text in (
            (forth, "English", "de", "Where is the nearest station? 😀\n\nIt is cold."),
            (back, "German", "en", "Wo ist der nächste Bahnhof? 😀\n\nEs ist kalt."),
        ):
            type_text(page, text)
            expect(page.locator("#status")).to_have_text(f"Detected: {name}")
            expect(page.locator("#target")).to_have_value(other)
            first, second = translator.translate([text.split(" 😀")[0], text.split("\n\n")[1]])
            expect(page.locator("#translation")).to_have_text(f"{first} 😀\n\n{second}", use_inner_text=False)
            assert page.locator("#others li").count() >= 1
        page.click("summary")
        expect(page.locator("#queries li").first).to_be_visible()


def test_nothing_stays_after_an_error(page: Page) -> None:
    open_attention(page)
    page.fill("#text", "x" * 501)
    expect(page.locator("#status")).to_contain_text("at most 500")
    expect(page.locator("#translation")).to_have_text("")
    for part in ("#alternatives", "#legend", "#attention-view"):
        expect(page.locator(part)).to_be_hidden()
    expect(page.locator("#copy")).to_be_disabled()
    type_text(page, TEXT)
    expect(page.locator("#queries li").first).to_be_visible()


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ({"status": 502, "body": "<html>Bad gateway</html>"}, "The server answered with status 502."),
        (
            {"status": 429, "body": "busy", "headers": {"Retry-After": "1"}},
            "The server is busy. Try again in 1 seconds.",  # after three times
        ),
        ({"status": 200, "body": "<html>Log in</html>"}, "The server's answer cannot be read."),
        (None, "The server cannot be reached."),
    ],
)
def test_answers_that_are_not_json(page: Page, reply: dict | None, message: str) -> None:
    answer_with(page, "words", lambda route: route.abort() if reply is None else route.fulfill(**reply))
    page.fill("#text", TEXT)
    expect(page.locator("#status")).to_have_text(message)


def test_late_answers_are_dropped(page: Page, translator: TorchTranslator) -> None:
    held: list[Route] = []
    answer_with(page, "words", lambda route: held.append(route) if not held else route.continue_())
    page.fill("#text", "two pears")
    while not held:
        page.wait_for_timeout(20)
    type_text(page, TEXT)
    held[0].fulfill(
        json={
            "words": [{"text": "late", "confidence": 1, "sentence": 0, "sources": [[0, 1]]}],
            "sentences": ["x"],
            "alternatives": [],
            "warnings": [],
            "hasAttention": True,
            "hasChoices": True,
        }
    )
    page.wait_for_timeout(200)
    assert page.locator("#translation").text_content() == translator.translate([TEXT])[0]
    waiting: list[Route] = []
    answer_with(page, "attention", lambda route: waiting.append(route) if not waiting else route.continue_())
    page.click("summary")
    while not waiting:
        page.wait_for_timeout(20)
    page.evaluate("part.value = 'cross', part.dispatchEvent(new Event('change'))")  # before it is shown
    expect(page.locator("#formula")).to_contain_text("of its attention")
    waiting[0].continue_()
    page.wait_for_timeout(300)
    expect(page.locator("#distances")).to_be_hidden()  # which cross-attention does not have


def test_files_are_dropped_or_chosen(page: Page, translator: TorchTranslator, tmp_path: Path) -> None:
    page.select_option("#source", "en")
    page.select_option("#target", "de")
    page.evaluate("""() => {
        const dataTransfer = new DataTransfer(), options = {dataTransfer, bubbles: true, cancelable: true};
        dataTransfer.items.add(new File(["one apple"], "fruit.txt"));
        for (const type of ["dragover", "drop"]) text.dispatchEvent(new DragEvent(type, options));
    }""")
    link = page.locator("#file-status a")
    expect(link).to_have_attribute("download", "fruit_de.txt")
    assert page.locator("#text").input_value() == ""  # the browser did not insert or open the file
    path = tmp_path / "other.txt"
    path.write_text(TEXT)
    page.set_input_files("#file", path)
    expect(page.locator("#file-status")).to_contain_text("other.txt is translated")
    with page.expect_download() as download:
        link.click()
    assert download.value.path().read_text() == translator.translate([TEXT])[0]
    path = tmp_path / "picture.png"
    path.write_bytes(b"")
    page.set_input_files("#file", path)
    expect(page.locator("#file-status")).to_contain_text("picture.png: ")
    expect(page.locator("#file-status")).to_have_class(re.compile("error"))


def test_long_file_shows_progress_and_can_be_cancelled(page: Page, tmp_path: Path) -> None:
    """The server stops working on a file that is cancelled."""
    path = tmp_path / "long.txt"
    path.write_text(f"{TEXT}\n" * 100_000)
    page.select_option("#source", "en")
    page.select_option("#target", "de")
    status, bar = page.locator("#file-status"), page.locator("#file-status progress")
    page.set_input_files("#file", path)
    expect(bar).to_have_attribute("value", re.compile(r"0\.0*[1-9]"))
    page.get_by_role("button", name="Cancel").click()
    expect(status).to_contain_text("long.txt: cancelled")
    page.wait_for_function(
        "() => fetch('metrics').then((a) => a.text()).then((t) => t.includes('relattn_waiting_sentences 0.0'))"
    )
    path.write_text(TEXT)
    page.set_input_files("#file", path)
    expect(status).to_contain_text("long.txt is translated")


def test_other_words_are_offered_in_place(page: Page, translator: TorchTranslator) -> None:
    type_text(page, "one apple.\ntwo pears")
    first, second = translator.translate(["one apple.", "two pears"])
    word = page.locator("#translation .word").nth(len(first.split()))
    assert word.text_content() == second.split()[0]
    word.focus()
    page.keyboard.press("Enter")
    offer = page.locator("#choices button b").first
    expect(offer).to_be_visible()
    chosen = offer.text_content() or ""
    assert chosen != word.text_content()
    if (page.locator("#choices button span").first.text_content() or "").startswith(" "):
        chosen += " "  # the word is complete
    page.keyboard.press("Enter")  # the first offer has the focus
    (expected,) = translator.translate(["two pears"], prefixes=[chosen])
    expect(page.locator("#translation")).to_have_text(f"{first}\n{expected}", use_inner_text=False)
    expect(page.locator("#choices")).to_be_hidden()
    page.click("summary")  # attention is that of the chosen translation
    page.select_option("#part", "cross")
    page.select_option("#sentence", "1")
    expect(page.locator("#queries bdi")).to_have_text(expected.split())


def test_source_words_are_marked(page: Page, translator: TorchTranslator) -> None:
    text = "one 😀 apple.\n\ntwo pears and three apples"
    type_text(page, text)
    _, second = text.split("\n\n")
    (translation,) = translator.translate([second])
    (links,) = translator.align_batch(
        [translator.tokenizer.encode(second)], [translator.tokenizer.encode_target(translation)]
    )
    words = page.locator("#translation .word")
    marks = page.locator("#mirror mark")
    first = words.count() - len(translation.split())
    for source, target in links:
        words.nth(first + target).hover()
        expect(marks).to_have_text([second.split()[source]])
    assert page.locator("#mirror").evaluate("mirror => mirror.offsetHeight === text.scrollHeight")
    place = "element => [element.getBoundingClientRect().top, element.getBoundingClientRect().left]"
    below = page.locator("#text").evaluate(place)[0] + 2 * 1.15 * 16 * 1.6  # the third line
    assert marks.evaluate(place)[0] > below
    page.hover("h1")
    expect(marks).to_have_count(0)
    words.nth(first).focus()
    expect(marks).to_have_count(1)
    expect(words.nth(first)).to_have_class(re.compile("marked"))
    page.fill("#text", "two pears")
    expect(marks).to_have_count(0)


def test_other_translations_are_chosen(page: Page, translator: TorchTranslator) -> None:
    type_text(page, TEXT)
    (ranked,) = translator.n_best([TEXT], TranslateOptions(n_best=3))
    texts = [each.text for each in ranked]
    shown, others = page.locator("#translation"), page.locator("#others button")
    for k in (1, 2):
        before = shown.text_content() or ""
        choice = others.nth(k - 1).text_content() or ""
        assert choice in texts
        marked = others.nth(k - 1).locator("mark").all_text_contents()
        kept = [word for word in choice.split() if word not in marked]
        assert marked
        assert set(choice.split()) - set(before.split()) <= set(marked)
        assert set(kept) <= set(before.split())
        others.nth(k - 1).click()
        expect(shown).to_have_text(choice)
        expect(others).to_have_text([text for text in texts if text != choice])
        assert shown.locator(".word").count() == len(choice.split())
    page.click("summary")
    page.select_option("#part", "cross")
    expect(page.locator("#queries bdi")).to_have_text(choice.split())


def test_other_words_stay_by_their_word(page: Page) -> None:
    type_text(page, "\n".join(["two pears"] * 20))
    height = page.viewport_size["height"]  # type: ignore[index]
    rect = "element => element.getBoundingClientRect().toJSON()"
    for word in (page.locator("#translation .word").first, page.locator("#translation .word").nth(-2)):
        word.evaluate("element => element.scrollIntoView({block: 'center'})")
        word.click()
        expect(page.locator("#choices button").first).to_be_visible()
        for offset in (0, 150, -150, -60):
            page.mouse.wheel(0, offset)
            page.wait_for_timeout(300)
            box, place = page.locator("#choices").evaluate(rect), word.evaluate(rect)
            assert 0 <= box["left"] <= box["right"] <= page.viewport_size["width"]  # type: ignore[index]
            assert 0 <= box["top"] <= box["bottom"] <= height
            if 0 <= place["top"] < place["bottom"] <= height:
                assert min(abs(box["top"] - place["bottom"]), abs(place["top"] - box["bottom"])) < 10
        page.keyboard.press("Escape")


def test_nothing_scrolls_sideways_and_the_bar_stays(page: Page) -> None:
    open_attention(page, "\n".join([TEXT] * 12))
    for width in (320, page.viewport_size["width"]):  # type: ignore[index]
        page.set_viewport_size({"width": width, "height": 700})
        for part in ("encoder", "decoder", "cross"):
            page.select_option("#part", part)
            expect(page.locator("#attention-view")).not_to_have_attribute("aria-busy", "true")
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            for y in (0, 300, 100_000):
                page.evaluate(f"scrollTo(0, {y})")
                for inner in ("#copy", "#status"):
                    expect(page.locator(inner)).to_be_in_viewport()


def test_languages_are_remembered(page: Page, address: str) -> None:
    page.select_option("#source", "de")
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator("#source")).to_have_value("de")
    page.select_option("#source", "auto")
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator("#source")).to_have_value("auto")
    type_text(page, TEXT)
    expect(page.locator("#target")).to_have_value("de")  # by the detected language, since none was chosen
    page.select_option("#source", "de")
    page.goto("about:blank")
    page.goto(f"{address}#source=en&target=de")
    expect(page.locator("#source")).to_have_value("en")
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator("#source")).to_have_value("de")  # a link is not a choice


@pytest.mark.parametrize("path", ["languages", "frontend/settings"])
def test_page_recovers_from_a_server_that_starts_late(page: Page, address: str, path: str) -> None:
    answers = iter([lambda route: route.abort(), lambda route: route.fulfill(status=502, body="<html>")])
    answer_with(page, path, lambda route: next(answers, lambda route: route.continue_())(route))
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator("#status")).to_contain_text("Trying again")
    page.fill("#text", TEXT)
    page.click("#swap")  # does nothing yet
    expect(page.locator("#copy")).to_be_enabled()
    expect(page.locator("#status")).to_have_text("Detected: English")


def test_busy_server_is_asked_again(page: Page) -> None:
    answers: list[str] = []

    def reply(route: Route) -> None:
        answers.append(route.request.url)
        busy = {"status": 429, "body": "busy", "headers": {"Retry-After": "1"}}
        route.fulfill(**busy) if len(answers) == 1 else route.continue_()  # type: ignore[arg-type]

    answer_with(page, "words", reply)
    page.fill("#text", TEXT)
    expect(page.locator("#status")).to_have_text("The server is busy. Trying again in 1 seconds.")
    expect(page.locator("#copy")).to_be_enabled()
    assert len(answers) in (2, 3)  # the target language was chosen by the detected one


def test_detected_languages_are_swapped(page: Page, translator: TorchTranslator) -> None:
    page.select_option("#target", "de")
    page.click("#swap")
    expect(page.locator("#source")).to_have_value("de")
    expect(page.locator("#target")).to_have_value("en")
    page.select_option("#source", "auto")
    page.select_option("#target", "de")
    type_text(page, TEXT)
    page.click("#swap")
    expect(page.locator("#source")).to_have_value("de")
    expect(page.locator("#target")).to_have_value("en")
    expect(page.locator("#text")).to_have_value(translator.translate([TEXT])[0])


def test_exports_offer_only_what_they_can(browser: Browser, translator: TorchTranslator, tmp_path: Path) -> None:
    early = replace(translator.search, early_stopping=True)
    bundle.save(
        tmp_path / "bundle",
        model=translator.model,
        recipe=Recipe(model=translator.model.config, data=DataConfig(src_lang="en", tgt_lang="de"), search=early),
        tokenizer=translator.tokenizer,
        card="",
    )
    export(bundle.read_bundle(tmp_path / "bundle"), tmp_path / "export", quantization="float32", sample=[TEXT])
    with serving({("en", "de"): load(tmp_path / "export")}) as address, browser.new_context() as context:
        page = context.new_page()
        page.goto(address)
        type_text(page, TEXT)
        expect(page.locator("#attention")).to_be_hidden()
        expect(page.locator("#choices-legend")).to_be_hidden()
        assert page.locator("#translation .word").count() >= 4
        assert page.locator("#translation [role=button], #translation [tabindex]").count() == 0


def test_link_opens_a_head_and_a_pair_of_words(page: Page, browser: Browser) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_attention(page, "one apple.\n" + TEXT)
    page.select_option("#sentence", "1")
    page.select_option("#part", "decoder")
    page.check("#marks")
    page.locator("#heads button").nth(1).click()
    page.focus("#queries")
    page.keyboard.press("End")
    page.focus("#keys")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    views = ("#head-title", "#formula", "#queries [aria-selected=true]", "#keys [aria-selected=true]")
    expected = [page.locator(each).text_content() for each in views]
    page.click("#share")
    expect(page.locator("#status")).to_have_text("Link copied")
    link = page.url
    for is_open in (False, True):  # in a new page, and in one that is open
        page.goto("about:blank")
        if is_open:
            page.goto(link.partition("#")[0])
            type_text(page, "two pears")
        page.goto(link)
        expect(page.locator("#head-title")).to_have_text(expected[0] or "")
        expect(page.locator("#sentence")).to_have_value("1")
        assert [page.locator(each).text_content() for each in views] == expected
    page.goto("about:blank")
    page.goto(link.replace("head=2", "head=99").replace("query=", "query=9").replace("key=2", "key=x"))
    expect(page.locator("#head-title")).to_have_text("Layer 1, head 3")
    expect(page.locator("#queries li").last).to_have_attribute("aria-selected", "true")


@pytest.mark.parametrize("part", ["encoder", "cross"])
def test_view_is_saved(page: Page, inspection: Inspection, part: str) -> None:
    open_attention(page)
    page.select_option("#part", part)
    expect(page.locator("#heads section")).to_have_count(1)
    page.locator("#heads button").nth(1).click()
    page.locator("#queries li").nth(2).click()
    with page.expect_download() as download:
        page.click("#save-json")
    assert download.value.suggested_filename == f"attention-{part}-layer-1-head-2.json"
    saved = json.loads(download.value.path().read_text())
    weights = inspection.encoder[0].weights if part == "encoder" else inspection.cross[0]
    torch.testing.assert_close(torch.tensor(saved["weights"][1]), weights[1], atol=1e-3, rtol=0)
    assert (saved["sentence"], saved["source"], saved["head"]) == (TEXT, "en", 2)
    assert saved["query"]["text"] == page.locator("#queries bdi").nth(2).text_content()
    with page.expect_download() as download:
        page.click("#save-svg")
    drawing = ElementTree.parse(download.value.path())
    texts = [each.text for each in drawing.iter("{http://www.w3.org/2000/svg}text")]
    for shown in ("#queries bdi", "#keys bdi"):
        assert set(page.locator(shown).all_text_contents()) <= set(texts)
    formula = page.locator("#formula").text_content() or ""
    assert formula.startswith(texts[-1] or "none")
    for shown in page.locator("#keys .percent").all_text_contents():
        assert shown in texts
    assert texts[0] == f"Layer 1, head 2. {page.locator('#summary').text_content()}"
    assert all(box.get("width") for box in drawing.iter("{http://www.w3.org/2000/svg}rect"))


@pytest.mark.parametrize("is_secure", [True, False])
def test_copy_and_share(page: Page, translator: TorchTranslator, is_secure: bool) -> None:
    if is_secure:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    else:
        page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    type_text(page, TEXT)
    page.click("#share")
    expect(page.locator("#status")).to_have_text("Link copied")
    page.click("#copy")
    expect(page.locator("#status")).to_have_text("Copied")
    page.fill("#text", "")
    page.focus("#text")
    page.keyboard.press("Control+V")
    translation = translator.translate([TEXT])[0]
    expect(page.locator("#text")).to_have_value(translation)
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    expect(page.locator("#translation")).to_have_text(translation)
    expect(page.locator("#text")).to_have_value(TEXT)


def test_keyboard_is_sufficient(page: Page) -> None:
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.type("one apple")
    expect(page.locator("#copy")).to_be_enabled()
    page.locator("#swap").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#target")).to_have_value("en")
    expect(page.locator("#copy")).to_be_enabled()
    seen: list[str] = []
    for _ in range(40):
        name = page.evaluate("document.activeElement.id || document.activeElement.tagName")
        if name == "SUMMARY" and name not in seen:
            page.keyboard.press("Enter")
            expect(page.locator("#queries li").first).to_be_visible()
        if name == "queries":
            page.keyboard.press("End")
            expect(page.locator("#queries li").last).to_have_attribute("aria-selected", "true")
            page.keyboard.press("ArrowUp")
            expect(page.locator("#queries li").nth(-2)).to_have_attribute("aria-selected", "true")
        if name == "keys":
            page.keyboard.press("Home")
            expect(page.locator("#keys li").first).to_have_attribute("aria-selected", "true")
            break
        seen.append(name)
        page.keyboard.press("Tab")
    assert seen.count("SPAN") == 1  # the words of the translation are one tab stop
    assert name == "keys", seen


@pytest.fixture(scope="module")
def inspection(translator: TorchTranslator) -> Inspection:
    return inspect(translator, TEXT)


def test_linked_view(page: Page, inspection: Inspection) -> None:
    """The parts of each score, their sum and the attention are those of the analysis, on one scale."""
    open_attention(page)
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
    open_attention(page)
    page.select_option("#part", part)
    expect(page.locator("#heads section")).to_have_count(1)
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
    open_attention(page, "one apple.\ntwo pears and two")
    heads = page.locator("#heads button")
    expect(heads).to_have_count(3)
    assert all(text.endswith(".") for text in heads.locator("span").all_text_contents())
    assert heads.locator("canvas").first.evaluate("canvas => [canvas.width, canvas.height]") == [2, 2]
    heads.nth(2).click()
    expect(page.locator("#head-title")).to_have_text("Layer 1, head 3")
    expect(page.locator("#summary")).to_have_text(heads.nth(2).locator("span").text_content() or "")
    page.select_option("#sentence", "1")
    expect(page.locator("#queries bdi")).to_have_text(["two", "pears", "and", "two"])
    expect(page.locator("#head-title")).to_have_text("Layer 1, head 3")


@pytest.mark.parametrize("colours", ["light", "dark", "forced"])
def test_page_is_accessible(page: Page, colours: str) -> None:
    if colours == "forced":
        page.emulate_media(forced_colors="active")
    else:
        page.emulate_media(color_scheme=colours)  # type: ignore[arg-type]
    expect(page.locator("#examples")).to_be_visible()
    assert violations(page) == []
    answer_with(page, "translate_file", lambda route: route.fulfill(json={"translatedFileUrl": "x/y.txt"}))
    page.set_input_files("#file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"x"})
    expect(page.locator("#file-status a")).to_be_visible()
    page.fill("#text", "x" * 501)
    expect(page.locator("#status")).to_contain_text("at most 500")
    assert violations(page) == []
    open_attention(page)
    page.locator("#translation .word").first.hover()
    expect(page.locator("#mirror mark")).to_have_count(1)
    for part in ("encoder", "decoder", "cross"):
        page.select_option("#part", part)
        expect(page.locator("#attention-view")).not_to_have_attribute("aria-busy", "true")
        assert violations(page) == []
    page.locator("#translation .word").nth(3).click()
    expect(page.locator("#choices button").first).to_be_visible()
    assert violations(page) == []


def violations(page: Page) -> list[tuple[str, str, str]]:
    options = {"rules": {name: {"enabled": True} for name in ("label-content-name-mismatch", "target-size")}}
    found = Axe().run(page, options=options).response["violations"]
    return [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found]
