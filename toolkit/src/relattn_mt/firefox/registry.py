"""Mozilla's lists of Firefox's models, in two forms.

    db/models.json   registry of mozilla/translations: architecture, status and scores. Files are in .gz, and only the
                     weights have a size and a hash.
    records          of Firefox's Remote Settings: a record per file, in .zst, with version, size and hash.

The registry comes first. Its models get versions, sizes and hashes from the records of the same weights. Fields that
are not known are ignored, and so are entries that are malformed, with a warning.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from relattn_mt.firefox import PIVOT
from relattn_mt.support.download import MOST, DownloadError, fetch_json
from relattn_mt.support.errors import InputError, one_line, reading, require
from relattn_mt.support.files import as_size
from relattn_mt.support.types import Fields, LanguagePair

_log = logging.getLogger(__name__)

OFFLINE = "RELATTN_OFFLINE"  # variable that forbids to use the network, unless it is empty or 0
MIRROR = "RELATTN_FIREFOX_MIRROR"  # variable with the address of a server with both lists and all files
_BUCKET = "https://storage.googleapis.com/moz-fx-translations-data--303e-prod-translations-data"
_SETTINGS = "https://firefox.settings.services.mozilla.com"
_ATTACHMENTS = "https://firefox-settings-attachments.cdn.mozilla.net"
_REGISTRY = "db/models.json"
_RECORDS = "v1/buckets/main/collections/translations-models-v2/records"
ARCHITECTURES = ["base-memory", "base", "tiny"]  # best first
_KINDS = {"lexicalShortlist": "lex", "srcVocab": "srcvocab", "trgVocab": "trgvocab"}
LANGUAGE = "[a-z]{2,3}(?:-[a-z]{4})?"
_PATH = r"(?!.*\.\.)\w[\w./+=@~-]*"


@dataclass(frozen=True)
class RemoteFile:
    """A file of a model: its address, and when it is unpacked its size, and its SHA-256, or 0 and "" if unknown."""

    url: str
    size: int
    digest: str


@dataclass
class RemoteModel:
    """A model in a list.

    Attributes:
        pair: Source and target language.
        architecture: Size of the model, such as "base-memory".
        version: Number of its version, or the first 8 digits of the SHA-256 of its weights.
        is_released: Whether it is in released versions of Firefox.
        score: Scores on Flores; empty if unknown.
        files: Files by kind: model, vocab or srcvocab and trgvocab, and perhaps lex.
    """

    pair: LanguagePair
    architecture: str
    version: str
    is_released: bool
    score: str = ""
    files: dict[str, RemoteFile] = field(default_factory=dict)

    @property
    def size(self) -> str:
        """Size of its files when they are unpacked."""
        return as_size(sum(file.size for file in self.files.values()))


def fetch_models() -> list[RemoteModel]:
    """Download the lists, and return their models, the best of a pair first.

    Raises:
        InputError: Neither list can be had, or one is malformed, or the network must not be used.
    """
    require(not is_offline(), f"{OFFLINE} must not be set for Mozilla's lists")
    mirror = os.environ.get(MIRROR, "").rstrip("/")
    sources = (_BUCKET, _REGISTRY, _BUCKET), (_SETTINGS, _RECORDS, _ATTACHMENTS)
    lists: list[list[RemoteModel]] = []
    faults = []
    for server, path, files in sources:
        url = f"{mirror or server}/{path}"
        try:
            content = fetch_json(url)
            with reading(url, "malformed"):
                lists.append(_models(content, mirror or files))
        except DownloadError as error:
            faults.append(error)
            lists.append([])
    registry, records = lists
    if not (registry or records) and faults:
        raise faults[0]
    by_weights = {model.files["model"].digest: model for model in records}
    for model in registry:
        if twin := by_weights.get(model.files["model"].digest):
            model.version = twin.version
            for kind in model.files.keys() & twin.files.keys():
                model.files[kind] = replace(twin.files[kind], url=model.files[kind].url)
    pairs = {model.pair for model in registry}
    models = [*registry, *(model for model in records if model.pair not in pairs)]
    return sorted(models, key=_rank)


def is_offline() -> bool:
    """Return whether the network must not be used."""
    return os.environ.get(OFFLINE, "0") not in ("", "0")


def _rank(model: RemoteModel) -> tuple[Any, ...]:
    place = [*ARCHITECTURES, model.architecture].index(model.architecture)
    return model.pair, not model.is_released, place, [-int(number) for number in re.findall(r"\d+", model.version)]


def route(models: Sequence[RemoteModel], pair: LanguagePair, version: str, architecture: str) -> list[RemoteModel]:
    """Return the best model of a pair, or the two that translate it through English.

    Raises:
        InputError: The lists do not have it.
    """
    own = [model for model in models if model.pair == pair]
    legs = [pair] if own or version else [(pair[0], PIVOT), (PIVOT, pair[1])]
    best: dict[LanguagePair, RemoteModel] = {}
    for model in models:
        if version in ("", model.version) and architecture in ("", model.architecture):
            best.setdefault(model.pair, model)
    chosen = [best[leg] for leg in legs if leg in best]
    if len(chosen) == len(legs):
        return chosen
    known = [f"{model.architecture} {model.version}" for model in own]
    wanted = f"{architecture} {version}".strip()
    if not own:
        known = sorted({"-".join(model.pair) for model in models})
        wanted = "-".join(pair)
    raise InputError(f"must be one of {', '.join(known)}, got {wanted}")


def _models(content: Any, base: str) -> list[RemoteModel]:
    """Return the models of a list that have weights with a digest and a vocabulary."""
    models: dict[tuple[Any, ...], RemoteModel] = {}
    is_registry = "models" in content
    for entry in chain.from_iterable(content["models"].values()) if is_registry else content["data"]:
        try:
            model = _of_entry(entry, base) if is_registry else _of_record(entry, base)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            _log.warning("a malformed entry of Mozilla's list is left out: %s", one_line(repr(error), 200))
            continue
        key = model.pair, model.architecture, model.version
        own = models.setdefault(key, model)
        own.files = {**model.files, **own.files}
    return [model for model in models.values() if _is_complete(model.files)]


def _is_complete(files: dict[str, RemoteFile]) -> bool:
    has_vocabulary = "vocab" in files or {"srcvocab", "trgvocab"} <= files.keys()
    return has_vocabulary and "model" in files and files["model"].digest != ""


def _of_entry(entry: Any, base: str) -> RemoteModel:
    """Return the model of an entry of the registry."""
    scores = entry.get("metrics", {}).get("flores200-plus", {})
    is_released = str(entry.get("releaseStatus")).startswith("Release")
    model = _model(entry, entry["files"]["model"]["uncompressedHash"][:8], is_released)
    model.score = one_line(", ".join(f"{name} {value:g}" for name, value in scores.items()), 200)
    for name, file in entry["files"].items():
        model.files[_KINDS.get(name, name)] = _file(base, file["path"], file, "uncompressed")
    return model


def _of_record(record: Any, base: str) -> RemoteModel:
    """Return the model of a record, with its one file."""
    version = record["version"]
    is_released = "channel" not in record.get("filter_expression", "") and "a" not in version
    model = _model(record, version, is_released)
    model.files[record["fileType"]] = _file(base, record["attachment"]["location"], record, "decompressed")
    return model


def _model(fields: Fields, version: str, is_released: bool) -> RemoteModel:
    src, tgt = (fields[f"{side}Language"].replace("_", "-").lower() for side in ("source", "target"))
    pair = _checked(src, LANGUAGE), _checked(tgt, LANGUAGE)
    architecture = _checked(fields["architecture"], r"\w[\w-]*")
    return RemoteModel(pair, architecture, _checked(version, r"\w[\w.]*"), is_released)


def _file(base: str, path: str, fields: Fields, prefix: str) -> RemoteFile:
    size = int(fields.get(f"{prefix}Size", 0))
    require(0 <= size <= MOST, f"unexpected size: {size:,}")
    return RemoteFile(f"{base}/{_checked(path, _PATH)}", size, str(fields.get(f"{prefix}Hash", "")))


def _checked(value: str, pattern: str) -> str:
    """Return what becomes part of an address or a path. Raises InputError unless it matches a pattern."""
    require(re.fullmatch(pattern, value, re.ASCII), f"unexpected: {one_line(value, 60)!r}")
    return value
