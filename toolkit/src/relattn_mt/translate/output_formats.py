"""Output formats of translations: plain lines, n-best lists, tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from relattn_mt.support.types import Fields
from relattn_mt.text.alignment import Links
from relattn_mt.translate import Format
from relattn_mt.translate.translation import Translation


@dataclass(frozen=True)
class LineFormat:
    """Format of the translations of lines.

    Attributes:
        style: "text" writes the translation, or with `n_best` Moses's "number ||| translation ||| score", with numbers
            from 0; "tsv" and "jsonl" write a row or an object per translation, with line numbers from 1.
        n_best: Whether to write an n-best list.
        align: Whether to write word alignments.
    """

    style: Format = "text"
    n_best: bool = False
    align: bool = False

    def output(self, results: Iterable[Sequence[Translation]]) -> Iterator[str]:
        """Yield the column names of a table, and the output for the translations of each source line."""
        if self.style == "tsv":
            yield "\t".join(("line", *columns(Translation("", 0.0, []), align=self.align)))
        for number, translations in enumerate(results, start=1):
            yield "\n".join(self.lines(number, translations))

    def lines(self, number: int, translations: Sequence[Translation]) -> list[str]:
        """Return the output lines for the translations of one source line, whose number is counted from 1."""
        rows = [{"line": number, **columns(translation, align=self.align)} for translation in translations]
        if self.style == "tsv":
            return ["\t".join(str(value).replace("\t", " ") for value in row.values()) for row in rows]
        if self.style == "jsonl":
            return [json.dumps(row, ensure_ascii=False) for row in rows]
        lines = []
        for translation in translations:
            parts = [translation.text]
            if self.n_best:
                parts = [str(number - 1), translation.text, f"{translation.score:.4f}"]
            if self.align:
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


def columns(translation: Translation, *, align: bool) -> Fields:
    """Return the columns of a translation in a table: numbers with four digits, and text.

    The names of warnings are separated by spaces. With `align`, there is a column for the alignment.
    """
    row: Fields = {
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
