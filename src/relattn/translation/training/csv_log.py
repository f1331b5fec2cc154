"""The CSV files of a run, whose rows begin with a step: appended to, read, and cut back to where a session goes on."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from relattn.translation.errors import reading
from relattn.translation.files import as_csv, write_atomically


def append(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Add rows to a file, which is made if it is not there."""
    if not path.exists():
        write_atomically(path, as_csv([header]).encode())
    with open(path, "a", newline="", encoding="utf-8") as file:
        file.write(as_csv(rows))


def read(path: Path, header: Sequence[str], what: str) -> list[list[str]]:
    """The rows of a file. A last line without its end, of a process killed while it wrote, is no row.

    Args:
        path: the file.
        header: its columns.
        what: such a file is called.

    Raises:
        InputError: the file cannot be read, or is not such a file.
    """
    with reading(path, f"not a {what}"):
        content = path.read_bytes()
        try:
            lines = content[: content.rfind(b"\n") + 1].decode("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 at byte {error.start}") from error
        found, *rows = list(csv.reader(lines)) or [[]]
        if found != list(header):
            raise ValueError(f"its columns are {found}, expected {list(header)}")
        for number, row in enumerate(rows, start=1):
            if len(row) != len(header):
                raise ValueError(f"row {number} has {len(row)} cells, expected {len(header)}")
            int(row[0])
    return rows


def cut_back(path: Path, header: Sequence[str], what: str, step: int) -> None:
    """Take out the rows past a step, of a session that outlived its last checkpoint; raises as `read` does."""
    if path.exists():
        kept = [row for row in read(path, header, what) if int(row[0]) <= step]
        write_atomically(path, as_csv([header, *kept]).encode())
