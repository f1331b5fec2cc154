"""What the documentation shows is so: its Python runs, its commands parse, its pictures are what is drawn now.

A block that no longer runs, a command or a flag that is gone, is named by its page.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonargparse import ArgumentParser

from benchmarks import arguments_picture
from relattn import relative_attention
from relattn.translation.commands import main as cli
from relattn.translation.commands.parser import parse as parse_command

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
        *(path for path in DOCS.rglob("*.md") if path.parent.parent != DOCS / "results"),  # `reproduce` writes those
    ]
}
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
ELSEWHERE = {  # pages whose Python other tests run, beside the classes of other packages that it is about
    "docs/family.md": "tests/test_family.py",
    "docs/models.md": "tests/integrations/test_elsewhere.py",
}


# Python


def two_halves() -> dict[str, Any]:
    """Attention over four keys and over the three after them, as docs/mathematics.md calls it."""
    query, key, value = torch.randn(3, 2, 3, 7, 5, dtype=torch.float64)
    of_a, of_b = (
        relative_attention(query, key[:, :, part], value[:, :, part], return_lse=True)
        for part in (slice(None, 4), slice(4, None))
    )
    names = {"output_a": of_a[0], "lse_a": of_a[1], "output_b": of_b[0], "lse_b": of_b[1]}
    return {"torch": torch, "whole": relative_attention(query, key, value), **names}


def whole_again(names: dict[str, Any]) -> None:
    torch.testing.assert_close(names["output"], names["whole"])


def by_the_equations(names: dict[str, Any]) -> None:
    """The call of the README, `RelativeAttention`'s, by the reference backend."""
    tables = (table.weight for table in (names["attention"].rel_key, names["attention"].rel_value))
    options = {"clip": 16, "is_causal": True, "lengths": torch.tensor([100, 60])}
    given = [names[name] for name in ("query", "key", "value")]
    wanted = relative_attention(*given, *tables, **options, backend="reference")
    torch.testing.assert_close(names["out"], wanted)


BEFORE: dict[str, Callable[[], dict[str, Any]]] = {"docs/mathematics.md": two_halves}
AFTER: dict[str, Callable[[dict[str, Any]], None]] = {
    "README.md": by_the_equations,
    "docs/index.md": by_the_equations,
    "docs/mathematics.md": whole_again,
}


@pytest.mark.parametrize("page", [page for page, text in TEXTS.items() if PYTHON.search(text)])
def test_the_python_of_a_page_runs(page):
    if page in ELSEWHERE:
        assert Path(page).name in (ROOT / ELSEWHERE[page]).read_text(encoding="utf-8")
        return
    names = BEFORE[page]() if page in BEFORE else {}
    for code in PYTHON.findall(TEXTS[page]):
        exec(compile(code, page, "exec"), names)
    if page in AFTER:
        AFTER[page](names)


def test_the_lines_for_models_of_transformers():
    import transformers

    from relattn.integrations import transformers as faster

    model = transformers.T5EncoderModel(
        transformers.T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    )
    try:
        exec(PYTHON.search(TEXTS["docs/models.md"])[1], {"model": model})
        assert str(faster.report(model)).endswith(": relattn")
    finally:
        faster.disable()


def test_the_pictures_of_the_arguments_are_what_the_operator_does():
    drawn = arguments_picture.pictures()
    assert {path.name for path in drawn} == {path.name for path in (DOCS / "arguments").iterdir()}
    for path, content in drawn.items():
        assert path.read_text(encoding="utf-8") == content, f"{path.name}: python -m benchmarks.arguments_picture"


# Commands


def lines_of(text: str) -> Iterator[str]:
    """The lines of a page's blocks that are no Python, whole where they go on after a backslash."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    rest = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    blocks += re.findall(r"^ {4}\S.*(?:\n {4}.*)*", rest, re.MULTILINE)
    for block in blocks:
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            yield line.strip()


def commands() -> Iterator[tuple[str, list[str]]]:
    """Page and words of each command, what is before a pipe or in front of the program taken away."""
    for page, text in TEXTS.items():
        settings: dict[str, str] = {}
        for line in lines_of(text):
            if assigned := re.fullmatch(r'([A-Z]+)="(.*)"', line):
                settings[f"${assigned[1]}"] = assigned[2]
                continue
            for name, value in settings.items():
                line = line.replace(name, value)
            for part in re.split(r"\s\|\s", line):
                found = re.match(r"(?:\$ |\S+=\S+ |srun .*?(?=relattn)|torchrun .*?(?=-m relattn))*(.*)", part)
                try:
                    words = shlex.split(found[1], comments=True)
                except ValueError:  # no command: an apostrophe
                    continue
                yield page, words[1:] if words[:1] == ["-m"] else words


class Parsed(Exception):
    pass


OURS = sorted({(page, *words[1:]) for page, words in commands() if words and Path(words[0]).name == "relattn"})


def test_there_are_commands_to_try():
    assert len(OURS) > 30
    assert {words[1] for words in OURS} >= {"train", "translate", "serve", "prepare", "export", "import", "analyze"}


@pytest.mark.parametrize("command", OURS, ids=" ".join)
def test_a_command_is_one_that_the_command_line_takes(command, tmp_path, monkeypatch):
    """Up to where its arguments are read; files that it would read are not there but for the recipes."""
    parse = ArgumentParser.parse_args

    def parsed(self: ArgumentParser, *arguments: Any) -> None:
        parse(self, *arguments)
        raise Parsed

    monkeypatch.setattr(ArgumentParser, "parse_args", parsed)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    page, name, *words = command
    (recipe,) = re.findall(r"```yaml\n(.*?)```", TEXTS["README.md"], re.DOTALL)
    of_page = re.findall(r'```yaml title="(.*?)"\n(.*?)```', TEXTS[page], re.DOTALL)
    for file, text in [("my.yaml", recipe), *of_page]:
        (tmp_path / file).write_text(text, encoding="utf-8")
    cut = next((at for at, word in enumerate(words) if word[0] in "<>&|"), len(words))
    with pytest.raises(Parsed):
        parse_command(*cli.command_of([name, *words[:cut]]))


def test_other_commands_name_what_there_is():
    targets = set(re.findall(r"^([\w.-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wrong = []
    for page, words in commands():
        match words:
            case ["make", *rest]:
                fine = all(word in targets or "=" in word for word in rest)
            case ["python", "-m", module, *_] if module.partition(".")[0] in ("relattn", "benchmarks"):
                spec = importlib.util.find_spec(module)
                fine = spec is not None and has_flags(spec, words)
            case ["python", path, *_] if path.startswith("examples/"):
                fine = (ROOT / path).exists() and set(flags(words)) <= set(strings(ROOT / path))
            case ["pip", "install", *rest]:
                named = re.findall(r"\[([\w,]+)\]", " ".join(rest))
                fine = all(set(extras.split(",")) <= set(project["optional-dependencies"]) for extras in named)
            case _:
                fine = True
        wrong += [] if fine else [(page, " ".join(words))]
    assert wrong == []


def flags(words: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if word.startswith("--")]


def strings(path: Path) -> Iterator[str]:
    """The text constants of a program."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def has_flags(spec: Any, words: list[str]) -> bool:
    """Whether a module, or one of its package that reads its arguments for it, has the flags."""
    directory = Path(os.path.dirname(spec.origin))
    known = {text for path in directory.glob("*.py") for text in strings(path)}
    return set(flags(words)) <= known


def test_every_link_leads_somewhere():
    broken = []
    for page, text in TEXTS.items():
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            if not (ROOT / page).parent.joinpath(target).exists():
                broken.append((page, target))
    assert broken == []
