"""The commands train and average: recipes, overrides, errors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from relattn.translation import bundle
from relattn.translation.config import OPTIONS, ModelConfig, Recipe, SearchConfig, dump
from relattn.translation.model.positions.schemes import SCHEMES
from tests.support.commands import assert_refused


def test_the_help_of_train_explains_every_setting(relattn):
    shown = " ".join(relattn("train", "--help").out.split())
    for setting in (
        "--model.clip",
        "--data.max_tokens",
        "--train.warmup_steps",
        "--search.alpha",
        "--seed",
        "--resume",
    ):
        assert setting in shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {heads: 5, dim: 12}", "heads must divide dim, got heads 5 and dim 12"),
        ("model: {clip: -1}", "clip must be in [0, 65536], got -1"),
        ("train: {warmup_steps: 0}", "warmup_steps must be in [1, 1e9], got 0"),
        ("seed: -3", "seed must be in [0, 9223372036854775808), got -3"),
        ("model: {clipp: 3}", "{path}: unknown setting 'model.clipp'; did you mean model.clip?"),
        ("model: {dim: wide}", "model.dim must be a whole number, got 'wide'"),
        ("model: {dim: 2.5}", "model.dim must be a whole number, got '2.5'"),
        ("model: {dropout: yes}", "model.dropout must be a number, got 'True'"),
        (
            "train: {learning_rate_factor: inf}",
            "train.learning_rate_factor must be a number, got 'inf'",
        ),
        (
            "model: {norm: mid}",
            "model.norm must be one of pre, post, got 'mid'",
        ),
        ("data: {train_src: a.txt}", "train_src requires train_tgt and vice versa, got 'a.txt' and ''"),
        ("just words", "{path}: must be a mapping of names to values"),
    ],
)
def test_a_recipe_that_will_not_do(relattn, tmp_path, text, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    assert_refused(relattn("train", path, "--out", tmp_path / "run"), message.format(path=path))
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_is_not_yaml_is_one_line(relattn, tmp_path):
    (tmp_path / "recipe.yaml").write_text("model: {\n  dim\n: [")
    result = relattn("train", tmp_path / "recipe.yaml")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith(f"relattn: error: {tmp_path}/recipe.yaml: not YAML: ")


def test_a_recipe_that_is_missing(relattn, tmp_path):
    assert_refused(relattn("train", tmp_path / "no"), f"{tmp_path}/no: no such file")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.dmi=3"], "unknown option of train '--model.dmi'; did you mean --model.dim?"),
        (["more"], "more"),
        (["--model.clip"], "--model.clip"),
        (["--model.dim=x"], "model.dim must be a whole number, got 'x'"),
        (
            ["--model.clip=x"],
            "--model.clip must be a whole number, got 'x'",
        ),
        (["--model.positions=t5", "--model.clip=9"], "clip must not be set for t5 positions, got 9"),
        (["--model.kernel_size=5"], "kernel_size must not be set for relative positions, got 5"),
    ],
)
def test_flags_that_will_not_do(relattn, recipe_file, arguments, message):
    assert_refused(relattn("train", recipe_file, *arguments), message)
    assert not (recipe_file.parent / "run").exists()


def sides(tmp_path: Path, src: bytes | None, tgt: bytes | None) -> tuple[Path, Path]:
    for name, content in (("src.txt", src), ("tgt.txt", tgt)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    return tmp_path / "src.txt", tmp_path / "tgt.txt"


TEXT = b"one cat\nsat on\ntwo mat\n" * 20


@pytest.mark.parametrize(
    ("src", "tgt", "message"),
    [
        (TEXT, TEXT[:-8], "{src} and {tgt} must have the same number of lines, got 60 and 59"),
        (TEXT, None, "{tgt}: no such file"),
        (b"", TEXT, "{src}: the file is empty"),
        (TEXT, TEXT[:13] + b"\xff" + TEXT[13:], "{tgt}: not UTF-8 at byte 13, in line 2: 0xff"),
    ],
    ids=["different lengths", "missing", "empty", "not UTF-8"],
)
@pytest.mark.parametrize("split", ["train", "valid", "evaluate"])
def test_text_that_will_not_do(relattn, tmp_path, recipe_file, model, split, src, tgt, message):
    paths = sides(tmp_path, src, tgt)
    if split == "evaluate":
        result = relattn("evaluate", model, "--src", paths[0], "--ref", paths[1], "--out", tmp_path / "out.txt")
    else:
        result = relattn("train", recipe_file, f"--data.{split}_src={paths[0]}", f"--data.{split}_tgt={paths[1]}")
    assert_refused(result, message.format(src=paths[0], tgt=paths[1]))
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "out.txt").exists()


def test_places_that_will_not_do(relattn, recipe_file, finished, tmp_path):
    assert_refused(
        relattn("train", recipe_file, "--out", finished.out),
        f"{finished.out}: contains a run; use --resume to continue it, or another out",
    )
    result = relattn("train", recipe_file, "--out", recipe_file / "run")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "Not a directory" in result.err


def test_resuming_what_is_not_there_or_has_changed(relattn, recipe_file, finished):
    out = recipe_file.parent / "run"
    assert_refused(relattn("train", recipe_file, "--resume"), f"{out}: contains no run, because it has no recipe.yaml")
    changed = ("--out", finished.out, "--model.clip=3", "--train.steps=9")
    assert_refused(
        relattn("train", recipe_file, "--resume", *changed),
        f"{finished.out}: these settings must be as when the run started: model.clip: 2 → 3",
    )


def test_a_recipe_and_what_overrides_it(relattn, recipe_file, asked, make_recipe):
    base = make_recipe(recipe_file.parent / "run")
    flags = (
        "--model.clip",
        7,
        "--model.clip_right=null",
        "--model.tables_per_head",
        "true",
        "--train.learning_rate_factor=2e-3",
    )
    assert relattn("train", recipe_file, *flags, "--data.src_lang", "no", "--out=1e-4").out == "somewhere\n"
    expected = replace(
        base,
        out="1e-4",
        model=replace(base.model, clip=7, tables_per_head=True),
        data=replace(base.data, src_lang="no"),
        train=replace(base.train, learning_rate_factor=0.002),
    )
    relattn("train", recipe_file, "--resume")
    assert asked == [(expected, False), (base, True)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("positions", SCHEMES)
def test_any_scheme_can_be_chosen(relattn, tmp_path, asked, positions):
    """By a flag, or in a recipe that leaves its options out; a flag leaves out those of the recipe's own scheme."""
    model = ModelConfig(positions=positions)
    (tmp_path / "empty.yaml").touch()
    relattn("train", tmp_path / "empty.yaml", "--model.positions", positions)
    (tmp_path / "recipe.yaml").write_text(f"model:\n  positions: {positions}\n")
    relattn("train", tmp_path / "recipe.yaml")
    (tmp_path / "dumped.yaml").write_text(dump(Recipe()))
    relattn("train", tmp_path / "dumped.yaml", f"--model.positions={positions}")
    relattn("train", tmp_path / "dumped.yaml", "--model.positions", "cnn", "--model.positions", positions)
    assert asked == [(Recipe(model=model), False)] * 4
    (tmp_path / "dumped.yaml").write_text(dump(Recipe(model=ModelConfig(clip=5))))
    relattn("train", tmp_path / "dumped.yaml", "--model.positions", positions)
    assert asked[-1][0].model == replace(model, clip=5 if "clip" in OPTIONS.get(positions, {}) else None)


