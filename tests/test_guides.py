"""The guides run from top to bottom, with trainings cut short; what is kept of longer runs is of these commands."""

from __future__ import annotations

import re
import socket
import sys
from itertools import islice
from pathlib import Path
from subprocess import CalledProcessError

import pytest

from benchmarks.guides import BLOCK, GUIDES, commands, environment, lines_of, script

PAGES = {path.stem: path.read_text(encoding="utf-8") for path in GUIDES.glob("*.md")}
SHORTER = {  # what takes long, and what does in its place
    r"(STEPS.*?) = \d+": r"\1 = 3",
    r"steps: \d+": "steps: 4",
    r"_every: \d+": "_every: 2",
    r"20_000": "300",
    r"\(20, 60, 300\)": "(4, 8)",
    r"100 \* 120": "100",
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@pytest.mark.whole
@pytest.mark.parametrize("name", PAGES)
def test_a_guide_runs(name, tmp_path):
    page = re.sub(r"^pip install .*\n", "", PAGES[name], flags=re.MULTILINE).replace("5000", str(free_port()))
    for long, short in SHORTER.items():
        page = re.sub(long, short, page)
    told = "".join(lines_of(script(page), tmp_path, environment(Path(sys.executable), None)))
    assert "Traceback" not in told


@pytest.mark.parametrize("name", PAGES)
def test_what_is_kept_is_of_the_commands_of_now(name):
    kept = (GUIDES / f"{name}.txt").read_text(encoding="utf-8")
    wanted = [
        command for block in BLOCK.finditer(PAGES[name]) if not block["file"] for command in commands(block["text"])
    ]
    shown = re.findall(r"^\$ ((?:.*\\\n)*.+)", kept, re.MULTILINE)
    assert wanted == shown


def test_every_block_of_a_guide_is_run():
    for name, page in PAGES.items():
        assert len(BLOCK.findall(page)) == len(re.findall(r"^```\w", page, re.MULTILINE)), name


def test_a_command_that_fails_ends_the_guide(tmp_path):
    page = '```py title="a.txt"\n$x\n```\n```sh\ncat \\\n    a.txt\nfalse\necho after\n```\n'
    lines = lines_of(script(page), tmp_path, environment(Path(sys.executable), None))
    assert "".join(islice(lines, 4)) == "$ cat \\\n    a.txt\n$x\n$ false\n"
    with pytest.raises(CalledProcessError):
        next(lines)
