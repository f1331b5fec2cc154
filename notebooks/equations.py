"""Equations of the documentation as MathML, which browsers display without scripts: a hook of mkdocs (`make site`)."""

import re
from html import unescape

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

# The extension pymdownx.arithmatex writes spans for $…$ and divs for $$…$$.
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return EQUATION.sub(equation, html)


def equation(match: re.Match[str]) -> str:
    latex = unescape(match[2]).strip()
    if match[1] == "span":
        return convert(latex)
    return f'<div style="overflow-x: auto; margin: 1.5em 0">{convert(latex, display="block")}</div>'
