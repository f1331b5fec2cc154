"""Lines as they arrive on a pipe, a terminal or a file: never more than fit a chunk, never waiting to fill one.

Reading a descriptor returns what is there and waits only when nothing is. So someone who types a line has it answered
at once, a program that writes a line and waits for its translation gets it, and a file is read in large pieces.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator

from relattn.translation.errors import InputError

_READ = 1 << 16  # bytes asked for at once: what a pipe holds on Linux


def arriving_lines(descriptor: int, *, chunk: int = 256, name: str = "standard input") -> Iterator[list[str]]:
    """Lists of at least one and at most `chunk` complete lines, in order, without their ends (``\\n`` or ``\\r\\n``).

    The last line may lack its end; a leading byte order mark is dropped. `name` stands for the source in messages.

    Raises:
        InputError: a line is not UTF-8 (its number, and the offset of the bad byte), or the descriptor cannot be read.
            Lines before it have been given out.
    """
    rest, offset, number = b"", 0, 0
    while True:
        try:
            read = os.read(descriptor, _READ)
        except OSError as error:
            raise InputError(f"{name}: cannot be read: {error.strerror}") from error
        *whole, rest = (rest + read).split(b"\n")
        if not read and rest:
            whole, rest = [rest], b""
        lines: list[str] = []
        for raw in whole:
            number += 1
            if number == 1 and raw.startswith(codecs.BOM_UTF8):
                raw, offset = raw.removeprefix(codecs.BOM_UTF8), len(codecs.BOM_UTF8)
            try:
                line = raw.removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as error:
                if lines:
                    yield lines
                place = f"byte {offset + error.start}, in line {number}"
                raise InputError(f"{name}: not UTF-8 at {place}: 0x{raw[error.start]:02x}") from error
            lines.append(line)
            offset += len(raw) + 1
            if len(lines) == chunk:
                yield lines
                lines = []
        if lines:
            yield lines
        if not read:
            return
