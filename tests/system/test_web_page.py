"""The page of `relattn-mt export web` in chromium: translation, keyboard, without a server, updates, errors."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from relattn_mt import load
from relattn_mt.bundle import PACKAGED
from relattn_mt.translate.options import TranslateOptions

from tests.support.pages import BROWSER, violations
from tests.support.web_sites import serving as serving_folder

MODEL = PACKAGED / "everyday-en-de"
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="the page is tested in chromium: apt-get install chromium"),
    pytest.mark.skipif(find_spec("ziglang") is None, reason="the engine is compiled by ziglang: make test-system"),
]
TEXT = "Where is the nearest station? I am tired.\n\n  The dog sleeps."
SIZES = {"desktop": (1280, 900), "phone": (320, 640)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site under a sub-path of the folder that is served."""
    out = tmp_path_factory.mktemp("served") / "path" / "site"
    out.parent.mkdir()
    command = [sys.executable, "-m", "relattn_mt", "export", "web", str(MODEL), "--out", str(out)]
    subprocess.run(command, check=True)
    return out


class Handler(SimpleHTTPRequestHandler):
    """Serves files, with some headers for scripts, and records their names."""

    requested: list[str]
    headers_of_scripts: dict[str, str]

    def send_header(self, keyword: str, value: str) -> None:
        is_script = self.path.endswith("mjs")
        super().send_header(keyword, self.headers_of_scripts.get(keyword, value) if is_script else value)

    def end_headers(self) -> None:
        if self.path.endswith("mjs") and "Content-Security-Policy" in self.headers_of_scripts:
            super().send_header("Content-Security-Policy", self.headers_of_scripts["Content-Security-Policy"])
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        self.requested.append(self.path.rpartition("/")[2])


