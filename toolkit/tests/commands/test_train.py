"""The commands train and average."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from relattn_mt import bundle
from relattn_mt.config import ModelConfig, Recipe, dump

from tests.support.bundles import tensors_of
from tests.support.commands import assert_refused


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--model.dmi=3", "unknown option of train '--model.dmi'; did you mean --model.dim?"),
        ("more", "unexpected argument: more"),
        ("--model.clip", "--model.clip must have a value"),
        ("--model.clip=x", "--model.clip must be a whole number, got 'x'"),
        ("--model.positions=t5 --model.clip=9", "clip must not be set for t5 positions, got 9"),
        ("--out recipe.yaml/run", "Not a directory"),
        ("--resume", "run: contains no run"),
        ("--out {finished}", "{finished}: contains a run; use --resume"),
        ("--out {finished} --resume --model.clip=3 --train.steps=9", "when the run started: model.clip: 2 → 3"),
    ],
)
def test_wrong_flags(relattn, recipe_file, finished, monkeypatch, flags, message):
    monkeypatch.chdir(recipe_file.parent)
    arguments = [each.format(finished=finished.out) for each in flags.split()]
    assert_refused(relattn("train", recipe_file, *arguments), message.format(finished=finished.out))
    assert not Path("run").exists()


LIST = "--data.train_list=pipe --data.train_src= --data.train_tgt="


@pytest.mark.parametrize("flags", ["", "--data.train_src=pipe", "--data.valid_src=pipe", LIST])
def test_pipes_are_refused(relattn, recipe_file, monkeypatch, flags):
    """Nothing writes to them, so reading one would wait for ever."""
    monkeypatch.chdir(recipe_file.parent)
    os.mkfifo("pipe")
    assert_refused(relattn("train", recipe_file if flags else "pipe", *flags.split()), "pipe must be a regular file")
    assert not Path("run").exists()


def test_flags_override_a_recipe(relattn, recipe_file, train_calls, make_recipe):
    """Names of flags may have hyphens, and stand before and after the recipe."""
    base = make_recipe(recipe_file.parent / "run")
    flags = ("--model.clip_right=null", "--model.tables_per_head", "true", "--data.src-lang", "pt-BR", "--out=1e-4")
    result = relattn("train", "--train.warmup-steps=9", "--model.clip", 7, recipe_file, *flags)
    assert result == (0, "somewhere\n", "")
    expected = replace(
        base,
        out="1e-4",
        model=replace(base.model, clip=7, tables_per_head=True),
        data=replace(base.data, src_lang="pt-BR"),
        train=replace(base.train, warmup_steps=9),
    )
    relattn("train", recipe_file, "--resume")
    assert train_calls == [(expected, False), (base, True)]


@pytest.mark.parametrize("positions", ["relative+sinusoidal", "learned", "rope"])
def test_scheme_can_be_chosen_by_a_flag(relattn, tmp_path, train_calls, positions):
    """Options of the recipe that the scheme does not have are left out."""
    model = ModelConfig(positions=positions)
    path = tmp_path / "recipe.yaml"
    path.write_text("seed: 1\n")
    relattn("train", path, "--model.positions", positions)
    path.write_text(dump(Recipe(model=ModelConfig(clip=5))))
    relattn("train", path, f"--model.positions={positions}")
    clipped = replace(model, clip=5) if positions == "relative+sinusoidal" else model
    assert train_calls == [(Recipe(model=model), False), (Recipe(model=clipped), False)]


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[3].glob("recipes/*.yaml")), ids=lambda path: path.stem)
def test_recipes_of_the_repository(relattn, train_calls, path):
    assert relattn("train", path).code == 0
    assert train_calls[0][0] != Recipe()


def states(*paths: str | Path) -> list[list[torch.Tensor]]:
    return [list(tensors_of(bundle.read_bundle(path)).values()) for path in paths]


def test_train_prints_the_path_of_the_bundle(relattn, recipe_file, finished):
    result = relattn("train", recipe_file)
    path = recipe_file.parent / "run" / "bundle"
    assert (result.code, result.out) == (0, f"{path}\n")
    about, steps = result.err.splitlines()[:3], result.err.splitlines()[3:]
    assert [line.split(": ")[0] for line in about] == ["model", "text", "run"]
    assert [line.split("  ")[0] for line in steps] == ["step 2", "step 4", "step 6"]
    ours, same = states(path, f"{finished.out}/bundle")
    assert all(map(torch.equal, ours, same))


def test_average(relattn, tmp_path, finished, model):
    assert_refused(relattn("average", tmp_path, "--out", tmp_path / "mean"), f"{tmp_path}: contains no run")
    assert_refused(relattn("average", finished.out, "--last", 4, "--out", tmp_path / "mean"), "must be in [1, 3]")
    assert not (tmp_path / "mean").exists()
    path = Path(shutil.copytree(model, tmp_path / "bundle"))
    arguments = ("average", finished.out, "--last", 2, "--out", path)
    assert_refused(relattn(*arguments), "--overwrite")
    assert all(map(torch.equal, *states(path, model)))
    assert relattn(*arguments, "--overwrite") == (0, "", "")
    assert all(map(torch.equal, *states(path, f"{finished.out}/bundle")))
