"""The web page of a server in chromium: translation, files, errors, keyboard, accessibility."""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, Route, expect
from relattn_mt import load
from relattn_mt.serve.app import make_app
from relattn_mt.serve.limits import Limits
from relattn_mt.serve.routing import Router
from relattn_mt.translate.options import TranslateOptions
from relattn_mt.translate.translator import Translator

from tests.support.pages import BROWSER, TEXT, violations

pytestmark = pytest.mark.skipif(BROWSER is None, reason="the page is tested in chromium: apt-get install chromium")
expect.set_options(timeout=30_000)  # milliseconds; a busy machine takes longer than the default of five seconds
SIZES = {"desktop": (1280, 900), "phone": (390, 740)}


@pytest.fixture(scope="module")
def address(translator: Translator) -> Iterator[str]:
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


def answer_with(page: Page, path: str, reply: Callable[[Route], None]) -> None:
    page.route(f"**/{path}", reply)


def test_text_is_translated_when_typing_stops(page: Page, translator: Translator) -> None:
    expect(page.locator("#source")).to_have_value("auto")
    type_text(page, "one apple")
    expect(page.locator("#target")).to_have_value("de")  # the default, English, is the language of the text
    expect(page.locator("#source option").first).to_have_text("English (detected)")
    type_text(page, "one apple\n<b>two</b>")
    expected = translator.translate(["one apple", "<b>two</b>"])
    assert page.locator("#translation").text_content() == "\n".join(expected)
    assert page.locator("#translation b").count() == 0
    assert page.locator("#translation").get_attribute("lang") == "de"
    assert page.locator("#text").get_attribute("dir") == "auto"
    expect(page.locator("#others li")).to_have_count(0)  # those of one sentence
    expect(page.locator("#count")).to_have_text("20 / 500")
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
            expect(page.locator("#source option").first).to_have_text(f"{name} (detected)")
            expect(page.locator("#target")).to_have_value(other)
            first, second = translator.translate([text.split(" 😀")[0], text.split("\n\n")[1]])
            expect(page.locator("#translation")).to_have_text(f"{first} 😀\n\n{second}", use_inner_text=False)
            page.locator("#translation .word").last.click()
            expect(page.locator("#alternatives-title")).to_contain_text(text.split("\n\n")[1])
            expect(page.locator("#others button").first).to_be_attached()
            page.keyboard.press("Escape")
        expect(page).to_have_title("German → English · relattn")
        page.click("text=About the model")
        expect(page.locator("#cards")).to_contain_text("Licence: cc-by-2.0")
        expect(page.locator("#cards")).to_contain_text("BLEU")


def test_nothing_stays_after_an_error(page: Page) -> None:
    type_text(page, TEXT)
    page.fill("#text", "x" * 501)
    expect(page.locator("#status")).to_contain_text("at most 500")
    expect(page.locator("#translation")).to_have_text("")
    for part in ("#alternatives", "#legend"):
        expect(page.locator(part)).to_be_hidden()
    expect(page.locator("#copy")).to_be_disabled()
    type_text(page, TEXT)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ({"status": 502, "body": "<html>Bad gateway</html>"}, "The server answered with status 502. Try again"),
        (
            {"status": 429, "body": "busy", "headers": {"Retry-After": "1"}},
            "The server is busy. Try again in 1 seconds.",  # after three times
        ),
        ({"status": 200, "body": "<html>Log in</html>"}, "The server's answer cannot be read."),
        (None, "The server cannot be reached. Try again"),
    ],
)
def test_answers_that_are_not_json(page: Page, reply: dict | None, message: str) -> None:
    answer_with(page, "words", lambda route: route.abort() if reply is None else route.fulfill(**reply))
    page.fill("#text", TEXT)
    expect(page.locator("#status")).to_have_text(message)


def test_warnings_name_their_sentences(page: Page) -> None:
    """Of a text with one sentence, or after two models, there is nothing to name."""
    reply: dict = {}
    answer_with(page, "words", lambda route: route.fulfill(json=reply))
    for sentences, warnings, expected in (
        ([TEXT, "Two.", "3."], [["names"], [], ["numbers", "tags"]], [f"of “{TEXT}”: a name", "of “3.”: the numbers"]),
        ([TEXT], [["names"]], ["translation: a name"]),
        ([TEXT, "Two."], [["length"], ["length"], []], ["translation: the length is unlikely."]),
    ):
        word = {"text": "x", "confidence": 1, "sentence": 0, "sources": []}
        reply |= {"words": [word], "sentences": sentences, "alternatives": [], "warnings": warnings, "hasChoices": True}
        page.fill("#text", "")
        page.fill("#text", TEXT)
        for part in expected:
            expect(page.locator("#status")).to_contain_text(part)