def test_what_is_dumped_is_what_is_trained(relattn, tmp_path, asked):
    recipe = Recipe(search=SearchConfig(alpha=1e-9))
    recipe = replace(
        recipe, data=replace(recipe.data, src_lang="no", tgt_lang="null", train_src="1e3", train_tgt="[a]")
    )
    (tmp_path / "recipe.yaml").write_text(dump(recipe))
    relattn("train", tmp_path / "recipe.yaml")
    assert asked == [(recipe, False)]


def test_flags_can_be_written_with_hyphens_anywhere(relattn, asked, recipe_file, make_recipe):
    base = make_recipe(recipe_file.parent / "run")
    relattn(
        "train",
        "--train.warmup-steps=9",
        "--data.src-lang",
        "a-b_c",
        recipe_file,
        "--train.learning_rate_factor",
        "2e-3",
    )
    train = replace(base.train, warmup_steps=9, learning_rate_factor=0.002)
    assert asked == [(replace(base, train=train, data=replace(base.data, src_lang="a-b_c")), False)]


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("recipes/*.yaml")), ids=lambda path: path.stem)
def test_the_recipes_that_come_along_are_recipes(relattn, asked, path):
    assert relattn("train", path).code == 0
    assert asked[0][0] != Recipe()


def test_train_prints_where_the_bundle_is(relattn, recipe_file, finished):
    result = relattn("train", recipe_file)
    path = recipe_file.parent / "run" / "bundle"
    assert (result.code, result.out) == (0, f"{path}\n")
    *steps, warning = result.err.splitlines()  # after six steps, word order is not used
    assert [line.split("  ")[0] for line in steps] == ["step 2", "step 4", "step 6"]
    assert "the model does not use word order" in warning
    ours, theirs = (bundle.read_bundle(p).state for p in (path, Path(finished.out) / "bundle"))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.whole
def test_training_asks_no_network_and_leaves_the_home_alone(tmp_path, recipe_file):
    (tmp_path / "home").mkdir()
    script = """
import socket, sys
def refuse(*_, **__):
    raise AssertionError("the network was asked")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from relattn.translation.commands import main as cli
sys.exit(cli.main(["train", sys.argv[1], "--data.train_src=", "--data.train_tgt=", "--data.valid_src=",
                   "--data.valid_tgt=", "--data.builtin_lines=40", "--data.vocab_size=500"]))
"""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "HF_", "MPL"))}
    environment = {**inherited, "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", script, str(recipe_file)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "home").rglob("*")) == []


def test_averages_that_will_not_do(relattn, tmp_path, finished):
    out = ("--out", tmp_path / "mean")
    assert_refused(relattn("average", tmp_path, *out), f"{tmp_path}: contains no run, because it has no recipe.yaml")
    message = f"last must be in [1, 3], the checkpoints of {finished.out}, got 4"
    assert_refused(relattn("average", finished.out, "--last", 4, *out), message)
    assert not (tmp_path / "mean").exists()


def test_average(relattn, tmp_path, finished):
    assert relattn("average", finished.out, "--last", 2, "--out", tmp_path / "mean") == (0, "", "")
    ours, theirs = (bundle.read_bundle(p).state for p in (tmp_path / "mean", Path(finished.out) / "bundle"))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_average_replaces_a_bundle_only_with_overwrite(relattn, tmp_path, finished, model):
    path = tmp_path / "bundle"
    shutil.copytree(model, path)
    before = (path / "model.safetensors").read_bytes()
    arguments = ("average", finished.out, "--last", 1, "--out", path)
    assert_refused(relattn(*arguments), f"{path}: a bundle exists there; use --overwrite to replace it")
    assert (path / "model.safetensors").read_bytes() == before
    assert relattn(*arguments, "--overwrite").code == 0
    assert (path / "model.safetensors").read_bytes() != before
