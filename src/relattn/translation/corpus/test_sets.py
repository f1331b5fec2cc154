"""sacreBLEU's test sets, in its own cache (under SACREBLEU), held to its checksums however a process before ended."""

from __future__ import annotations

import hashlib
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError

from relattn.translation.data.text_files import read_parallel
from relattn.translation.errors import InputError, one_line
from relattn.translation.files import remove

if TYPE_CHECKING:
    from sacrebleu.dataset.base import Dataset

TIMEOUT = 60.0  # seconds without a byte; sacreBLEU would wait for ever


def pairs_of(name: str, src_lang: str, tgt_lang: str) -> list[tuple[str, str]]:
    """The pairs of a test set, fetched if they are not here.

    sacreBLEU takes what lies in its cache as it is, whole or not. So that is checked, and where it will not do, fetched
    again.

    Args:
        name: as sacreBLEU calls it.
        src_lang: source language.
        tgt_lang: target language.

    Raises:
        InputError: it cannot be fetched, or is not what sacreBLEU says; nothing of it is kept then.
    """
    from sacrebleu import dataset, utils

    place = Path(utils.SACREBLEU_DIR, name)
    read = partial(_read, dataset.DATASETS[name], f"{src_lang}-{tgt_lang}", place)
    if place.exists():
        with suppress(InputError):
            return read()
        remove(place)
    try:
        return read()
    except InputError:
        remove(place)
        raise


def _read(dataset: Dataset, pair: str, place: Path) -> list[tuple[str, str]]:
    with _asking(f"{dataset.name}: sacreBLEU's test set"):
        src, tgt, *_ = map(str, dataset.get_files(pair))
    for url, expected in zip(dataset.data or (), dataset.md5 or (), strict=True):
        found = [hashlib.md5(path.read_bytes()).hexdigest() for path in place.glob(f"raw/*.{url.rpartition('/')[2]}")]
        if found != [expected]:
            raise InputError(f"{place}: the archive is not the one that sacreBLEU knows")
    return list(read_parallel(src, tgt))


@contextmanager
def _asking(doing: str) -> Iterator[None]:
    """Around what sacreBLEU does: it fails in many ways, ends the process among them, and tells its log why."""
    log, told = logging.getLogger("sacrebleu"), _Told()
    propagate, log.propagate = log.propagate, False
    timeout = socket.getdefaulttimeout()
    log.addHandler(told)
    socket.setdefaulttimeout(TIMEOUT)
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, HTTPError):
            error.close()  # it holds the connection
        why = told.said[0] if isinstance(error, SystemExit) and told.said else error
        raise InputError(f"{doing}: {one_line(why, 300)}") from error
    finally:
        socket.setdefaulttimeout(timeout)
        log.removeHandler(told)
        log.propagate = propagate


class _Told(logging.Handler):
    """Keeps what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
