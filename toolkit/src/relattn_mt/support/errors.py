"""Errors that users see in one line, and helpers that raise them."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from relattn_mt.support.types import AnyPath, LanguagePair

_LONGEST = 600  # characters per message
_MOST_CHOICES = 20  # names listed in one message
EXTRAS = {  # imported names of packages that are not always installed, by the extra that installs them
    "bpe": ("sacremoses",),
    "prepare": ("babel", "regex"),  # of several extras with a package, the first is suggested
    "documents": ("lxml", "markdown_it", "py3langid", "sentencex"),
    "evaluate": ("sacrebleu",),
    "export": ("babel", "ctranslate2"),
    "files": ("pyarrow",),
    "hub": ("huggingface_hub",),
    "serve": ("anyio", "babel", "prometheus_client", "python_multipart", "starlette", "uvicorn", "wordfreq"),
    "train": ("relattn", "torch"),
}
STOPPING_SIGNALS = [signal.SIGINT, signal.SIGTERM]  # Ctrl-C, `kill` and schedulers, the end of a terminal's session
if sys.platform != "win32":
    STOPPING_SIGNALS.append(signal.SIGHUP)


class InputError(ValueError):
    """A user error in a file, a recipe, a bundle, an option or a line of text, described in one line.

    The command line prints it as ``relattn-mt: error: …`` and exits with code 2. No half-written files remain.
    """


class Diverged(InputError):
    """The loss or a gradient became NaN or infinite during training."""


class Interrupted(KeyboardInterrupt):
    """A run stopped because of a signal. The command line prints why and exits with code 128 + the signal's number.

    Args:
        message: Where the run stopped, and how to continue it.
        number: Number of the signal.
    """

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.number = number


@contextmanager
def reading(path: AnyPath, fault: str) -> Iterator[None]:
    """Turn any error of a library that reads a foreign file into an InputError with the file's name and `fault`.

    The block must contain the reading only, so that an error in our own code keeps its traceback.
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


@contextmanager
def writing(path: AnyPath) -> Iterator[None]:
    """Turn an error of the system in the block into an InputError with the name of the file that is written."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {reason(error)}") from error


@contextmanager
def naming(path: AnyPath) -> Iterator[None]:
    """Let the message of any InputError in the block begin with the name of a file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def require(condition: object, message: str) -> None:
    """Raise an InputError with `message` unless `condition` holds."""
    if not condition:
        raise InputError(message)


def require_at_most(most: int, count: int, subject: str, things: str) -> None:
    """Raise an InputError if a subject, such as "a request", has more than `most` things, such as "characters"."""
    require(count <= most, f"{subject} must have at most {most:,} {things}, got {count:,}")


def require_language(name: str, code: str) -> None:
    """Raise an `InputError` unless `code` is a language code, which may become part of a file name."""
    valid = re.fullmatch(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*", code)
    require(valid, f"{name} must be a code such as en or pt-BR, got {one_line(code, 40)!r}")


def same_language(code: str, other: str) -> bool:
    """Return whether two language codes differ at most in case, and in hyphens and underscores."""
    return code.lower().replace("_", "-") == other.lower().replace("_", "-")


def require_installed(extra: str, *packages: str) -> None:
    """Raise an InputError unless packages of an extra, by default all, can be imported."""
    for package in packages or EXTRAS[extra]:
        try:
            import_module(package)
        except ImportError as error:
            raise InputError(f"{package} cannot be imported: {install_command(extra)}: {error}") from error


def install_command(extra: str) -> str:
    """Return the command that installs an extra, from a checkout. Training also needs the library."""
    library = "./library " if extra == "train" else ""
    return f'pip install {library}"./toolkit[{extra}]" in a checkout'


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Return which package is missing and how to install it, in one line; None if no extra has it."""
    name = (error.name or "").partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if name in packages), None)
    return None if extra is None else f"this command requires {name}: {install_command(extra)}"


def language_pairs(pairs: Iterable[str], path: Path) -> list[LanguagePair]:
    """Return pairs of language codes such as "en de" as tuples. Raise an InputError that names `path`."""
    tuples = []
    for pair in pairs:
        src, _, tgt = pair.partition(" ")
        is_pair = src and tgt and " " not in tgt
        require(is_pair, f"{path}: each of pairs must be two languages, got {pair[:40]!r}")
        tuples.append((src, tgt))
    return tuples


def unknown(what: str, name: str, names: Collection[str]) -> InputError:
    """Return the error for a name that is not one of `names`. It suggests the nearest name or lists them all."""
    from difflib import get_close_matches

    message = f"unknown {what} '{one_line(name, 40)}'"
    words = {part: each for each in names for part in (each.rpartition(".")[2].lstrip("-"), each.lstrip("-"))}
    bare = name.lstrip("-")
    if close := get_close_matches(bare, words, n=1) or [each for each in words if each.startswith(bare)]:
        message += f"; did you mean {words[close[0]]}?"
    elif len(names) <= _MOST_CHOICES:
        message += f"; choose from {', '.join(names)}"
    return InputError(message)


def require_known(what: str, name: str, names: Collection[str]) -> None:
    """Raise the error that `unknown` returns unless a name is one of `names`."""
    if name not in names:
        raise unknown(what, name, names)


def reason(error: OSError) -> str:
    """Return why a file cannot be read or written, in the words of the operating system."""
    return error.strerror or one_line(error)


def escape(text: str) -> str:
    """Return a text with escapes in place of characters that a terminal would act on, such as control characters."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def one_line(error: object, longest: int = _LONGEST) -> str:
    """Return a text, or that of an error or else the name of its type, in one printable line of limited length."""
    text = escape(" ".join(str(error).split())) or (type(error).__name__ if isinstance(error, Exception) else "")
    return text if len(text) <= longest else f"{text[: longest - 2]} …"
