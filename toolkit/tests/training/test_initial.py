"""A run that starts from a bundle."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from relattn_mt import bundle
from relattn_mt.model.transformer import Transformer
from relattn_mt.support.errors import InputError
from relattn_mt.training import train as module
from relattn_mt.training.run import read_initial_bundle
from relattn_mt.training.train import train

from tests.support.bundles import tensors_of
from tests.support.commands import assert_refused
from tests.support.training_states import losses


def test_run_starts_from_a_bundle_with_its_tokenizer(tmp_path, make_recipe, finished, monkeypatch):
    """Loading weights draws the same random numbers as making a new model."""
    start = Path(finished.out) / "bundle"
    files = {side: str(tmp_path / side) for side in ("train_src", "train_tgt")}
    for path in files.values():
        Path(path).write_text("entirely different text\n" * 9)
    slow = {"init_from": str(start), "steps": 1, "learning_rate_factor": 1e-9, "average": 1}
    recipe = make_recipe(tmp_path / "run", data={**files, "vocab_size": 280}, train=slow, model={"dropout": 0.3})
    random_states, fit = [], module.fit
    monkeypatch.setattr(module, "fit", lambda *a, **o: (random_states.append(torch.get_rng_state()), fit(*a, **o))[1])
    train(recipe, show=False)
    assert (tmp_path / "run" / "tokenizer.model").read_bytes() == (start / "tokenizer.model").read_bytes()
    before, after = (tensors_of(bundle.read_bundle(path)) for path in (start, tmp_path / "run" / "bundle"))
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-8)
    assert not torch.equal(after["embedding"], before["embedding"])
    torch.manual_seed(recipe.seed)
    Transformer(recipe.model, len(before["embedding"]))
    assert torch.equal(random_states[0], torch.get_rng_state())


@pytest.mark.parametrize("signal", ["sinusoidal", "learned"])
def test_relative_tables_are_added_to_a_model_without(tmp_path, make_recipe, signal):
    """They are zero at first, so translations do not change, and then they are learned."""
    plain = make_recipe(tmp_path / "plain", model={"positions": signal}, train={"steps": 2})
    start = train(plain, show=False)
    model = {"positions": f"relative+{signal}", "clip": 3}
    recipe = make_recipe(tmp_path / "run", model=model, train={"init_from": str(start), "steps": 2})
    before, added = bundle.read_bundle(start).translator(), read_initial_bundle(recipe).translator()
    lines = ["one cat", "two dogs and one cat", "seven"]
    for one, other in zip(before.n_best(lines), added.n_best(lines), strict=True):
        assert [each.tokens for each in one] == [each.tokens for each in other]
        assert [each.score for each in one] == pytest.approx([each.score for each in other], abs=1e-5)
    state = tensors_of(bundle.read_bundle(train(recipe, show=False)))
    tables = [tensor for name, tensor in state.items() if "rel_key" in name or "rel_value" in name]
    assert len(tables) == 2 * (recipe.model.encoder_layers + recipe.model.decoder_layers)
    assert all(tensor.abs().max() > 0 for tensor in tables)
    other = replace(recipe.model, dim=recipe.model.dim * 2)
    with pytest.raises(InputError, match="the model must be the recipe's, got dim"):
        read_initial_bundle(replace(recipe, model=other))


@pytest.mark.parametrize("positions", ["relative", "learned"])
def test_recipe_of_a_bundle_continues_its_training(relattn, tmp_path, make_recipe, text, positions):
    """It has the model and the search of the bundle, and the longest sentences that the model holds."""
    options = {"max_positions": 70} if positions == "learned" else {"clip": 3}
    short = {"max_length": 60}
    start = train(
        make_recipe(tmp_path / "start", model={"positions": positions, **options}, data=short, train={"steps": 2}),
        show=False,
    )
    (tmp_path / "tune.yaml").write_text(relattn("recipe", start).out)
    files = [f"--data.{name}={path}" for name, path in text.items()]
    few = ["--train.steps=1", "--train.valid_every=1", f"--out={tmp_path / 'run'}"]
    assert relattn("train", tmp_path / "tune.yaml", *files, *few).code == 0
    first, second = bundle.read_bundle(start), bundle.read_bundle(tmp_path / "run" / "bundle")
    assert (second.model, second.search) == (first.model, first.search)
    torch.testing.assert_close(tensors_of(second), tensors_of(first), rtol=0, atol=1e-5)
    assert_refused(relattn("recipe", tmp_path), "not a complete bundle")


def test_run_continues_without_its_initial_bundle(tmp_path, make_recipe, finished):
    """Its weights and its tokenizer are in the run."""
    start = Path(shutil.copytree(f"{finished.out}/bundle", tmp_path / "start"))
    settings = {"init_from": str(start), "checkpoint_every": 1, "average": 1}
    train(make_recipe(tmp_path / "run", train={**settings, "steps": 1}), show=False)
    shutil.rmtree(start)
    train(make_recipe(tmp_path / "run", train={**settings, "steps": 2}), resume=True, show=False)
    assert [step for step, *_ in losses(make_recipe(tmp_path / "run"))] == [1, 2]


def test_recipe_of_a_packaged_model_names_it(relattn):
    assert yaml.safe_load(relattn("recipe", "everyday-en-de").out)["train"]["init_from"] == "everyday-en-de"
