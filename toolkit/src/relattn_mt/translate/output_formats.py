"""Output formats of translations: plain lines, n-best lists, tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from relattn_mt.text.alignment import Links
from relattn_mt.translate import Format
from relattn_mt.translate.translation import Translation


def header_lines(style: Format, *, align: bool) -> list[str]:
    """Return the lines before all translations: the column names of a table."""
    return ["\t".join(("line", *columns(Translation("", 0.0, []), align=align)))] if style == "tsv" else []


def format_lines(
    style: Format, number: int, translations: Sequence[Translation], *, n_best: bool, align: bool
) -> list[str]:
    """Return the output lines for the translations of one source line.

    Args:
        style: "text" writes the translation, or with `n_best` Moses's "number ||| translation ||| score", with numbers
            from 0; "tsv" and "jsonl" write a row or an object per translation, with line numbers from 1.
        number: Number of the source line, counted from 1.
        translations: Its translations.
        n_best: Whether to write an n-best list.
        align: Whether to write word alignments.
    """
    rows = [{"line": number, **columns(translation, align=align)} for translation in translations]
    if style == "tsv":
        return ["\t".join(str(value).replace("\t", " ") for value in row.values()) for row in rows]
    if style == "jsonl":
        return [json.dumps(row, ensure_ascii=False) for row in rows]
    lines = []
    for translation in translations:
        parts = [str(number - 1), translation.text, f"{translation.score:.4f}"] if n_best else [translation.text]
        if align:
            parts.append(pharaoh(translation.alignment))
        lines.append(" ||| ".join(parts))
    return lines


def report_row(source: str, translation: Translation) -> str:
    """Return a sentence and the columns of its translation, separated by tabs."""
    row = [source, *columns(translation, align=False).values()]
    return "\t".join(" ".join(str(value).split()) for value in row)


def report(rows: Iterable[str]) -> bytes:
    """Return a table of the sentences of a document, with their numbers from 1, given the row of each."""
    header = "\t".join(["sentence", "source", *columns(Translation("", 0.0, []), align=False)])
    numbered = (f"{number}\t{row}" for number, row in enumerate(rows, start=1))
    return "".join(f"{line}\n" for line in (header, *numbered)).encode()


def columns(translation: Translation, *, align: bool) -> dict[str, Any]:
    """Return the columns of a translation in a table: numbers with four digits, and text.

    The names of warnings are separated by spaces. With `align`, there is a column for the alignment.
    """
    row: dict[str, Any] = {
        "score": round(translation.score, 4),
        "confidence": round(translation.confidence, 4),
        "translation": translation.text,
        "warnings": " ".join(translation.warnings),
    }
    if align:
        row["alignment"] = pharaoh(translation.alignment)
    return row


def pharaoh(alignment: Links) -> str:
    """Return an alignment in Pharaoh format, "0-0 1-2": source word and target word."""
    return " ".join(f"{source}-{target}" for source, target in alignment)
