"""Attributes of files that name the language of their texts, and its direction."""

from __future__ import annotations

import re

_RIGHT_TO_LEFT = frozenset("ar arc ckb dv fa he iw ks nqo ps sd syr ug ur yi".split())  # noqa: SIM905
_RIGHT_TO_LEFT_SCRIPTS = frozenset("adlm arab hebr nkoo rohg syrc thaa".split())  # noqa: SIM905
_INSIDE = r"""(?:[^<>"']|"[^"]*"|'[^']*')*"""  # of a tag, between its name and its end
_PAGE = re.compile(rf"<html\s{_INSIDE}>", re.IGNORECASE)
_LANGUAGE = re.compile(r"""(\s(?:xml:)?lang\s*=\s*["']?)[\w-]+""", re.IGNORECASE)
_DIRECTION = re.compile(r"""(\sdir\s*=\s*["']?)\w+""", re.IGNORECASE)
_XLIFF = re.compile(rf"<(?:xliff|file)\s{_INSIDE}>")
_XLIFF_NAMES = {"srcLang": "trgLang", "source-language": "target-language"}  # of versions 2 and 1.2
_LOCALES = {  # names of a locale, as de_DE
    ".arb": re.compile(r'("@@locale"\s*:\s*")([^"]*)'),
    **dict.fromkeys((".po", ".pot"), re.compile(r'^("Language: *)([^"\\]*)(?=\\n")', re.MULTILINE)),
}


def with_language(text: str, suffix: str, lang: str) -> str:
    """Return the text of a file with attributes that say that it is in the language `lang`.

    A page must name its language. The languages of a source, and a territory such as that of de-AT for "de", stay.
    """
    code = lang.replace("_", "-")
    if suffix in (".html", ".htm", ".xhtml"):
        return _PAGE.sub(lambda tag: _page_in(tag[0], code), text, count=1)
    if suffix in (".xlf", ".xliff"):
        return _XLIFF.sub(lambda tag: _xliff_in(tag[0], code), text)
    if suffix in _LOCALES:
        return _LOCALES[suffix].sub(lambda found: found[1] + _named(found[2], code).replace("-", "_"), text, count=1)
    return text


def _page_in(tag: str, code: str) -> str:
    """Return the start tag of a page in a language."""
    if not _LANGUAGE.search(tag):
        return tag
    tag = _LANGUAGE.sub(rf"\g<1>{code}", tag)
    language, *rest = code.lower().split("-")
    has_script = bool(rest) and len(rest[0]) == 4
    is_right_to_left = rest[0] in _RIGHT_TO_LEFT_SCRIPTS if has_script else language in _RIGHT_TO_LEFT
    if is_right_to_left and not _DIRECTION.search(tag):
        return f'{tag[:-1]} dir="rtl">'
    return _DIRECTION.sub(rf"\g<1>{'rtl' if is_right_to_left else 'ltr'}", tag)


def _xliff_in(tag: str, code: str) -> str:
    """Return a start tag of XLIFF that names the target language, if it names that of the source."""
    for source, target in _XLIFF_NAMES.items():
        attribute = re.compile(rf"""(\s{target}\s*=\s*["'])([^"']*)""")
        if attribute.search(tag):
            return attribute.sub(lambda found: found[1] + _named(found[2], code), tag)
        tag = re.sub(rf"""\s{source}\s*=\s*(?:"[^"]*"|'[^']*')""", rf'\g<0> {target}="{code}"', tag)
    return tag


def _named(given: str, code: str) -> str:
    """Return a language code, or a given one of the same language, such as de-DE for de."""
    return given if re.match(rf"{code}(?![^-_])", given.replace("_", "-"), re.IGNORECASE) else code
