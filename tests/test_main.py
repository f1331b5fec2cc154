"""The door to the command line, as a process of its own: streams, locales, Ctrl-C, and what is not installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import relattn

COMMAND = f"'{sys.executable}' -m relattn"


def shell(script: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
    return subprocess.run(["bash", "-c", script], capture_output=True, env={**environment, **variables}, timeout=120)


def result(script: str, **variables: str) -> tuple[int, str, str]:
    done = shell(script, **variables)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_the_version():
    assert result(f"{COMMAND} --version") == (0, f"relattn {relattn.__version__}\n", "")
    script = "import sys; from relattn.__main__ import main; sys.argv[1:] = ['--version']; main();"
    script += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("missing", ["jsonargparse", "yaml"])
def test_without_the_toolkits_libraries_one_line_says_what_to_install(missing):
    script = f"import sys; sys.modules['{missing}'] = None; from relattn.__main__ import main; "
    script += "sys.argv[1:] = ['--help']; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    message = f'{missing} is not installed; the commands need: pip install "relattn[translation]"'
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"relattn: error: {message}\n")


def test_a_module_of_our_own_that_is_missing_keeps_its_traceback():
    script = "import sys; sys.modules['relattn.translation.config'] = None; from relattn.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_standard_streams_that_are_closed():
    assert result(f"{COMMAND} translate x <&-") == (2, "", "relattn: error: standard input is closed\n")
    assert result(f"{COMMAND} --help >&-") == (2, "", "relattn: error: standard output is closed\n")
    assert result(f"{COMMAND} trian 2>&-") == (2, "", "")
    assert result(f"{COMMAND} trian <&- >&- 2>&-") == (2, "", "")


def test_closed_streams_do_not_give_their_numbers_to_files():
    script = "import os; from relattn.__main__ import _fill_standard_streams as f; f(); os._exit(os.open('.', 0) < 3)"
    assert shell(f"'{sys.executable}' -c \"{script}\" <&- >&- 2>&-").returncode == 0


def test_a_disk_that_is_full_is_told_once():
    message = "relattn: error: [Errno 28] No space left on device\n"
    assert result(f"{COMMAND} --help > /dev/full") == (2, "", message)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "variables",
    [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}],
)
def test_text_and_paths_are_utf_8_in_every_locale(tmp_path, variables):
    (tmp_path / "nö.yaml").write_text("out: ''\ndata: {src_lang: ü}\n", encoding="utf-8")
    command = f"cd '{tmp_path}'; PYTHONPATH='{Path(relattn.__file__).parents[1]}' {COMMAND}"
    assert result(f"{command} train nö.yaml", **variables) == (2, "", "relattn: error: out must name a directory\n")
    assert result(f"{command} trön", **variables)[2].startswith("relattn: error: there is no command 'trön'; ")
    assert "COMMAND …" in result(f"{command} --help", **variables)[1]


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_while_something_is_imported_is_one_line(tmp_path, times):
    """It comes in the midst of an import that would make something else of an exception."""
    (tmp_path / "jsonargparse.py").write_text(
        "import os, signal\ntry:\n"
        + f"    os.kill(os.getpid(), {signal.SIGINT:d})\n" * times
        + "    print('went on')\nexcept BaseException:\n    print('swallowed')\n"
    )
    assert result(f"{COMMAND} --help", PYTHONPATH=str(tmp_path)) == (130, "", "relattn: interrupted\n")


@pytest.mark.parametrize("more", ["", "finally: os.kill(os.getpid(), signal.SIGINT); print('went on')"])
def test_ctrl_c_in_a_command_unwinds_and_a_second_one_ends_it(more):
    script = f"""
import os, signal, sys
from relattn import __main__
from relattn.translation import cli
def wait(argv):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    {more or "finally: print('unwound')"}
cli.COMMANDS["wait"] = wait
sys.argv[1:] = ["wait"]
sys.exit(__main__.main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "relattn: interrupted\n")
    assert done.stdout == ("" if more else "unwound\n")
