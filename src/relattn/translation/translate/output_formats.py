"""Translations as they are written out: plain lines, n-best lists, tables, JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from relattn.translation.config import Format
from relattn.translation.translate.pipeline import Translation


def header(style: Format, *, align: bool) -> list[str]:
    """The lines before all others: the names of a table's columns."""
    return ["\t".join(_fields(0, Translation("", 0.0, []), align=align))] if style == "tsv" else []


def written(style: Format, number: int, found: Sequence[Translation], *, n_best: bool, align: bool) -> list[str]:
    """The lines that say what a line's translations are.

    Args:
        style: "text": the translation, or with `n_best` Moses's "number ||| translation ||| score", numbers from 0;
            "tsv" and "jsonl": a row or an object for each, with the line's number from 1.
        number: of the line, counted from 1.
        found: its translations.
        n_best: whether there may be several.
        align: whether their alignments are wanted too.
    """
    if style == "tsv":
        rows = (_fields(number, each, align=align).values() for each in found)
        return ["\t".join(str(value).replace("\t", " ") for value in row) for row in rows]
    if style == "jsonl":
        return [json.dumps(_fields(number, each, align=align), ensure_ascii=False) for each in found]
    lines = []
    for each in found:
        parts = [str(number - 1), each.text, f"{each.score:.4f}"] if n_best else [each.text]
        lines.append(" ||| ".join([*parts, pharaoh(each.alignment)] if align else parts))
    return lines


def _fields(number: int, found: Translation, *, align: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"line": number, "score": round(found.score, 4), "confidence": round(found.confidence, 4)}
    row["translation"] = found.text
    return row | {"alignment": pharaoh(found.alignment)} if align else row


def pharaoh(alignment: Sequence[tuple[int, int]]) -> str:
    """Links as Pharaoh wrote them: "0-0 1-2", source word and target word."""
    return " ".join(f"{source}-{target}" for source, target in alignment)
