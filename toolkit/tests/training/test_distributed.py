"""Several processes: how they are launched and stopped, and mixed precision.

Kills at random moments and restarts are in tests/system/test_kills.py.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from relattn_mt.commands import main as cli
from relattn_mt.config import TrainConfig, dump
from relattn_mt.data.batching import Step, collate
from relattn_mt.model.transformer import Transformer
from relattn_mt.support.errors import InputError
from relattn_mt.training import checkpoints, distributed
from relattn_mt.training.loop import set_up, take_step
from relattn_mt.training.run_directory import require_same_run
from relattn_mt.training.stop import Stop
from relattn_mt.training.train import train
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

from testing.training_states import SRC, TGT, assert_same, layout, loss_values, losses, make_model, state_of

# Launched processes


STEPS = {"log_every": 1, "valid_every": 6, "valid_bleu_lines": 0, "average": 1}


def terminate_after(rows: int, log: Path, over: threading.Event) -> None:
    """Signal this process when a log has some rows, unless the run is over before."""
    while not over.wait(0.01):
        if log.exists() and log.read_text().count("\n") > rows:
            os.kill(os.getpid(), signal.SIGTERM)
            return


@pytest.fixture
def launched(monkeypatch) -> list[subprocess.Popen]:
    """Processes that `launch` started, in order."""
    processes: list[subprocess.Popen] = []

    def popen(*args: Any, stdout: Any, **options: Any) -> subprocess.Popen:
        processes.append(subprocess.Popen(*args, stdout=stdout, **options))
        stdout.close()  # torch closes its files only if all processes succeed
        return processes[-1]

    monkeypatch.setattr(subprocess_handler, "Popen", popen)
    return processes


def test_two_processes_stop_at_a_signal_and_equal_one(tmp_path, make_recipe, launched, capfd):
    """With dropout, and micro-batches that are accumulated, some of them empty.

    SIGTERM stops both processes after the same step. One process continues from there.
    """
    settings = {**STEPS, "steps": 3000, "checkpoint_every": 3000, "learning_rate_factor": 0.1}
    two = make_recipe(tmp_path / "run", data={"max_tokens": 16}, train={**settings, "accumulate": 2, "devices": 2})
    (tmp_path / "recipe.yaml").write_text(dump(two))
    handler = signal.signal(signal.SIGTERM, lambda *_: None)  # in case the run has ended
    over = threading.Event()
    watcher = threading.Thread(target=terminate_after, args=(7, tmp_path / "run" / "log.csv", over), daemon=True)
    watcher.start()
    try:
        code = cli.main(["train", str(tmp_path / "recipe.yaml")])
    finally:
        over.set()
        watcher.join()
        signal.signal(signal.SIGTERM, handler)
    out, err = capfd.readouterr()
    assert code == 128 + signal.SIGTERM, err
    assert len(launched) == 2
    assert all(process.poll() is not None for process in launched)
    (path,) = checkpoints.list_checkpoints(tmp_path / "run" / "checkpoints")
    stopped = checkpoints.step_of(path)
    assert err.count(f"stopped after step {stopped};") == err.count("stopped") == 1
    assert (out, "Traceback" in err, (tmp_path / "run" / "bundle").exists()) == ("", False, False)

    settings = replace(two.train, accumulate=4, devices=1, steps=stopped + 7, checkpoint_every=stopped)
    alone = replace(two, out=str(tmp_path / "alone"), train=settings)
    train(alone, show=False)
    got, expected = state_of(two), state_of(alone, stopped)
    for part in ("model", "optimizer"):
        assert layout(got[part]) == layout(expected[part])
    got, expected = (
        torch.cat([moments["exp_avg"].flatten() for moments in state["optimizer"]["state"].values()])
        for state in (got, expected)
    )
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4 * expected.abs().max().item())  # Adam hides a factor
    one = replace(two, train=settings)
    train(one, resume=True, show=False)
    assert [step for step, *_ in losses(one)] == list(range(1, stopped + 8))
    assert loss_values(one) == pytest.approx(loss_values(alone), rel=1e-5)


@pytest.mark.parametrize(
    ("command", "code", "fact"),
    [
        ("kill -9 $$", 2, "process 2 of 2 was killed by SIGKILL after step 6; .*--resume continues from step 6"),
        ("exit 1", 2, "process 2 of 2 failed with exit code 1 after step 6; .*--resume continues from step 6"),
        ("exit 2", 2, ""),  # a user error, which the process has printed
        ("exit 143", 143, ""),
    ],
)
def test_lost_process_ends_the_others_and_is_reported_in_one_line(
    tmp_path, finished, monkeypatch, launched, capfd, command, code, fact
):
    """A script takes the place of Python in the launched processes."""
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n[ $RANK = 1 ] && {command}\nexec sleep 300\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    recipe = replace(finished, train=replace(finished.train, devices=2))
    (tmp_path / "recipe.yaml").write_text(dump(recipe))
    start = time.monotonic()
    assert cli.main(["train", str(tmp_path / "recipe.yaml"), "--resume"]) == code
    assert time.monotonic() - start < 100
    assert len(launched) == 2
    assert all(process.poll() is not None for process in launched)
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1 if fact else 0)
    if fact:
        assert re.fullmatch(rf"relattn-mt: error: {fact}\n", err)


def test_run_that_torchrun_restarts_continues(tmp_path, make_recipe, monkeypatch):
    settings = {**STEPS, "steps": 12, "checkpoint_every": 6}
    recipe, again = (make_recipe(tmp_path / name, train=settings) for name in ("run", "again"))
    train(recipe, show=False)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    train(replace(again, train=replace(again.train, steps=6)), show=False)  # lost before it had written anything
    train(again, show=False)
    assert_same(state_of(again), state_of(recipe))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    with pytest.raises(InputError, match="contains a run"):
        train(again, show=False)


def test_process_ends_itself_if_its_agent_is_gone(monkeypatch):
    threads: list[threading.Thread] = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (threads.append(thread), start(thread))[1])
    kills: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *call: kills.append(call))
    monkeypatch.setenv("RELATTN_MT_AGENT", str(os.getpid()))  # not the parent
    distributed.stop_with_agent()
    assert threads == []
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    distributed.stop_with_agent()
    threads[0].join()
    assert kills == [(os.getpid(), signal.SIGTERM)]


@pytest.mark.parametrize("waits", [True, False])
def test_error_that_a_lost_process_may_have_caused_waits_for_the_agent(monkeypatch, waits):
    sleeps: list[float] = []
    monkeypatch.setattr(distributed.time, "sleep", sleeps.append)
    error = RuntimeError("connection closed") if waits else InputError("disk full")  # the first process reports errors
    fabric = SimpleNamespace(device=torch.device("cpu"), launch=lambda: None)
    with pytest.raises(type(error)), Stop() as stop, distributed.joined(fabric, TrainConfig(devices=2), stop):
        raise error
    assert len(sleeps) == waits


def test_run_continues_on_other_devices_if_its_steps_stay_the_same(make_recipe, tmp_path, monkeypatch):
    old = make_recipe(tmp_path, train={"accumulate": 4, "devices": 2})
    for accumulate, settings in ((8, {}), (2, {"devices": 4}), (1, {"devices": 4, "nodes": 2})):
        require_same_run(old, make_recipe(tmp_path, train={"accumulate": accumulate, **settings}))
    for data, settings, fact in (
        ({}, {"accumulate": 4}, "train.accumulate · train.devices · train.nodes: 8 → 4"),
        ({"max_tokens": 64}, {"accumulate": 8}, "data.max_tokens: 128 → 64"),
    ):
        with pytest.raises(InputError, match=f"{fact}$"):
            require_same_run(old, make_recipe(tmp_path, data=data, train=settings))
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(InputError, match=r"must be 3, .* got 2 × 1"):
        train(old, show=False)


# Mixed precision, and activations that are computed again


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16-mixed", 0.05), ("fp16-mixed", 0.02)])
def test_mixed_precision_keeps_weights_in_float32(tmp_path, make_recipe, finished, precision, tolerance):
    recipe = make_recipe(tmp_path / "run", train={"precision": precision})
    train(recipe, show=False)
    state = state_of(recipe)
    assert {tensor.dtype for tensor in state["model"].values()} == {torch.float32}
    assert (state["scaler"]["_growth_tracker"] == 6) if precision == "fp16-mixed" else state["scaler"] == {}
    assert loss_values(recipe) == pytest.approx(loss_values(finished), rel=tolerance)
    assert loss_values(recipe) != pytest.approx(loss_values(finished), rel=1e-6)
    again = replace(recipe, out=str(tmp_path / "again"))
    train(replace(again, train=replace(again.train, steps=4)), show=False)
    train(again, resume=True, show=False)
    assert_same(state_of(again), state)


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_float16_step_whose_gradients_overflow_is_skipped(make_recipe, tmp_path, clip):
    recipe = make_recipe(tmp_path, train={"precision": "fp16-mixed", "gradient_clip": clip})
    fabric = Fabric(accelerator="cpu", devices=1, plugins=distributed.precision_of(recipe.train))
    model = make_model()
    called, optimizer = set_up(fabric, model, recipe.train)
    scaler = fabric.strategy.precision.scaler
    batch = collate(SRC, TGT)
    step = Step(0, 0, 0, [batch], [0], batch.target_tokens)
    before = deepcopy(model.state_dict())
    scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0**30})
    assert take_step(fabric, called, optimizer, step, recipe.train, rate=1e-3, key=(1, 0)).isfinite()
    assert scaler.get_scale() == 2.0**29
    assert_same(model.state_dict(), before)
    assert not optimizer.state_dict()["state"]
    scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0**4})
    take_step(fabric, called, optimizer, step, recipe.train, rate=1e-3, key=(1, 0))
    norm = torch.stack([parameter.grad.square().sum() for parameter in model.parameters()]).sum().sqrt()
    assert not torch.equal(model.embedding, before["embedding"])
    if clip:
        assert norm.item() == pytest.approx(clip, rel=1e-3)  # gradients are clipped without the scale


def test_activation_checkpointing_changes_no_bit(tmp_path, make_recipe, finished, monkeypatch):
    calls, original = [], Transformer.recompute_activations
    monkeypatch.setattr(Transformer, "recompute_activations", lambda model: (calls.append(model), original(model)))
    recipe = make_recipe(tmp_path / "run", train={"activation_checkpointing": True})
    train(recipe, show=False)
    assert len(calls) == 1
    assert_same(state_of(recipe), state_of(finished))
