"""Compressed files of a model, NAME.gz and NAME.zst, as Mozilla publishes them."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from relattn_mt.support.errors import InputError, reading, reason, require_installed

SUFFIXES = ".gz", ".zst"  # the first is taken if a file is there with both: it needs no other package
_PATTERNS = "*.bin", "*.npz", "*.spm", "*vocab*.yml"  # of files that an import reads
_BLOCK, _ZSTD_BLOCK = 1 << 20, 1 << 10  # bytes per read: 1 KiB of zstd may become 32 MiB


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield a directory that has the files of `path`, with compressed ones unpacked; `path` itself if it has none.

    Where a file is there without compression, too, the compressed one is left out.

    Raises:
        InputError: A file is damaged; a file in .zst requires zstandard; there is no space to unpack it. Errors of the
            block name `path` instead of the directory.
    """
    packed: dict[str, Path] = {}
    for suffix in SUFFIXES:
        for file in sorted(file for pattern in _PATTERNS for file in path.glob(pattern + suffix)):
            if not file.with_suffix("").exists():
                packed.setdefault(file.stem, file)
    if not packed:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        for file in path.iterdir():
            if file.name not in packed:  # a broken link, through which `unpack` would write
                (directory / file.name).symlink_to(file.resolve())
        try:
            for name, file in packed.items():
                unpack(file, directory / name)
            yield directory
        except InputError as error:
            raise InputError(str(error).replace(folder, str(path))) from error


def unpack(file: Path, target: Path, most: int | None = None) -> None:
    """Write the content of a file in .gz or .zst, of at most so many bytes, to another one.

    Raises:
        InputError: As `unpacked`, or the content is longer.
    """
    try:
        with target.open("wb") as out:
            for block in _content(file):
                out.write(block)
                if most is not None and out.tell() > most:
                    raise InputError(f"{file}: must have {most:,} bytes when it is unpacked, got more")
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {reason(error)}") from error


def _content(path: Path) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file."""
    if path.suffix == ".zst":
        require_installed("firefox", "zstandard")
    with reading(path, "damaged"), path.open("rb") as file:
        if path.suffix == ".zst":
            yield from _zstd(file)
            return
        stream = gzip.GzipFile(fileobj=file)
        while block := stream.read(_BLOCK):
            yield block


def _zstd(file: BinaryIO) -> Iterator[bytes]:
    import zstandard

    stream = zstandard.ZstdDecompressor().decompressobj()
    while data := file.read(_ZSTD_BLOCK):
        yield stream.decompress(data)
    if not stream.eof:
        raise EOFError("it ends within its frame")
