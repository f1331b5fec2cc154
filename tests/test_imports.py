"""Layers: the library imports PyTorch alone, backends do not import each other, and no modules import in a circle."""

import ast
import graphlib
import itertools
import subprocess
import sys
from pathlib import Path

import relattn
from relattn import backends

LIBRARY = Path(relattn.__file__).parent
HEAVY = ("babel", "datasets", "jsonargparse", "lightning", "matplotlib", "num2words", "sacrebleu", "safetensors")
HEAVY += ("sentencepiece", "tqdm", "transformers", "triton", "yaml", "relattn.translation", "relattn.integrations")
# What files of a folder are for, and import.
OTHERS = {"backends/triton": "triton", "integrations/transformers": "transformers"}


def imported_by(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


class Imports(ast.NodeVisitor):
    """Modules of the package that a file imports, in functions too, but not for type checking."""

    def __init__(self, modules: set[str]) -> None:
        self.modules, self.imported = modules, set()

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node = ast.If(test=node.test, body=[], orelse=node.orelse)
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.imported |= {alias.name for alias in node.names} & self.modules

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            self.imported |= {name if name in self.modules else node.module} & self.modules


def module_of(path: Path) -> str:
    return ".".join(["relattn", *path.relative_to(LIBRARY).with_suffix("").parts]).removesuffix(".__init__")


def test_no_modules_import_in_a_circle():
    paths = {module_of(path): path for path in LIBRARY.rglob("*.py")}
    graph = {}
    for module, path in paths.items():
        imports = Imports(set(paths))
        imports.visit(ast.parse(path.read_text(encoding="utf-8")))
        graph[module] = imports.imported
    assert len(graph) > 100
    assert sum(map(len, graph.values())) > 300
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the modules


def library_files() -> list[Path]:
    """Files of the library, without the toolkit and without the command line, which reports a missing toolkit."""
    paths = [path for path in LIBRARY.rglob("*.py") if "translation" not in path.relative_to(LIBRARY).parts]
    return [path for path in paths if path != LIBRARY / "__main__.py"]


def test_import_loads_nothing_heavy():
    """PyTorch may bring some of these itself; what counts is what `import relattn` adds to it."""
    script = (
        "import sys, torch; before = set(sys.modules); import relattn; "
        f"print([name for name in {HEAVY!r} if name in set(sys.modules) - before])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_library_imports_torch_and_itself_alone():
    assert len(library_files()) >= 9
    for path in library_files():
        roots = {name.split(".")[0] for name in imported_by(path)}
        own = {package for folder, package in OTHERS.items() if (LIBRARY / folder) in path.parents}
        assert roots <= {"torch", "relattn", *own, *sys.stdlib_module_names}, path
        assert not any(name.startswith("relattn.translation") for name in imported_by(path)), path
        inside = LIBRARY / "integrations" in path.parents
        assert inside or not any(name.startswith("relattn.integrations") for name in imported_by(path)), path


def test_a_backend_imports_no_other():
    for name in backends.NAMES:
        folder = LIBRARY / "backends" / name
        paths = list(folder.glob("*.py")) or [folder.with_suffix(".py")]
        for path, other in itertools.product(paths, set(backends.NAMES) - {name}):
            if (path.name, other) == ("selftest.py", "reference"):  # compares the kernels with it
                continue
            assert not any(module.startswith(f"relattn.backends.{other}") for module in imported_by(path)), path
            assert "relattn.functional" not in imported_by(path)


def test_a_search_imports_no_text_and_no_files():
    """Searches work on tokens: of the toolkit they import errors and each other."""
    paths = sorted((LIBRARY / "translation" / "search").glob("*.py"))
    assert len(paths) >= 5
    for path in paths:
        for name in imported_by(path):
            root, *rest = name.split(".")
            inside = ".".join(["", *rest]).startswith((".translation.search.", ".translation.errors"))
            assert root in {"torch", "numpy", *sys.stdlib_module_names} or inside, f"{path}: {name}"


def test_public_names():
    assert sorted(relattn.__all__) == [
        "AttentionCache",
        "RelativeAttention",
        "RelativePositionTable",
        "RelativeSelfAttention",
        "relation_attention",
        "relative_attention",
    ]
    assert all(hasattr(relattn, name) for name in relattn.__all__)
    assert (LIBRARY / "py.typed").exists()
