"""Tests of the entry point in a process of its own: streams, locales, Ctrl-C and missing libraries."""

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


def run(script: str, **variables: str) -> tuple[int, str, str]:
    done = shell(script, **variables)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_the_version():
    assert run(f"{COMMAND} --version") == (0, f"relattn {relattn.__version__}\n", "")
    script = "import sys; from relattn.__main__ import main; sys.argv[1:] = ['--version']; main();"
    script += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("missing", ["jsonargparse", "yaml"])
def test_a_missing_library_is_reported_in_one_line(missing):
    script = f"import sys; sys.modules['{missing}'] = None; from relattn.__main__ import main; "
    script += "sys.argv[1:] = ['train', '--help']; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    message = f'the commands require {missing}, which is not installed: pip install "relattn[translation]"'
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"relattn: error: {message}\n")


def test_a_missing_module_of_relattn_keeps_its_traceback():
    script = "import sys; sys.modules['relattn.translation.config'] = None; from relattn.__main__ import main; "
    script += "sys.argv[1:] = ['train']; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_closed_standard_streams_are_reported():
    assert run(f"{COMMAND} translate x <&-") == (2, "", "relattn: error: standard input is closed\n")
    assert run(f"{COMMAND} --help >&-") == (2, "", "relattn: error: standard output is closed\n")
    assert run(f"{COMMAND} trian 2>&-") == (2, "", "")
    assert run(f"{COMMAND} trian <&- >&- 2>&-") == (2, "", "")


def test_files_never_get_the_descriptors_of_closed_streams():
    script = "import os; from relattn.__main__ import _fill_standard_streams as f; f(); os._exit(os.open('.', 0) < 3)"
    assert shell(f"'{sys.executable}' -c \"{script}\" <&- >&- 2>&-").returncode == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "variables",
    [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}],
)
def test_text_and_paths_are_utf8_in_every_locale(tmp_path, variables):
    (tmp_path / "nö.yaml").write_text("out: ''\ndata: {src_lang: ü}\n", encoding="utf-8")
    command = f"cd '{tmp_path}'; PYTHONPATH='{Path(relattn.__file__).parents[1]}' {COMMAND}"
    assert run(f"{command} train nö.yaml", **variables) == (2, "", "relattn: error: out must name a directory\n")
    assert run(f"{command} trön", **variables)[2].startswith("relattn: error: unknown command 'trön'; ")
    assert "COMMAND" in run(f"{command} --help", **variables)[1]


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_during_an_import_prints_one_line(tmp_path, times):
    """The imported module catches all exceptions, so raising one would not end the process."""
    (tmp_path / "jsonargparse.py").write_text(
        "import os, signal\ntry:\n"
        + f"    os.kill(os.getpid(), {signal.SIGINT:d})\n" * times
        + "    print('continued')\nexcept BaseException:\n    print('swallowed')\n"
    )
    assert run(f"{COMMAND} plan --help", PYTHONPATH=str(tmp_path)) == (130, "", "relattn: interrupted\n")


@pytest.mark.parametrize("more", ["", "finally: os.kill(os.getpid(), signal.SIGINT); print('continued')"])
def test_ctrl_c_unwinds_a_command_and_a_second_one_exits(more):
    script = f"""
import os, signal, sys
from relattn import __main__
from relattn.translation.commands import main as cli
def wait(arguments):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    {more or "finally: print('unwound')"}
cli._run = wait
sys.argv[1:] = ["wait"]
sys.exit(__main__.main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "relattn: interrupted\n")
    assert done.stdout == ("" if more else "unwound\n")


@pytest.mark.parametrize("arguments", ["--help", "--version", "train --help", "recipe wmt14-en-de-base"])
def test_output_on_a_full_disk_is_an_error(arguments):
    message = "relattn: error: standard output or a file: No space left on device\n"
    assert run(f"{COMMAND} {arguments} > /dev/full") == (2, "", message)


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_removes_unfinished_outputs(tmp_path, number, word):
    script = f"""
import os, sys
from pathlib import Path
from relattn import __main__
from relattn.translation.commands import main as cli
from relattn.translation.files import output
def write(arguments):
    with output(Path({str(tmp_path / "out")!r})) as write:
        os.kill(os.getpid(), {number:d})
cli._run = write
sys.exit(__main__.main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", f"relattn: {word}\n")
    assert list(tmp_path.iterdir()) == []
