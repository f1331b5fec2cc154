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
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from testing.environments import ROOT, build_wheels, new_environment, requirements_of

INSTALLS = os.environ.get("RELATTN_INSTALLS", "").split()
EXAMPLE, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
CHECK = """
import importlib.util, sys
import relattn_mt
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
assert not any(map(importlib.util.find_spec, ("lightning", "sacrebleu", "jsonargparse")))  # PyTorch alone
print(sys.version.split()[0], torch.__version__, relattn.__file__, native.installation(), sep="; ")
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheels(tmp_path_factory)


def test_contents(dist, tmp_path):
    """wheels.py has checked the objects and the tags."""
    import hatch_build
    import relattn

    import wheels

    (source,) = dist.glob("relattn-*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    command = ["git", "ls-files", "src", "tests", "docs", "hatch_build.py", "LICENSE", "Makefile"]
    tracked = set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines())
    assert {name for name in tracked if (ROOT / name).exists()} <= names
    assert not any(name.endswith(".so") for name in names)
    files = (name for name in names if name.startswith("library/src/relattn/") and "." in Path(name).name)
    package = {name.removeprefix("src/") for name in files}
    built = sorted(dist.glob("*.whl"))
    assert len(built) == len(wheels.TARGETS)
    for wheel in built:
        with zipfile.ZipFile(wheel) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        (info,) = {name.partition("/")[0] for name in files if ".dist-info/" in name}
        inside = {name for name in files if not name.startswith(info)}
        assert {name for name in inside if not name.endswith(".so")} == package
        assert f"{info}/licenses/LICENSE" in files
        assert b"relattn = relattn.__main__:main" in files[f"{info}/entry_points.txt"]
        described = Parser().parsestr(files[f"{info}/METADATA"].decode())
        needs = [need for need in described.get_all("Requires-Dist") if "extra ==" not in need]
        assert needs == ["torch>=2.11"]
        assert [described[name] for name in ("Version", "Requires-Python")] == [relattn.__version__, ">=3.11"]
    pure = next(wheel for wheel in built if wheel.name.endswith("py3-none-any.whl"))
    tagged = shutil.copy(pure, tmp_path / pure.name.replace("any", hatch_build.parse_target(wheels.TARGETS[2]).tag))
    for path, target in ((pure, wheels.TARGETS[2]), (Path(tagged), wheels.TARGETS[2]), (Path(tagged), "none")):
        with pytest.raises(SystemExit, match="must have the tag"):
            wheels.check_objects(path, target)


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
    (pure,) = dist.glob("*-any.whl")
    run("-m", "pip", "install", "--no-index", "--force-reinstall", "--no-deps", pure)
    assert "none in this installation" in run("example.py")


def test_types_of_public_names():
    """mypy in strict mode on a program that uses them."""
    program = ROOT / "tests" / "typed_program.py"
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
