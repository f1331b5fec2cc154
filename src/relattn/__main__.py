"""Entry point of the command `relattn` and of `python -m relattn`. It sets up the process, then imports the toolkit.

Text is UTF-8 in every locale. A file never gets the file descriptor of a closed standard stream. Ctrl-C and SIGTERM
print one line at any time, imports included. If a library of the toolkit is not installed, one line says what to
install.
"""

from __future__ import annotations

import os
import signal
import sys
from io import TextIOWrapper
from types import FrameType


def main() -> int:
    """Run the command line of the process. Return the exit code: 0, 2 for a user error, 130 or 143 for a signal."""
    _use_utf8()
    _fill_standard_streams()
    for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is default:  # background jobs ignore SIGINT
            signal.signal(number, _interrupt)
    try:
        from relattn.translation.commands.main import main as command

        return command()
    except KeyboardInterrupt as stop:
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)
    except ModuleNotFoundError as error:
        if f"{error.name}.".startswith("relattn."):
            raise
        message = f'the commands require {error.name}, which is not installed: pip install "relattn[translation]"'
        print(f"relattn: error: {message}", file=sys.stderr)
        return 2
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a late Ctrl-C must not interrupt the exit
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    """Handle a signal: print one line and raise KeyboardInterrupt. During an import, exit immediately instead.

    A second signal also exits immediately. An exception that is raised during the import of an extension module may be
    lost, or abort the process.
    """
    signal.signal(signal_number, lambda *_: os._exit(128 + signal_number))
    if os.environ.get("RANK", "0") == "0":  # once per training run
        os.write(2, b"relattn: terminated\n" if signal_number == signal.SIGTERM else b"relattn: interrupted\n")
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(128 + signal_number)
        frame = frame.f_back
    raise KeyboardInterrupt(signal_number)


def _use_utf8() -> None:
    """Make paths and standard streams UTF-8. If paths are not UTF-8, restart in Python's UTF-8 mode."""
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def _fill_standard_streams() -> None:
    """Open the null device for each closed standard stream, so that no file gets descriptor 0, 1 or 2.

    Messages to a closed standard error are lost.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
