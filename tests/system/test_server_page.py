"""The web page of a server in chromium: translation, attention, keyboard, accessibility, and no other servers."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from relattn.translation import load
from relattn.translation.serve.app import make_app
from relattn.translation.serve.limits import Limits
from relattn.translation.serve.routing import Router
from tests.support.bundles import save_random_bundle

BROWSER = shutil.which("chromium")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="the page is tested in chromium: apt-get install chromium")
SIZES = {"desktop": (1280, 900), "phone": (375, 740)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_bundle(tmp_path_factory.mktemp("page") / "bundle")


@pytest.fixture(scope="module")
def address(model: Path) -> Iterator[str]:
    translator = load(model)
    app = make_app(Router({("en", "de"): translator, ("de", "en"): translator}, Limits(characters=500)))
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
    with browser.new_context(viewport={"width": width, "height": height}) as context:
        page = context.new_page()
        page.on("request", lambda sent: urls.append(sent.url))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        expect(page.locator("#target")).to_have_value("en")
        yield page
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert all(url.startswith((address, "data:")) for url in urls)
        assert [error for error in errors if "status of 400" not in error] == []  # which a test causes


def type_text(page: Page, text: str) -> None:
    with page.expect_response(lambda answer: answer.url.endswith("/words")):
        page.fill("#text", text)
    expect(page.locator("#status")).not_to_have_text("…")


def test_text_is_translated_when_typing_stops(page: Page, model: Path) -> None:
    type_text(page, "one apple\n<b>two</b>")
    expected = load(model).translate(["one apple", "<b>two</b>"])
    assert page.locator("#translation").text_content() == "\n".join(expected)
    assert page.locator("#translation b").count() == 0
    assert page.locator("#others li").count() >= 1
    if page.locator("#translation .word").count():  # a word that the model is not certain of
        assert page.locator("#translation .word").first.get_attribute("title").endswith("%")
    expect(page.locator("#count")).to_contain_text("of 500 characters")
    page.fill("#text", "")
    expect(page.locator("#translation")).to_have_text("")
    page.fill("#text", "x" * 501)
    expect(page.locator("#status")).to_contain_text("at most 500")


def test_keyboard_is_sufficient(page: Page) -> None:
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.type("one apple")
    expect(page.locator("#copy")).to_be_enabled()
    page.locator("#swap").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#target")).to_have_value("de")
    for _ in range(12):
        if page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#attention-controls")).to_be_visible()


def test_attention_is_shown(page: Page) -> None:
    type_text(page, "one apple")
    page.click("summary")
    expect(page.locator("#matrices figcaption")).to_have_text(["content", "relative", "weights (after softmax)"])
    pieces = page.locator("#matrices figure").first.locator("tbody tr").count()
    assert page.locator("#matrices figure").first.locator("tbody td").count() == pieces**2
    assert page.locator("#bars div").count() == 5  # distances that the model tells apart
    page.select_option("#head", "3")
    page.select_option("#part", "cross")
    expect(page.locator("#matrices figcaption")).to_have_text(["weights"])


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_page_is_accessible(page: Page, colours: str) -> None:
    page.emulate_media(color_scheme=colours)  # type: ignore[arg-type]
    type_text(page, "one apple")
    page.click("summary")
    expect(page.locator("#matrices figure")).to_have_count(3)
    violations = Axe().run(page).response["violations"]
    assert [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in violations] == []