def test_warnings_of_other_sentences_stay_when_a_word_is_replaced(page: Page) -> None:
    def reply(route: Route) -> None:
        asked = route.request.post_data_json
        texts = ["Eins.", " ", "Zwei."] if asked["q"] == "One. Two." else [asked.get("prefix", "") + "Ein", "."]
        words = [
            {"text": text, "confidence": 1, "sentence": number // 2, "sources": []} for number, text in enumerate(texts)
        ]
        answer: dict = {"words": words, "alternatives": ["Andere."], "hasChoices": True}
        answer |= {"sentences": ["One.", "Two."], "warnings": [["names"], ["numbers"]]}
        if asked["q"] != "One. Two.":
            answer |= {"sentences": [asked["q"]], "warnings": [[]]}
        route.fulfill(json=answer)

    answer_with(page, "words", reply)
    page.fill("#text", "One. Two.")
    status = page.locator("#status")
    expect(status).to_contain_text("of “One.”")
    page.locator("#translation .word").first.click()
    page.locator("#choices button").first.click()
    expect(status).not_to_contain_text("of “One.”")
    expect(status).to_contain_text("of “Two.”")


def test_late_answers_are_dropped(page: Page, translator: Translator) -> None:
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
            "hasChoices": True,
        }
    )
    page.wait_for_timeout(200)
    assert page.locator("#translation").text_content() == translator.translate([TEXT])[0]


def test_a_file_in_the_language_of_the_default_target_is_translated_into_another(page: Page) -> None:
    expect(page.locator("#target")).to_have_value("en")
    page.set_input_files("#file", {"name": "letter.txt", "mimeType": "text/plain", "buffer": TEXT.encode()})
    expect(page.locator("#file-status a").first).to_have_attribute("download", "letter_de.txt")
    expect(page.locator("#target")).to_have_value("de")


def test_files_in_several_languages_at_once_are_translated_once_more_at_most(page: Page) -> None:
    texts = {"a.txt": TEXT, "b.txt": "Das ist ein altes Haus, und der Hund schläft im Garten.", "c.txt": TEXT}
    held: list[Route] = []
    later: list[Route] = []

    def hold(route: Route) -> None:
        if len(held) < len(texts):
            held.append(route)
        else:
            later.append(route)
            route.continue_()

    page.route("**/translate_file", hold)
    for name, text in texts.items():
        page.set_input_files("#file", {"name": name, "mimeType": "text/plain", "buffer": text.encode()})
    expect(page.locator("#file-status .busy")).to_have_count(len(texts))
    while len(held) < len(texts):
        page.wait_for_timeout(20)
    for route in held:
        route.continue_()
    expect(page.locator("#file-status .busy")).to_have_count(0)
    expect(page.locator("#file-status .error")).to_have_count(0)
    expect(page.locator("#target")).to_have_value("de")
    assert len(later) == 2  # those of the files in English


def test_files_are_dropped_or_chosen(page: Page, translator: Translator, tmp_path: Path) -> None:
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
    assert download.value.suggested_filename == link.get_attribute("download") == "other_de.txt"
    assert download.value.path().read_text() == translator.translate([TEXT])[0]
    path = tmp_path / "picture.png"
    path.write_bytes(b"")
    page.set_input_files("#file", path)
    expect(page.locator("#file-status")).to_contain_text("picture.png: ")
    expect(page.locator("#file-status span")).to_have_class(re.compile("error"))
    page.fill("#text", TEXT)
    expect(page.locator("#file-status span")).to_have_count(0)


def test_long_file_shows_progress_and_can_be_cancelled(page: Page, tmp_path: Path) -> None:
    """The server stops working on a file that is cancelled."""
    path = tmp_path / "long.txt"
    path.write_text(f"{TEXT}\n" * 100_000)
    page.select_option("#source", "en")
    page.select_option("#target", "de")
    status, bar = page.locator("#file-status"), page.locator("#file-status progress")
    page.set_input_files("#file", path)
    expect(bar).to_have_attribute("value", re.compile(r"0\.0*[1-9]"))
    page.set_input_files("#file", {"name": "other.txt", "mimeType": "text/plain", "buffer": TEXT.encode()})
    expect(status).to_contain_text("other.txt is translated")
    expect(bar).to_be_visible()  # the second file does not end the first
    page.get_by_role("button", name="Cancel").click()
    expect(status).to_contain_text("long.txt: cancelled")
    page.wait_for_function(
        "() => fetch('metrics').then((a) => a.text()).then((t) => t.includes('relattn_waiting_sentences 0.0'))"
    )
    path.write_text(TEXT)
    page.set_input_files("#file", path)
    expect(status).to_contain_text("long.txt is translated")


def test_other_words_are_offered_in_place(page: Page, translator: Translator) -> None:
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


def test_what_was_replaced_is_brought_back(page: Page, translator: Translator) -> None:
    """Step by step: a word, cleared text, swapped languages. Text that was typed since is brought back too."""
    shown, text = page.locator("#translation"), page.locator("#text")
    page.select_option("#source", "en")
    page.select_option("#target", "de")
    expect(page.locator("#undo")).to_be_disabled()
    type_text(page, TEXT)
    (translation,) = translator.translate([TEXT])
    expect(shown).to_have_text(translation)
    shown.locator(".word").nth(1).click()
    page.locator("#choices button").first.click()
    expect(shown).not_to_have_text(translation)
    replaced = shown.text_content() or ""
    page.click("#swap")
    expect(text).to_have_value(replaced)
    expect(page.locator("#source")).to_have_value("de")
    page.click("#clear")
    expect(text).to_have_value("")
    page.fill("#text", "two pears")
    page.click("#undo")
    expect(text).to_have_value(replaced)
    page.click("#undo")
    expect(text).to_have_value(TEXT)
    expect(page.locator("#source")).to_have_value("en")
    expect(shown).to_have_text(replaced)
    page.click("#undo")
    expect(shown).to_have_text(translation)
    expect(page.locator("#undo")).to_be_disabled()
    for _ in range(3):
        page.click("#redo")
    expect(text).to_have_value("two pears")
    expect(shown).to_have_text(translator.translate(["two pears"])[0])


