"""Files of data sets on the Hugging Face hub, fetched whole and as the hub says they are.

A file is held to its length and checksum before it has its name. What came of one that is not whole stays beside it,
and the next attempt asks for the rest: a connection that is cut loses nothing, nor does a process that is killed.
`huggingface_hub` goes on after a cut by itself but keeps nothing of a file when the process ends, so the files lie not
in its own cache of repositories but beside it, in that for assets (under HF_HOME).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

import relattn
from relattn.translation.errors import InputError, reason
from relattn.translation.files import remove
from relattn.translation.hub import asking

_READ = 1 << 20  # bytes


@dataclass(frozen=True)
class RemoteFile:
    """A file of a data set at one commit.

    Attributes:
        repository: the data set.
        commit: of the repository.
        name: in the repository, with its folders.
        size: in bytes.
        sha256: its checksum, where the hub has it: of large files.
        blob: its checksum in Git, of the others: SHA-1 of "blob", size, NUL and content.
    """

    repository: str
    commit: str
    name: str
    size: int
    sha256: str | None
    blob: str | None

    def checksum(self, path: Path) -> tuple[str, str]:
        """What the hub says the checksum is, and what that of `path` is."""
        if self.sha256 is not None:
            return self.sha256, _digest(path, hashlib.sha256())
        return str(self.blob), _digest(path, hashlib.sha1(f"blob {self.size}\0".encode()))


def listed(repository: str) -> list[RemoteFile]:
    """The files of a data set as it is now, by name. Raises InputError when the hub cannot be asked or has none."""
    with asking(f"{repository}: from the hub", "data set") as api:
        about = api.dataset_info(repository, files_metadata=True)
    found = []
    for file in about.siblings or []:
        large = file.lfs.sha256 if file.lfs is not None else None
        found.append(RemoteFile(repository, str(about.sha), file.rfilename, file.size or 0, large, file.blob_id))
    return sorted(found, key=lambda file: file.name)


def fetched(file: RemoteFile) -> Path:
    """Where the file is, fetched as far as it is not here.

    Raises:
        InputError: it cannot be fetched or written, and what there is of it stays; or it is not as the hub says it is,
            and nothing of it does.
    """
    with asking(f"{file.repository}: {file.name}: from the hub", "data set"):
        from huggingface_hub import cached_assets_path, constants

        place = cached_assets_path("relattn", file.repository, file.commit, assets_dir=constants.HF_ASSETS_CACHE)
    path = place / file.name
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if not path.exists():
                _fetch(file, part)
                _check(file, part)
                part.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {reason(error)}") from error
    return path


def _fetch(file: RemoteFile, part: Path) -> None:
    """Append what is missing."""
    with part.open("ab") as content:
        have = content.tell()
        if have >= file.size:
            return
        with asking(f"{file.repository}: {file.name}: from the hub", "data set"):
            from huggingface_hub import file_download, hf_hub_url
            from huggingface_hub.utils import build_hf_headers

            url = hf_hub_url(file.repository, file.name, repo_type="dataset", revision=file.commit)
            headers = build_hf_headers(library_name="relattn", library_version=relattn.__version__)
            try:
                file_download.http_get(url, content, resume_size=have, headers=headers, displayed_filename=file.name)
            except OSError as error:
                if error.errno is None:  # not the system's
                    raise
                raise InputError(f"{part}: cannot be written: {reason(error)}") from error


def _check(file: RemoteFile, part: Path) -> None:
    size = part.stat().st_size
    if size != file.size:
        fault = f"it has {size:,} bytes, and the hub says {file.size:,}"
    else:
        expected, found = file.checksum(part)
        if expected == found:
            return
        fault = f"its checksum is {found}, and the hub says {expected}"
    remove(part)
    raise InputError(f"{file.repository}: {file.name}: fetched, but {fault}; nothing of it is kept")


def _digest(path: Path, digest: hashlib._Hash) -> str:
    with path.open("rb") as content:
        for piece in iter(lambda: content.read(_READ), b""):
            digest.update(piece)
    return digest.hexdigest()
