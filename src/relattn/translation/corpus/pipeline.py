"""All of a preparation: a corpus opened, judged part by part, put together, and told in a card.

    out/train.en.gz  out/train.de.gz     what stays, and for a known corpus the files of its test sets
    out/README.md                        the data card
    out/prepared.json                    the same as names and values, written last: the directory is prepared
    out/.preparing/                      parts (parts.py), until then

A preparation that was stopped, however it was, goes on with the parts that are there.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from relattn.translation.config import CleaningConfig, as_dict, differences
from relattn.translation.corpus.card import card
from relattn.translation.corpus.dedup import Seen
from relattn.translation.corpus.filter_pool import Judged, chunks, judges
from relattn.translation.corpus.filters import OPTIONS
from relattn.translation.corpus.parts import SIDES, Parts, read_record
from relattn.translation.corpus.report import Account
from relattn.translation.corpus.sources import KnownCorpus, OwnFiles, Source
from relattn.translation.errors import InputError
from relattn.translation.files import putting, remove, write_atomically
from relattn.translation.locking import LOCK, locked

CARD, RECORD = "README.md", "prepared.json"
PART = 1_000_000  # pairs
_WORK = ".preparing"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A directory of prepared text.

    Attributes:
        account: of the corpus's pairs.
        before: whether it was there already, and nothing had to be done.
    """

    account: Account
    before: bool


def prepare(
    corpus: OwnFiles | KnownCorpus,
    out: Path,
    config: CleaningConfig,
    *,
    processes: int = 1,
    part: int = PART,
    show: bool = False,
) -> Prepared:
    """Prepare a corpus in a directory, or go on with that.

    What is written depends on the corpus and the rules alone, not on the number of processes or on where a preparation
    was stopped.

    Args:
        corpus: what to prepare.
        out: the directory, which is made; or an empty one, or one where the same was begun.
        config: which pairs stay.
        processes: that judge pairs, besides this one unless it is the only one.
        part: pairs that are judged between one state that can be gone on from and the next.
        show: draw progress on standard error.

    Raises:
        InputError: the corpus cannot be had or read, no pair of it stays, the directory is for something else, or
            cannot be written, by a full disk for instance.
    """
    rules = {"languages": list(corpus.languages), "cleaning": as_dict(config), "pairs a part": part}
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: a file stands there; prepared text is a directory")
    with locked(out, "preparing this directory"):
        record, parts = read_record(out / RECORD, "account", "files"), Parts(out / _WORK)
        changed = ""
        if record is not None and (changed := _changed_files(out, record)):
            _log.warning("%s: %s; preparing the text again", out, changed)
        begun = record or parts.settings
        if begun is None:
            _require_free(out)
        settings = {**corpus.identity, **rules}
        if begun is not None:
            _require_same(out, begun["settings"], settings, done=record is not None)
        if record is not None and not changed:
            account = Account.from_json(record["account"])
        else:
            source = corpus.open(begun["origin"] if begun is not None else None)
            begun = {"settings": settings, "origin": source.origin}
            parts.begin(begun)
            account = _judge(source, corpus, parts, config, processes=processes, part=part, show=show)
            if not account.kept:
                remove(out / _WORK)  # so that a corrected command can begin
                raise InputError(_nothing_left(account))
            _put_together(out, {**begun, "account": account.as_json()}, parts, source)
        remove(out / _WORK)
    return Prepared(account, before=record is not None and not changed)


def _judge(
    source: Source,
    corpus: OwnFiles | KnownCorpus,
    parts: Parts,
    config: CleaningConfig,
    *,
    processes: int,
    part: int,
    show: bool,
) -> Account:
    """Make the parts that are not there yet; returns the account of all."""
    account, seen = Account(), None if config.keep_duplicates else Seen()
    count = -(-source.total // part)
    done = next((index for index in range(count) if not parts.has(index)), count)
    for index in range(done):
        account.add(parts.read(index, seen))
    pairs = source.pairs(done * part)
    with (
        judges(processes, config, corpus.languages, source.held_out) as judge,
        tqdm(total=source.total, initial=account.read, unit="pair", file=sys.stderr, disable=not show) as bar,
    ):

        def told(found: Iterator[Judged]) -> Iterator[Judged]:
            for judged in found:
                read = judged.account.read
                yield judged
                bar.update(read)

        for index in range(done, count):
            of_part = chunks(islice(pairs, part), first=index * part + 1)
            account.add(parts.write(index, told(judge(of_part)), seen))
    return account


def _nothing_left(account: Account) -> str:
    """Return a message that says why all pairs were dropped, and which options decide that."""
    reasons = []
    for reason, count in account.dropped.items():
        options = ", ".join(f"--{option}" for option in OPTIONS.get(reason, ()))
        reasons += [f"{count:,} {reason}{f' (see {options})' if options else ''}"] if count else []
    if account.dropped["script"]:
        reasons.append("the language codes decide which script a side must have")
    return f"no pair is left; dropped: {'; '.join(reasons)}"


def _put_together(out: Path, record: dict[str, Any], parts: Parts, source: Source) -> None:
    """Write the files of a preparation whose parts are all there, the record last."""
    files = {}
    for side, language in zip(SIDES, record["settings"]["languages"], strict=True):
        path = out / f"train.{language}.gz"
        with putting(path) as aside, aside.open("wb") as whole:
            for text in parts.text(side):  # gzipped files in a row are a gzipped file
                with text.open("rb") as content:
                    shutil.copyfileobj(content, whole)
        files[path.name] = {"lines": record["account"]["kept"], "sha256": _sha256(path)}
    for name, lines in source.beside.items():
        beside = "".join(f"{line}\n" for line in lines).encode()
        write_atomically(out / name, gzip.compress(beside, mtime=0) if name.endswith(".gz") else beside)
        files[name] = {"lines": len(lines), "sha256": _sha256(out / name)}
    record = {**record, "files": files}
    write_atomically(out / CARD, card(record).encode())
    write_atomically(out / RECORD, (json.dumps(record, ensure_ascii=False, indent=1) + "\n").encode())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _changed_files(out: Path, record: dict[str, Any]) -> str:
    """Return what is missing or differs of the files that were written before; empty if all are as they were."""
    missing = [name for name in record["files"] if not (out / name).is_file()]
    changed = [
        name for name, file in record["files"].items() if name not in missing and _sha256(out / name) != file["sha256"]
    ]
    found = [f"{name} is missing" for name in missing] + [f"{name} has changed" for name in changed]
    return ", ".join(found)


def _without_names(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings without the names of files, since renaming or compressing a text does not change it."""
    texts = {name: text["sha256"] for name, text in settings.get("text", {}).items()}
    return {**settings, "text": texts}


def _require_same(out: Path, begun: dict[str, Any], settings: dict[str, Any], *, done: bool) -> None:
    changed = differences(_without_names(begun), _without_names(settings))
    if changed and done:
        raise InputError(f"{out}: is prepared already, from other text or by other rules: {'; '.join(changed)}")
    if changed:
        told = f"{'; '.join(changed)}; to begin anew, remove {out / _WORK}"
        raise InputError(f"{out}: was begun with other text or rules: {told}")


def _require_free(out: Path) -> None:
    strangers = sorted(entry.name for entry in out.iterdir() if entry.name not in (LOCK, _WORK))
    if strangers:
        raise InputError(f"{out}: is not an empty directory: it has {strangers[0]}; give another as --out")
