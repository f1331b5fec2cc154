"""Downloads from the Hugging Face hub and of sacreBLEU's test sets, with verified checksums.

Files of the hub lie in its cache for assets (under HF_HOME). An incomplete file stays there with the suffix ".part",
and the next attempt requests the rest. Test sets lie in sacreBLEU's own cache (under SACREBLEU).
"""

from __future__ import annotations

import hashlib
import logging
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from logging.handlers import BufferingHandler
from pathlib import Path
from urllib.error import HTTPError

from filelock import FileLock
from tqdm import tqdm

import relattn
from relattn.translation.console import shows_progress
from relattn.translation.data.text_files import read_parallel
from relattn.translation.errors import InputError, one_line, reason
from relattn.translation.files import remove
from relattn.translation.hub import hub_errors

_RETRIES = 5  # attempts in a row without a byte, after the first
_TIMEOUT = 60.0  # seconds without a byte from the servers of sacreBLEU's test sets


@dataclass(frozen=True)
class RemoteFile:
    """A file of a data set at one commit.

    Attributes:
        repository: name of the data set.
        commit: hash of the commit.
        name: path in the repository.
        size: number of bytes.
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
        InputError: the hub cannot be reached, or has no such data set.
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
        InputError: the file cannot be downloaded or written, and the incomplete file is kept; or its size or checksum
            is wrong, and it is deleted.
    """
    with hub_errors(f"{file.repository}: {file.name}: from the hub", "data set"):
        from huggingface_hub import cached_assets_path, constants

        folder = cached_assets_path("relattn", file.repository, file.commit, assets_dir=constants.HF_ASSETS_CACHE)
    path = folder / file.name
    partial_file = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):  # one process at a time
            if not path.exists():
                _append_missing(file, partial_file)
                _verify(file, partial_file)
                partial_file.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {reason(error)}") from error
    return path


def _append_missing(file: RemoteFile, partial_file: Path) -> None:
    """Append what is missing to an incomplete file."""
    with partial_file.open("ab") as output:
        start = output.tell()
        if start >= file.size:
            return
        bar = tqdm(
            total=file.size, initial=start, desc=file.name, unit="B", unit_scale=True, disable=not shows_progress()
        )
        with bar, closing(_request(file, start)) as pieces:
            for piece in pieces:
                output.write(piece)
                bar.update(len(piece))


def _request(file: RemoteFile, start: int) -> Generator[bytes]:
    """Yield the bytes of a file from `start` on. If the connection is cut, the rest is requested again."""
    with hub_errors(f"{file.repository}: {file.name}: from the hub", "data set"):
        from huggingface_hub import constants, hf_hub_url, hf_raise_for_status
        from huggingface_hub.utils import build_hf_headers, http_stream_backoff

        url = hf_hub_url(file.repository, file.name, repo_type="dataset", revision=file.commit)
        headers = build_hf_headers(library_name="relattn", library_version=relattn.__version__)
        headers["Accept-Encoding"] = "identity"  # ranges of a compressed file are not ranges of the file
        timeout, failures = constants.HF_HUB_DOWNLOAD_TIMEOUT, 0
        while True:
            if start:
                headers["Range"] = f"bytes={start}-"
            try:
                with http_stream_backoff(
                    "GET", url, headers=headers, timeout=timeout, retry_on_exceptions=()
                ) as response:
                    hf_raise_for_status(response)
                    for piece in response.iter_bytes():
                        start, failures = start + len(piece), 0
                        yield piece
                return
            except OSError:  # the hub refuses, or is not to be reached in offline mode
                raise
            except Exception:  # the connection failed; huggingface_hub does not export the types of such errors
                failures += 1
                if failures > _RETRIES:
                    raise
                time.sleep(1)


def _verify(file: RemoteFile, partial_file: Path) -> None:
    """Delete a downloaded file and raise an InputError unless its checksum, and so its size, is the one of the hub."""
    prefix = f"blob {file.size}\0".encode()  # Git's checksum of a file covers its size
    new_digest = hashlib.sha256 if len(file.checksum) == 64 else partial(hashlib.sha1, prefix)
    with partial_file.open("rb") as content:
        checksum = hashlib.file_digest(content, new_digest).hexdigest()
    if checksum != file.checksum:
        fault = (
            f"{file.size:,} bytes with checksum {file.checksum}, got {partial_file.stat().st_size:,} with {checksum}"
        )
        remove(partial_file)
        raise InputError(f"{file.repository}: {file.name}: the download was deleted: it must have {fault}")


def sacrebleu_pairs(name: str, src_lang: str, tgt_lang: str) -> list[tuple[str, str]]:
    """Return the pairs of a test set of sacreBLEU, which is downloaded if it is not in sacreBLEU's cache.

    sacreBLEU uses what is in its cache without a check. Here, a damaged test set is downloaded again.

    Raises:
        InputError: the test set cannot be downloaded, or its checksum is wrong; nothing of it is kept.
    """
    from sacrebleu import utils

    folder = Path(utils.SACREBLEU_DIR, name)
    cached = folder.exists()
    try:
        return _read_pairs(name, f"{src_lang}-{tgt_lang}", folder)
    except InputError:
        remove(folder)
        if not cached:
            raise
    return sacrebleu_pairs(name, src_lang, tgt_lang)


def _read_pairs(name: str, languages: str, folder: Path) -> list[tuple[str, str]]:
    from sacrebleu import dataset

    with _sacrebleu_errors(name):
        test_set = dataset.DATASETS[name]
        src, tgt, *_ = map(str, test_set.get_files(languages))
    for url, expected in zip(test_set.data or (), test_set.md5 or (), strict=True):
        archives = folder.glob(f"raw/*.{url.rpartition('/')[2]}")
        if [hashlib.md5(path.read_bytes()).hexdigest() for path in archives] != [expected]:
            raise InputError(f"{folder}: the checksum of the archive is not the one that sacreBLEU has")
    return list(read_parallel(src, tgt))


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
