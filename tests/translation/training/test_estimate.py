"""Estimates of `relattn plan`, compared with what training takes."""

from __future__ import annotations

import ctypes
import inspect
import re
import subprocess
import sys
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest

from relattn.translation.commands import main as cli
from relattn.translation.config import DataConfig, ModelConfig, Recipe, TrainConfig
from relattn.translation.data.encode import load_data
from relattn.translation.errors import InputError
from relattn.translation.model.transformer import Transformer
from relattn.translation.training import checkpoints, estimate, run_directory
from tests.support.commands import Result, assert_refused

SMALL = Recipe(
    out="nowhere",
    model=ModelConfig(dim=32, heads=2, feed_forward_dim=64, encoder_layers=1, decoder_layers=1, clip=4),
    data=DataConfig(vocab_size=500, max_tokens=600, max_length=59),
    train=TrainConfig(steps=10, accumulate=2, devices=4, accelerator="cpu", threads=1),
)


def size_of(*modules: object) -> int:
    return sum(parameter.nbytes for module in modules for parameter in module.parameters())


def test_memory_equals_what_can_be_counted_by_hand():
    model, memory = Transformer(SMALL.model, 500), estimate.memory(SMALL)
    weights, count = size_of(model), len(list(model.parameters()))
    assert (memory.weights, memory.optimizer) == (weights, 2 * weights + 4 * count)  # each parameter counts its steps
    assert memory.gradients == 2 * weights  # of earlier micro-batches, and a copy that is sent
    alone = estimate.memory(replace(SMALL, train=TrainConfig()))
    assert alone.gradients == 0  # memory is highest before there are any
    assert alone.activations > 4 * 10 * 60 * 500  # the logits of 10 sentences of 60 tokens
    assert alone.total == weights + alone.optimizer + alone.activations + alone.temporary
    for settings in ({"precision": "bf16-mixed"}, {"precision": "fp16-mixed"}, {"activation_checkpointing": True}):
        less = estimate.memory(replace(SMALL, train=replace(SMALL.train, **settings)))
        assert less.activations < memory.activations
        assert (less.weights, less.optimizer) == (weights, memory.optimizer)
    lstm = replace(SMALL, model=SMALL.model.with_positions("lstm"))
    assert estimate.memory(lstm) is None  # cannot run on tensors without data
    shards = estimate.memory(replace(SMALL, train=replace(SMALL.train, strategy="fsdp")))
    assert (shards.weights, shards.optimizer) == (weights // 4, memory.optimizer // 4)
    assert shards.gradients == weights // 4 + weights  # of micro-batches that wait for the last one
    gathered = weights - size_of(model.encoder, model.decoder) + 2 * size_of(model.decoder)
    assert shards.temporary == memory.temporary + gathered
    assert shards.activations == memory.activations


def test_longest_batch_and_the_steps_of_several_devices():
    learned = replace(SMALL, model=SMALL.model.with_positions("learned", max_positions=25))
    tiny = replace(SMALL, data=replace(SMALL.data, max_tokens=7))
    shapes = [estimate.longest_batch(recipe).src.shape for recipe in (SMALL, learned, tiny)]
    assert shapes == [(10, 60), (24, 25), (1, 7)]
    spread = estimate.distribute(SMALL, 2)
    assert (spread.train.accumulate, spread.train.devices) == (4, 2)
    for devices in (0, 3, 16):
        with pytest.raises(InputError, match=f"devices .* 8 .* got {devices}"):
            estimate.distribute(SMALL, devices)


ROOT = Path(__file__).parents[3]


def resident(name: str) -> int:
    """Return the current ("VmRSS") or the highest ("VmHWM") memory of this process in bytes."""
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10


def print_growth() -> None:
    """Print the estimated memory of a step, and the growth of this process in one.

    Freed tensors are returned to the system. Training keeps them, so it takes more.
    """
    recipe = replace(
        SMALL,
        model=ModelConfig(dim=128, heads=4, feed_forward_dim=256, encoder_layers=2, decoder_layers=2),
        data=DataConfig(vocab_size=2000, max_tokens=2048),
        train=replace(SMALL.train, devices=1),
    )
    estimate.seconds_per_step(replace(SMALL, train=replace(SMALL.train, devices=1)), 1)  # imports modules
    libc, threshold = ctypes.CDLL(None), -3  # M_MMAP_THRESHOLD
    libc.mallopt(threshold, 200_000)
    libc.malloc_trim(0)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    inspect.unwrap(estimate.seconds_per_step)(recipe, 1)  # without `freed_memory_kept`
    sys.stdout.write(f"{estimate.memory(recipe).total} {resident('VmHWM') - before}")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and glibc")
def test_process_grows_by_the_estimate():
    code = "from tests.translation.training.test_estimate import print_growth; print_growth()"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    estimated, grown = map(int, run.stdout.split())
    assert estimated == pytest.approx(grown, rel=0.1)


def test_epoch_and_time_are_those_of_the_data(finished):
    data = load_data(finished)
    steps = list(takewhile(lambda step: step.epoch == 0, data.train.steps()))
    tokens = sum(step.target_tokens for step in steps) / len(steps)
    lines = dict(line.split(": ", 1) for line in estimate.plan(finished, seconds=30.0).splitlines())
    assert re.findall(r"\d[\d,.]*", lines["epoch"]) == [
        *(f"{len(steps)}", f"{len(data.train.pairs.src)}", f"{tokens:,.0f}", f"{6 / len(steps):.1f}")
    ]
    assert lines["time"].startswith("3.0 minutes: 30 s per step")  # 6 steps of 128 tokens
    assert re.search(r"\b4 target tokens", lines["time"])
    assert "time: 60 seconds: 10 s per step" in estimate.plan(finished, seconds=10.0)


def test_checkpoints_and_bundle_have_the_estimated_size(finished):
    out = Path(finished.out)
    saved = [path.stat().st_size for path in checkpoints.list_checkpoints(out / "checkpoints")]
    weights = (out / "bundle" / "model.safetensors").stat().st_size
    used = sum(saved) * (len(saved) + 1) / len(saved) + weights
    needed = run_directory.disk_space(estimate.make_model(finished), finished.train.keep)
    assert needed < used


def test_plan_on_the_command_line(capsys, tmp_path):
    changes = ["--model.dim=32", "--model.heads=2", "--data.vocab_size=300", f"--out={tmp_path}/x"]
    changes += ["--model.encoder_layers=1", "--model.decoder_layers=1", "--data.max_tokens=256"]
    assert cli.main(["plan", "wmt14-en-de-base", "--devices", "4", "--measure", "1", *changes]) == 0
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert "2,048 tokens" in lines["step"]
    assert "4 × 2 micro-batches of 256" in lines["step"]
    assert re.match(r"\d+ MiB: weights 1 MiB · gradients", lines["memory per device, fp32, 1 × 256 tokens"])
    assert lines["steps"] == "100,000"
    assert re.search(r" s per step on one device, [\d,]+ target tokens", lines["time"])
    for flag, value in (("--devices", "3"), ("--measure", "-1")):
        code = cli.main(["plan", "wmt14-en-de-base", flag, value])
        assert_refused(Result(code, *capsys.readouterr()), f"got {value}")
