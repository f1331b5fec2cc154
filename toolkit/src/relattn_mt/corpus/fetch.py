"""Downloads from the Hugging Face hub, into its cache (under HF_HOME), and of sacreBLEU's test sets (SACREBLEU)."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from logging.handlers import BufferingHandler
from pathlib import Path
from urllib.error import HTTPError

from relattn_mt.data.text_files import read_parallel
from relattn_mt.hub import hub_errors
from relattn_mt.support.errors import InputError, one_line
from relattn_mt.support.files import remove

_TIMEOUT = 60.0  # seconds without a byte from the servers of sacreBLEU's test sets


@dataclass(frozen=True)
class RemoteFile:
    """A file of a data set at one commit.

    Attributes:
        repository: Name of the data set.
        commit: Hash of the commit.
        name: Path in the repository.
        size: Number of bytes.
        checksum: SHA-256 of a large file (64 digits); of a small one the SHA-1 that Git has (40 digits).
    """

    repository: str
    commit: str
    name: str
    size: int
    checksum: str


def list_files(repository: str) -> list[RemoteFile]:
    """Return the files of a data set at its newest commit, by name.

    Raises:
        InputError: The hub cannot be reached, or has no such data set.
    """
    with hub_errors(f"{repository}: from the hub", "data set") as api:
        info = api.dataset_info(repository, files_metadata=True)
    files = []
    for file in info.siblings or []:
        checksum = file.lfs.sha256 if file.lfs is not None else file.blob_id
        files.append(RemoteFile(repository, str(info.sha), file.rfilename, file.size or 0, str(checksum)))
    return sorted(files, key=lambda file: file.name)


def download(file: RemoteFile) -> Path:
    """Return the path of a file, which is downloaded if it is not in the cache.

    Raises:
        InputError: The file cannot be downloaded or written.
    """
    with hub_errors(f"{file.repository}: {file.name}: from the hub", "data set") as api:
        return Path(api.hf_hub_download(file.repository, file.name, repo_type="dataset", revision=file.commit))


def sacrebleu_pairs(name: str, src_lang: str, tgt_lang: str) -> list[tuple[str, str]]:
    """Return the pairs of a test set of sacreBLEU, which is downloaded if it is not in sacreBLEU's cache.

    Raises:
        InputError: The test set cannot be downloaded, or its files are damaged; nothing of it is kept.
    """
    from sacrebleu import dataset, utils

    try:
        with _sacrebleu_errors(name):
            src, tgt, *_ = map(str, dataset.DATASETS[name].get_files(f"{src_lang}-{tgt_lang}"))
        return list(read_parallel(src, tgt))
    except InputError:
        remove(Path(utils.SACREBLEU_DIR, name))  # sacreBLEU would use what is there without a check
        raise


@contextmanager
def _sacrebleu_errors(name: str) -> Iterator[None]:
    """Turn errors of sacreBLEU into an InputError. It may also log an error and exit, or wait for a server forever."""
    log, handler = logging.getLogger("sacrebleu"), BufferingHandler(capacity=100)
    handler.setLevel(logging.ERROR)
    propagate, log.propagate = log.propagate, False
    timeout = socket.getdefaulttimeout()
    log.addHandler(handler)
    socket.setdefaulttimeout(_TIMEOUT)
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, HTTPError):
            error.close()  # it holds the connection
        logged = [record.getMessage() for record in handler.buffer]
        message = logged[0] if isinstance(error, SystemExit) and logged else error
        raise InputError(f"{name}: sacreBLEU's test set: {one_line(message, 300)}") from error
    finally:
        socket.setdefaulttimeout(timeout)
        log.removeHandler(handler)
        log.propagate = propagate
