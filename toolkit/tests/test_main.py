"""Tests of the entry point in a process of its own: streams, locales, Ctrl-C and missing libraries."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import relattn_mt

COMMAND = f"'{sys.executable}' -m relattn_mt"
# Replaces the function that runs a command by the one of a test.
MAIN = """
import os, signal, sys
from pathlib import Path
from relattn_mt import __main__
from relattn_mt.commands import main as cli
from relattn_mt.support.files import output
def command(arguments):
{}
cli._run = command
sys.argv[1:] = ["command"]
sys.exit(__main__.main())
"""


def run(script: str, **variables: str) -> tuple[int, str, str]:
    """Run a script of bash with no locale, and return its exit code, its output and its errors."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
    done = subprocess.run(["bash", "-c", script], capture_output=True, env={**environment, **variables}, timeout=120)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def python(code: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_missing_modules():
    """A missing library is one line that says what to install. A missing module of relattn is a traceback."""

    def without(name):
        script = f"import sys; sys.modules['{name}'] = None; from relattn_mt.__main__ import main; "
        return python(script + "sys.argv[1:] = ['train', '--help']; sys.exit(main())")

    code, output, error = without("yaml")
    assert (code, output, error.count("\n")) == (2, "", 1)
    assert re.match("relattn-mt: error: .*yaml.*pip install", error)
    code, _, error = without("relattn_mt.config")
    assert (code, "Traceback" in error) == (1, True)


def test_closed_standard_streams_are_reported():
    assert run(f"{COMMAND} translate x <&-") == (2, "", "relattn-mt: error: standard input is closed\n")
    assert run(f"{COMMAND} --help >&-") == (2, "", "relattn-mt: error: standard output is closed\n")
    assert run(f"{COMMAND} trian <&- >&- 2>&-") == (2, "", "")
    # New files do not get the descriptors of closed streams.
    script = "import os; from relattn_mt.__main__ import _fill_standard_streams as f; f(); "
    script += "os._exit(os.open('.', 0) < 3)"
    assert run(f"'{sys.executable}' -c \"{script}\" <&- >&- 2>&-")[0] == 0


@pytest.mark.parametrize(
    "variables", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"}]
)
def test_text_and_paths_are_utf8_in_every_locale(tmp_path, variables):
    (tmp_path / "nö.yaml").write_text("out: ''\ndata: {train_src: ü, train_tgt: ö}\n", encoding="utf-8")
    command = f"cd '{tmp_path}'; PYTHONPATH='{Path(relattn_mt.__file__).parents[1]}' {COMMAND}"
    code, output, error = run(f"{command} train nö.yaml", **variables)
    assert (code, output, error.startswith("relattn-mt: error: out must")) == (2, "", True)
    assert "'trön'" in run(f"{command} trön", **variables)[2]


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_during_an_import_prints_one_line(tmp_path, times):
    """The imported module catches all exceptions, so raising one would not end the process."""
    interrupt = f"    os.kill(os.getpid(), {signal.SIGINT:d})\n" * times
    caught = "except BaseException:\n    print('swallowed')\n"
    (tmp_path / "yaml.py").write_text(f"import os\ntry:\n{interrupt}    print('continued')\n{caught}")
    assert run(f"{COMMAND} recipe --help", PYTHONPATH=str(tmp_path)) == (130, "", "relattn-mt: interrupted\n")


@pytest.mark.parametrize("cleanup", ["print('unwound')", "os.kill(os.getpid(), signal.SIGINT); print('continued')"])
def test_ctrl_c_unwinds_a_command_and_a_second_one_exits(cleanup):
    code = MAIN.format(f"    try:\n        os.kill(os.getpid(), signal.SIGINT)\n    finally:\n        {cleanup}")
    printed = "unwound\n" if "unwound" in cleanup else ""
    assert python(code) == (130, printed, "relattn-mt: interrupted\n")


ENDS = [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated"), (signal.SIGHUP, "terminated")]


@pytest.mark.parametrize(("number", "word"), ENDS)
def test_a_signal_removes_unfinished_outputs(tmp_path, number, word):
    kill = f"        os.kill(os.getpid(), {number:d})"
    code = MAIN.format(f"    with output(Path({str(tmp_path / 'out')!r})) as write:\n{kill}")
    assert python(code) == (128 + number, "", f"relattn-mt: {word}\n")
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_a_terminal_unwinds_a_command_unless_it_is_ignored(tmp_path):
    """The shell and the system may both send SIGHUP, and the terminal cannot be written any more."""
    hang_up = "os.kill(os.getpid(), signal.SIGHUP)"
    code = MAIN.format(f"    try:\n        {hang_up}\n        print('continued')\n    finally:\n        {hang_up}\n")
    code = code.replace("    finally:", "        print('to the end')\n    finally:")
    (tmp_path / "code.py").write_text(code.replace("import os", "import os, time", 1))
    for prefix, expected in (("", (129, "")), ("nohup ", (0, "continued\nto the end\n"))):
        assert run(f"{prefix}'{sys.executable}' '{tmp_path / 'code.py'}' 2> /dev/full")[:2] == expected


@pytest.mark.parametrize("arguments", ["--version", "train --help"])
def test_output_on_a_full_disk_is_an_error(arguments):
    code, output, error = run(f"{COMMAND} {arguments} > /dev/full")
    assert (code, output, error.count("\n")) == (2, "", 1)
    assert "No space left on device" in error
