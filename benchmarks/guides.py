"""Runs a guide of docs/guides from top to bottom as its reader would, and keeps what it printed beside it.

Blocks with a title are files, those of commands are run as they are written, in one shell, an empty directory and a new
virtual environment, whose pip takes this project's wheels (`make wheels`) and versions.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
GUIDES = ROOT / "docs" / "guides"
BLOCK = re.compile(r'^```(?:sh|\w+ title="(?P<file>[\w.]+)")\n(?P<text>.*?)^```$', re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[str]:
    """The commands of a block, those that go on after a backslash whole."""
    return [command.rstrip() for command in re.findall(r"(?:.*\\\n)*.+\n", text)]


def script(page: str) -> str:
    """A page's blocks as a shell script that shows each command before it runs it, and ends where one fails."""
    lines = ["set -eu"]
    for block in BLOCK.finditer(page):
        if block["file"]:
            lines += [f"cat > {block['file']} <<'END OF FILE'", block["text"].rstrip("\n"), "END OF FILE"]
            continue
        for command in commands(block["text"]):
            lines += [f"printf '$ %s\\n' {shlex.quote(command)}", command]
    return "\n".join(lines) + "\n"


def lines_of(commands: str, directory: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """What a script prints, as it comes.

    Raises:
        CalledProcessError: a command failed.
    """
    called = ["bash", "-c", commands]
    with subprocess.Popen(
        called, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as shell:
        assert shell.stdout is not None
        yield from shell.stdout
    if shell.returncode:
        raise subprocess.CalledProcessError(shell.returncode, called[:1])


def environment(python: Path, wheels: Path | None) -> dict[str, str]:
    """Variables for programs of a Python's environment; pip says nothing and takes this project's versions."""
    chosen = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_QUIET": "3"}
    if wheels is not None:
        chosen["PIP_FIND_LINKS"] = str(wheels)
    return {**os.environ, **chosen, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("guides", nargs="*", default=sorted(path.stem for path in GUIDES.glob("*.md")), metavar="GUIDE")
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="directory of wheels to install from")
    arguments = parser.parse_args()
    for name in arguments.guides:
        page = (GUIDES / f"{name}.md").read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run([sys.executable, "-m", "venv", f"{directory}/new"], check=True)
            (Path(directory) / "work").mkdir()
            given = environment(Path(directory) / "new" / "bin" / "python", arguments.wheels.resolve())
            told = []
            for line in lines_of(script(page), Path(directory) / "work", given):
                told.append(line.replace(directory, "DIR"))
                print(told[-1], end="", flush=True)
        (GUIDES / f"{name}.txt").write_text("".join(told), encoding="utf-8")


if __name__ == "__main__":
    main()
