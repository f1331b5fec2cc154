"""Several processes: how they compute and stop, and mixed precision.

Kills at random moments, under torchrun, are in tests/system/test_kills.py.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from relattn_mt.config import TrainConfig, dump
from relattn_mt.data.batching import Step, collate
from relattn_mt.model import transformer
from relattn_mt.support.errors import InputError
from relattn_mt.training import checkpoints, distributed
from relattn_mt.training.loop import set_up, take_step
from relattn_mt.training.stop import Stop
from relattn_mt.training.train import train
from relattn_mt.training.worker import worker_of

from tests.support.processes import family
from tests.support.training_states import SRC, TGT, assert_same, layout, loss_values, losses, make_model, state_of

STEPS = {"log_every": 1, "valid_every": 6, "valid_bleu_lines": 0, "average": 1}
# Two processes of a run as torchrun starts them. One is forked from the other: importing, also of what the optimizer
# imports, takes longer than they do.
TWO = """
import os, sys
import torch._dynamo
from relattn_mt.commands import main, train
from relattn_mt.training import train
os.environ |= {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
child = os.fork()
os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), "0" if child else "1")
code = main.main(sys.argv[1:])
assert not child or os.wait()[1] == 0  # the first process reports the end
sys.stdout.flush()
os._exit(code)
"""


def test_two_processes_stop_at_a_signal_and_equal_one(tmp_path, make_recipe):
    """With dropout, guided alignment, and micro-batches that are accumulated, some of them empty.

    SIGTERM to one process stops both after the same step. One process continues from there.
    """
    settings = {**STEPS, "steps": 3000, "checkpoint_every": 3000, "learning_rate_factor": 0.1, "accumulate": 4}
    settings["guided_alignment"] = 0.5
    two = make_recipe(tmp_path / "run", model={"alignment_heads": 1}, data={"max_tokens": 16}, train=settings)
    (tmp_path / "recipe.yaml").write_text(dump(two))
    with socket.create_server(("127.0.0.1", 0)) as free:
        environment = {**os.environ, "MASTER_PORT": str(free.getsockname()[1])}
    command, log = [sys.executable, "-c", TWO, "train", str(tmp_path / "recipe.yaml")], tmp_path / "run/log.csv"
    with subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True) as process:
        while process.poll() is None and not (log.exists() and log.read_text().count("\n") > 7):
            time.sleep(0.01)
        os.kill(family(process.pid)[-1], signal.SIGTERM)
        out, err = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, err
    (path,) = checkpoints.list_checkpoints(tmp_path / "run" / "checkpoints")
    stopped = checkpoints.step_of(path)
    assert err.count(f"stopped after step {stopped};") == err.count("stopped") == 1
    assert (out, "Traceback" in err, (tmp_path / "run" / "bundle").exists()) == ("", False, False)

    settings = replace(two.train, steps=stopped + 7, checkpoint_every=stopped)
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


def test_micro_batches_must_divide_among_processes(tmp_path, make_recipe, monkeypatch):
    for name, value in (("TORCHELASTIC_RUN_ID", "x"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="accumulate must be a multiple of 2, the number of processes, got 3"):
        train(make_recipe(tmp_path / "run", train={"accumulate": 3}), show=False)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_process_ends_if_torchrun_was_lost_before_the_run_began(tmp_path, make_recipe, monkeypatch, rank):
    """Otherwise it would wait for 30 minutes for the addresses of the others, and keep the directory locked."""
    recipe = make_recipe(tmp_path / "run", train={"accumulate": 2})
    train(replace(recipe, train=replace(recipe.train, steps=2)), show=False)
    variables = {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1"}
    variables |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank}
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # does not listen, so connections are refused
        variables["MASTER_PORT"] = str(bound.getsockname()[1])
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(distributed.time, "sleep", lambda seconds: None)  # of an error that torchrun would report
        with pytest.raises(InputError, match="torchrun must accept connections on 127"):
            train(recipe, resume=True, show=False)


@pytest.mark.parametrize("waits", [True, False])
def test_error_that_a_lost_process_may_have_caused_waits_for_the_agent(monkeypatch, waits):
    sleeps: list[float] = []
    monkeypatch.setattr(distributed.time, "sleep", sleeps.append)
    error = RuntimeError("connection closed") if waits else InputError("disk full")  # the first process reports errors
    worker = SimpleNamespace(world_size=2, is_first=True, launch=lambda: None)
    with pytest.raises(type(error)), Stop() as stop, distributed.joined(worker, TrainConfig(), stop):
        raise error
    assert len(sleeps) == waits


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


@pytest.mark.parametrize(
    ("accelerator", "gpus", "device"), [("auto", 0, "cpu"), ("auto", 2, "cuda"), ("gpu", 2, "cuda"), ("cpu", 2, "cpu")]
)
def test_an_accelerator_is_used_if_there_is_one_and_it_is_wanted(monkeypatch, accelerator, gpus, device):
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda") if gpus else None)
    assert worker_of(TrainConfig(accelerator=accelerator)).device.type == device


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_float16_step_whose_gradients_overflow_is_skipped(make_recipe, tmp_path, clip):
    recipe = make_recipe(tmp_path, train={"precision": "fp16-mixed", "gradient_clip": clip})
    worker = worker_of(replace(recipe.train, accelerator="cpu"))
    model = make_model()
    called, optimizer = set_up(worker, model, recipe.train)
    scaler = worker.scaler
    batch = collate(SRC, TGT)
    step = Step(0, 0, 0, [batch], [0], batch.target_tokens)
    before = deepcopy(model.state_dict())
    scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0**30})
    assert take_step(worker, called, optimizer, step, recipe.train, rate=1e-3, key=(1, 0)).isfinite()
    assert scaler.get_scale() == 2.0**29
    assert_same(model.state_dict(), before)
    assert not optimizer.state_dict()["state"]
    scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0**4})
    take_step(worker, called, optimizer, step, recipe.train, rate=1e-3, key=(1, 0))
    norm = torch.stack([parameter.grad.square().sum() for parameter in model.parameters()]).sum().sqrt()
    assert not torch.equal(model.embedding, before["embedding"])
    if clip:
        assert norm.item() == pytest.approx(clip, rel=1e-3)  # gradients are clipped without the scale


def test_activation_checkpointing_changes_no_bit(tmp_path, make_recipe, finished, monkeypatch):
    counted = Mock(wraps=transformer.checkpoint)
    monkeypatch.setattr(transformer, "checkpoint", counted)
    recipe = make_recipe(tmp_path / "run", train={"activation_checkpointing": True})
    train(recipe, show=False)
    assert counted.call_count > 10
    assert_same(state_of(recipe), state_of(finished))
