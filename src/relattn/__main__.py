"""The command `relattn`, and `python -m relattn`: what a process has to settle before the toolkit is imported.

Text is UTF-8 whatever the locale; files never get the numbers of standard streams that are closed; Ctrl-C is one line
at any time, imports included; and where the toolkit's libraries are not installed, one line says what to install.
"""

from __future__ import annotations

import os
import signal
import sys
from io import TextIOWrapper
from types import FrameType

from relattn import __version__


def main() -> int:
    """Run the command that the process was given; returns the exit code: 0, 2 for a mistake, 130 for Ctrl-C."""
    _speak_utf_8()
    _fill_standard_streams()
    if sys.argv[1:] == ["--version"]:
        print(f"relattn {__version__}")
        return 0
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as in the background
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from relattn.translation.cli import main as command

        return command()
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        if f"{error.name}.".startswith("relattn."):
            raise
        need = f'{error.name} is not installed; the commands need: pip install "relattn[translation]"'
        print(f"relattn: error: {need}", file=sys.stderr)
        return 2
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is left is to exit


def _interrupt(number: int, frame: FrameType | None) -> None:
    """On Ctrl-C say so and unwind; on a second one, or while something is imported, end here and now.

    An exception that is raised under an import of compiled code may be lost there, or abort the process.
    """
    signal.signal(number, lambda *_: os._exit(130))
    os.write(2, b"relattn: interrupted\n")
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def _speak_utf_8() -> None:
    """Start again in Python's UTF-8 mode where paths would be something else; for streams that is not needed."""
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def _fill_standard_streams() -> None:
    """Give numbers 0, 1 and 2 to nothing at all where they are closed; what would be said on standard error is lost."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
