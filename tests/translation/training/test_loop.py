"""The loss against its formula, and one optimiser step however it is split."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor

from relattn.translation.config import ModelConfig, Recipe, dump
from relattn.translation.data.batching import collate
from relattn.translation.data.encode import TranslationData, load_data
from relattn.translation.errors import InputError
from relattn.translation.model.transformer import Transformer
from relattn.translation.training import checkpoints, loop
from relattn.translation.training.journal import read_log
from relattn.translation.training.loop import seed_dropout
from relattn.translation.training.objective import learning_rate, summed_loss
from relattn.translation.training.train import train

NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
STEPS = 3
SRC = [[5, 6, 7], [8], [9, 10, 4, 5, 6], []]
TGT = [[4, 4], [7, 8, 9, 10], [], [6]]


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(1)
    size = {"dim": 12, "heads": 3, "feed_forward_dim": 20, "encoder_layers": 1, "decoder_layers": 1, "clip": 2}
    return Transformer(ModelConfig(**size), 11).eval()


def formula(logits: Tensor, target: Tensor, epsilon: float) -> Tensor:
    """Szegedy et al. (2016), §7: (1 − ε) · −log p(y) + ε · mean over the vocabulary of −log p(v); padding is 0."""
    log_p = logits - logits.logsumexp(-1, keepdim=True)
    each = -(1 - epsilon) * log_p.gather(-1, target[..., None])[..., 0] - epsilon * log_p.mean(-1)
    return each[target != 0].sum()


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.7])
def test_label_smoothing_is_its_formula(model, epsilon):
    batch = collate(SRC, TGT)
    expected = formula(model(batch.src, batch.src_lengths, batch.tgt_in).double(), batch.tgt_out, epsilon)
    assert summed_loss(model, batch, epsilon).item() == pytest.approx(expected.item(), rel=1e-6)


def test_padding_adds_nothing_to_the_loss(model):
    together = summed_loss(model, collate(SRC, TGT), 0.1).item()
    alone = [summed_loss(model, collate([src], [tgt]), 0.1).item() for src, tgt in zip(SRC, TGT, strict=True)]
    assert together == pytest.approx(sum(alone), rel=1e-6)
    assert all(loss > 0 for loss in alone)


def test_dropout_is_a_function_of_all_its_keys():
    def draw(*key: int) -> list[float]:
        seed_dropout(*key)
        return torch.rand(3).tolist()

    keys = [(1, 0, 0, 0), (2, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1), (0, 0, 0, 0), (1, 10**9, 0, 0)]
    streams = [tuple(draw(*key)) for key in keys]
    assert len(set(streams)) == len(keys)
    assert [tuple(draw(*key)) for key in keys] == streams


def test_dropout_is_seeded_afresh_in_every_micro_batch_of_every_step(tmp_path, make_recipe, monkeypatch):
    keys = []
    monkeypatch.setattr(loop, "seed_dropout", lambda *key: keys.append(key))
    train(make_recipe(tmp_path / "run", data={"max_tokens": 32}, train={"steps": 4, "accumulate": 3}), show=False)
    assert len(set(keys)) == len(keys) > 4
    assert {(seed, step) for seed, step, _ in keys} == {(1, step) for step in range(4)}


@dataclass(frozen=True)
class Trained:
    """What three steps left, by parameter: the values, and Adam's mean of the gradients."""

    values: dict[str, Tensor]
    means: dict[str, Tensor]

    def off(self, other: Trained) -> dict[str, float]:
        """The largest differences. A key's bias adds the same to all scores of a query, so its gradient is zero but
        for rounding, which Adam blows up: there the mean gradient is all that can be compared."""
        found = {f"mean gradient of {n}": _largest(m - other.means[n]) for n, m in self.means.items()}
        return found | {n: _largest(v - other.values[n]) for n, v in self.values.items() if "key.bias" not in n}


def _largest(x: Tensor) -> float:
    return x.abs().max().item()


def from_checkpoint(out: Path) -> Trained:
    content = checkpoints.newest(out / "checkpoints")[1]
    assert content["step"] == STEPS
    means = [state["exp_avg"].double() for state in content["optimizer"]["state"].values()]
    values = {name: value.double() for name, value in content["model"].items()}
    return Trained(values, dict(zip(values, means, strict=True)))


@pytest.fixture(scope="module")
def recipe_of(make_recipe: Callable[..., Recipe]) -> Callable[..., Recipe]:
    """A recipe of a few steps without dropout; what a step holds is max_tokens × accumulate × devices."""

    def make(out: Path, max_tokens: int, accumulate: int = 1, *, devices: int = 1, clip: float = 0.0) -> Recipe:
        settings = {"steps": STEPS, "accumulate": accumulate, "gradient_clip": clip, "devices": devices}
        train = {**settings, "valid_bleu_lines": 0}
        return make_recipe(out, model=NO_DROPOUT, data={"max_tokens": max_tokens}, train=train)

    return make


