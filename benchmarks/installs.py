"""Install the wheels in dist/ (`make wheels`) in new environments without a compiler, and run README's example there.

    python -m benchmarks.installs python3.11=2.13.0 python3.12=2.11.0 python3.13=2.13.0

Each Python gets a new environment, this version of PyTorch from the package index (gigabytes, except for CPU builds)
and the wheel that pip chooses. Only the environment's programs are on the path. The last Python also gets the wheel
without kernels. The output is a transcript, with DIR for the environment; it ends with the first command that fails.
"""

import argparse
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
COMPILERS = ("cc", "gcc", "clang", "c99", "tcc", "zig")
SHOWN = re.compile(r"Processing|Successfully installed relattn")  # lines of pip's output that are shown
CHECK = """
from relattn import backends
reference = attention(query, key, value, is_causal=True, lengths=torch.tensor([100, 60]), backend="reference")
print("Python", sys.version.split()[0], "torch", torch.__version__, torch.backends.cpu.get_cpu_capability())
print("out", tuple(out.shape), "differs from the equations by at most", f"{float((out - reference).abs().max()):.1e}")
"""


def ten_lines() -> str:
    """Return README's example of the library, followed by a comparison of its result with the equations."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return f"import sys\n{example}{CHECK}"


def shown(directory: Path, *command: str, only: re.Pattern[str] | None = None) -> None:
    """Run a command in an environment, with nothing else on the path, and print the command and its output."""
    print("$", " ".join(command).replace(str(DIST), "dist"), flush=True)
    variables = os.environ | {"PATH": str(directory / "bin"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    program = str(directory / "bin" / command[0])
    done = subprocess.run([program, *command[1:]], cwd=directory, env=variables, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    for line in done.stdout.splitlines():
        if only is None or only.match(line):
            print(line.replace(str(DIST), "dist").replace(str(directory), "DIR"), flush=True)


def install(python: str, version: str, directory: Path, is_last: bool) -> None:
    print(f"\n$ {python} -m venv DIR; export PATH=DIR/bin", flush=True)
    subprocess.run([python, "-m", "venv", str(directory)], check=True)
    compilers = [name for name in COMPILERS if shutil.which(name, path=str(directory / "bin"))]
    if compilers:
        raise SystemExit(f"{directory / 'bin'} must have no compiler, has {', '.join(compilers)}")
    (directory / "ten_lines.py").write_text(ten_lines(), encoding="utf-8")
    shown(directory, "pip", "install", "--quiet", f"torch=={version}")
    shown(directory, "pip", "install", "--no-index", "--find-links", str(DIST), "relattn", only=SHOWN)
    shown(directory, "python", "-m", "relattn.backends")
    shown(directory, "python", "ten_lines.py")
    if is_last:
        (pure,) = DIST.glob("*-any.whl")
        shown(directory, "pip", "install", "--no-index", "--force-reinstall", "--no-deps", str(pure), only=SHOWN)
        shown(directory, "python", "-m", "relattn.backends")
        shown(directory, "python", "ten_lines.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="+", metavar="PYTHON=TORCH", help="a Python and a version of PyTorch")
    environments = [text.partition("=")[::2] for text in parser.parse_args().environments]
    for number, (python, version) in enumerate(environments, start=1):
        with tempfile.TemporaryDirectory() as directory:
            install(python, version, Path(directory), is_last=number == len(environments))


if __name__ == "__main__":
    main()
