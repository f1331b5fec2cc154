"""Tests of kernels/build.py, which compiles the kernels, and of the declared dependencies.

tests/system/test_wheels.py builds and installs the wheels.
"""

import ast
import re
import shlex
import shutil
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from kernels import build

ROOT = Path(__file__).parents[1]
HOST = build.host_target()
LEVELS = build.levels(HOST)
PYTHON_NODES = 247_450  # of the syntax trees of what is shipped: lower it to the measured number when that has fallen
OTHER_LINES = 6_883  # limit on shipped C, JavaScript and TypeScript: 1,300 are translation in WebAssembly and its page
FAILS = "#ifdef REAL64\n#error as in a compiler that lacks something\n#endif"


def compile_kernels(directory: Path, source: str) -> tuple[dict[str, Any], list[str]]:
    """Build another source in place of the kernels of both distributions. Return the build data and the warnings."""
    sources = directory / "kernels"
    data: dict[str, Any] = {"artifacts": []}
    warnings: list[str] = []
    app = SimpleNamespace(display_warning=warnings.append)
    for library in (build.ATTENTION, build.ENGINE):
        (sources / library.kernels).parent.mkdir(parents=True)
        for name in ("open.c", f"{library.name}.h"):
            (sources / library.kernels).with_name(name).touch()
        (sources / library.kernels).write_text(f"{source}\n", encoding="utf-8")
    (sources / "levels.c").touch()
    shutil.copy(build.SOURCES / "levels.h", sources)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "SOURCES", sources)
        patch.setattr(build, "build_web", lambda folder: [])
        for library in (build.ATTENTION, build.ENGINE):
            root = directory / library.name
            (root / library.folder).mkdir(parents=True)
            (root / library.folder / f"{library.name}.so").touch()  # of an earlier build
            hook: Any = SimpleNamespace(root=str(root), app=app)
            build.CompileKernels.initialize(hook, "standard", data)
    return data, warnings


ARTIFACTS = {
    f"/{library.folder}/{library.name}.{suffix}"
    for library in (build.ATTENTION, build.ENGINE)
    for suffix in ("so", "json", "h")
}
PARTS = len(build.part_commands(build.ATTENTION, HOST)) + len(build.part_commands(build.ENGINE, HOST))


def test_cc_may_contain_flags_and_a_wrapper(tmp_path, monkeypatch):
    wrapper = tmp_path / "with a space"
    wrapper.write_text('#!/bin/sh\nexec "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    monkeypatch.setenv("CC", f"'{wrapper}' cc -DGIVEN")
    source = "#ifndef GIVEN\n#error\n#endif"
    data, warnings = compile_kernels(tmp_path, source)
    assert warnings == []
    assert set(data["artifacts"]) == ARTIFACTS
    assert data["tag"].startswith("py3-none-" + {"linux": "linux", "darwin": "macosx"}[sys.platform])


def test_parts_that_do_not_compile_are_left_out(tmp_path, capfd):
    data, warnings = compile_kernels(tmp_path, FAILS)
    assert set(data["artifacts"]) == ARTIFACTS
    assert {path.name for path in tmp_path.rglob("*.so")} == {"relattn.so", "relattn_mt.so"}
    assert len(warnings) == sum("float64" in dtypes for dtypes, _ in LEVELS.values())
    assert all("float64" in warning for warning in warnings)
    assert not [*tmp_path.rglob("*.o")]


def test_a_library_without_any_part_is_left_out(tmp_path, capfd):
    data, warnings = compile_kernels(tmp_path, "#error")
    assert data == {"artifacts": []}
    assert len(warnings) == PARTS
    assert not [*tmp_path.rglob("*.so")]


def test_a_library_that_cannot_be_linked_is_left_out(tmp_path, monkeypatch, capfd):
    """Its objects do not remain, since a wheel would contain them."""
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\ncase " $* " in *" -shared "*) exit 1 ;; esac\nexec cc "$@"\n', encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", f"'{compiler}'")
    data, warnings = compile_kernels(tmp_path, "")
    assert data == {"artifacts": []}
    assert len(warnings) == PARTS
    assert not [*tmp_path.rglob("*.so"), *tmp_path.rglob("*.o")]


