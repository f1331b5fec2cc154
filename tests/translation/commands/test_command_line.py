"""The command line: help, dispatch, exit codes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from relattn.translation.commands import main as cli
from relattn.translation.config import Recipe
from relattn.translation.errors import Interrupted
from relattn.translation.training import run
from tests.support.commands import assert_refused


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_without_a_command_all_are_shown(relattn, arguments):
    result = relattn(*arguments)
    assert (result.code, result.err) == (0, "")
    assert all(f"\n  {name} " in result.out for name in ("demo", "train", "evaluate", "translate", "average", "push"))


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_every_command_has_help(relattn, command):
    result = relattn(*command.split(), "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"usage: relattn {command}")


def test_help_imports_no_heavy_library():
    script = (
        "import sys; from relattn.translation.commands import main; main.main({!r}); assert not {!r} & set(sys.modules)"
    )
    for arguments, libraries in (
        (["--help"], {"torch", "jsonargparse", "yaml", "tqdm"}),
        (["translate", "--help"], {"torch", "lightning", "sacrebleu", "matplotlib", "pydantic"}),
    ):
        command = [sys.executable, "-c", script.format(arguments, libraries)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def test_unknown_names_suggest_the_nearest(relattn):
    assert_refused(relattn("trian", "x"), "unknown command 'trian'; did you mean train?")
    assert_refused(relattn("analyze", "attentoin"), "did you mean analyze attention?")
    assert_refused(relattn("translate", "x", "--beam-sise", 3), "did you mean --beam_size?")
    assert_refused(relattn("train", "wmt14-en-de-bas"), "did you mean wmt14-en-de-base?")
    assert_refused(relattn("recipe", "wmt14-en-de-bas"), "did you mean wmt14-en-de-base?")


@pytest.mark.parametrize("command", ["train", "plan"])
def test_a_recipe_is_required(relattn, command):
    assert_refused(relattn(command), "wmt14-en-de-base, ")
    assert_refused(relattn(command, "--seed", 5), "wmt14-en-de-base, ")


def test_memory_that_does_not_suffice_is_one_line_and_a_bug_is_a_traceback(relattn, monkeypatch):
    monkeypatch.setattr(run, "train", lambda *_, **__: torch.empty(2**50))
    result = relattn("train", "wmt14-en-de-base")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith("relattn: error: not enough memory: ")
    monkeypatch.setattr(run, "train", lambda *_, **__: torch.empty(2, 3) @ torch.empty(2, 3))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        relattn("train", "wmt14-en-de-base")


def test_an_interruption_is_130(relattn, monkeypatch):
    def stop(recipe: Recipe, *, resume: bool) -> Path:
        raise Interrupted("stopped after step 3")

    monkeypatch.setattr(run, "train", stop)
    assert relattn("train", "wmt14-en-de-base") == (130, "", "relattn: stopped after step 3\n")


@pytest.mark.parametrize("command", [("demo",), ("average", "run")])
def test_an_empty_place_is_refused(relattn, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("relattn.translation.demo.demo", None)
    monkeypatch.setattr(run, "average_run", None)
    assert_refused(relattn(*command, "--out="), "out must name a directory")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["translate", "evaluate"])
@pytest.mark.parametrize("damage", ["missing", "incomplete", "truncated"])
def test_a_bundle_that_will_not_do(relattn, tmp_path, model, command, damage):
    path = tmp_path / "bundle"
    if damage != "missing":
        shutil.copytree(model, path)
    weights = path / "model.safetensors"
    if damage == "incomplete":
        weights.unlink()
    elif damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1])
    result = relattn(command, path, *(("--embedded", "test") if command == "evaluate" else ()))
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    messages = {
        "missing": f"{path}: no such directory; a bundle is a directory\n",
        "incomplete": f"{path}: not a complete bundle: it has no model.safetensors\n",
        "truncated": f"{weights}: truncated, damaged, or not a safetensors file: ",
    }
    assert result.err.startswith(f"relattn: error: {messages[damage]}")
