"""The command line: help, dispatch, exit codes."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from relattn.translation.commands import main as cli
from relattn.translation.config import Recipe
from relattn.translation.console import log_to_stderr
from relattn.translation.errors import Interrupted
from relattn.translation.training import train as training
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
    monkeypatch.setattr(training, "train", lambda *_, **__: torch.empty(2**50))
    result = relattn("train", "wmt14-en-de-base")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith("relattn: error: not enough memory: ")
    monkeypatch.setattr(training, "train", lambda *_, **__: torch.empty(2, 3) @ torch.empty(2, 3))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        relattn("train", "wmt14-en-de-base")


def test_an_interruption_is_130(relattn, monkeypatch):
    def stop(recipe: Recipe, *, resume: bool) -> Path:
        raise Interrupted("stopped after step 3")

    monkeypatch.setattr(training, "train", stop)
    assert relattn("train", "wmt14-en-de-base") == (130, "", "relattn: stopped after step 3\n")


@pytest.mark.parametrize("command", [("demo",), ("average", "run")])
def test_an_empty_place_is_refused(relattn, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("relattn.translation.demo.demo", None)
    monkeypatch.setattr(training, "average_run", None)
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
    result = relattn(command, path, *(("--builtin", "test") if command == "evaluate" else ()))
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    messages = {
        "missing": f"{path}: no such directory; a bundle is a directory\n",
        "incomplete": f"{path}: not a complete bundle: it has no model.safetensors\n",
        "truncated": f"{weights}: truncated, damaged, or not a safetensors file: ",
    }
    assert result.err.startswith(f"relattn: error: {messages[damage]}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "x"], "--seed must be a whole number, got 'x'"),
        (["--n-best=2.5"], "--n_best must be a whole number, got '2.5'"),
        (["--alpha", "x"], "--alpha must be a number, got 'x'"),
        (["--early_stopping", "x"], "--early_stopping must be true or false, got 'x'"),
        (["--precision", "fp8"], "--precision must be one of fp32, bf16, got 'fp8'"),
        (["--format", "x"], "--format must be one of text, tsv, jsonl, got 'x'"),
        (["--seed"], "--seed must have a value"),
        (["--align=x"], "--align must have no value"),
    ],
)
def test_messages_name_the_option_and_what_it_must_be(relattn, arguments, message):
    assert relattn("translate", "bundle", *arguments) == (2, "", f"relattn: error: {message}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translate"], "missing argument: BUNDLE"),
        (["average", "run"], "missing argument: --out"),
        (["push", "a", "b", "c"], "unexpected argument: c"),
        (["export", "marian", "a", "--out", "b"], "PROGRAM must be one of ctranslate2, argos, onnx, got 'marian'"),
        (["reproduce", "a\udcff"], "TABLE must be one of positions, clip, tables, length"),
        (["reproduce", "clip", "--seeds", "a"], "--seeds must be a whole number, got 'a'"),
        (["serve", "x", "--limits.file", "a"], "--limits.file must be a whole number, got 'a'"),
    ],
)
def test_messages_for_wrong_arguments(relattn, arguments, message):
    assert relattn(*arguments) == (2, "", f"relattn: error: {message}\n")


def test_messages_for_files_are_those_for_flags(relattn, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("model: {dim: wide}")
    message = "relattn: error: {} must be a whole number, got 'wide'\n"
    assert relattn("train", path).err == message.format(f"{path}: model.dim")
    assert relattn("train", "wmt14-en-de-base", "--model.dim=wide").err == message.format("--model.dim")


def test_errors_of_the_operating_system_name_the_file(relattn, monkeypatch, tmp_path):
    monkeypatch.setattr(training, "train", lambda *_, **__: (tmp_path / "none" / "x").write_text(""))
    path = tmp_path / "none" / "x"
    assert relattn("train", "wmt14-en-de-base").err == f"relattn: error: {path}: No such file or directory\n"


def test_control_characters_in_log_messages_are_escaped(capsys):
    with log_to_stderr():
        logging.getLogger("relattn").warning("a\x1b[31m b\nnext")
    assert capsys.readouterr().err == "relattn: warning: a\\x1b[31m b\nnext\n"
