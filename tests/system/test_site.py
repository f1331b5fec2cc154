"""The documentation as a site, in chromium: tables and code fit the column, and pages fit a phone."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.support.environments import ROOT

WIDER = """() => {
    const column = document.querySelector('article').clientWidth + 1;
    const wider = element => Math.max(element.getBoundingClientRect().width, element.scrollWidth) > column;
    const found = [...document.querySelectorAll('article :is(table, pre > code, img)')].filter(wider);
    return found.map(element => element.textContent.trim().slice(0, 80));
}"""
SCROLLS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not find_spec("mkdocs"):
        pytest.skip("run: make .venv/site, which installs mkdocs")
    directory = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", directory], cwd=ROOT, check=True)
    return directory


def test_tables_and_code_fit_the_column(site: Path, browser: Browser) -> None:
    desktop = browser.new_page(viewport={"width": 1280, "height": 900})
    phone = browser.new_page(viewport={"width": 400, "height": 900})
    wider = {}
    scrolling = []
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        desktop.goto(path.as_uri())
        if found := desktop.evaluate(WIDER):
            wider[name] = found
        phone.goto(path.as_uri())
        if phone.evaluate(SCROLLS):
            scrolling.append(name)
    assert wider == {}
    assert scrolling == []