@contextmanager
def serving(site: Path, headers: dict[str, str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server, and the list of the names that are requested."""
    requested: list[str] = []
    handler = type("Recorder", (Handler,), {"requested": requested, "headers_of_scripts": headers or {}})
    with serving_folder(site.parents[1], handler) as address:
        yield f"{address}path/site/", requested


def opened(browser: Browser, size: str, errors: list[str], **options: Any) -> Page:
    width, height = SIZES[size]
    page = browser.new_context(viewport={"width": width, "height": height}, **options).new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_default_timeout(60_000)
    return page


def translated(page: Page, text: str) -> str:
    page.fill("#text", text)
    expect(page.locator("#translation .word").last).not_to_be_empty(timeout=60_000)
    expect(page.locator("#copy")).to_be_enabled(timeout=60_000)
    return page.locator("#translation").evaluate("node => node.textContent")


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """Translations of the sentences of TEXT by the translator in Python."""
    translator = load(MODEL, src_lang="en", tgt_lang="de")
    sentences = ["Where is the nearest station?", "I am tired.", "The dog sleeps."]
    options = TranslateOptions(keep_literals=False, copy=False)
    return [best.text for (best,) in translator.n_best(sentences, options)]


@pytest.mark.parametrize("size", SIZES)
def test_page_translates_also_without_its_server(browser, site, expected, size):
    errors: list[str] = []
    page = opened(browser, size, errors)
    with serving(site) as (address, requested):
        page.goto(address)
        first, second, third = expected
        assert translated(page, TEXT) == f"{first} {second}\n\n  {third}"
        expect(page.locator("#status")).to_have_text("Ready, also without a network")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert sum(name.startswith("model-") for name in requested) == 1
    page.reload()
    assert translated(page, "The dog sleeps.") == third
    page.click("#swap")
    expect(page.locator("#source")).to_have_value("de")
    expect(page.locator("#copy")).to_be_enabled(timeout=60_000)
    assert page.locator("#text").input_value() == third
    assert errors == []
    page.context.close()


def test_another_translation_of_a_sentence_by_keyboard(browser, site, expected):
    errors: list[str] = []
    page = opened(browser, "desktop", errors)
    with serving(site) as (address, _):
        page.goto(address)
        translated(page, TEXT)
        word = page.locator("#translation .word").first
        word.press("Enter")
        other = page.locator("#others button").first
        expect(other).to_be_focused()
        text = other.inner_text()
        other.press("Enter")
        assert text != expected[0]
        expect(word).to_have_text(text)
        word.press("Enter")  # the first one is offered again
        assert expected[0] in page.locator("#others button").all_inner_texts()
    assert errors == []
    page.context.close()


def test_text_that_is_too_long_is_named_and_the_rest_is_translated(browser, site, expected):
    page = opened(browser, "desktop", [])
    with serving(site) as (address, _):
        page.goto(address)
        found = translated(page, "I am tired. X" + "x" * 3000 + "! The dog sleeps.")
        expect(page.locator("#status")).to_contain_text("must have at most")
        assert found.startswith(expected[1])
        assert found.endswith(expected[2])
    page.context.close()


def test_new_version_replaces_the_page_and_keeps_the_model(browser, site, tmp_path):
    page = opened(browser, "desktop", [])
    copy = shutil.copytree(site.parents[1], tmp_path / "served") / "path" / "site"
    with serving(copy) as (address, requested):
        page.goto(address)
        translated(page, "The dog sleeps.")
        html = (copy / "index.html").read_text(encoding="utf-8")
        (copy / "index.html").write_text(html.replace("<h1>relattn</h1>", "<h1>second</h1>"), encoding="utf-8")
        service = (copy / "service.js").read_text(encoding="utf-8")
        (copy / "service.js").write_text(service.replace('VERSION = "', 'VERSION = "2'), encoding="utf-8")
        page.reload()
        expect(page.locator("h1")).to_have_text("second", timeout=60_000)
        translated(page, "I am tired.")
        assert sum(name.startswith("model-") for name in requested) == 1
        assert len(page.evaluate("caches.keys()")) == 1
    page.context.close()


def begin(code: str, site: Path) -> None:
    """Run code before the worker."""
    worker = site / "worker.mjs"
    worker.write_text(f"globalThis.WebAssembly = {{ ...WebAssembly, {code} }};\n" + worker.read_text(encoding="utf-8"))


def overwrite(name: str, content: bytes, site: Path) -> None:
    (path,) = site.glob(name)
    data = path.read_bytes()
    path.write_bytes(content + data[len(content) :])


PROBLEMS: dict[str, tuple[Callable[[Path], Any], dict[str, str], str]] = {  # change, headers of scripts, sentence
    "cut model": (lambda site: overwrite("model-*.bin", b"x", site), {}, "must be complete"),
    "another interface": (lambda site: overwrite("model-*.bin", b"relattnw\x63", site), {}, "same version"),
    "no SIMD": (partial(begin, "validate: () => false"), {}, "must have SIMD"),
    "no memory": (partial(begin, "instantiate() { throw RangeError('memory') }"), {}, "must fit in memory"),
    "policy": (lambda _: None, {"Content-Security-Policy": "script-src 'self'"}, "wasm-unsafe-eval"),
    "type of scripts": (lambda _: None, {"Content-type": "text/plain"}, "text/javascript"),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_problem_is_one_sentence(browser, site, tmp_path, problem):
    change, headers, sentence = PROBLEMS[problem]
    page = opened(browser, "desktop", [])
    copy = shutil.copytree(site.parents[1], tmp_path / "served") / "path" / "site"
    change(copy)
    with serving(copy, headers) as (address, _):
        page.goto(address)
        expect(page.locator("#status")).to_contain_text(sentence, timeout=60_000)
    page.context.close()


def test_page_from_a_file_says_that_it_needs_a_server(browser, site):
    page = opened(browser, "desktop", [])
    page.goto((site / "index.html").as_uri())
    expect(page.locator("#status")).to_contain_text("must come from a server")
    page.context.close()


@pytest.mark.parametrize("storage", ["full", "forbidden"])
def test_page_translates_without_storage_and_says_so(browser, site, expected, storage):
    page = opened(browser, "desktop", [], service_workers="block" if storage == "forbidden" else "allow")
    with serving(site) as (address, _):
        if storage == "full":
            quota = {"origin": address.partition("/path")[0], "quotaSize": 1_000_000}
            page.context.new_cdp_session(page).send("Storage.overrideQuotaForOrigin", quota)
        page.goto(address)
        assert translated(page, "The dog sleeps.") == expected[2]
        expect(page.locator("#status")).to_contain_text("full or forbidden", timeout=60_000)
    page.context.close()
