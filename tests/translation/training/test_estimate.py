"""What a training is said to take, against what it takes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import takewhile
from types import SimpleNamespace
from typing import get_args

import pytest

from relattn.translation.commands import main as cli
from relattn.translation.config import DataConfig, ModelConfig, Positions, Recipe, TrainConfig, dump
from relattn.translation.config.presets import PRESETS
from relattn.translation.data.encode import load_data
from relattn.translation.errors import InputError
from relattn.translation.model.transformer import Transformer
from relattn.translation.training import checkpoints, estimate, run_directory
from relattn.translation.training.train import train

SMALL = Recipe(
    out="nowhere",
    model=ModelConfig(dim=32, heads=2, feed_forward_dim=64, encoder_layers=1, decoder_layers=1, clip=4),
    data=DataConfig(vocab_size=500, max_tokens=600, max_length=59),
    train=TrainConfig(steps=10, accumulate=2, devices=4, accelerator="cpu", threads=1),
)
GROWTH = """
import re, sys
from dataclasses import replace
from relattn.translation.config import Recipe
from relattn.translation.config.yaml import read_yaml, to_config
from relattn.translation.training import estimate

def held(name):
    return int(re.search(rf"{name}:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10

recipe = to_config(Recipe, read_yaml(sys.argv[1]), sys.argv[1])
model = replace(recipe.model, dim=16, heads=2, feed_forward_dim=16, encoder_layers=1, decoder_layers=1)
data = replace(recipe.data, vocab_size=100, max_tokens=64)
estimate.seconds_per_step(replace(recipe, model=model, data=data), 1)  # what is imported by then
before = held("VmRSS")
estimate.seconds_per_step(recipe, 1)
print(held("VmHWM") - before)
"""


@pytest.mark.whole
def test_parts_that_can_be_counted_by_hand():
    weights = 4 * sum(parameter.numel() for parameter in Transformer(SMALL.model, 500).parameters())
    found = estimate.memory(SMALL)
    parameters = len(list(Transformer(SMALL.model, 500).parameters()))
    assert (found.weights, found.optimizer) == (weights, 2 * weights + 4 * parameters)  # each with a count of steps
    assert found.gradients == 2 * weights  # of the first micro-batch, and what is sent
    alone = estimate.memory(replace(SMALL, train=TrainConfig()))
    assert alone.gradients == 0  # the moment of the most is before the first
    logits = 4 * 10 * 60 * 500  # of 10 sentences of 60 pieces
    assert alone.activations > logits
    assert alone.total == weights + alone.optimizer + alone.activations + alone.temporary


@pytest.mark.whole
@pytest.mark.parametrize(
    "settings", [{"precision": "bf16-mixed"}, {"precision": "fp16-mixed"}, {"activation_checkpointing": True}]
)
def test_less_is_kept_in_half_precision_and_where_layers_are_computed_again(settings):
    found, whole = estimate.memory(replace(SMALL, train=replace(SMALL.train, **settings))), estimate.memory(SMALL)
    assert found.activations < whole.activations
    assert (found.weights, found.optimizer) == (whole.weights, whole.optimizer)


@pytest.mark.whole
def test_in_shards_a_process_holds_its_share_and_what_has_come_together():
    found, whole = estimate.memory(replace(SMALL, train=replace(SMALL.train, strategy="fsdp"))), estimate.memory(SMALL)
    model = Transformer(SMALL.model, 500)
    of_encoder, of_decoder = (
        4 * sum(p.numel() for p in layers.parameters()) for layers in (model.encoder, model.decoder)
    )
    assert (found.weights, found.optimizer) == (whole.weights // 4, whole.optimizer // 4)
    assert found.gradients == whole.weights // 4 + whole.weights  # of the micro-batches that wait for the last
    assert found.temporary == whole.temporary + whole.weights - of_encoder - of_decoder + 2 * of_decoder
    assert found.activations == whole.activations


@pytest.mark.whole
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_process_grows_by_what_was_said(tmp_path, accumulate):
    """Where malloc gives back what is freed; left to itself glibc's keeps a quarter to a half more."""
    recipe = replace(
        SMALL,
        model=ModelConfig(dim=128, heads=4, feed_forward_dim=256, encoder_layers=2, decoder_layers=2),
        data=DataConfig(vocab_size=2000, max_tokens=4096),
        train=replace(SMALL.train, accumulate=accumulate, devices=1),
    )
    (tmp_path / "r.yaml").write_text(dump(recipe))
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    command = [sys.executable, "-c", GROWTH, str(tmp_path / "r.yaml")]
    grown = int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert estimate.memory(recipe).total == pytest.approx(grown, rel=0.1)


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:positions. none:UserWarning")
@pytest.mark.parametrize("positions", get_args(Positions))
def test_every_scheme(positions):
    found = estimate.memory(replace(SMALL, model=SMALL.model.with_positions(positions)))
    assert (found is None) == (positions == "lstm")


def test_the_longest_batch_fits_the_budget_and_the_model():
    assert estimate.longest_batch(SMALL).src.shape == (10, 60)
    learned = replace(SMALL, model=SMALL.model.with_positions("learned", max_positions=25))
    assert estimate.longest_batch(learned).src.shape == (24, 25)
    tiny = replace(SMALL, data=replace(SMALL.data, max_tokens=7))
    assert estimate.longest_batch(tiny).src.shape == (1, 7)


def test_steps_are_dealt_out_evenly():
    spread = estimate.distribute(SMALL, 2)
    assert (spread.train.accumulate, spread.train.devices) == (4, 2)
    for devices in (0, 3, 16):
        with pytest.raises(InputError, match=f"devices must divide the 8 micro-batches of a step, got {devices}"):
            estimate.distribute(SMALL, devices)


@pytest.mark.whole
def test_an_epoch_is_what_is_trained_on(tmp_path):
    recipe = replace(SMALL, out=str(tmp_path), data=replace(SMALL.data, builtin_lines=300))
    data = load_data(recipe.data, tmp_path, seed=recipe.seed)
    steps = list(takewhile(lambda step: step.epoch == 0, data.train.steps(accumulate=2, ranks=4)))
    tokens = sum(step.target_tokens for step in steps) / len(steps)
    told = estimate.plan(recipe, seconds=2.0)
    epoch = f"{len(steps)} steps, {len(data.train.pairs.src)} pairs, {tokens:,.0f} target tokens per step"
    assert f"epoch: {epoch}; {10 / len(steps):.1f} epochs in all" in told
    assert "time: 20 seconds: 2 s per step on one device, 2,400 target tokens per second" in told


@pytest.mark.whole
def test_checkpoints_take_the_room_that_is_said(tmp_path):
    recipe = replace(
        SMALL,
        out=str(tmp_path / "run"),
        data=replace(SMALL.data, builtin_lines=200),
        train=replace(
            SMALL.train,
            accumulate=1,
            steps=3,
            devices=1,
            checkpoint_every=1,
            keep=2,
            average=2,
            valid_bleu_lines=0,
        ),
    )
    bundle = train(recipe, show=False)
    weights = (bundle / "model.safetensors").stat().st_size
    kept = [path.stat().st_size for path in checkpoints.list_checkpoints(tmp_path / "run" / "checkpoints")]
    model = Transformer(recipe.model, 500)
    assert run_directory.disk_space(model, recipe.train) == pytest.approx(sum(kept) * 3 / 2 + weights, rel=0.2)


def test_a_run_without_room_for_its_checkpoints_is_not_begun(tmp_path, monkeypatch):
    recipe = replace(
        SMALL,
        out=str(tmp_path / "run"),
        data=replace(SMALL.data, builtin_lines=200),
        train=replace(SMALL.train, devices=1, keep=5, average=1),
    )
    needed = run_directory.disk_space(Transformer(SMALL.model, 500), recipe.train)
    monkeypatch.setattr(run_directory.shutil, "disk_usage", lambda path: SimpleNamespace(free=needed // 2))
    with pytest.raises(InputError, match=r"run: the disk must have 3 MiB for 5 checkpoints and a bundle, got 1 MiB"):
        train(recipe, show=False)
    assert checkpoints.list_checkpoints(tmp_path / "run" / "checkpoints") == []


def test_only_what_checkpoints_hold_is_room_for_checkpoints(tmp_path, monkeypatch):
    model = Transformer(SMALL.model, 500)
    needed = run_directory.disk_space(model, SMALL.train)
    monkeypatch.setattr(run_directory.shutil, "disk_usage", lambda path: SimpleNamespace(free=needed // 2))
    for name in ("data/train.arrow", "tensorboard/events", "checkpoints/step-00000001.ckpt"):
        (tmp_path / name).parent.mkdir()
        with open(tmp_path / name, "wb") as file:
            file.truncate(needed)
        if name.startswith("checkpoints"):
            run_directory.require_space(tmp_path, model, SMALL.train)
        else:
            with pytest.raises(InputError, match="the disk must have"):
                run_directory.require_space(tmp_path, model, SMALL.train)


def test_the_command_line(capsys, tmp_path):
    given = [f"--{name}={value}" for name, value in (("model.dim", 32), ("model.heads", 2), ("data.vocab_size", 300))]
    given += ["--model.encoder_layers=1", "--model.decoder_layers=1", "--data.max_tokens=256", f"--out={tmp_path}/x"]
    assert cli.main(["plan", "wmt14-en-de-base", "--devices", "4", "--measure", "1", *given]) == 0
    told = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert told["step"] == "at most 2,048 tokens per side with padding: 4 × 2 micro-batches of 256"
    assert re.match(r"\d+ MiB: weights 1 MiB · gradients", told["memory per device, fp32, 1 × 256 tokens"])
    assert told["epoch"] == f"not known before {tmp_path}/x has its data"
    assert told["steps"] == "100,000"
    assert re.match(r".*: .* s per step on one device, [\d,]+ target tokens per second if", told["time"])
    assert cli.main(["plan", "wmt14-en-de-base", "--devices", "3"]) == 2
    assert cli.main(["plan", "wmt14-en-de-base", "--measure", "-1"]) == 2
    assert "measure must be at least 0, got -1" in capsys.readouterr().err


@pytest.mark.whole
@pytest.mark.parametrize("name", PRESETS)
def test_the_papers_recipes_on_eight_devices(name):
    recipe = estimate.distribute(PRESETS[name], 8)
    assert (recipe.train.accumulate, recipe.train.devices) == (1, 8)
    found = estimate.memory(recipe)
    assert found.weights == 4 * sum(p.numel() for p in Transformer(recipe.model, recipe.data.vocab_size).parameters())
    assert 2**31 < found.total < 2**34
