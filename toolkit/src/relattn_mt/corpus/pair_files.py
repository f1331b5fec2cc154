"""Read sentence pairs from one file: Parquet, or text that may be compressed: columns, JSON Lines or TMX."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

from relattn_mt.documents.read import file_suffix, uncompressed
from relattn_mt.support.errors import InputError, one_line, reading, require, require_installed, same_language
from relattn_mt.support.types import LanguagePair, SentencePair
from relattn_mt.tokens.text_files import blocks, read_lines

_NAMES = ("src", "source"), ("tgt", "target")  # of columns, besides the codes of the languages
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


def read_pairs(path: str, languages: LanguagePair) -> Iterator[SentencePair]:
    """Yield the pairs of a file, each side in one line. The name of the file decides how it is read.

    Tab-separated columns are named by the first row, and fields of objects by their names: the codes of the languages,
    or src and tgt, or source and target. Without names, the source is first and then the target.

    Raises:
        InputError: The file cannot be read, has another name, or a pair lacks a side.
    """
    kind = file_suffix(uncompressed(path))[1:]
    kinds = ("tsv", "jsonl", "tmx", "parquet")
    require(kind in kinds, f"{path}: pairs must be in a .tsv, .jsonl, .tmx or .parquet file")
    with reading(path, f"not {kind.upper()}"):
        if kind == "tmx":
            pairs = _units(path, languages)
        elif kind == "jsonl":
            pairs = _objects(_parsed(path), path, languages)
        elif kind == "parquet":
            pairs = _objects(enumerate(_rows(path), start=1), path, languages)
        else:
            rows = (line.split("\t") for line in read_lines(path, accepts_nul=True))
            pairs = _columns(rows, path, languages)
        for src, tgt in pairs:
            yield " ".join(src.split()), " ".join(tgt.split())


def _find(names: Sequence[str], languages: LanguagePair, where: str) -> list[int]:
    """Return the indices of the source and the target among names; none if neither is there."""
    lower = [name.strip().lower() for name in names]
    columns = []
    for code, others in zip(languages, _NAMES, strict=True):
        columns += [lower.index(name) for name in (code.lower(), *others) if name in lower][:1]
    require(len(columns) != 1, f"{where} must name {' and '.join(languages)}, got {names}"[:300])
    return columns


def _columns(rows: Iterable[list[str]], path: str, languages: LanguagePair) -> Iterator[Sequence[str]]:
    columns = [0, 1]
    for number, row in enumerate(rows, start=1):
        if number == 1 and (named := _find(row, languages, f"{path}: the first row")):
            columns = named
            continue
        require(len(row) > max(columns), f"{path}: row {number} must have a source and a target, got one column")
        yield [row[column] for column in columns]


def _rows(path: str) -> Iterator[Any]:
    require_installed("files")
    from pyarrow.parquet import ParquetFile

    for batch in ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


def _parsed(path: str) -> Iterator[tuple[int, Any]]:
    """Yield the numbers and the values of the lines of JSON Lines, without blank lines."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            try:
                content = json.loads(line)
            except ValueError as error:
                raise InputError(f"{path}: line {number} must be JSON, got {one_line(line, 60)}") from error
            yield number, content


def _objects(rows: Iterable[tuple[int, Any]], path: str, languages: LanguagePair) -> Iterator[Sequence[str]]:
    """Yield the texts of objects with a field per language, or with such an object in the field "translation"."""
    for number, content in rows:
        where = f"{path}: line {number}"
        row = content.get("translation", content) if isinstance(content, dict) else {}
        names = [*row] if isinstance(row, dict) else []
        sides = [row[names[column]] for column in _find(names, languages, where)]
        is_text = bool(sides) and all(isinstance(side, str | None) for side in sides)
        require(is_text, f"{where} must have texts for {' and '.join(languages)}, got {content}"[:300])
        yield [side or "" for side in sides]


def _units(path: str, languages: LanguagePair) -> Iterator[Sequence[str]]:
    parser: Any = ElementTree.XMLPullParser(("start", "end"))
    body = None
    count = 0
    for block in blocks(path):
        parser.feed(block)
        for event, element in parser.read_events():
            if element.tag == "body":
                body = element
            elif event == "end" and element.tag == "tu":
                texts = {}
                for variant in element:
                    language = variant.get(_LANGUAGE) or variant.get("lang", "")
                    texts[language] = _text(variant.find("seg"))
                sides = [_side(texts, code) for code in languages]
                if all(sides):
                    count += 1
                    yield sides
                if body is not None:
                    body.clear()
    parser.close()
    require(count > 0, f"{path}: no unit has both {' and '.join(languages)}")


def _side(texts: dict[str, str], code: str) -> str:
    """Return the text in a language, or else in one of its regions; empty if there is none."""
    own = (text for language, text in texts.items() if same_language(code, language))
    regional = (text for language, text in texts.items() if language.lower()[:3].rstrip("-_") == code.lower())
    return next(own, "") or next(regional, "")


def _text(segment: ElementTree.Element | None) -> str:
    """Return the text of a segment without the codes of another format in it."""
    if segment is None:
        return ""
    inner = ((_text(each) if each.tag == "hi" else "") + (each.tail or "") for each in segment)
    return (segment.text or "") + "".join(inner)