def data_of(recipe: Recipe) -> TranslationData:
    return load_data(recipe.data, Path(recipe.out) / "again", seed=recipe.seed)


def by_hand(recipe: Recipe) -> Trained:
    """The same steps in float64, each as one batch, with the loss, the schedule and Adam written out."""
    data = data_of(recipe)
    torch.manual_seed(recipe.seed)
    model = Transformer(recipe.model, data.tokenizer.vocab_size).double()
    names, parameters = zip(*model.named_parameters(), strict=True)
    mean, square = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    for t, step in enumerate(islice(data.train.steps(), STEPS), start=1):
        (batch,) = step.micro_batches
        logits = model(batch.src, batch.src_lengths, batch.tgt_in)
        loss = formula(logits, batch.tgt_out, recipe.train.label_smoothing) / (batch.tgt_out != 0).sum()
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
        scale = min(1.0, recipe.train.gradient_clip / norm.item()) if recipe.train.gradient_clip > 0 else 1.0
        rate = learning_rate(t, dim=recipe.model.dim, warmup_steps=recipe.train.warmup_steps)
        with torch.no_grad():
            for p, g, m, v in zip(parameters, gradients, mean, square, strict=True):
                m.mul_(0.9).add_(0.1 * scale * g)
                v.mul_(0.98).add_(0.02 * (scale * g).square())
                p -= rate * (m / (1 - 0.9**t)) / ((v / (1 - 0.98**t)).sqrt() + 1e-9)
    return Trained({n: p.detach() for n, p in zip(names, parameters, strict=True)}, dict(zip(names, mean, strict=True)))


@dataclass(frozen=True)
class Exact:
    """What float64 gives, and the error allowed in float32: a few times the largest that one batch a step makes.

    That of a single parameter says little: Adam makes much of a gradient that is nearly nothing, wherever that falls.
    """

    trained: Trained
    allowed: float

    @classmethod
    def of(cls, recipe: Recipe) -> Exact:
        train(recipe, show=False)
        trained = by_hand(recipe)
        return cls(trained, 4 * max(trained.off(from_checkpoint(Path(recipe.out))).values()))

    def assert_reached(self, recipe: Recipe) -> None:
        off = self.trained.off(from_checkpoint(Path(recipe.out)))
        assert {name: value for name, value in off.items() if not value <= self.allowed} == {}


@pytest.fixture(scope="module", params=[0.0, 0.5], ids=["unclipped", "clipped"])
def whole(request, tmp_path_factory, recipe_of) -> tuple[float, Exact]:
    """The bound of the gradient, and steps of 512 tokens made at once."""
    return request.param, Exact.of(recipe_of(tmp_path_factory.mktemp("whole") / "run", 512, clip=request.param))


def test_unsplit_it_is_the_papers_step(whole):
    """In float32 a few steps stay close to those in float64: the budgets of the tests below are small ones."""
    assert whole[1].allowed < 1e-4


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("max_tokens", "accumulate"), [(256, 2), (128, 4)])
def test_a_step_is_the_same_however_it_is_accumulated(tmp_path, recipe_of, whole, max_tokens, accumulate):
    clip, exact = whole
    recipe = recipe_of(tmp_path / "run", max_tokens, accumulate, clip=clip)
    assert (
        max(len(step.micro_batches) for step in islice(data_of(recipe).train.steps(accumulate=accumulate), STEPS))
        == accumulate
    )
    train(replace(recipe, out=str(tmp_path / "split")), show=False)
    exact.assert_reached(replace(recipe, out=str(tmp_path / "split")))


