"""Texts that the formulas, lists and filters of a spreadsheet compare with cells.

A cell with such a text keeps it, as a formula's result would change otherwise. As in spreadsheets, case does not
matter, a criterion may begin with an operator (`<>Open`), and `*` and `?` stand for other characters. What a formula
searches for, or compares with a part of a text, may be a part of a cell.
"""

from __future__ import annotations

import fnmatch
import re

_CONSTANT = re.compile(
    r"""'(?:[^']|'')*'|((SEARCH|FIND)B?\(\s*|(LEFT|RIGHT|MID)B?\([^"()]*\)\s*(?:=|<>)\s*)?"((?:[^"]|"")*)\"""",
    re.IGNORECASE,
)
_PARTS = {"LEFT": "{}*", "RIGHT": "*{}"}  # wildcards for what these functions return
_OPERATOR = re.compile(r"\A(?:<>|[<>]?=|[<>])")
_LITERAL = re.compile(r"~([*?~])|\[")  # an escaped character, and one that has a meaning for `fnmatch` only
_LETTER = re.compile(r"[^\W\d_]")


class Comparisons:
    """Texts that a spreadsheet compares with cells."""

    def __init__(self) -> None:
        self._texts: set[str] = set()
        self._patterns: dict[str, re.Pattern[str]] = {}

    def add(self, text: str, part: str = "{}") -> None:
        """Add a text, or with wildcards around its place one that may be a part of a cell."""
        text = _OPERATOR.sub("", text)
        if not _LETTER.search(text):
            return
        text = text.casefold()
        self._texts.add(text)
        pattern = part.format(text)
        if re.search("[*?~]", pattern):
            pattern = _LITERAL.sub(lambda found: f"[{found[1] or found[0]}]", pattern)
            self._patterns[text] = re.compile(fnmatch.translate(pattern))

    def add_formula(self, formula: str, *, is_list: bool = False) -> None:
        """Add the constants of a formula, or the items of a list that is one constant: `"Yes,No"`."""
        for found in _CONSTANT.finditer(formula):
            if found[4] is None:  # the name of a sheet
                continue
            constant = found[4].replace('""', '"')
            function = (found[2] or found[3] or "").upper()
            self.add(constant, _PARTS.get(function, "*{}*") if function else "{}")
            for item in constant.split(",") if is_list else ():
                self.add(item.strip())

    def update(self, other: Comparisons) -> None:
        """Add the texts of another spreadsheet."""
        self._texts |= other._texts
        self._patterns |= other._patterns

    def __contains__(self, text: str) -> bool:
        folded = text.strip().casefold()
        return folded in self._texts or any(each.fullmatch(folded) for each in self._patterns.values())
