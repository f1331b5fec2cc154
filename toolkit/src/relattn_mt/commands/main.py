"""Run a command and report errors. `relattn-mt --help` and `--version` import no library of the toolkit.

Every user error ends in one line on standard error and exit code 2.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from relattn_mt.support.errors import InputError, Interrupted, missing_package, one_line, reason, require_known
from relattn_mt.version import __version__

GROUPS = {
    "Train": {
        "prepare": "Clean a parallel corpus",
        "recipe": "Print a recipe that continues the training of a bundle",
        "train": "Train a model",
        "average": "Average the last checkpoints of a run",
        "distill": "Translate text with a teacher, as text to train a student on",
        "backtranslate": "Translate text of the target language back, as sources for training",
    },
    "Translate": {
        "translate": "Translate lines of text",
        "evaluate": "Score a model with BLEU and chrF",
        "score": "Print the log-probability of given translations",
    },
    "Share and deploy": {
        "serve": "Serve models over HTTP",
        "quantize": "Write a bundle with weights in int8",
        "export": "Convert a bundle for CTranslate2, Argos Translate, Marian or browsers",
        "import": "Convert a model of another toolkit, such as OPUS-MT, to a bundle",
        "models": "List the models of Firefox in the cache or for download, or remove some",
    },
}
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}
_HELP = ("-h", "--help")
_VERSION = "--version"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, or with those of the process. Return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    try:
        if sys.stdout is None:
            raise InputError("standard output is closed")
        _run(argv)
        sys.stdout.flush()
        return 0
    except Interrupted as stop:
        return _report(str(stop), 128 + stop.number)
    except BrokenPipeError:
        return 0
    except InputError as error:
        return _report(f"error: {one_line(error)}")
    except SystemExit as stop:  # after --help
        return int(stop.code or 0)
    except ModuleNotFoundError as error:
        message = missing_package(error)
        if message is None:
            raise
        return _report(f"error: {message}")
    except OSError as error:
        return _report(f"error: {error.filename or 'standard output or a file'}: {reason(error)}")
    except (MemoryError, RuntimeError) as error:
        if not (
            isinstance(error, MemoryError) or re.search("out of memory|not enough memory|allocate memory", str(error))
        ):
            raise
        return _report(f"error: not enough memory: {one_line(error, 200)}")
    finally:
        _discard_unwritable_output()


def _run(argv: Sequence[str]) -> None:
    if _VERSION in (argv[: argv.index("--")] if "--" in argv else argv):
        print(f"relattn-mt {__version__}")
    elif not argv or argv[0] in _HELP:
        print(_summary())
    else:
        from relattn_mt.commands.parser import parse
        from relattn_mt.support.console import log_to_stderr

        name, function, words = command_of(argv)
        arguments, quiet = parse(name, function, words)
        with log_to_stderr(quiet=quiet):
            function(**arguments)


def command_of(argv: Sequence[str]) -> tuple[str, Any, Sequence[str]]:
    """Return the name of a command, its function and its arguments."""
    name, *words = argv
    require_known("command", name, COMMANDS)
    module = "import_" if name == "import" else name
    return name, getattr(import_module(f"relattn_mt.commands.{module}"), module), words


def _summary() -> str:
    lines = ["usage: relattn-mt COMMAND [options]", "       relattn-mt help [COMMAND]", "       relattn-mt --version"]
    for group, commands in GROUPS.items():
        lines += ["", f"{group}:", *(f"  {name:18} {summary}" for name, summary in commands.items())]
    return "\n".join(lines)


def _report(message: str, code: int = 2) -> int:
    """Print a line on standard error, as much of it as can be written, unless it is empty. Return `code`."""
    with suppress(OSError):
        if message:
            print(f"relattn-mt: {one_line(message)}", file=sys.stderr)
    return code


def _discard_unwritable_output() -> None:
    """Redirect standard output if it cannot be written, so that Python's own flush at exit does not fail again."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
