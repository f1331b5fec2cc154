"""Pages in chromium."""

import re
import shutil

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

BROWSER = shutil.which("chromium")
TEXT = "one apple and two pears"


def numbers(text: str | None) -> list[float]:
    return [float(each) for each in re.findall(r"[+-]?\d+\.?\d*", (text or "").replace("−", "-"))]


def violations(page: Page) -> list[tuple[str, str, str]]:
    options = {"rules": {name: {"enabled": True} for name in ("label-content-name-mismatch", "target-size")}}
    found = Axe().run(page, options=options).response["violations"]
    return [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found]
