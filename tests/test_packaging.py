"""What is built and installed: a library that needs torch alone, and a toolkit whose needs are declared."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hatch_build
import relattn

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(directory), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = directory.glob("*.whl")
    return path


def requirements_of(name: str) -> set[str]:
    """Distributions that are installed because `name` needs them, extras aside; `name` too."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        current = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if current in found:
            continue
        try:
            requires = metadata.requires(current) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform
        found.add(current)
        waiting += [re.match(r"[\w.-]+", line)[0] for line in requires if "extra ==" not in line]  # type: ignore[index]
    return found


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that holds the wheel and what torch needs, and nothing else."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=False, symlinks=True)
    scheme = {"base": str(directory), "platbase": str(directory)}
    packages = Path(sysconfig.get_path("purelib", "venv", vars=scheme))
    for name in requirements_of("torch"):
        for file in metadata.files(name) or []:
            top = file.parts[0]
            if top != ".." and not (packages / top).is_symlink():
                (packages / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*command, str(packages), str(wheel)], check=True)
    return directory / "bin" / "python"


def run(python: Path, script: str) -> str:
    """What a script prints, in isolated mode: no user packages, no variables, no current directory."""
    done = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_library_works_with_torch_alone(clean):
    script = """
import sys, torch, relattn
print(relattn.__file__)
x = torch.arange(24.0).view(1, 2, 4, 3) / 10
table = torch.zeros(5, 3)
plain = torch.nn.functional.scaled_dot_product_attention(x, x, x)
print(torch.allclose(relattn.relative_attention(x, x, x, table, table, clip=2), plain, atol=1e-6))
layer = relattn.RelativeSelfAttention(6, 2, 2)
layer(torch.randn(1, 4, 6)).sum().backward()
from relattn.backends import native
print(*native.installed().split()[:2])
import relattn.translation
"""
    where, same, *installed = run(clean, script).split()
    assert Path(where).is_relative_to(clean.parents[1])
    assert same == "True"
    assert installed == ["compiled", "for"]


def test_what_the_toolkit_needs_is_not_there(clean):
    """So that the test above shows something."""
    script = (
        "import importlib.util as u; print([n for n in ('lightning', 'sacrebleu', 'jsonargparse') if u.find_spec(n)])"
    )
    assert run(clean, script) == "[]\n"


@pytest.fixture(scope="module")
def described(wheel: Path) -> metadata.PackageMetadata:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())  # type: ignore[return-value]


def test_needs_are_declared(described):
    needs = described.get_all("Requires-Dist")
    assert [need for need in needs if "extra ==" not in need] == ["torch>=2.11"]
    assert described["Name"] == "relattn"
    assert described["Version"] == relattn.__version__
    assert described["Requires-Python"] == ">=3.11"
    assert described["License-Expression"] == "MIT"
    assert set(described.get_all("Provides-Extra")) >= {"translation", "dev"}
    toolkit = {re.match(r"[\w-]+", need)[0] for need in needs if "'translation'" in need}
    imported = set()
    for path in (ROOT / "src" / "relattn" / "translation").rglob("*.py"):
        imported |= set(re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    modules = metadata.packages_distributions()
    third_party = {modules[name][0].lower() for name in imported - {"relattn"} if name in modules}
    assert third_party - {"torch"} <= {need.lower() for need in toolkit}


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    source = ROOT / "src"
    files = {path for kind in ("*.py", "*.c", "*.h", "*.so") for path in source.rglob(kind)}
    expected = {path.relative_to(source).as_posix() for path in files} | {"relattn/py.typed"}
    assert any(name.endswith(".so") for name in expected)
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert entry_points.split("\n")[:2] == ["[console_scripts]", "relattn = relattn.translation.cli:main"]


def compile_kernels(root: Path, source: str) -> tuple[dict[str, Any], list[str]]:
    """What the build makes of a source in place of the kernels', and its warnings."""
    folder = root / hatch_build.NATIVE
    folder.mkdir(parents=True)
    for name in ("arguments.h", "vectors.h"):
        shutil.copy(ROOT / hatch_build.NATIVE / name, folder)
    (folder / "attention.c").write_text(f'#include "arguments.h"\n{source}\n', encoding="utf-8")
    for level in hatch_build.at_hand().compilers if hatch_build.at_hand() else ():
        (folder / f"attention-{level}-float64.so").touch()  # of an earlier build
    data: dict[str, Any] = {"artifacts": []}
    warnings: list[str] = []
    hook: Any = SimpleNamespace(root=str(root), app=SimpleNamespace(display_warning=warnings.append))
    hatch_build.CompileKernels.initialize(hook, "standard", data)
    return data, warnings


def objects(*reals: str) -> set[str]:
    names = (f"attention-{level}-{real}.so" for level in hatch_build.levels() for real in reals)
    return {f"/{hatch_build.NATIVE}/{name}" for name in names}


@pytest.mark.parametrize("compiler", ["cc", "cc -DGIVEN -O1", "{wrapper} cc -DGIVEN"])
def test_cc_may_hold_flags_and_a_wrapper(compiler, tmp_path, monkeypatch):
    wrapper = tmp_path / "with a space"
    wrapper.write_text('#!/bin/sh\nexec "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    monkeypatch.setenv("CC", compiler.format(wrapper=f"'{wrapper}'"))
    given = "#ifndef GIVEN\n#error\n#endif" if "GIVEN" in compiler else ""
    data, warnings = compile_kernels(tmp_path, f"{given}\nconst uint32_t relattn_checksum = CHECKSUM;")
    assert warnings == []
    assert set(data["artifacts"]) == objects("float32", "float64")
    assert data["tag"].startswith("py3-none-linux")


def test_an_object_that_cannot_be_compiled_is_left_out(tmp_path, capfd):
    data, warnings = compile_kernels(tmp_path, "#ifdef REAL64\n#error as asked\n#endif")
    assert set(data["artifacts"]) == objects("float32")
    assert {path.name for path in tmp_path.rglob("*.so")} == {Path(name).name for name in objects("float32")}
    assert len(warnings) == len(hatch_build.levels())
    assert all("float64.so could not be compiled" in warning for warning in warnings)
    assert "as asked" in capfd.readouterr().err


def test_without_a_compiler_there_are_no_kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    data, warnings = compile_kernels(tmp_path, "")
    assert data == {"artifacts": []}
    assert len(warnings) == 1
    assert "no C compiler" in warnings[0]