def test_a_target_needs_all_of_its_kernels(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("RELATTN_TARGET", "a target")
    monkeypatch.setattr(build, "parse_target", lambda target: build.host_target())
    with pytest.raises(SystemExit, match=r"float64 could not be compiled for a target"):
        compile_kernels(tmp_path, FAILS)


@pytest.mark.parametrize(("name", "value"), [("CC", "no-such-compiler -O2"), ("RELATTN_TARGET", "none")])
def test_without_a_compiler_there_are_no_kernels(name, value, tmp_path, monkeypatch):
    monkeypatch.setenv(name, value)
    data, warnings = compile_kernels(tmp_path, "#error")
    assert data == {"artifacts": []}
    assert len(warnings) == 2 * (name == "CC")


INTEL = {"amx", "avx512_bf16", "avx512", "avx2", "plain"}
TARGETS = [
    ("x86_64-linux-gnu.2.28", "manylinux_2_28_x86_64", INTEL),
    ("aarch64-linux-gnu.2.34", "manylinux_2_34_aarch64", {"sve256", "neon"}),
    ("aarch64-macos.11.0", "macosx_11_0_arm64", {"neon"}),
]


@pytest.mark.parametrize(("target", "tag", "levels"), TARGETS)
def test_targets_have_tags_and_levels(target, tag, levels, monkeypatch):
    monkeypatch.setattr(build, "find_spec", lambda name: name == "ziglang")
    parsed = build.parse_target(target)
    commands = build.part_commands(build.ATTENTION, parsed)
    assert (parsed.tag, {level for level, _ in commands}) == (tag, levels)
    processors = {flag for command in commands.values() for flag in command if flag.startswith("-march")}
    assert processors == ({"-march=x86_64", "-march=x86_64_v3", "-march=x86_64_v4"} if "avx2" in levels else set())


def test_a_machine_without_levels_has_the_plain_one():
    other = build.Target("linux_riscv64", "riscv64", ["cc"])
    assert [*build.part_commands(build.ENGINE, other)] == [("plain", "float32")]


@pytest.mark.parametrize("processors", [1, 3])
def test_no_more_compilers_run_than_processors(processors, tmp_path, monkeypatch):
    """Each compiler writes the number of those that run at the same time."""
    count = tmp_path / "cc"
    count.write_text(
        f"#!/bin/sh\nmkdir -p '{tmp_path}/running' && touch '{tmp_path}/running/'$$\nsleep 0.05\n"
        f"ls '{tmp_path}/running' | wc -l >> '{tmp_path}/counts'\nrm '{tmp_path}/running/'$$\nexec cc \"$@\"\n",
        encoding="utf-8",
    )
    count.chmod(0o755)
    monkeypatch.setenv("CC", shlex.quote(str(count)))
    monkeypatch.setattr(build.os, "sched_getaffinity", lambda _: set(range(processors)), raising=False)
    compile_kernels(tmp_path, "")
    counts = [int(line) for line in (tmp_path / "counts").read_text(encoding="utf-8").split()]
    assert len(counts) == PARTS + 2  # and a link of each library
    assert max(counts) == processors


def test_both_packages_have_the_same_loader():
    """Neither may import the other."""
    paths = [ROOT / "library/src/relattn/backends/native/loader.py", ROOT / "toolkit/src/relattn_mt/engine/loader.py"]
    one, other = (path.read_text(encoding="utf-8") for path in paths)
    assert one == other


def test_imports_of_the_toolkit_are_declared():
    project = tomllib.loads((ROOT / "toolkit/pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs = {*project["dependencies"], *(need for extra in project["optional-dependencies"].values() for need in extra)}
    declared = {re.match(r"[\w-]+", need)[0].lower().replace("_", "-") for need in needs}
    files = (path.read_text(encoding="utf-8") for path in (ROOT / "toolkit/src/relattn_mt").rglob("*.py"))
    imported = {name for text in files for name in re.findall(r"^\s*(?:from|import) (\w+)", text, re.MULTILINE)}
    modules = metadata.packages_distributions()
    third_party = {modules[name][0].lower().replace("_", "-") for name in imported - {"relattn_mt"} if name in modules}
    assert third_party <= declared


@pytest.mark.parametrize("distribution", ["library", "toolkit"])
def test_description_on_an_index_has_absolute_links_only(distribution):
    readme = (ROOT / distribution / "README.md").read_text(encoding="utf-8")
    assert ProjectMetadata(str(ROOT / distribution), PluginManager()).core.readme == readme
    links = re.findall(r"\]\(([^)]*)\)", readme)
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_extra_all_has_every_extra_for_users():
    extras = ProjectMetadata(str(ROOT / "toolkit"), PluginManager()).core.optional_dependencies
    assert {*extras["all"]} == {need for needs in extras.values() for need in needs}


def lines(*kinds: str) -> int:
    """Return the number of lines of the source files of these kinds, without the copies of headers of a build."""
    folders = [ROOT / "kernels", ROOT / "library/src", ROOT / "toolkit/src"]
    found = [path for folder in folders for path in folder.rglob("*") if path.suffix[1:] in kinds]
    shipped = [
        path
        for path in found
        if path.name != "build.py"
        and path.parent.name != "tests"
        and not ("src" in path.relative_to(ROOT).parts and path.suffix == ".h")
    ]
    return sum(path.read_text(encoding="utf-8").count("\n") for path in shipped)


def test_shipped_python_does_not_grow():
    """Nodes are counted instead of lines, so that dense code is no smaller. 2 % is room for contributions."""
    paths = [path for folder in ("library/src", "toolkit/src") for path in (ROOT / folder).rglob("*.py")]
    nodes = sum(1 for path in paths for _ in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    most = round(1.02 * PYTHON_NODES)
    advice = "remove code that nobody would miss, or raise PYTHON_NODES in a change that says what the code is for"
    assert nodes <= most, f"shipped Python must have at most {most:,} nodes of the syntax tree, got {nodes:,}: {advice}"


def test_shipped_c_and_javascript_do_not_grow():
    """An addition names what it removes."""
    assert lines("c", "h", "js", "mjs", "ts") <= OTHER_LINES
