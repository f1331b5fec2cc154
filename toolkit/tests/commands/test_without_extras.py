"""Commands where no extra is installed: each works, or says in one line which extra it requires."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import relattn
import relattn_mt
from relattn_mt.commands.main import COMMANDS
from relattn_mt.support.errors import EXTRAS

from tests.support import transformers_models

RUN = """
import contextlib, io, json, sys
from relattn_mt.support.errors import EXTRAS
commands = json.load(sys.stdin)
installed = {name for extra in sys.argv[1:] for name in EXTRAS[extra]}
sys.modules |= dict.fromkeys({name for names in EXTRAS.values() for name in names} - installed)
from relattn_mt.commands.main import main
for arguments in commands:
    error = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
        code = main(arguments)
    print(json.dumps([code, error.getvalue()]))
"""
PAPERS = str(Path(__file__).parents[3] / "recipes/wmt14-en-de-base.yaml")


def run(commands: Iterable[list[str]], *extras: str) -> list[tuple[int, str]]:
    """Run commands where only these extras are installed, and return the exit code and the errors of each."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *extras], input=json.dumps([*commands]), capture_output=True, text=True, check=True
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_each_command_works_or_names_its_extra(model: str, text: dict[str, str], tmp_path: Path) -> None:
    src, tgt, exported = text["train_src"], text["train_tgt"], tmp_path / "export"
    transformers_models.marian(published := tmp_path / "marian")
    pickled = shutil.copytree(published, tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    (tmp_path / "in.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "model.bin.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    (tmp_path / "in.md").write_text("one cat\n")
    pair, out = ["--src_lang=en", "--tgt_lang=de"], str(tmp_path / "out")
    cases = {
        "": [
            ["translate", model, "--input", src, "--output", f"{out}.txt"],
            ["translate", model, "--input", src, "--output", str(tmp_path / "lists.txt"), "--n_best", "2"],
            ["score", model, "--src", src, "--tgt", tgt],
            ["quantize", model, "--out", str(tmp_path / "int8")],
            ["recipe", model],
            ["models"],
            ["import", str(published), "--out", str(tmp_path / "marian-bundle"), *pair],
            *([*name.split(), "--help"] for name in COMMANDS),
        ],
        "documents": [["translate", model, "--input", str(tmp_path / "in.md"), "--output", f"{out}.md"]],
        "evaluate": [["evaluate", model, "--src", src, "--ref", tgt]],
        "prepare": [
            ["prepare", "--src", src, "--tgt", tgt, *pair, "--out", str(tmp_path / "corpus")],
            ["distill", model, "--data", src, "--out", str(tmp_path / "distilled")],
            ["backtranslate", model, "--data", tgt, "--out", str(tmp_path / "back")],
        ],
        "export": [
            ["export", "ctranslate2", model, "--out", str(exported)],
            ["export", "argos", model, "--out", str(tmp_path / "a.argosmodel")],
        ],
        "files": [
            ["translate", model, "--input", str(tmp_path / "in.zst"), "--output", f"{out}.zst.txt"],
            ["import", str(tmp_path / "packed"), "--out", out],
        ],
        "hub": [["translate", "org/name"]],
        "serve": [["serve", model]],
        "train": [
            ["train", PAPERS, f"--out={tmp_path / 'run'}"],
            ["average", str(tmp_path), "--last=1", "--out", str(tmp_path / "mean")],
            ["import", str(pickled), "--out", str(tmp_path / "unpickled"), *pair],
        ],
    }
    commands = [(extra, command) for extra, listed in cases.items() for command in listed]
    assert {command[0] for _, command in commands} == set(COMMANDS)
    for (extra, command), (code, error) in zip(commands, run(command for _, command in commands), strict=True):
        assert (code, error.count("\n")) == ((2, 1) if extra else (0, error.count("\n"))), (command, error)
        packages = './library "./toolkit[train]"' if extra == "train" else f'"./toolkit[{extra}]"'
        assert not extra or f"pip install {packages}" in error, (command, error)
    runtime = [command for extra in ("documents", "evaluate", "prepare", "export") for command in cases[extra]]
    runtime.append(["import", str(exported), "--out", str(tmp_path / "imported")])
    results = run(runtime, "documents", "evaluate", "prepare", "export")  # all without PyTorch
    assert [result for result in zip(runtime, results, strict=True) if result[1][0] != 0] == []
    table = tmp_path / "pairs.parquet"
    table.write_bytes(b"PAR1")
    ((code, error),) = run([["prepare", "--pairs", str(table), *pair, "--out", str(tmp_path / "table")]], "prepare")
    assert (code, error.count("\n")) == (2, 1)
    assert '"./toolkit[files]"' in error


def test_extras_are_those_of_the_distribution() -> None:
    """Packages of an extra that another one has too are named once. The extra `train` has its release of relattn."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    distributions = metadata.packages_distributions()
    for extra, packages in EXTRAS.items():
        installed = {re.sub("[-_]", "-", distributions.get(name, [name])[0]).lower() for name in packages}
        listed = {re.match(r"[\w-]+", need)[0].lower().replace("_", "-") for need in extras[extra]}
        assert installed == listed - {"relattn-mt"}, extra
    assert f"relattn=={relattn_mt.__version__}" in extras["train"]
    assert relattn.__version__ == relattn_mt.__version__
