"""What a user of the toolkit is told: a line that says what is wrong and where, or that a run was stopped."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

_LONGEST = 600  # characters of a message


class InputError(ValueError):
    """A mistake in what was given (a file, a recipe, a bundle, a line of text), told in one line.

    The command line prints it as ``relattn: error: …`` and exits with code 2; nothing is half-written.
    """


class Diverged(InputError):
    """Training came to numbers that are not finite: the recipe asks for too much."""


class LostProcess(InputError):
    """A process of a run is gone, and the run with it, up to its last checkpoint."""


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop and did; the command line prints why and exits with 128 + the signal.

    Args:
        message: where it stopped, and how to go on.
        number: the signal.
    """

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.number = number


@contextmanager
def reading(path: str | Path, fault: str) -> Iterator[None]:
    """Around the reading of a file that others made: whatever a library makes of it is an InputError naming the file.

    Nothing but the reading belongs inside, so that a bug of ours keeps its traceback.

    Args:
        path: the file, as messages name it.
        fault: what is wrong with a file that a library cannot read, such as "not YAML".
    """
    try:
        yield
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {reason(error)}") from error
    except Exception as error:
        raise InputError(f"{path}: {fault}: {one_line(error)}") from error


def require(condition: bool, message: str) -> None:
    """Raise an `InputError` with `message` unless `condition` holds."""
    if not condition:
        raise InputError(message)


def require_language(name: str, code: str) -> None:
    """Raise an `InputError` unless `code` is a language code, which may become part of a file name."""
    valid = re.fullmatch(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*", code)
    require(valid is not None, f"{name} must be a code such as en or pt-BR, got {one_line(code, 40)!r}")


def require_installed(*packages: str, extra: str) -> None:
    """Refuse, by an InputError, what needs packages that are not there or cannot be imported.

    Args:
        packages: by the names that they are imported by.
        extra: of relattn, which installs them.
    """
    for package in packages:
        try:
            import_module(package)
        except ImportError as error:
            raise InputError(f'{package} cannot be imported: pip install "relattn[{extra}]": {error}') from error


def reason(error: OSError) -> str:
    """Why a file cannot be read or written, in the system's words."""
    return error.strerror or one_line(error)


def one_line(error: object, longest: int = _LONGEST) -> str:
    """What an error says, in one line of at most so many characters; its name where it says nothing."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= longest else f"{text[: longest - 2]} …"
