"""What is built and installed: a library that needs torch alone, and a toolkit whose needs are declared."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
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
import wheels

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, since compiling takes away the kernels that other tests use."""
    directory = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, directory / "tree", ignore=shutil.ignore_patterns(".*", "*.so", "build", "dist", "runs"))
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(directory),
        directory / "tree",
    ]
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


@pytest.mark.whole
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
print(*native.installation().split()[:2])
import relattn.translation
"""
    where, same, *installed = run(clean, script).split()
    assert Path(where).is_relative_to(clean.parents[1])
    assert same == "True"
    assert installed == ["compiled", "for"]


@pytest.mark.whole
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


@pytest.mark.whole
def test_needs_are_declared(described):
    needs = described.get_all("Requires-Dist")
    assert [need for need in needs if "extra ==" not in need] == ["torch>=2.11"]
    assert described["Name"] == "relattn"
    assert described["Version"] == relattn.__version__
    assert described["Requires-Python"] == ">=3.11"
    assert described["License-Expression"] == "MIT"
    assert set(described.get_all("Provides-Extra")) >= {"translation", "hub", "dev"}


def test_what_the_toolkit_imports_is_declared():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    declared = {
        re.match(r"[\w-]+", need)[0].lower().replace("_", "-")
        for extra in ("translation", "hub", "export", "serve")
        for need in extras[extra]
    }
    imported = set()
    for path in (ROOT / "src" / "relattn" / "translation").rglob("*.py"):
        imported |= set(re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    modules = metadata.packages_distributions()
    third_party = {modules[name][0].lower().replace("_", "-") for name in imported - {"relattn"} if name in modules}
    assert third_party - {"torch"} <= declared


@pytest.mark.whole
def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    source = ROOT / "src"
    files = {path for path in (source / "relattn").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    expected = {path.relative_to(source).as_posix() for path in files}
    assert "relattn/py.typed" in expected
    assert any(name.endswith(".so") for name in expected)
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert entry_points.split("\n")[:2] == ["[console_scripts]", "relattn = relattn.__main__:main"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution."""
    directory = tmp_path_factory.mktemp("source")
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(directory), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = directory.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def pure(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel without kernels, built from the source distribution."""
    directory = tmp_path_factory.mktemp("pure")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(directory), str(source)]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"RELATTN_TARGET": "none"})
    (path,) = directory.glob("*.whl")
    return path


def contents(wheel: Path) -> dict[str, bytes]:
    """A wheel's files but for what names them: its objects, its tags and its list of files."""
    with zipfile.ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    return {name: data for name, data in found.items() if not name.endswith((".so", "/WHEEL", "/RECORD"))}


@pytest.mark.whole
def test_the_source_distribution_builds_the_same(wheel, pure):
    assert contents(pure) == contents(wheel)


@pytest.mark.whole
def test_the_wheel_without_kernels_is_for_every_machine(pure):
    assert pure.name == f"relattn-{relattn.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(pure) as archive:
        assert [name for name in archive.namelist() if name.endswith(".so")] == []


LEVELS = hatch_build.levels(platform.machine(), sys.platform == "darwin")


def compile_kernels(root: Path, source: str) -> tuple[dict[str, Any], list[str]]:
    """What the build makes of a source in place of the kernels', and its warnings."""
    folder = root / hatch_build.NATIVE
    folder.mkdir(parents=True)
    for name in ("arguments.h", "vectors.h"):
        shutil.copy(ROOT / hatch_build.NATIVE / name, folder)
    (folder / "attention.c").write_text(f'#include "arguments.h"\n{source}\n', encoding="utf-8")
    (folder / f"attention-{LEVELS[-1].name}-float64.so").touch()  # of an earlier build
    data: dict[str, Any] = {"artifacts": []}
    warnings: list[str] = []
    hook: Any = SimpleNamespace(root=str(root), app=SimpleNamespace(display_warning=warnings.append))
    hatch_build.CompileKernels.initialize(hook, "standard", data)
    return data, warnings


def objects(*reals: str) -> set[str]:
    made = ((level.name, real) for level in LEVELS for real in reals if real in level.dtypes)
    return {f"/{hatch_build.NATIVE}/attention-{level}-{real}.so" for level, real in made}


@pytest.mark.parametrize("compiler", ["cc", "cc -DGIVEN -O1", "{wrapper} cc -DGIVEN"])
def test_cc_may_hold_flags_and_a_wrapper(compiler, tmp_path, monkeypatch):
    wrapper = tmp_path / "with a space"
    wrapper.write_text('#!/bin/sh\nexec "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    monkeypatch.setenv("CC", compiler.format(wrapper=f"'{wrapper}'"))
    given = "#ifndef GIVEN\n#error\n#endif" if "GIVEN" in compiler else ""
    data, warnings = compile_kernels(tmp_path, f"{given}\nconst uint32_t relattn_checksum = CHECKSUM;")
    assert warnings == []
    assert set(data["artifacts"]) == objects("float32", "float64", "bfloat16")
    assert data["tag"].startswith("py3-none-" + {"linux": "linux", "darwin": "macosx"}[sys.platform])


def test_an_object_that_cannot_be_compiled_is_left_out(tmp_path, capfd):
    data, warnings = compile_kernels(tmp_path, "#ifdef REAL64\n#error as asked\n#endif")
    assert set(data["artifacts"]) == objects("float32", "bfloat16")
    made = {Path(name).name for name in objects("float32", "bfloat16")}
    assert {path.name for path in tmp_path.rglob("*.so")} == made
    assert len(warnings) == len(objects("float64"))
    assert all("float64.so could not be compiled" in warning for warning in warnings)
    assert "as asked" in capfd.readouterr().err


def test_without_a_compiler_there_are_no_kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    data, warnings = compile_kernels(tmp_path, "")
    assert data == {"artifacts": []}
    assert len(warnings) == 1
    assert "no C compiler" in warnings[0]


@pytest.mark.parametrize(
    ("target", "tag", "expected"),
    [
        (
            "x86_64-linux-gnu.2.28",
            "manylinux_2_28_x86_64",
            ["x86-64-v4-amx", "x86-64-v4-bf16", "x86-64-v4", "x86-64-v3", "x86-64"],
        ),
        ("aarch64-linux-gnu.2.34", "manylinux_2_34_aarch64", ["aarch64-sve256", "aarch64"]),
        ("aarch64-macos.11.0", "macosx_11_0_arm64", ["aarch64"]),
    ],
)
def test_a_target_has_a_tag_that_an_index_takes_and_its_machines_levels(target, tag, expected, monkeypatch):
    monkeypatch.setattr(hatch_build, "find_spec", lambda name: name == "ziglang")
    found = hatch_build.named(target)
    assert (found.tag, list(found.compilers)) == (tag, expected)
    assert all(" ".join(command).split(" -m ")[1].startswith("ziglang cc") for command in found.compilers.values())
    processors = {flag for command in found.compilers.values() for flag in command if flag.startswith("-march")}
    assert processors == {
        f"-march={name.replace('-', '_')}" for name in ("x86-64-v4", "x86-64-v3", "x86-64") if name in expected
    }


def test_a_mac_compiles_the_one_level_of_its_processor_for_itself(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "macosx-11.0-universal2")  # Python's, for both its machines
    found = hatch_build.at_hand()
    assert (found.tag, list(found.compilers)) == ("macosx_11_0_arm64", ["aarch64"])


@pytest.mark.parametrize("target", ["x86_64-linux-gnu", "x86_64-macos.11.0", "linux", "aarch64-linux-gnu.2.28.1"])
def test_a_target_that_is_none_is_an_error(target, monkeypatch):
    with pytest.raises(SystemExit, match=f"RELATTN_TARGET is '{target}', not "):
        hatch_build.named(target)


def test_a_target_needs_its_compiler(monkeypatch):
    monkeypatch.setattr(hatch_build, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"compiled by ziglang, which is not there: pip install ziglang"):
        hatch_build.named("x86_64-linux-gnu.2.28")


def test_a_target_has_all_of_its_kernels_or_is_an_error(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("RELATTN_TARGET", "a target")
    monkeypatch.setattr(hatch_build, "named", lambda target: hatch_build.at_hand())
    with pytest.raises(SystemExit, match=r"attention-.*-float64\.so could not be compiled for a target"):
        compile_kernels(tmp_path, "#ifdef REAL64\n#error as asked\n#endif")
    assert "as asked" in capfd.readouterr().err


def test_no_kernels_may_be_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("RELATTN_TARGET", "none")
    assert compile_kernels(tmp_path, "#error") == ({"artifacts": []}, [])


@pytest.mark.whole
def test_wheels_are_held_to_their_targets(wheel, pure, tmp_path, monkeypatch):
    """A machine's own wheel is none for an index, and a tag alone makes none for a machine."""
    monkeypatch.setattr(hatch_build, "find_spec", lambda name: name == "ziglang")
    assert wheels.checked(pure, "none") == []
    tagged = shutil.copy(pure, tmp_path / pure.name.replace("any", "macosx_11_0_arm64"))
    for path, target in ((wheel, "none"), (pure, "aarch64-macos.11.0"), (tagged, "aarch64-macos.11.0")):
        with pytest.raises(SystemExit, match=r"is to be tagged .* and hold"):
            wheels.checked(path, target)


AUDIT = """
WHEEL is consistent with
the following platform tag: "manylinux_2_27_x86_64".
"""


def test_wheels_need_no_more_than_their_tags_say(monkeypatch):
    monkeypatch.setattr(wheels.subprocess, "run", lambda *args, **kwargs: SimpleNamespace(stdout=AUDIT, stderr=""))
    assert wheels.audited(Path("relattn-0-py3-none-manylinux_2_28_x86_64.whl")) == "manylinux_2_27_x86_64"
    for name in ("relattn-0-py3-none-manylinux_2_17_x86_64.whl", "relattn-0-py3-none-linux_x86_64.whl"):
        with pytest.raises(SystemExit, match="its objects are not what its tag says"):
            wheels.audited(Path(name))
