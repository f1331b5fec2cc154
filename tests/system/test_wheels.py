"""The wheels: what they contain, and that they work where they are installed, without a compiler.

`RELATTN_INSTALLS="python3.12=2.13.0 python3.13=2.15.0"` installs them in environments of these Pythons with these
versions of PyTorch from the package index, which are gigabytes, instead of links to the packages that are installed
here. RELATTN_DIST is a directory of wheels to test instead of new ones.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from tests.support.environments import ROOT, build_wheels, new_environment, requirements_of

INSTALLS = os.environ.get("RELATTN_INSTALLS", "").split()
README = (ROOT / "library/README.md").read_text(encoding="utf-8")
EXAMPLE, *_ = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
LINE, TRANSLATED = "Where is the nearest station?", "Wo ist der nächste Bahnhof?\n"
CHECK = """
import importlib.util, sys
import relattn
from relattn.backends import native
reference = attention(query, key, value, is_causal=True, lengths=torch.tensor([100, 60]), backend="reference")
assert float((out - reference).detach().abs().max()) < 1e-5
compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
query.requires_grad_()
for backend in ("auto", "dense"):
    options = {"lengths": torch.tensor([100, 60]), "backend": backend}
    eager, graph = (
        torch.autograd.grad(call(query, key, value, **options).sum(), query)[0] for call in (attention, compiled)
    )
    assert float((eager - graph).abs().max()) < 1e-5, backend  # with torch 2.11, masks made gradients wrong
assert not any(map(importlib.util.find_spec, ("sacrebleu", "tqdm", "relattn_mt")))  # PyTorch alone
print(sys.version.split()[0], torch.__version__, relattn.__file__, native.installation(), sep="; ")
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheels(tmp_path_factory)


def test_contents(dist, tmp_path):
    """wheels.py has checked the objects and the tags."""
    import relattn

    import wheels
    from kernels import build

    for folder, name in (("library", "relattn"), ("toolkit", "relattn_mt")):
        (source,) = dist.glob(f"{name}-*.tar.gz")
        with tarfile.open(source) as archive:
            names = {file.partition("/")[2] for file in archive.getnames()}
        command = ["git", "ls-files", folder, "kernels"]
        tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        assert {file.removeprefix(f"{folder}/") for file in tracked if (ROOT / file).exists()} <= names
        assert not any(file.endswith((".so", ".o", ".wasm")) for file in names)
        package = {file.removeprefix("src/") for file in names if file.startswith("src/") and "." in Path(file).name}
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        built = sorted(dist.glob(f"{name}-*.whl"))
        assert len(built) == len(wheels.TARGETS)
        for wheel in built:
            with zipfile.ZipFile(wheel) as archive:
                files = {file: archive.read(file) for file in archive.namelist()}
            (info,) = {file.partition("/")[0] for file in files if ".dist-info/" in file}
            inside = {file for file in files if not file.startswith(info)}
            built_files = {file for file in inside - package if file.endswith((".so", ".h", ".json", ".wasm"))}
            assert inside - built_files == package
            assert any(file.endswith(".h") for file in inside) != wheel.name.endswith("-any.whl")
            assert f"{info}/licenses/LICENSE" in files
            programs = files.get(f"{info}/entry_points.txt", b"").decode()
            assert ("relattn-mt = relattn_mt.__main__:main" in programs) == (name == "relattn_mt")
            described = Parser().parsestr(files[f"{info}/METADATA"].decode())
            needs = {need for need in described.get_all("Requires-Dist") if "extra ==" not in need}
            assert needs == set(project["dependencies"])
            assert not {"torch", "relattn"} & {re.match(r"[\w-]+", need)[0] for need in needs} or name == "relattn"
            assert [described[key] for key in ("Version", "Requires-Python")] == [relattn.__version__, ">=3.11"]
    pure = next(wheel for wheel in built if wheel.name.endswith("py3-none-any.whl"))
    tagged = shutil.copy(pure, tmp_path / pure.name.replace("any", build.parse_target(wheels.TARGETS[2]).tag))
    for path, target in ((pure, wheels.TARGETS[2]), (Path(tagged), wheels.TARGETS[2]), (Path(tagged), "none")):
        with pytest.raises(SystemExit, match="must have the tag"):
            wheels.check_objects(path, target)


def test_the_toolkit_translates_without_pytorch(dist, tmp_path):
    """With the packages of its base alone; without its engine, one line says what to install."""
    project = tomllib.loads((ROOT / "toolkit/pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.match(r"[\w-]+", need)[0] for need in project["dependencies"]]
    packages = set().union(*map(requirements_of, [*names, "docstring-parser", "typeshed-client"]))
    bin_ = new_environment(tmp_path, packages)
    variables = {"PATH": str(bin_), "HOME": str(tmp_path)}

    def run(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, **options)

    install = (bin_ / "python", "-I", "-m", "pip", "install", "--no-index")
    run(*install, "--find-links", dist, "relattn-mt", check=True)
    find = "import importlib.util as u; print(*map(u.find_spec, ('torch', 'relattn')))"
    assert run(bin_ / "python", "-I", "-c", find).stdout == "None None\n"
    assert run(bin_ / "relattn-mt", "translate", "everyday-en-de", input=LINE).stdout == TRANSLATED
    assert run(bin_ / "relattn-mt", "export", "web", "everyday-en-de", "--out", "site").returncode == 0
    assert len([*(tmp_path / "site").glob("*.wasm")]) == 2
    (pure,) = dist.glob("relattn_mt-*-any.whl")
    run(*install, "--force-reinstall", "--no-deps", pure, check=True)
    done = run(bin_ / "relattn-mt", "translate", "everyday-en-de", input=LINE)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert 'pip install ./library "./toolkit[train]"' in done.stderr


@pytest.mark.parametrize("install", INSTALLS or ["linked"])
def test_installed_wheels_run_the_example_of_the_readme(install, dist, tmp_path):
    """First the wheel that pip chooses, then the one without kernels. The path has only the environment's programs."""
    if install == "linked":
        bin_ = new_environment(tmp_path, requirements_of("torch"))
    else:
        python, _, version = install.partition("=")
        subprocess.run([python, "-m", "venv", tmp_path], check=True)
        bin_ = tmp_path / "bin"
        subprocess.run([bin_ / "pip", "install", "--quiet", f"torch=={version}"], check=True)
    assert not any(shutil.which(name, path=str(bin_)) for name in ("cc", "gcc", "clang", "c99", "tcc", "zig"))
    (tmp_path / "example.py").write_text(EXAMPLE + CHECK, encoding="utf-8")
    variables = {"PATH": str(bin_), "HOME": str(tmp_path)}

    def run(*command: object) -> str:
        options = {"cwd": tmp_path, "env": variables, "capture_output": True, "text": True}
        done = subprocess.run([bin_ / "python", "-I", *command], **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("-m", "pip", "install", "--no-index", "--find-links", dist, "relattn")
    printed = run("example.py")
    assert "compiled for" in printed
    assert str(tmp_path) in printed
    (pure,) = dist.glob("relattn-*-any.whl")
    run("-m", "pip", "install", "--no-index", "--force-reinstall", "--no-deps", pure)
    assert "none in this installation" in run("example.py")


def test_types_of_public_names():
    """mypy in strict mode on a program that uses them."""
    program = ROOT / "tests" / "typed_program.py"
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
