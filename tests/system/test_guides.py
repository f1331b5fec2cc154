"""The guides of docs/guides, run from top to bottom with the wheels.

Blocks with a title are files. The other blocks are commands, which run in one shell, in an empty directory and a new
environment. Trainings are cut short. `RELATTN_GUIDES=full` runs them at full length, in an environment that pip fills
from the package index (gigabytes), and writes what they print beside the guides.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import venv
from pathlib import Path

import pytest

from tests.support.environments import ROOT, build_wheels, new_environment
from tests.translation.formats.transformers_models import marian

GUIDES = ROOT / "docs" / "guides"
BLOCK = re.compile(r'^```(?:sh|\w+ title="(?P<file>[\w.]+)")\n(?P<text>.*?)^```$', re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?:.*\\\n)*.+\n")  # continues after a backslash
PUBLISHED = "Helsinki-NLP/opus-mt-en-de"  # downloaded at full length; else a small model with random weights
SHORTER = {
    r"(STEPS.*?) = \d+": r"\1 = 3", r"steps: \d+": "steps: 4", r"_every: \d+": "_every: 2", r"20_000": "300",
    r" 500\)": " 20)", r"\(20, 60, 300\)": "(4, 8)", r"100 \* 120": "100",
    r"hour\.py \d+": "hour.py 4", r"16_000, 24": "16_000, 1", r"\(20, 256\)": "(20, 9)", r"layers=6": "layers=1",
}  # fmt: skip


def script_of(page: str) -> str:
    """Return a shell script that shows each command of a page before it runs it, and ends at one that fails."""
    lines = ["set -eu"]
    for block in BLOCK.finditer(page):
        if block["file"]:
            lines += [f"cat > {block['file']} <<'END OF FILE'", block["text"].rstrip("\n"), "END OF FILE"]
            continue
        for command in map(str.rstrip, COMMAND.findall(block["text"])):
            installed = re.sub(r'^pip install ("?)\.', r"pip install \1relattn", command)  # the wheel, not a checkout
            lines += [f"printf '$ %s\\n' {shlex.quote(command)}", installed]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("guide", sorted(GUIDES.glob("*.md")), ids=lambda path: path.stem)
def test_guides_run(guide, tmp_path, tmp_path_factory):
    page, is_full = guide.read_text(encoding="utf-8"), os.environ.get("RELATTN_GUIDES") == "full"
    assert len(BLOCK.findall(page)) == len(re.findall(r"^```\w", page, re.MULTILINE))
    variables = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_QUIET": "3"}
    variables["PIP_FIND_LINKS"] = str(build_wheels(tmp_path_factory))
    environment, work, shown = tmp_path / "new", tmp_path / "work", guide.with_suffix(".txt")
    work.mkdir()
    if is_full:
        venv.create(environment, with_pip=True)
    else:
        new_environment(environment)
        variables["PIP_NO_INDEX"] = "1"
        for long, short in SHORTER.items():
            page = re.sub(long, short, page)
        with socket.create_server(("127.0.0.1", 0)) as server:
            page = page.replace("5000", str(server.getsockname()[1]))
        if PUBLISHED in page:  # nothing is shown of a model that is downloaded only at full length
            marian(tmp_path / "marian")
            page = page.replace(PUBLISHED, str(tmp_path / "marian"))
        else:
            kept = re.findall(r"^\$ ((?:.*\\\n)*.+\n)", shown.read_text(encoding="utf-8"), re.MULTILINE)
            assert script_of(page).count("printf '$ ") == len(kept), f"{shown.name} must show the commands of the guide"
    variables["PATH"] = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with (tmp_path / "printed").open("w+", encoding="utf-8") as file:
        done = subprocess.run(
            ["bash", "-c", script_of(page)], cwd=work, env=inherited | variables, stdout=file, stderr=subprocess.STDOUT
        )
        file.seek(0)
        printed = file.read()
    assert done.returncode == 0, printed
    assert "Traceback" not in printed
    where = "import relattn; print(relattn.__file__)"
    python = [environment / "bin" / "python", "-c", where]
    imported = subprocess.run(python, cwd=work, env=inherited, capture_output=True, text=True, check=True).stdout
    assert Path(imported).is_relative_to(environment)
    if is_full:
        shown.write_text(printed.replace(str(tmp_path), "DIR"), encoding="utf-8")