def on_two_ranks(recipe: Recipe, path: Path) -> None:
    """Train a recipe with devices: 2, from the command line."""
    path.write_text(dump(recipe))
    command = [sys.executable, "-m", "relattn", "train", str(path)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"{recipe.out}/bundle\n"  # the first process alone speaks
    steps = [line.split()[1] for line in run.stderr.splitlines() if line.startswith("step ")]
    assert steps == ["2", str(STEPS)], run.stderr


@pytest.mark.whole
def test_a_step_is_the_same_on_two_ranks(tmp_path, recipe_of):
    """Of steps so small that a rank is at times left without a sentence."""
    whole = recipe_of(tmp_path / "whole", 16)
    exact = Exact.of(whole)
    sizes = [len(step.micro_batches[0].src) for step in islice(data_of(whole).train.steps(), STEPS)]
    assert 1 in sizes
    assert max(sizes) >= 2
    recipe = recipe_of(tmp_path / "run", 8, devices=2)
    on_two_ranks(recipe, tmp_path / "recipe.yaml")
    exact.assert_reached(recipe)


@pytest.mark.whole
def test_two_ranks_drop_what_one_does(tmp_path, make_recipe):
    """Dropout is drawn by micro-batch: dealt to two ranks or computed by one, they give the same losses."""
    settings = {"steps": STEPS, "valid_bleu_lines": 0}
    one = make_recipe(tmp_path / "one", data={"max_tokens": 48}, train={**settings, "accumulate": 2})
    two = make_recipe(tmp_path / "two", data={"max_tokens": 48}, train={**settings, "devices": 2})
    train(one, show=False)
    on_two_ranks(two, tmp_path / "recipe.yaml")
    ours, theirs = (read_log(Path(recipe.out) / "log.csv") for recipe in (two, one))
    assert [row.loss for row in ours] == pytest.approx([row.loss for row in theirs], rel=1e-5)
    assert [row.valid_loss for row in ours] == pytest.approx([row.valid_loss for row in theirs], rel=1e-5)
    undropped = replace(one, out=str(tmp_path / "undropped"), model=replace(one.model, dropout=0.0))
    train(undropped, show=False)  # it does matter what is dropped
    assert read_log(tmp_path / "undropped" / "log.csv")[-1].loss != pytest.approx(theirs[-1].loss, rel=1e-3)


def test_nothing_is_read_from_the_device_at_a_step_that_does_not_log(tmp_path, make_recipe, monkeypatch):
    """On a GPU, whoever reads a tensor waits for all that was asked of the device before."""
    steps, read = [], []
    for name in ("item", "tolist", "numpy", "__float__", "__int__", "__bool__"):
        really = getattr(torch.Tensor, name)

        def note(tensor: Tensor, *args: object, name: str = name, really: Callable = really) -> object:
            if tensor.requires_grad or (
                steps and sys._getframe(1).f_globals["__name__"].startswith("relattn.translation")
            ):
                read.append((len(steps), name))
            return really(tensor, *args)

        monkeypatch.setattr(torch.Tensor, name, note)
    take = loop.take_step
    monkeypatch.setattr(loop, "take_step", lambda *args, **key: (steps.append(None), take(*args, **key))[1])
    few = {"steps": 12, "log_every": 4, "valid_every": 8, "checkpoint_every": 6, "valid_bleu_lines": 0}
    train(make_recipe(tmp_path / "run", train={**few, "gradient_clip": 1.0}), show=False)
    assert {step for step, _ in read} == {4, 6, 8, 12}


@pytest.mark.whole
def test_torchrun_starts_the_processes(tmp_path, recipe_of):
    """And another number of them than the recipe's is refused before anything is made."""
    recipe = recipe_of(tmp_path / "run", 8, devices=2)
    (tmp_path / "recipe.yaml").write_text(dump(recipe))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node"]
    command = ["-m", "relattn", "train", str(tmp_path / "recipe.yaml")]
    run = subprocess.run([*torchrun, "3", *command], capture_output=True, text=True)
    told = [line for line in run.stderr.splitlines() if line.startswith("relattn: ")]
    assert set(told) == {"relattn: error: devices × nodes must be 3, the processes started, got 2 × 1"}
    assert not (tmp_path / "run").exists()
    run = subprocess.run([*torchrun, "2", *command], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"{recipe.out}/bundle\n"


def test_several_nodes_need_who_starts_them(tmp_path, recipe_of):
    recipe = recipe_of(tmp_path / "run", 8)
    with pytest.raises(InputError, match=r"^with nodes 2, torchrun or srun must start the processes$"):
        train(replace(recipe, train=replace(recipe.train, nodes=2)), show=False)
    assert not (tmp_path / "run").exists()


def begun(tmp_path: Path) -> subprocess.Popen[str]:
    """A run of two processes that has come to its first rows."""
    command = [sys.executable, "-m", "relattn", "train", str(tmp_path / "recipe.yaml")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    log, deadline = tmp_path / "run" / "log.csv", time.monotonic() + 60
    while not (log.exists() and log.read_text().count("\n") > 3):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def processes(first: subprocess.Popen[str]) -> list[int]:
    return [first.pid, *map(int, Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split())]


@pytest.mark.whole
def test_a_signal_to_one_process_stops_all_of_them(tmp_path, recipe_of):
    recipe = recipe_of(tmp_path / "run", 8, devices=2)
    (tmp_path / "recipe.yaml").write_text(dump(replace(recipe, train=replace(recipe.train, steps=100_000))))
    with begun(tmp_path) as process:
        os.kill(processes(process)[1], signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    step = checkpoints.newest(tmp_path / "run" / "checkpoints")[1]["step"]
    message = f"relattn: stopped after step {step}; the same command with --resume continues from there"
    assert err.splitlines()[-1] == message
    assert process.returncode == 128 + signal.SIGTERM
