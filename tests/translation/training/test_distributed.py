"""Many processes: shards, what a run goes on with on other devices, float16, layers computed again, lost processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from relattn.translation import bundle
from relattn.translation.config import ModelConfig, Recipe, as_dict, dump
from relattn.translation.data.batching import Step, collate
from relattn.translation.errors import InputError
from relattn.translation.model.transformer import Transformer
from relattn.translation.training import checkpoints, shards
from relattn.translation.training.distributed import precision_of
from relattn.translation.training.journal import read_log
from relattn.translation.training.loop import seed_dropout, set_up, take_step
from relattn.translation.training.objective import summed_loss
from relattn.translation.training.run_directory import describe_progress, require_same_run
from relattn.translation.training.train import train
from tests.translation.training.states import assert_same, leaves, state_of

SMALL = {"dim": 12, "heads": 3, "feed_forward_dim": 20, "encoder_layers": 2, "decoder_layers": 2}
SRC = [[5, 6, 7], [8], [9, 10, 4, 5, 6], []]
TGT = [[4, 4], [7, 8, 9, 10], [], [6]]


def losses(recipe: Recipe) -> list[float]:
    rows = read_log(Path(recipe.out) / "log.csv")
    return [loss for row in rows for loss in (row.loss, row.valid_loss) if loss is not None]


def model_of(positions: str = "relative", **changes: Any) -> Transformer:
    torch.manual_seed(1)
    clip = {"clip": 2} if positions == "relative" else {}
    return Transformer(ModelConfig(**{**SMALL, **clip, "positions": positions, **changes}), 11)


# Shards


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one process, whose shards are whole: all but the sending."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def in_shards(model: Transformer) -> Transformer:
    return shards.shard(model, init_device_mesh("cpu", (1, 1), mesh_dim_names=("data_parallel", "tensor_parallel")))


def trained(model: Transformer, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """The losses of so many steps; later ones go on where a state was put in."""
    found = []
    for step in range(steps):
        seed_dropout(1, step)
        loss = summed_loss(model, collate(SRC, TGT), 0.1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        found.append(loss.item())
    return found


def adam(model: Transformer) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("positions", ["relative", "t5", "lstm"])
def test_a_checkpoint_of_shards_is_that_of_one_process(alone, positions):
    plain, cut = model_of(positions), in_shards(model_of(positions))
    assert all(isinstance(parameter, DTensor) for parameter in cut.parameters())
    of_plain, of_cut = adam(plain), adam(cut)
    assert trained(cut, of_cut, 3) == pytest.approx(trained(plain, of_plain, 3), rel=1e-6)
    held = {"model": cut.state_dict(), "optimizer": of_cut.state_dict()}
    found = deepcopy(shards.whole_state(held, keep=True))
    expected = {"model": plain.state_dict(), "optimizer": of_plain.state_dict()}
    assert layout(found) == layout(expected)

    again, whole = in_shards(model_of(positions)), model_of(positions)
    of_again, of_whole = adam(again), adam(whole)
    shards.load(again, of_again, deepcopy(found))
    shards.load(whole, of_whole, deepcopy(found))
    assert_same({"model": whole.state_dict(), "optimizer": of_whole.state_dict()}, found)
    following = trained(cut, of_cut, 2)
    assert trained(again, of_again, 2) == following
    assert trained(whole, of_whole, 2) == pytest.approx(following, rel=1e-6)


def layout(state: Any) -> list[tuple[str, Any]]:
    """All that a state is but the numbers of its tensors."""
    return [(name, (type(x), x.dtype, x.shape) if isinstance(x, Tensor) else x) for name, x in leaves(state)]


def test_a_whole_copy_does_what_a_model_in_shards_cannot(alone):
    cut = in_shards(model_of(shared_embeddings="none"))
    copy, plain = shards.whole_model(cut), model_of(shared_embeddings="none")
    assert copy is not cut
    assert shards.whole_model(plain) is plain
    batch = collate(SRC, TGT)
    for model in (copy, plain):
        model.eval()
    with torch.inference_mode():
        cache = copy.start(copy.encode(batch.src, batch.src_lengths), batch.src_lengths)
        logits, _ = copy.step(batch.tgt_in, cache)
        torch.testing.assert_close(logits, plain(batch.src, batch.src_lengths, batch.tgt_in))


def test_one_process_has_nothing_to_share(make_recipe, tmp_path):
    with pytest.raises(InputError, match=r"^strategy must be ddp for a single process, got fsdp$"):
        make_recipe(tmp_path, train={"strategy": "fsdp"})


# Other devices


def test_a_run_goes_on_where_a_step_is_the_same(make_recipe, tmp_path):
    began = make_recipe(tmp_path, train={"accumulate": 4, "devices": 2})
    for accumulate, settings in ((8, {}), (2, {"devices": 4}), (1, {"devices": 4, "nodes": 2, "strategy": "fsdp"})):
        require_same_run(began, make_recipe(tmp_path, train={"accumulate": accumulate, **settings}))
    changed = f"{tmp_path}: these settings must be as when the run started: "
    for data, settings, told in (
        ({}, {"accumulate": 4}, "train.accumulate · train.devices · train.nodes: 8 → 4"),
        ({"max_tokens": 64}, {"accumulate": 8}, "data.max_tokens: 128 → 64"),
    ):
        with pytest.raises(InputError, match=f"^{re.escape(changed + told)}$"):
            require_same_run(began, make_recipe(tmp_path, data=data, train=settings))


STEPS = {"steps": 12, "log_every": 1, "checkpoint_every": 6, "valid_every": 6, "valid_bleu_lines": 2, "average": 1}


def command(recipe: Recipe, path: Path, *arguments: str, prefix: tuple[str, ...] = ()) -> list[str]:
    path.write_text(dump(recipe))
    return [sys.executable, *prefix, "-m", "relattn", "train", str(path), *arguments]


def in_processes(recipe: Recipe, path: Path, *arguments: str) -> None:
    run = subprocess.run(command(recipe, path, *arguments), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.whole
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_go_on_as_two_and_as_one(tmp_path, make_recipe, strategy):
    """With dropout, clipped gradients, micro-batches that are accumulated, and some that are empty."""
    settings = {**STEPS, "gradient_clip": 0.5, "learning_rate_factor": 0.1}
    one = make_recipe(tmp_path / "one", data={"max_tokens": 16}, train={**settings, "accumulate": 4})
    two = replace(
        one,
        out=str(tmp_path / "two"),
        train=replace(one.train, accumulate=2, devices=2, strategy=strategy),
    )
    train(one, show=False)
    in_processes(two, tmp_path / "two.yaml")
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    assert as_dict(one.model) == as_dict(bundle.read_bundle(Path(two.out) / "bundle").model)
    for part in ("model", "optimizer"):
        assert layout(state_of(two)[part]) == layout(state_of(one)[part])

    again, alone = replace(two, out=str(tmp_path / "again")), replace(one, out=str(tmp_path / "alone"))
    in_processes(replace(again, train=replace(again.train, steps=6)), tmp_path / "again.yaml")
    (tmp_path / "again").rename(tmp_path / "alone")
    in_processes(replace(again, train=replace(again.train, steps=6)), tmp_path / "again.yaml")
    in_processes(again, tmp_path / "again.yaml", "--resume")
    assert_same(state_of(again), state_of(two))
    assert losses(again) == losses(two)
    train(alone, resume=True, show=False)
    assert losses(alone)[:7] == losses(two)[:7]
    assert losses(alone) == pytest.approx(losses(two), rel=1e-5)


# Float16


@pytest.mark.whole
def test_in_float16_a_run_goes_on_with_its_scale(tmp_path, make_recipe):
    settings = {**STEPS, "steps": 6, "checkpoint_every": 3, "precision": "fp16-mixed", "gradient_clip": 0.5}
    recipe = make_recipe(tmp_path / "run", train={**settings, "valid_every": 3})
    train(recipe, show=False)
    assert {x.dtype for x in state_of(recipe)["model"].values()} == {torch.float32}
    assert state_of(recipe)["scaler"]["_growth_tracker"] == 6
    again = replace(recipe, out=str(tmp_path / "again"))
    train(replace(again, train=replace(again.train, steps=3)), show=False)
    train(again, resume=True, show=False)
    assert_same(state_of(again), state_of(recipe))
    exact = replace(recipe, out=str(tmp_path / "exact"), train=replace(recipe.train, precision="fp32"))
    train(exact, show=False)
    assert losses(recipe) == pytest.approx(losses(exact), rel=0.02)
    assert losses(recipe) != pytest.approx(losses(exact), rel=1e-5)  # it did compute in less


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_in_float16_a_step_whose_gradients_overflow_is_skipped(make_recipe, tmp_path, clip):
    recipe = make_recipe(tmp_path, train={"precision": "fp16-mixed", "gradient_clip": clip})
    fabric = Fabric(accelerator="cpu", devices=1, plugins=precision_of(recipe.train))
    model = model_of()
    called, optimizer = set_up(fabric, model, recipe.train)
    scaler = fabric.strategy.precision.scaler
    batch = collate(SRC, TGT)
    step = Step(0, 0, [batch], [0], batch.target_tokens)
    before = {name: value.clone() for name, value in model.state_dict().items()}
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
        assert norm.item() == pytest.approx(clip, rel=1e-3)  # of the gradients as they are without the scale


@pytest.mark.whole
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_in_float16_two_processes_skip_what_one_does(tmp_path, make_recipe, strategy):
    settings = {**STEPS, "precision": "fp16-mixed", "learning_rate_factor": 0.1, "gradient_clip": 0.5}
    one = make_recipe(tmp_path / "one", data={"max_tokens": 48}, train={**settings, "accumulate": 2})
    two = make_recipe(tmp_path / "two", data={"max_tokens": 48}, train={**settings, "devices": 2, "strategy": strategy})
    train(replace(one, train=replace(one.train, steps=6)), show=False)
    in_processes(replace(two, train=replace(two.train, steps=6)), tmp_path / "two.yaml")
    for recipe in (one, two):  # a scale that overflows
        (path,) = checkpoints.list_checkpoints(Path(recipe.out) / "checkpoints")
        content = checkpoints.load(path)
        content["scaler"]["scale"] = 2.0**32
        step = content.pop("step")
        del content["format"]
        checkpoints.save(path.parent, step, content, keep=3)
    train(one, resume=True, show=False)
    in_processes(two, tmp_path / "two.yaml", "--resume")
    assert state_of(two)["scaler"] == state_of(one)["scaler"]
    assert state_of(two)["scaler"]["scale"] < 2.0**32
    assert losses(two) == pytest.approx(losses(one), rel=1e-3)


# Layers computed again


@pytest.mark.parametrize("positions", ["relative", "sinusoidal"])
def test_layers_computed_again_change_no_bit(positions):
    found = []
    for again in (False, True):
        model = model_of(positions)
        if again:
            model.recompute_activations()
        seed_dropout(3)
        loss = summed_loss(model, collate(SRC, TGT), 0.1)
        loss.backward()
        after = torch.rand(3)  # the generator goes on from where it would have been
        found.append((loss.detach(), after, *(parameter.grad for parameter in model.parameters())))
    assert_same(found[0], found[1])


def test_a_run_whose_layers_are_computed_again_is_the_same_run(tmp_path, make_recipe, monkeypatch):
    calls = []
    really = Transformer.recompute_activations
    monkeypatch.setattr(Transformer, "recompute_activations", lambda model: (calls.append(model), really(model)))
    recipe = make_recipe(tmp_path / "run", train={"steps": 4})
    again = make_recipe(tmp_path / "again", train={"steps": 4, "activation_checkpointing": True})
    for one in (recipe, again):
        train(one, show=False)
    assert len(calls) == 1
    assert_same(state_of(again), state_of(recipe))


@pytest.mark.whole
@pytest.mark.parametrize(
    "settings",
    [{}, {"devices": 2, "activation_checkpointing": True}, {"devices": 2, "strategy": "fsdp"}],
    ids=["one", "ddp", "fsdp"],
)
def test_a_compiled_run_is_the_same_but_for_rounding(tmp_path, make_recipe, settings):
    few = {
        "steps": 4,
        "log_every": 1,
        "valid_every": 4,
        "average": 1,
        "learning_rate_factor": 0.1,
        "valid_bleu_lines": 2,
    }
    data = {"max_tokens": 64}
    recipe = make_recipe(tmp_path / "run", data=data, train={**few, "accumulate": 2})
    more = {**few, **settings, "accumulate": 2 // settings.get("devices", 1), "compile": True}
    compiled = make_recipe(tmp_path / "compiled", data=data, train=more)
    train(recipe, show=False)
    in_processes(compiled, tmp_path / "compiled.yaml")
    assert losses(compiled) == pytest.approx(losses(recipe), rel=1e-5)
    assert layout(state_of(compiled)["model"]) == layout(state_of(recipe)["model"])


# Processes that are lost


def test_where_torchrun_starts_a_run_again_it_goes_on(tmp_path, make_recipe, monkeypatch):
    recipe, again = (make_recipe(tmp_path / name, train=STEPS) for name in ("run", "again"))
    train(recipe, show=False)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    train(replace(again, train=replace(again.train, steps=6)), show=False)  # it had left nothing
    train(again, show=False)
    assert_same(state_of(again), state_of(recipe))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    with pytest.raises(InputError, match="contains a run"):
        train(again, show=False)


def children(process: subprocess.Popen[str]) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


ENDLESS = {"steps": 100_000, "warmup_steps": 100_000, "devices": 2}  # without a warning about word order


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def begun(arguments: list[str], recipe: Recipe, rows: int) -> subprocess.Popen[str]:
    """Start a run in a session of its own, and wait until its log has some rows."""
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    log, deadline = Path(recipe.out) / "log.csv", time.monotonic() + 120
    while not (log.exists() and log.read_text().count("\n") > rows):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


@pytest.mark.whole
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_processes_that_are_restarted_continue(tmp_path, make_recipe, strategy):
    settings = {**STEPS, "steps": 300, "checkpoint_every": 10, "devices": 2, "strategy": strategy}
    recipe = make_recipe(tmp_path / "run", train=settings)
    killed = make_recipe(tmp_path / "killed", train={**settings, "max_restarts": 3})
    in_processes(recipe, tmp_path / "run.yaml")
    with begun(command(killed, tmp_path / "killed.yaml"), killed, 15) as process:
        os.kill(children(process)[1], signal.SIGKILL)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out == f"{killed.out}/bundle\n"
    warning = "relattn: warning: a process was lost; restart 1 continues from the newest checkpoint"
    assert [line for line in err.splitlines() if "process" in line] == [warning]
    assert_same(state_of(killed), state_of(recipe))
    assert losses(killed) == losses(recipe)


@pytest.mark.whole
def test_a_run_that_torchrun_restarts_continues(tmp_path, make_recipe):
    settings = {**STEPS, "steps": 200, "checkpoint_every": 10, "devices": 2}
    recipe, killed = (make_recipe(tmp_path / name, train=settings) for name in ("run", "killed"))
    in_processes(recipe, tmp_path / "run.yaml")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3")
    with begun(command(killed, tmp_path / "killed.yaml", prefix=torchrun), killed, 15) as process:
        os.kill(children(process)[0], signal.SIGKILL)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (0, f"{killed.out}/bundle\n"), err
    assert_same(state_of(killed), state_of(recipe))


@pytest.mark.whole
@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_process_ends_the_run_with_one_line(tmp_path, make_recipe, rank):
    settings = {**STEPS, **ENDLESS, "checkpoint_every": 4}
    recipe = make_recipe(tmp_path / "run", train=settings)
    with begun(command(recipe, tmp_path / "recipe.yaml"), recipe, 6) as process:
        pids = children(process)
        os.kill(pids[rank], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert not any(map(is_running, pids))
    rows, saved = read_log(tmp_path / "run" / "log.csv"), checkpoints.list_checkpoints(tmp_path / "run" / "checkpoints")
    newest = checkpoints.step_of(saved[-1])
    how = f"process {rank + 1} of 2 was killed by SIGKILL after step {max(rows[-1].step, newest)}"
    last = f"relattn: error: {how}; the same command with --resume continues from step {newest}"
    assert [line for line in err.splitlines() if not line.startswith("step ")] == [last]


@pytest.mark.whole
@pytest.mark.parametrize(
    ("number", "to_group"),
    [(signal.SIGTERM, False), (signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGKILL, False)],
)
def test_a_signal_to_several_processes_leaves_a_checkpoint_and_no_orphan(tmp_path, make_recipe, number, to_group):
    settings = {**STEPS, **ENDLESS, "checkpoint_every": 100_000}
    recipe = make_recipe(tmp_path / "run", train=settings)
    with begun(command(recipe, tmp_path / "recipe.yaml"), recipe, 6) as process:
        pids = children(process)
        (os.killpg if to_group else os.kill)(process.pid, number)
        _, err = process.communicate(timeout=60)  # all processes have closed standard error
    assert process.returncode == (128 + number if number != signal.SIGKILL else -number)
    assert not any(map(is_running, pids))
    (path,) = checkpoints.list_checkpoints(tmp_path / "run" / "checkpoints")
    last = f"stopped after step {checkpoints.step_of(path)}; the same command with --resume continues from there"
    assert [line for line in err.splitlines() if not line.startswith("step ")] == [f"relattn: {last}"]


@pytest.mark.whole
def test_a_process_whose_agent_is_gone_before_it_looks_ends(tmp_path, make_recipe):
    recipe = make_recipe(tmp_path / "run", train={**ENDLESS, "devices": 1})
    environment = {**os.environ, "TORCHELASTIC_RUN_ID": "x", "RELATTN_AGENT": "1"}  # which is not the parent
    run = subprocess.run(command(recipe, tmp_path / "recipe.yaml"), env=environment, capture_output=True, timeout=120)
    assert run.returncode == 128 + signal.SIGTERM


@pytest.mark.whole
def test_a_user_error_in_several_processes_is_one_line(tmp_path, make_recipe):
    """The first process finds it, before and after the data are prepared."""
    recipe = make_recipe(tmp_path / "run", train={**STEPS, "devices": 2, "init_from": "nowhere"})
    start = subprocess.run(command(recipe, tmp_path / "recipe.yaml"), capture_output=True, text=True)
    assert (start.returncode, start.stderr.count("\n")) == (2, 1), start.stderr
    assert start.stderr.startswith("relattn: error: nowhere: no such directory")
    recipe = make_recipe(tmp_path / "run", train={**STEPS, "devices": 2, "keep": 10**9})
    begin = time.monotonic()
    full = subprocess.run(command(recipe, tmp_path / "recipe.yaml"), capture_output=True, text=True)
    assert (full.returncode, full.stderr.count("relattn: ")) == (2, 1), full.stderr
    assert "the disk must have" in full.stderr
    assert time.monotonic() - begin < 60  # the other process does not wait for this one


def test_how_far_a_run_came_is_read_from_its_directory(tmp_path, finished):
    again = "the same command with --resume"
    assert describe_progress(tmp_path) == f"; {again} starts again"
    assert describe_progress(Path(finished.out)) == f" after step 6; {again} continues from step 6"
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "log.csv").write_bytes((Path(finished.out) / "log.csv").read_bytes())
    assert describe_progress(tmp_path) == f" after step 6; {again} starts again"
    checkpoints.save(tmp_path / "checkpoints", 4, {}, keep=1)
    assert describe_progress(tmp_path) == f" after step 6; {again} continues from step 4"
