"""`examples/extension` in chromium, with what `relattn-mt export web` writes."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright
from relattn_mt import load
from relattn_mt.bundle import PACKAGED
from relattn_mt.translate.options import TranslateOptions

from tests.support.pages import BROWSER
from tests.support.web_sites import serving

MODEL = PACKAGED / "everyday-en-de"
ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="the extension is tested in chromium: apt-get install chromium"),
    pytest.mark.skipif(find_spec("ziglang") is None, reason="the engine is compiled by ziglang: make test-system"),
]
PAGE = """<!doctype html><html lang="en"><body><h1>Good morning.</h1><p>The dog sleeps. I am <b>tired</b>.</p>
<ul><li>Where is the <a href="/station">nearest station</a>?</li></ul><pre>The dog sleeps.</pre></body></html>"""


def test_paragraphs_are_translated_and_restored(tmp_path: Path) -> None:
    extension = shutil.copytree(ROOT / "examples/extension", tmp_path / "extension", ignore=lambda *_: ["model"])
    command = [sys.executable, "-m", "relattn_mt", "export", "web", str(MODEL), "--out", str(extension / "model")]
    subprocess.run(command, check=True)
    manifest = json.loads((extension / "manifest.json").read_text(encoding="utf-8"))
    manifest["host_permissions"] = ["http://127.0.0.1/*"]  # instead of the click that grants activeTab
    (extension / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (tmp_path / "index.html").write_text(PAGE, encoding="utf-8")
    flags = ["--headless=new", f"--disable-extensions-except={extension}", f"--load-extension={extension}"]
    with sync_playwright() as playwright, serving(tmp_path) as address:
        context = playwright.chromium.launch_persistent_context(
            str(tmp_path / "profile"), executable_path=BROWSER, headless=False, args=[*flags, "--no-sandbox"]
        )
        try:
            workers = context.service_workers or [context.wait_for_event("serviceworker")]
            page = context.new_page()
            page.goto(f"{address}index.html")
            click = "async () => chrome.action.onClicked.dispatch((await chrome.tabs.query({ active: true }))[0])"
            workers[0].evaluate(click)
            translator = load(MODEL, src_lang="en", tgt_lang="de")
            lines = ["Good morning.", "The dog sleeps.", "I am tired.", "Where is the nearest station?"]
            title, *sentences, item = translator.translate(lines, TranslateOptions(keep_literals=False, copy=False))
            expect(page.locator("h1")).to_have_text(title, timeout=60_000)
            expect(page.locator("p")).to_have_text(" ".join(sentences), timeout=60_000)
            expect(page.locator("li")).to_have_text(f"{item} [1]", timeout=60_000)
            assert page.locator("li a").get_attribute("href") == "/station"
            assert page.locator("p").get_attribute("lang") == "de"
            expect(page.locator("pre")).to_have_text("The dog sleeps.")
            workers[0].evaluate(click)
            expect(page.locator("p b")).to_have_text("tired")
            assert page.locator("p").get_attribute("lang") is None
        finally:
            context.close()
