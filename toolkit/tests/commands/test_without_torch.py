"""Commands where PyTorch is not installed: each works, or says in one line that it requires PyTorch."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from relattn_mt.commands.main import COMMANDS

from testing import transformers_models

RUN = """
import contextlib, io, json, sys
sys.modules["torch"] = sys.modules["lightning"] = None
from relattn_mt.commands.main import main
for arguments in json.load(sys.stdin):
    error = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
        code = main(arguments)
    print(json.dumps([code, error.getvalue()]))
"""
PAPERS = str(Path(__file__).parents[3] / "recipes/wmt14-en-de-base.yaml")
REQUIRES = "relattn-mt: error: this command requires PyTorch: pip install torch\n"


def test_commands_without_pytorch(model: str, text: dict[str, str], tmp_path: Path) -> None:
    src, tgt, exported = text["train_src"], text["train_tgt"], tmp_path / "export"
    transformers_models.marian(published := tmp_path / "marian")
    pickled = shutil.copytree(published, tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    (tmp_path / "in.jsonl").write_text('{"text": "one cat"}\n')
    works = [
        ["translate", model, "--input", src, "--output", str(tmp_path / "out.txt")],
        ["translate", model, "--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")],
        ["translate", model, "--input", src, "--output", str(tmp_path / "drawn.txt"), "--sampling", "--seed", "3"],
        ["evaluate", model, "--src", src, "--ref", tgt],
        ["score", model, "--src", src, "--tgt", tgt],
        ["quantize", model, "--out", str(tmp_path / "int8")],
        ["prepare", "--src", src, "--tgt", tgt, "--src_lang=en", "--tgt_lang=de", "--out", str(tmp_path / "corpus")],
        ["distill", model, "--data", src, "--out", str(tmp_path / "distilled")],
        ["backtranslate", model, "--data", tgt, "--out", str(tmp_path / "back")],
        ["export", "ctranslate2", model, "--out", str(exported)],
        ["export", "argos", model, "--out", str(tmp_path / "a.argosmodel")],
        ["import", str(exported), "--out", str(tmp_path / "imported")],
        ["import", str(published), "--out", str(tmp_path / "marian-bundle"), "--src_lang=en", "--tgt_lang=de"],
        ["recipe", model],
    ]
    requires = [
        ["train", PAPERS, f"--out={tmp_path / 'run'}"],
        ["average", str(tmp_path), "--last=1", "--out", str(tmp_path / "mean")],
        ["export", "onnx", model, "--out", str(tmp_path / "onnx")],
        ["analyze", "attention", model, "one cat", "--out", str(tmp_path / "a.html")],
    ]
    pickle = ["import", str(pickled), "--out", str(tmp_path / "unpickled"), "--src_lang=en", "--tgt_lang=de"]
    served = ["serve", str(tmp_path / "nothing")]
    names = {" ".join(each[: 2 if each[0] == "analyze" else 1]) for each in (*works, *requires, served)}
    assert names == set(COMMANDS)
    command = [sys.executable, "-c", RUN]
    run = subprocess.run(
        command,
        input=json.dumps([*works, *requires, pickle, served]),
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    results = [json.loads(line) for line in run.stdout.splitlines()]
    assert [each for each in results[: len(works)] if each[0]] == []
    assert results[len(works) : -2] == [[2, REQUIRES]] * len(requires)
    assert "torch cannot be imported: pip install" in results[-2][1]
    assert "no such directory" in results[-1][1]
