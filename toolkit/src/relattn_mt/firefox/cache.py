"""Firefox's models in the cache of this user, where each is imported once.

    firefox/en-de/base-memory-3.0/    a bundle: architecture, and version or start of the weights' SHA-256

`firefox:en-de` is the model of the pair that was imported last, and `firefox:en-de@3.0` that of a version. What is in
the cache is used without a network.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from relattn_mt.firefox import PIVOT, PREFIX
from relattn_mt.firefox.registry import LANGUAGE, RemoteModel, fetch_models, is_offline, route
from relattn_mt.support.download import MOST, ConnectionFailed, download
from relattn_mt.support.errors import InputError, naming, one_line, require, require_installed
from relattn_mt.support.files import file_digest, remove
from relattn_mt.support.locking import locked
from relattn_mt.support.types import LanguagePair

_log = logging.getLogger(__name__)

LICENCE = "MPL-2.0"
_NAME = re.compile(rf"{PREFIX}({LANGUAGE})-({LANGUAGE})(?:@(\w[\w.]*))?", re.ASCII | re.IGNORECASE)
_FILES = {  # names by kind
    "model": "model.bin",
    "lex": "lex.s2t.bin",
    "vocab": "vocab.spm",
    "srcvocab": "srcvocab.spm",
    "trgvocab": "trgvocab.spm",
}


def root() -> Path:
    """Return the directory of the cache, which need not exist."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "relattn-mt" / "firefox"


def parse(name: str) -> tuple[LanguagePair, str]:
    """Return the pair and the version, which may be empty, in a name. Raises InputError."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise InputError(f"a name must be such as {PREFIX}en-de or {PREFIX}en-de@3.0, got {one_line(name, 60)!r}")
    return (match[1].lower(), match[2].lower()), match[3] or ""


def cached(pair: LanguagePair = ("*", "*"), version: str = "", architecture: str = "") -> list[Path]:
    """Return bundles in the cache, the one that was imported last first."""
    paths = root().glob(f"{'-'.join(pair)}/[!.]*-{version or '*'}")
    fitting = [path for path in paths if architecture in ("", path.name.rpartition("-")[0])]
    return sorted(fitting, key=lambda path: -path.stat().st_mtime)


def bundles(name: str, *, architecture: str = "", offline: bool = False, update: bool = False) -> list[Path]:
    """Return the bundle of a model of Firefox, or the two that translate a pair through English.

    Args:
        name: Name such as `firefox:en-de`, or `firefox:en-de@3.0`.
        architecture: Architecture, such as "tiny"; empty for the best one.
        offline: Use the cache only. So does the variable RELATTN_OFFLINE, unless it is empty or 0.
        update: Look for a newer model first. By default, a model in the cache is used without a network.

    Raises:
        InputError: The name is invalid; Mozilla's lists do not have it; it is not in the cache and cannot be had; its
            size or hash is wrong, or it cannot be imported. Nothing of it stays but what a later call continues.
    """
    pair, version = parse(name)
    offline = offline or is_offline()
    if offline or not update:
        if direct := cached(pair, version, architecture):
            return direct[:1]
        first = cached((pair[0], PIVOT), architecture=architecture)
        second = cached((PIVOT, pair[1]), architecture=architecture)
        if first and second and not version:
            return [first[0], second[0]]
        require(not offline, f"{name}: must be in the cache to be used offline, and is not in {root()}")
    with naming(name):
        return [_ensure(model) for model in route(fetch_models(), pair, version, architecture)]


def _ensure(model: RemoteModel) -> Path:
    """Return the bundle of a model, which is downloaded and imported if it is not in the cache."""
    path = root() / "-".join(model.pair) / f"{model.architecture}-{model.version}"
    with locked(path.parent, "importing a model", wait=True):
        if path.is_dir():
            os.utime(path)  # the last one imported
            return path
        if cached(model.pair):
            _log.info("a newer model is available; the old one stays in the cache")
        _log.info("%s: %s, licence %s, from %s", path.name, model.size, LICENCE, model.files["model"].url)
        downloads = path.with_name(f".{path.name}.download")
        try:
            _import(model, path, downloads)
        except ConnectionFailed:  # the next call continues
            raise
        except InputError as error:
            remove(downloads)
            raise InputError(str(error).replace(f"{downloads}{os.sep}", "")) from error
        remove(downloads)
    return path


def _import(model: RemoteModel, path: Path, downloads: Path) -> None:
    """Download a model, check it, and write its bundle."""
    from relattn_mt.formats.import_model import import_model
    from relattn_mt.formats.packed import SUFFIXES, unpack

    downloads.mkdir(exist_ok=True)
    for kind in _FILES.keys() & model.files.keys():
        file = model.files[kind]
        target = downloads / _FILES[kind]
        if target.exists():  # of an earlier call, and checked
            continue
        suffix = Path(file.url).suffix
        require(suffix in SUFFIXES, f"{file.url}: must end in {' or '.join(SUFFIXES)}")
        if suffix == ".zst":
            require_installed("files")
        packed = target.with_name(f"{target.name}{suffix}")
        if not file.digest:
            remove(packed)  # a part of it, which could not be checked
        download(file.url, packed)
        unpacked = target.with_name(f"{target.name}.unpacked")
        unpack(packed, unpacked, file.size or MOST)
        digest = file_digest(unpacked)
        require(file.digest in ("", digest), f"{file.url}: must have SHA-256 {file.digest} unpacked, got {digest}")
        unpacked.replace(target)
        remove(packed)
    weights = model.files["model"]
    facts = [
        f"A model of Firefox Translations, by Mozilla, under the licence {LICENCE}, from {weights.url}.",
        f"Architecture {model.architecture}, version {model.version}, SHA-256 of the weights {weights.digest}.",
        f"Mozilla's scores on Flores: {model.score or 'unknown'}.",
    ]
    import_model(
        downloads,
        path,
        tokenizer=None,
        tgt_tokenizer=None,
        src_lang=model.pair[0],
        tgt_lang=model.pair[1],
        sample=1,
        origin=" ".join(facts),
    )
