"""README.md, docs/index.md and the guides of docs/guides, run from top to bottom with the wheels.

Commands run in one shell, in an empty directory and a new environment; in the guides, blocks with a title are files.
Trainings are cut short. `RELATTN_GUIDES=full` runs the guides at full length, in an environment that pip fills from the
package index (gigabytes), and writes what they print beside the guides.
"""

import gzip
import os
import re
import shlex
import socket
import subprocess
import venv
from pathlib import Path

import docx
import pytest

from research.corpus import builtin
from tests.support.environments import ROOT, build_wheels, new_environment
from tests.support.transformers_models import marian

GUIDES = ROOT / "docs" / "guides"
BLOCK = re.compile(r'^```(?:sh|\w+ title="(?P<file>[\w.]+)")\n(?P<text>.*?)^```$', re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?:.*\\\n)*.+\n")  # continues after a backslash
PUBLISHED = "Helsinki-NLP/opus-mt-en-de"  # downloaded at full length; else a small model with random weights
SHORTER = {
    r"(STEPS.*?) = \d+": r"\1 = 3", r"steps: \d+": "steps: 4", r"steps \d+": "steps 4", r"_every: \d+": "_every: 2",
    r"corpus phrases": "corpus phrases --train 300 --valid 20 --test 20", r"\(20, 60, 300\)": "(4, 8)",
    r"hour\.py \d+": "hour.py 4", r"16_000, 24": "16_000, 1",
}  # fmt: skip


def with_wheels(command: str) -> str:
    """Return a command that installs the wheels of the packages, and not the folders of a checkout."""
    return command.replace("./library", "relattn").replace("./toolkit", "relattn-mt")


def copy_examples(work: Path, *, is_full: bool) -> None:
    """Write the examples that the guides run, made short unless they are run at full length."""
    (work / "examples").mkdir(parents=True)
    for example in ("graph_edges.py", "long_audio.py"):
        text = (ROOT / "examples" / example).read_text(encoding="utf-8")
        (work / "examples" / example).write_text(text if is_full else shorten(text), encoding="utf-8")


def shorten(text: str) -> str:
    for long, short in SHORTER.items():
        text = re.sub(long, short, text)
    return text


