"""Files of a model for CTranslate2: their names, the vocabularies, and our settings in config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from relattn_mt.config import SearchConfig
from relattn_mt.config.settings import read_json_settings, to_config
from relattn_mt.support.errors import InputError, reading

MODEL = "model.bin"
CONFIG = "config.json"
# .json, or .txt in old models
SHARED = "shared_vocabulary"
SOURCE = "source_vocabulary"
TARGET = "target_vocabulary"
DIRECTORY = "model for CTranslate2"  # name of such a directory in messages
Quantization = Literal[  # precision of the weights of an export
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16"
]
SECTION = "relattn"  # group in config.json with our settings, which CTranslate2 ignores


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """Our settings in the config.json of an export.

    Attributes:
        src_lang: Source language.
        tgt_lang: Target language.
        pairs: All pairs of languages, such as "en de", of a model that was trained here on several; else empty.
        max_length: Longest sequence, in pieces, end of sentence included; None if unlimited.
        search: Search that CTranslate2 supports.
    """

    src_lang: str
    tgt_lang: str
    pairs: list[str] = field(default_factory=list)
    max_length: int | None
    search: SearchConfig = field(default_factory=SearchConfig)


def read_settings(path: Path) -> ExportSettings | None:
    """Return our settings in a directory; None if it is not our export. Raises InputError if they are damaged."""
    settings = read_json_settings(path / CONFIG)
    prefix = f"{SECTION}."
    ours = {name.removeprefix(prefix): value for name, value in settings.items() if name.startswith(prefix)}
    return to_config(ExportSettings, ours, path / CONFIG, complete=True) if ours else None


def read_vocabularies(path: Path, unknown: str) -> tuple[list[str], list[str]]:
    """Return the pieces of source and target by id. CTranslate2 appends `unknown` to vocabularies that do not have it.

    Raises:
        InputError: a file is missing or damaged.
    """
    sides = _vocabulary(path, SHARED, SOURCE), _vocabulary(path, SHARED, TARGET)
    src, tgt = ([*pieces, unknown] if unknown not in pieces else pieces for pieces in sides)
    return src, tgt


def _vocabulary(path: Path, *names: str) -> list[str]:
    for file in (path / f"{name}{suffix}" for name in names for suffix in (".json", ".txt")):
        if file.is_file():
            with reading(file, "not JSON"):
                text = file.read_bytes().decode()
                if file.suffix == ".json":
                    pieces = json.loads(text)
                else:  # a piece may contain a carriage return or U+2028, but not end with a carriage return
                    pieces = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
            if not (isinstance(pieces, list) and all(isinstance(piece, str) for piece in pieces)):
                raise InputError(f"{file}: must be a list of pieces")
            return pieces
    raise InputError(f"{path}: not a complete {DIRECTORY}: it has no {' or '.join(f'{name}.json' for name in names)}")
