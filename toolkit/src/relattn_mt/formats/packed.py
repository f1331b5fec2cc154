"""Compressed files of a model, NAME.gz and NAME.zst, as Mozilla publishes them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relattn_mt.support.errors import InputError, writing
from relattn_mt.support.files import real_path
from relattn_mt.tokens.text_files import blocks

SUFFIXES = ".gz", ".zst"  # the first is taken if a file is there with both: it needs no other package
_PATTERNS = "*.bin", "*.npz", "*.spm", "*vocab*.yml"  # of files that an import reads


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield a directory that has the files of `path`, with compressed ones unpacked; `path` itself if it has none.

    Where a file is there without compression, too, the compressed one is left out.

    Raises:
        InputError: A file is damaged; a file in .zst requires pyarrow; there is no space to unpack it. Errors of the
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
    with temporary(path) as directory:
        for file in path.iterdir():
            if file.name not in packed:  # a broken link, through which `unpack` would write
                (directory / file.name).symlink_to(real_path(file))
        for name, file in packed.items():
            unpack(file, directory / name)
        yield directory


@contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """Yield a temporary directory. Errors of the block name `path` instead of it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield Path(folder)
        except InputError as error:
            raise InputError(str(error).replace(folder, str(path))) from error


def unpack(file: Path, target: Path, most: int | None = None) -> None:
    """Write the content of a file in .gz or .zst, of at most so many bytes, to another one.

    Raises:
        InputError: As `unpacked`, or the content is longer.
    """
    with writing(target), target.open("wb") as out:
        for block in blocks(file):
            out.write(block)
            if most is not None and out.tell() > most:
                raise InputError(f"{file}: must have {most:,} bytes when it is unpacked, got more")