def test_a_glossary_is_used_and_stays(page: Page, address: str) -> None:
    page.select_option("#source", "en")
    page.select_option("#target", "de")
    page.click("text=Glossary")
    page.fill("#glossary", "apple = Obst")
    page.locator("#glossary").blur()
    sent: list[dict] = []
    page.on("request", lambda each: sent.append(each.post_data_json) if each.url.endswith("words") else None)
    type_text(page, "one apple")
    assert sent[-1]["glossary"] == {"apple": "Obst"}
    page.goto(f"{address}docs")
    page.go_back()
    expect(page.locator("#glossary")).to_have_value("apple = Obst")
    page.click("text=Glossary")
    page.fill("#glossary", "apple")
    page.locator("#glossary").blur()
    page.fill("#text", TEXT)
    expect(page.locator("#status")).to_contain_text("got “apple”")


def test_nothing_moves_while_typing(page: Page) -> None:
    """Neither the counter nor a button that appears."""
    heights = set()
    for text in ("", "one", "one apple " * 45):
        page.fill("#text", text)
        heights.add(page.locator("#drop .tools").bounding_box()["height"])  # type: ignore[index]
    assert len(heights) == 1


def test_source_words_are_marked(page: Page, translator: Translator) -> None:
    text = "one 😀 apple.\n\ntwo pears and three apples"
    type_text(page, text)
    _, second = text.split("\n\n")
    (translation,) = translator.translate([second])
    (links,) = translator.align(
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


def test_other_translations_are_chosen(page: Page, translator: Translator) -> None:
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
    type_text(page, "\n".join([TEXT] * 12))
    for width in (320, page.viewport_size["width"]):  # type: ignore[index]
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        for y in (0, 300, 100_000):
            page.evaluate(f"scrollTo(0, {y})")
            expect(page.locator("#status")).to_be_in_viewport(ratio=0)
        page.locator("#translation").evaluate("box => scrollTo(0, box.getBoundingClientRect().top + scrollY)")
        expect(page.locator("#copy")).to_be_in_viewport()  # beside the first lines of a long translation


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
    expect(page.locator("#source option").first).to_have_text("English (detected)")


@pytest.mark.parametrize("again", ["button", "online", "pause"])
def test_text_is_translated_when_the_server_is_back(page: Page, translator: Translator, again: str) -> None:
    type_text(page, TEXT)
    before = page.locator("#translation").text_content() or ""
    page.route("**/words", lambda route: route.abort())
    page.fill("#text", "two pears")
    expect(page.locator("#status")).to_have_text("The server cannot be reached. Try again")
    expect(page.locator("#translation")).to_have_text(before)
    expect(page.locator("#translation")).to_have_attribute("aria-busy", "true")  # dimmed
    assert violations(page) == []
    page.unroute("**/words")
    if again == "button":
        page.get_by_role("button", name="Try again").click()
    elif again == "online":
        page.evaluate("dispatchEvent(new Event('online'))")
    expect(page.locator("#copy")).to_be_enabled()
    expect(page.locator("#translation")).to_have_text(translator.translate(["two pears"])[0])
    expect(page.locator("#source option").first).to_have_text("English (detected)")


@pytest.mark.parametrize(
    "text", ["12345", "Le chien court sur la plage et les enfants jouent.", "الكلب يجري على الشاطئ"]
)
def test_other_languages_are_not_taken_for_one_of_the_server(page: Page, text: str) -> None:
    type_text(page, text)
    message = "The language is not recognized. The text was read as English."
    expect(page.locator("#status")).to_contain_text(message)


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


def test_detected_languages_are_swapped(page: Page, translator: Translator) -> None:
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


@pytest.mark.parametrize("is_secure", [True, False])
def test_copy_and_share(page: Page, translator: Translator, is_secure: bool) -> None:
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
        if name == "BODY":
            break
        seen.append(name)
        page.keyboard.press("Tab")
    assert seen.count("SPAN") == 1  # the words of the translation are one tab stop


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
    type_text(page, TEXT)
    page.locator("#translation .word").first.hover()
    expect(page.locator("#mirror mark")).to_have_count(1)
    assert violations(page) == []
    page.locator("#translation .word").nth(3).click()
    expect(page.locator("#choices button").first).to_be_visible()
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.click("text=Glossary")
    page.click("text=About the model")
    assert violations(page) == []
    page.click("text=Help and API")
    expect(page.locator("h2").first).to_be_visible()
    assert violations(page) == []
