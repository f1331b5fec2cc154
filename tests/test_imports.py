"""Walls: what each distribution and folder may import, and that nothing imports in a circle."""

import ast
import functools
import graphlib
import itertools
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
import relattn
import relattn_mt
from relattn import backends

ROOT = Path(__file__).parents[1]
FOLDERS = {"relattn": Path(relattn.__file__).parent, "relattn_mt": Path(relattn_mt.__file__).parent}
PATHS = {
    ".".join([package, *path.relative_to(folder).with_suffix("").parts]).removesuffix(".__init__"): path
    for package, folder in FOLDERS.items()
    for path in folder.rglob("*.py")
}
HEAVY = ("babel", "matplotlib", "num2words", "sacrebleu", "safetensors")
HEAVY += ("sentencepiece", "tqdm", "transformers", "triton", "yaml", "relattn_mt", "relattn.integrations")
# Packages that the files of a directory import, and no other file.
OPTIONAL = {"relattn.backends.triton": "triton", "relattn.integrations.transformers": "transformers"}


# Of the toolkit: files and folders that translate, and those that train. Import and export run without PyTorch too.
TRAINING = ("corpus", "data", "model", "synthesis", "training")
RUNTIME = ("bundle", "commands", "documents", "engine", "formats", "hub", "loading", "search", "serve")
RUNTIME += ("support", "text", "tokens", "translate", "weights")
WITH_TORCH = (
    "bundle",
    "commands",
    "formats.marian_export",
    "formats.foreign_model",
    "loading",
)  # where it is used, in functions


@functools.cache
def imports_of(path: Path, *, when_loaded: bool = False) -> frozenset[str]:
    """Return the modules that a file imports: all, or those without which the file cannot be imported."""
    names, nodes = set(), [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        is_lazy = isinstance(node, ast.FunctionDef) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node))
        if when_loaded and is_lazy:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports must be absolute"
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            names |= {name if name in PATHS else node.module for name in submodules}
        else:
            nodes += ast.iter_child_nodes(node)
    return frozenset(names)


def graph_of_modules() -> dict[str, set[str]]:
    return {module: imports_of(path) & PATHS.keys() for module, path in PATHS.items()}


def test_no_modules_import_in_a_circle():
    graph = graph_of_modules()
    assert sum(map(len, graph.values())) > 300
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the modules


def test_no_folders_import_in_a_circle():
    """Of the folders and files in one folder. `__init__` shows what is public, and `__main__` may use it."""
    graphs: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module, imported in graph_of_modules().items():
        for other in imported:
            ours, theirs = ([*name.split(".")[:1], *file_in(PATHS[name], name)] for name in (module, other))
            common = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
            if not {"__init__", "__main__"} & {ours[-1], theirs[common]}:
                graphs["/".join(ours[:common])][ours[common]].add(theirs[common])
    assert len(graphs) > 10
    for graph in graphs.values():
        graphlib.TopologicalSorter(graph).prepare()


def file_in(path: Path, module: str) -> tuple[str, ...]:
    """Return the path of a file in its package, as names."""
    return path.relative_to(FOLDERS[module.partition(".")[0]]).with_suffix("").parts


def test_what_is_shipped_imports_no_code_of_the_repository():
    others = {"benchmarks", "conftest", "kernels", "research", "tests", "tools", "wheels"}
    assert all((ROOT / name).exists() or (ROOT / f"{name}.py").exists() for name in others)
    for path in PATHS.values():
        assert not others & {name.partition(".")[0] for name in imports_of(path)}, path


@pytest.mark.parametrize("folder", ["benchmarks", "research", "tests", "tools"])
def test_modules_of_the_repository_that_are_imported_exist(folder):
    """Most benchmarks are run by hand alone."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for name in imports_of(path):
            package, *parts = name.split(".")
            if package in ("benchmarks", "research", "tests", "tools"):
                place = ROOT.joinpath(package, *parts)
                assert place.is_dir() or place.with_suffix(".py").exists(), f"{path}: {name}"


def test_the_toolkit_uses_what_is_public_in_the_library():
    public = {"relattn", "relattn.backends.autograd", "relattn.positions"}
    for module, path in PATHS.items():
        if module.startswith("relattn_mt"):
            others = {name for name in imports_of(path) & PATHS.keys() if not name.startswith("relattn_mt")}
            assert others <= public, path


def test_the_library_imports_torch_and_itself_alone():
    for module, path in PATHS.items():
        if module.startswith("relattn_mt"):
            continue
        names = imports_of(path)
        optional = {package for directory, package in OPTIONAL.items() if module.startswith(directory)}
        assert {name.split(".")[0] for name in names} <= {"torch", "relattn", *optional, *sys.stdlib_module_names}, path
        is_integration = module.startswith("relattn.integrations")
        assert is_integration or not any(name.startswith("relattn.integrations") for name in names), path


def is_in(module: str, names: Iterable[str]) -> bool:
    """Return whether a module of the toolkit is one of these files, or in one of these folders."""
    return any(f"{module}.".startswith(f"relattn_mt.{name}.") for name in names)


def test_what_translates_imports_neither_torch_nor_what_trains():
    for module in (name for name in PATHS if is_in(name, RUNTIME)):
        reached, waiting = set(), [module]
        while waiting:
            imported = imports_of(PATHS[waiting.pop()], when_loaded=True) - reached
            reached |= imported
            waiting += imported & PATHS.keys()
        assert not {name for name in reached if name.partition(".")[0] in ("torch", "relattn")}, module
        assert not {name for name in reached if is_in(name, TRAINING)}, module
        of_torch = {name for name in imports_of(PATHS[module]) if name == "torch" or is_in(name, TRAINING)}
        assert is_in(module, WITH_TORCH) or not of_torch, module


def test_support_imports_nothing_else_of_ours():
    for module in (name for name in PATHS if is_in(name, ["support"])):
        assert {name for name in imports_of(PATHS[module]) & PATHS.keys() if not is_in(name, ["support"])} == set(), (
            module
        )


@pytest.mark.parametrize("package", FOLDERS)
def test_a_name_is_one_class_of_a_distribution(package):
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in FOLDERS[package].rglob("*.py"))
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert {name for name, count in names.items() if count > 1 and not name.startswith("_")} == set()


def test_a_backend_imports_no_other():
    for name, other in itertools.permutations(backends.NAMES, 2):
        for module in (module for module in PATHS if f"{module}.".startswith(f"relattn.backends.{name}.")):
            names = imports_of(PATHS[module])
            assert not any(imported.startswith(f"relattn.backends.{other}") for imported in names), module
            assert "relattn.functional" not in names, module


def test_import_loads_nothing_heavy():
    """PyTorch may load some of these itself, so only what `import relattn` adds counts."""
    script = f"""
import sys, torch
before = set(sys.modules)
import relattn
print([name for name in {HEAVY!r} if name in set(sys.modules) - before])
sys.modules['transformers'] = None  # not installed
from relattn.integrations import transformers
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
