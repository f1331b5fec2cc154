"""Tests of the documentation: its code runs, its commands parse, its links resolve, drawn pictures are current."""

import ast
import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from relattn import relative_attention
from relattn_mt import load
from relattn_mt.commands import main as cli
from relattn_mt.commands import parser

from research import __main__ as research
from tools import pictures, reference, size, tables

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
        *(ROOT / name / "README.md" for name in ("library", "toolkit")),
        *(path for path in DOCS.rglob("*.md") if path.parent.parent != DOCS / "results"),  # written by a command
    ]
}
WORDS = 21_590  # outside of tables, of all pages: lower it to the measured number when that has fallen
PACKAGES = ("relattn", "relattn_mt", "benchmarks", "tools")
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
# By test_family.py and a test below.
RUN_ELSEWHERE = ("docs/family.md", "docs/models.md")


def variables_of(page: str) -> dict[str, Any]:
    """Return the variables that the code of a page uses and does not define."""
    if page != "docs/mathematics.md":
        return {}
    query, key, value = torch.randn(3, 2, 3, 7, 5, dtype=torch.float64)
    names = {"torch": torch, "whole": relative_attention(query, key, value)}
    for half, part in (("a", slice(None, 4)), ("b", slice(4, None))):
        results = relative_attention(query, key[:, :, part], value[:, :, part], return_lse=True)
        names |= dict(zip((f"output_{half}", f"lse_{half}"), results, strict=True))
    return names


@pytest.mark.parametrize(
    "page", [page for page, text in TEXTS.items() if PYTHON.search(text) and page not in RUN_ELSEWHERE]
)
def test_code_runs(page):
    names = variables_of(page)
    for code in PYTHON.findall(TEXTS[page]):
        exec(compile(code, page, "exec"), names)
    if "faster" in names:  # the models of transformers that README's code has changed
        names["faster"].disable()
    if page == "docs/mathematics.md":
        torch.testing.assert_close(names["output"], names["whole"])
    if page in ("README.md", "library/README.md", "docs/index.md"):
        tables = (names["attention"].rel_key.weight, names["attention"].rel_value.weight)
        options = {"clip": 16, "is_causal": True, "lengths": torch.tensor([100, 60]), "backend": "reference"}
        want = relative_attention(names["query"], names["key"], names["value"], *tables, **options)
        torch.testing.assert_close(names["out"], want)


def test_code_for_transformers_runs():
    import transformers
    from relattn.integrations import transformers as faster

    config = transformers.T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    model = transformers.T5EncoderModel(config)
    try:
        exec(PYTHON.search(TEXTS["docs/models.md"])[1], {"model": model})
        assert str(faster.report(model)).endswith(": relattn")
    finally:
        faster.disable()


def test_drawn_pictures_are_current():
    drawn = pictures.argument_pictures()
    assert {path.name for path in drawn} == {path.name for path in (DOCS / "arguments").iterdir()}
    for path, content in drawn.items():
        assert path.read_text(encoding="utf-8") == content, f"{path.name}: run python -m tools.pictures"


def test_tables_show_the_current_results():
    lines = {
        path: [line for line in path.read_text(encoding="utf-8").splitlines() if "|" in line] for path in tables.pages()
    }
    assert len(lines) >= 1
    for path, shown in lines.items():
        again = tables.written(path.read_text(encoding="utf-8")).splitlines()
        assert shown == [line for line in again if "|" in line], f"{path.name}: run python -m tools.tables"


def test_reference_pages_are_current():
    for path, text in reference.written().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python -m tools.reference"


def test_pages_do_not_grow():
    """2 % is room for contributions."""
    words = sum(size.page_words().values())
    most = round(1.02 * WORDS)
    advice = "shorten pages, or raise WORDS in a change that says what readers need the words for (make size)"
    assert words <= most, f"pages must have at most {most:,} words outside of tables, got {words:,}: {advice}"


