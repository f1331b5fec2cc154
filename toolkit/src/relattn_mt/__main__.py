"""Entry point of `relattn-mt` and of `python -m relattn_mt`. It sets up the process, then imports the toolkit.

Text is UTF-8 in every locale. A file never gets the file descriptor of a closed standard stream. Ctrl-C, SIGTERM and
SIGHUP print one line at any time, imports included. If a library of the toolkit is not installed, one line says what to
install.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from io import TextIOWrapper
from types import FrameType

from relattn_mt.support.errors import STOPPING_SIGNALS

# Background jobs ignore SIGINT, and commands under nohup ignore SIGHUP.
_DEFAULT_HANDLERS = signal.default_int_handler, signal.SIG_DFL


def main() -> int:
    """Run the command line of the process. Return the exit code, which is 128 + the number after a signal."""
    _use_utf8()
    _fill_standard_streams()
    handled = [number for number in STOPPING_SIGNALS if signal.getsignal(number) in _DEFAULT_HANDLERS]
    for number in handled:
        signal.signal(number, _interrupt)
    try:
        from relattn_mt.commands.main import main as command

        return command()
    except KeyboardInterrupt as stop:
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and not f"{error.name}.".startswith("relattn_mt."):
            message = f"the commands require {error.name}, which is not installed: pip install ./toolkit in a checkout"
        elif error.name == "RELATTN_LEVEL":
            message = str(error)
        else:
            raise
        print(f"relattn-mt: error: {message}", file=sys.stderr)
        return 2
    finally:
        for number in handled:  # a late Ctrl-C must not interrupt the exit
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    """Handle a signal: print one line and raise KeyboardInterrupt. During an import, exit immediately instead.

    A second SIGINT or SIGTERM also exits immediately. SIGHUP often comes twice, from the shell and from the system. An
    exception that is raised during the import of an extension module may be lost, or abort the process.
    """
    repeated = signal_number not in (signal.SIGINT, signal.SIGTERM)
    signal.signal(signal_number, signal.SIG_IGN if repeated else lambda *_: os._exit(128 + signal_number))
    with suppress(OSError):  # the terminal is gone
        if os.environ.get("RANK", "0") == "0":  # once per training run
            os.write(2, b"relattn-mt: interrupted\n" if signal_number == signal.SIGINT else b"relattn-mt: terminated\n")
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
