"""A preparation under way: the corpus in parts of equal size, each of which is there in full or not at all.

out/.preparing/settings.json    written first: what is made, from what, by which rules
out/.preparing/part-00000/      what stays of the first million pairs: src.gz, tgt.gz, their digests, the account
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from relattn.translation.corpus.dedup import Seen
from relattn.translation.corpus.filter_pool import Judged
from relattn.translation.corpus.report import Account
from relattn.translation.errors import reading, require
from relattn.translation.files import putting, remove, write_atomically

SIDES = ("src", "tgt")
_LEVEL = 5  # of gzip: nearly the size of the highest, in a third of the time
_SETTINGS, _DIGESTS, _ACCOUNT = "settings.json", "digests.npy", "account.json"


class Parts:
    """The directory of a preparation under way; what a process that was killed left there half made goes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for left in directory.glob(".*.part"):
            remove(left)

    @property
    def settings(self) -> dict[str, Any] | None:
        """What `begin` was given; None before."""
        return read_record(self.directory / _SETTINGS)

    def begin(self, settings: dict[str, Any]) -> None:
        """Make the directory and write down what is made. Raises InputError when it cannot be written."""
        self.directory.mkdir(exist_ok=True)
        write_atomically(self.directory / _SETTINGS, json.dumps(settings).encode())

    def has(self, index: int) -> bool:
        """Whether a part is there."""
        return self._part(index).exists()

    def write(self, index: int, judged: Iterator[Judged], seen: Seen | None) -> Account:
        """Write a part, without pairs seen before, which are looked for unless `seen` is None.

        Raises:
            InputError: it cannot be written.
        """
        account, digests = Account(), []
        with putting(self._part(index)) as aside:
            aside.mkdir()
            with ExitStack() as opened:
                sides = [opened.enter_context(_gzip(aside / f"{side}.gz")) for side in SIDES]
                for chunk in judged:
                    left = chunk if seen is None else _new(chunk, seen)
                    account.add(left.account)
                    digests.append(left.digests)
                    for side, lines in zip(sides, (left.src, left.tgt), strict=True):
                        side.write(lines)
            if seen is not None:
                np.save(aside / _DIGESTS, np.concatenate([*digests, np.array([], dtype=np.uint64)]))
            (aside / _ACCOUNT).write_text(json.dumps(account.as_json()))
        return account

    def read(self, index: int, seen: Seen | None) -> Account:
        """The account of a part that is there, whose pairs count as seen."""
        part = self._part(index)
        with reading(part, "not as this version writes it"):
            if seen is not None:
                seen.add(np.load(part / _DIGESTS))
            return Account.from_json(json.loads((part / _ACCOUNT).read_bytes()))

    def text(self, side: str) -> Iterator[Path]:
        """The gzipped files of a side, in order."""
        for part in sorted(self.directory.glob("part-*")):
            yield part / f"{side}.gz"

    def _part(self, index: int) -> Path:
        return self.directory / f"part-{index:05}"


def read_record(path: Path, *fields: str) -> dict[str, Any] | None:
    """Return the record of a preparation, which must have settings, an origin and `fields`; None without a file."""
    if not path.exists():
        return None
    with reading(path, "not as this version writes it"):
        content: dict[str, Any] = json.loads(path.read_bytes())
        for name in ("settings", "origin", *fields):
            require(isinstance(content.get(name), dict), f"{path}: must have an object named {name}")
        if "account" in fields:
            Account.from_json(content["account"])
        return content


def _gzip(path: Path) -> gzip.GzipFile:
    """A file to be written whose bytes depend on its content alone."""
    return gzip.GzipFile(path, "wb", compresslevel=_LEVEL, mtime=0)


def _new(judged: Judged, seen: Seen) -> Judged:
    """What was not seen before; the rest is counted as dropped."""
    new = seen.add(judged.digests)
    if new.all():
        return judged
    src, tgt = judged.src.split(b"\n"), judged.tgt.split(b"\n")
    for row in np.flatnonzero(~new):
        judged.account.drop("duplicate", int(judged.numbers[row]), src[row].decode(), tgt[row].decode())
    judged.account.kept = int(new.sum())
    left = [b"".join(side[row] + b"\n" for row in np.flatnonzero(new)) for side in (src, tgt)]
    return Judged(left[0], left[1], judged.numbers[new], judged.digests[new], judged.account)