def test_links_resolve():
    broken = []
    texts = TEXTS | {f"{name}/DESIGN.md": (ROOT / name / "DESIGN.md").read_text() for name in ("library", "toolkit")}
    for path in ROOT.glob("notebooks/*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        prose = [line for cell in cells if cell["cell_type"] == "markdown" for line in cell["source"]]
        code = [line for cell in cells if cell["cell_type"] == "code" for line in cell["source"]]
        read = re.findall(r'"(\.\./[^"]+)"', "".join(code))  # files that the notebook reads
        texts[path.relative_to(ROOT).as_posix()] = "".join((*prose, *(f"[]({target})" for target in read)))
    for page, text in texts.items():
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            if not (ROOT / page).parent.joinpath(target).exists():
                broken.append((page, target))
    assert broken == []


FOLDERS = "benchmarks|deploy|docs|examples|kernels|library|notebooks|recipes|research|testing|tests|toolkit|tools"


def test_named_files_exist():
    """A name with a part in capitals stands for several files. Those of adding/ are made by the reader."""
    missing = []
    for page, text in TEXTS.items():
        names = re.findall(rf"`((?:{FOLDERS})/[\w./-]+\.\w+)`", text)
        names += [f"benchmarks/results/{name}" for name in re.findall(r"`([\w-]+\.csv)`", text) if name not in WRITTEN]
        made = page.startswith("docs/adding/") or page == "docs/guides/documents.md"
        missing += [(page, name) for name in names if not re.search("[A-Z]{3}", name)
                    and not made and not (ROOT / name).exists()]  # fmt: skip
    assert missing == []


WRITTEN = ("log.csv", "valid.csv")  # by a run


@pytest.mark.parametrize("page", ["docs/installing.md", "toolkit/README.md"])
def test_extras_are_described(page):
    project = tomllib.loads((ROOT / "toolkit/pyproject.toml").read_text())
    table = TEXTS[page].partition("| `bpe`")[2].partition("\n\n")[0]
    described = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert {"bpe", *described} == {*project["project"]["optional-dependencies"]}


def test_translation_in_readme_is_that_of_the_model():
    shown = re.findall(r'echo "(.+)" \| relattn-mt translate everyday-en-de +# (.+)', TEXTS["README.md"])
    assert len(shown) == 1
    assert load("everyday-en-de").translate([shown[0][0]]) == [shown[0][1]]


def test_documents_in_the_guide_are_those_of_the_model(tmp_path, monkeypatch):
    page = "docs/guides/documents.md"
    monkeypatch.chdir(tmp_path)
    for name, text in re.findall(r'```text title="([\w.]+)"\n(.*?)```', TEXTS[page], re.DOTALL):
        Path(name).write_text(text, encoding="utf-8")
    for words in (words for its_page, words in commands() if its_page == page and words[:1] == ["relattn-mt"]):
        assert cli.main(words[1:]) == 0
    shown = (ROOT / page).with_suffix(".txt").read_text(encoding="utf-8")
    for name in ("letter.de.md", "brief.md"):
        assert Path(name).read_text(encoding="utf-8") in shown, "RELATTN_GUIDES=full writes the page again"


def command_lines(text: str) -> Iterator[str]:
    """Yield the lines of the blocks of a page that are not Python. A line continues after a backslash."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    blocks += re.findall(r"^ {4}\S.*(?:\n {4}.*)*", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    for block in blocks:
        yield from (line.strip() for line in re.sub(r"\\\n\s*", " ", block).splitlines())


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the page and the arguments of each command, without launchers and variables before the program."""
    for page, text in TEXTS.items():
        variables: dict[str, str] = {}
        for line in command_lines(text):
            if assigned := re.fullmatch(r'([A-Z]+)="(.*)"', line):
                variables[f"${assigned[1]}"] = assigned[2]
                continue
            for name, value in variables.items():
                line = line.replace(name, value)
            for part in re.split(r"\s\|\s", line):
                command = re.match(r"(?:\$ |\S+=\S+ |srun .*?(?=relattn)|torchrun .*?(?=-m relattn_mt))*(.*)", part)[1]
                try:
                    words = shlex.split(command, comments=True)
                except ValueError:  # an apostrophe: text, not a command
                    continue
                yield page, words[1:] if words[:1] == ["-m"] else words


PROGRAMS = ("relattn-mt", "relattn_mt")
COMMANDS = sorted({(page, *words[1:]) for page, words in commands() if words and Path(words[0]).name in PROGRAMS})


@pytest.mark.parametrize("page", sorted({page for page, *_ in COMMANDS}))
def test_commands_parse(page, tmp_path, monkeypatch):
    """The arguments of each command are parsed. Its files do not exist, except for recipes."""
    read = parser.read_yaml
    monkeypatch.setattr(parser, "read_yaml", lambda path: read(path) if Path(path).exists() else {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    recipes = re.findall(r'```yaml title="(.*?)"\n(.*?)```', TEXTS["docs/training.md"] + TEXTS[page], re.DOTALL)
    for file, text in recipes:
        (tmp_path / file).write_text(text, encoding="utf-8")
    for _, name, *words in (command for command in COMMANDS if command[0] == page):
        end = next((index for index, word in enumerate(words) if word[0] in "<>&|"), len(words))
        parser.parse(*cli.command_of([name, *words[:end]]))


def test_commands_of_research_parse():
    parsed = [parser.parse(words[3], research.COMMANDS[words[3]], words[4:]) for _, words in commands()
              if words[:3] == ["python", "-m", "research"]]  # fmt: skip
    assert len(parsed) >= 5


def test_other_commands_exist_and_have_their_flags():
    assert {words[1] for words in COMMANDS} >= {"train", "translate", "serve", "prepare", "export", "import"}
    targets = set(re.findall(r"^([\w.-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    projects = {name: tomllib.loads((ROOT / name / "pyproject.toml").read_text()) for name in ("library", "toolkit")}
    extras = {name: {*project["project"]["optional-dependencies"]} for name, project in projects.items()}
    wrong = []
    for page, words in commands():
        match words:
            case ["make", *rest]:
                exists = all(word in targets or "=" in word for word in rest)
            case ["python", "-m", module, *_] if module.partition(".")[0] in PACKAGES:
                spec = importlib.util.find_spec(module)
                exists = spec is not None and has_flags(Path(spec.origin).parent.glob("*.py"), words)
            case ["python", path, *_] if path.startswith("examples/"):
                exists = (ROOT / path).exists() and has_flags([ROOT / path], words)
            case ["pip", "install", *rest]:
                wanted = re.findall(r"(\S*)\[([\w,]+)\]", " ".join(rest))
                exists = all(set(names.split(",")) <= extras[folder_of(package)] for package, names in wanted)
            case _:
                exists = True
        wrong += [] if exists else [(page, " ".join(words))]
    assert wrong == []


def folder_of(package: str) -> str:
    """Return the folder of a distribution that pip installs from the clone or by name."""
    return {"relattn": "library", "relattn-mt": "toolkit"}.get(package, package.removeprefix("./"))


def has_flags(files: Iterable[Path], words: list[str]) -> bool:
    """Return whether all flags among `words` are strings in the source of a program."""
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    return not flags or flags <= set().union(*map(constants_of, files))


@cache
def constants_of(path: Path) -> set[Any]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {node.value for node in nodes if isinstance(node, ast.Constant)}