def script_of(page: str) -> str:
    """Return a shell script that shows each command of a page before it runs it, and ends at one that fails."""
    lines = ["set -eu"]
    for block in BLOCK.finditer(page):
        if block["file"]:
            lines += [f"cat > {block['file']} <<'END OF FILE'", block["text"].rstrip("\n"), "END OF FILE"]
            continue
        for command in map(str.rstrip, COMMAND.findall(block["text"])):
            lines += [f"printf '$ %s\\n' {shlex.quote(command)}", with_wheels(command)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("guide", sorted(GUIDES.glob("*.md")), ids=lambda path: path.stem)
def test_guides_run(guide, tmp_path, tmp_path_factory):
    page, is_full = guide.read_text(encoding="utf-8"), os.environ.get("RELATTN_GUIDES") == "full"
    assert len(BLOCK.findall(page)) == len(re.findall(r"^```\w", page, re.MULTILINE))
    environment, shown = tmp_path / "new", guide.with_suffix(".txt")
    if is_full:
        venv.create(environment, with_pip=True)
    else:
        new_environment(environment)
        page = shorten(page).replace("5000", free_port())
        if PUBLISHED in page:  # nothing is shown of a model that is downloaded only at full length
            marian(tmp_path / "marian")
            page = page.replace(PUBLISHED, str(tmp_path / "marian"))
        else:
            kept = re.findall(r"^\$ ((?:.*\\\n)*.+\n)", shown.read_text(encoding="utf-8"), re.MULTILINE)
            assert script_of(page).count("printf '$ ") == len(kept), f"{shown.name} must show the commands of the guide"
    copy_examples(tmp_path / "work", is_full=is_full)
    printed = run_script(script_of(page), environment, tmp_path / "work", build_wheels(tmp_path_factory), index=is_full)
    if is_full:
        shown.write_text(printed.replace(str(tmp_path), "DIR"), encoding="utf-8")


SERVER = """\
server=
stop() { if [ -n "$server" ]; then kill $server; wait $server || true; server=; fi }
trap stop EXIT
relattn-mt() {
    if [ "$1" != serve ]; then command relattn-mt "$@"; return; fi
    stop
    command relattn-mt "$@" --port 5000 & server=$!
    until curl --silent --fail --output /dev/null http://127.0.0.1:5000/health; do kill -0 $server; sleep 0.2; done
    curl --silent --show-error --fail --output page.html http://127.0.0.1:5000/
}
"""


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_first_pages_run(name, tmp_path, tmp_path_factory):
    """A server runs until the next one starts. Its text and recipe are those of docs/training.md, made short."""
    work = tmp_path / "work"
    work.mkdir()
    for split in ("train", "valid", "test"):
        for language, lines in zip(("en", "de"), zip(*builtin("test", lines=200), strict=True), strict=True):
            file = work / (f"{split}.{language}" + (".gz" if split == "train" else ""))
            with (gzip.open if split == "train" else open)(file, "wt", encoding="utf-8") as opened:
                opened.write("".join(f"{line}\n" for line in lines))
    recipe = re.search(r'```yaml title="my.yaml"\n(.*?)```', (ROOT / "docs/training.md").read_text("utf-8"), re.DOTALL)[
        1
    ]
    recipe = recipe.replace("steps: 4000", "steps: 4").replace("vocab_size: 6000", "vocab_size: 400")
    (work / "my.yaml").write_text(recipe, encoding="utf-8")
    letter = docx.Document()
    letter.add_paragraph("Where is the nearest station?")
    letter.save(str(work / "letter.docx"))
    marian(tmp_path / "marian")
    page = (ROOT / name).read_text(encoding="utf-8").replace(PUBLISHED, str(tmp_path / "marian"))
    lines = ["set -eu", SERVER]
    for code, command in re.findall(r"^```python\n(.*?)^```|^ {4}(\S.*?)$", page, re.DOTALL | re.MULTILINE):
        if code:
            lines += ["python - <<'END OF CODE'", code + "END OF CODE"]
        elif not re.search("^git |^make |notebook|benchmarks", command):  # a clone's, or run by test_notebooks.py
            command = re.sub(r" --index-url \S+", "", command)
            lines.append(with_wheels(command))
    script = "\n".join(lines).replace("5000", free_port()) + "\n"
    environment = tmp_path / "new"
    new_environment(environment)
    printed = run_script(script, environment, work, build_wheels(tmp_path_factory), index=False)
    assert "Wo ist der nächste Bahnhof?" in printed
    assert (work / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def run_script(script: str, environment: Path, work: Path, wheels: Path, *, index: bool) -> str:
    """Run a script with the programs of an environment, with or without the package index. Return what it prints."""
    work.mkdir(exist_ok=True)
    for name in ("research", "recipes"):  # as in a checkout
        (work / name).symlink_to(ROOT / name)
    variables = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_QUIET": "3", "PIP_FIND_LINKS": str(wheels)}
    variables |= {} if index else {"PIP_NO_INDEX": "1"}
    variables["PATH"] = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with (work.parent / "printed").open("w+", encoding="utf-8") as file:
        done = subprocess.run(
            ["bash", "-c", script], cwd=work, env=inherited | variables, stdout=file, stderr=subprocess.STDOUT
        )
        file.seek(0)
        printed = file.read()
    assert done.returncode == 0, printed
    assert "Traceback" not in printed
    where = "import importlib.util as u; print(*(s.origin for s in map(u.find_spec, ('relattn', 'relattn_mt')) if s))"
    python = [environment / "bin" / "python", "-c", where]
    imported = subprocess.run(python, cwd=work, env=inherited, capture_output=True, text=True, check=True).stdout
    assert imported
    assert all(Path(path).is_relative_to(environment) for path in imported.split())
    return printed
