"""A run: the same whether interrupted or not, its directory, its log, and starting from a bundle."""

from __future__ import annotations

import errno
import itertools
import math
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from filelock import FileLock

from relattn.translation import bundle
from relattn.translation.commands import main as cli
from relattn.translation.config import Recipe, as_dict, dump
from relattn.translation.data.text_files import read_parallel
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.errors import InputError, Interrupted
from relattn.translation.evaluation import score
from relattn.translation.model.positions.schemes import SCHEMES
from relattn.translation.model.transformer import Transformer
from relattn.translation.training import checkpoints, journal, loop
from relattn.translation.training.checkpoints import average
from relattn.translation.training.journal import Row, read_log
from relattn.translation.training.train import average_run, read_recipe, train
from relattn.translation.translate.torch_translator import TorchTranslator
from tests.translation.training.states import assert_same, state_of

# Validating after every step lets a session that ends early by its number of steps leave what one that goes on does.
EVERY_STEP = {"steps": 9, "valid_every": 1, "checkpoint_every": 1, "keep": 9, "valid_bleu_lines": 0, "average": 1}


def validation_losses(recipe: Recipe) -> list[tuple[int, float | None]]:
    return [(row.step, row.valid_loss) for row in read_log(Path(recipe.out) / "log.csv")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, make_recipe) -> Recipe:
    """A run with dropout, gradients accumulated, and no interruption."""
    recipe = make_recipe(tmp_path_factory.mktemp("whole") / "run", train={**EVERY_STEP, "accumulate": 2})
    train(recipe, show=False)
    return recipe


def positions(recipe: Recipe) -> list[tuple[int, int]]:
    progress = [state_of(recipe, step)["progress"] for step in range(1, 10)]
    return [(each["epoch"], each["index"]) for each in progress]


def test_steps_are_counted_through_epochs(whole):
    found = positions(whole)
    assert found == sorted(set(found))
    assert {epoch for epoch, _ in found} >= {0, 1}
    assert found[0] == (0, 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("where", ["in an epoch", "between epochs"])
def test_a_resumed_run_is_the_same_run(tmp_path, whole, where):
    ends = [step for step in range(1, 9) if positions(whole)[step] == (positions(whole)[step - 1][0] + 1, 1)]
    stop = ends[0] if where == "between epochs" else ends[0] - 1
    recipe = replace(whole, out=str(tmp_path / "run"))
    train(replace(recipe, train=replace(recipe.train, steps=stop)), show=False)
    torch.manual_seed(99)  # no random state outside a step may matter
    train(recipe, resume=True, show=False)
    for step in range(1, 10):
        assert_same(state_of(recipe, step), state_of(whole, step))
    assert validation_losses(recipe) == validation_losses(whole)
    ours, theirs = (bundle.read_bundle(Path(r.out) / "bundle").state for r in (recipe, whole))
    assert_same(ours, theirs)


def test_a_damaged_checkpoint_is_passed_over_and_made_again(tmp_path, whole, caplog):
    recipe = replace(whole, out=str(tmp_path / "run"))
    train(replace(recipe, train=replace(recipe.train, steps=4)), show=False)
    newest = checkpoints.checkpoint_path(tmp_path / "run" / "checkpoints", 4)
    newest.write_bytes(newest.read_bytes()[:1000])
    caplog.clear()
    train(recipe, resume=True, show=False)
    assert caplog.messages[0].startswith(f"{newest}: damaged: ")
    assert caplog.messages[0].endswith("; continuing from step-00000003.ckpt")
    assert_same(state_of(recipe, 9), state_of(whole, 9))
    assert [step for step, _ in validation_losses(recipe)] == list(range(1, 10))  # rows past the checkpoint went


def test_a_disk_that_fills_leaves_the_checkpoint_before(tmp_path, whole, monkeypatch, capsys):
    recipe = replace(whole, out=str(tmp_path / "run"))
    (tmp_path / "recipe.yaml").write_text(dump(recipe))
    synced, fsync = [], os.fsync

    def fail_in_the_end(handle: int) -> None:
        synced.append(handle)
        if len(synced) > 17:  # in the midst of a checkpoint
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_in_the_end)
        assert cli.main(["train", str(tmp_path / "recipe.yaml")]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("relattn: error: ")
    assert "No space left on device" in last
    kept = checkpoints.newest(tmp_path / "run" / "checkpoints")[1]["step"]
    assert 0 < kept < 9
    train(recipe, resume=True, show=False)
    assert_same(state_of(recipe, 9), state_of(whole, 9))


def started(recipe: Recipe, path: Path) -> subprocess.Popen[str]:
    """`relattn train` on a recipe, in a process of its own."""
    path.write_text(dump(recipe))
    command = [sys.executable, "-m", "relattn", "train", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.whole
def test_a_signal_leaves_a_checkpoint_to_go_on_from(tmp_path, make_recipe, whole, number):
    """Interrupted in a process of its own, after some step or other; then resumed."""
    recipe = replace(
        whole, out=str(tmp_path / "run"), train=replace(whole.train, checkpoint_every=10_000, steps=10_000)
    )
    log = tmp_path / "run" / "log.csv"
    with started(recipe, tmp_path / "recipe.yaml") as process:
        wait_until(process, lambda: log.exists() and log.read_text().count("\n") > 3)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    (path,) = checkpoints.list_checkpoints(tmp_path / "run" / "checkpoints")
    stopped = checkpoints.load(path)["step"]
    last = f"relattn: stopped after step {stopped}; the same command with --resume continues from there"
    assert (process.returncode, out, err.splitlines()[-1]) == (128 + number, "", last)
    assert not (tmp_path / "run" / "bundle").exists()

    steps = stopped + 2
    train(replace(recipe, train=replace(recipe.train, steps=steps)), resume=True, show=False)
    again = replace(recipe, out=str(tmp_path / "again"), train=replace(recipe.train, steps=steps))
    train(again, show=False)
    assert_same(state_of(recipe, steps), state_of(again, steps))
    assert validation_losses(recipe) == validation_losses(again)


@pytest.mark.whole
@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_first_step_leaves_nothing(tmp_path, make_recipe, number):
    """While it waits for text that does not come."""
    os.mkfifo(tmp_path / "endless")
    recipe = make_recipe(tmp_path / "p" / "run", data={"train_src": str(tmp_path / "endless")})
    with started(recipe, tmp_path / "recipe.yaml") as process:
        wait_until(process, (tmp_path / "p" / "run" / "recipe.yaml").exists)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    last = "relattn: stopped before the first step; the same command starts again\n"
    assert (process.returncode, out, err) == (128 + number, "", last)
    assert not (tmp_path / "p").exists()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("where", ["checkpoint", "bundle"])
def test_a_signal_at_the_very_end(tmp_path, whole, monkeypatch, where):
    """While the last checkpoint is written, or the bundle: the run is not done, and says so."""
    recipe = replace(whole, out=str(tmp_path / "run"))
    module, name = (checkpoints, "save") if where == "checkpoint" else (bundle, "save")
    really = getattr(module, name)

    def save(*args: Any, **kwargs: Any) -> Any:
        if where == "bundle" or args[1] == 9:
            signal.raise_signal(signal.SIGTERM)
        return really(*args, **kwargs)

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        patch.setattr(module, name, save)
        with pytest.raises(Interrupted, match=r"^stopped after step 9; the same command with --resume") as stop:
            train(recipe, show=False)
    assert stop.value.number == signal.SIGTERM
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert not (tmp_path / "run" / "bundle").exists()
    train(recipe, resume=True, show=False)
    assert_same(state_of(recipe, 9), state_of(whole, 9))
    assert (tmp_path / "run" / "bundle").exists()


@pytest.mark.whole
def test_killed_at_its_very_beginning_a_run_begins_or_goes_on(tmp_path, finished, monkeypatch):
    """Whatever the moment: what is left is taken for no run at all, or for one to go on with."""
    recipe = replace(finished, out=str(tmp_path / "run"))
    for left in ([], [".lock"], [".lock", ".recipe.yaml.part"]):
        (tmp_path / "run").mkdir()
        for name in left:
            (tmp_path / "run" / name).write_text("half")
        train(recipe, show=False)
        assert_same(state_of(recipe, 6), state_of(finished, 6))
        shutil.rmtree(tmp_path / "run")
    for more in ([], ["tokenizer.model"], ["tokenizer.model", "data/.train.arrow.part"]):
        (tmp_path / "run" / "data").mkdir(parents=True)
        (tmp_path / "run" / "recipe.yaml").write_text(dump(recipe))
        for name in more:
            (tmp_path / "run" / name).write_text("half")
        train(recipe, resume=True, show=False)
        assert_same(state_of(recipe, 6), state_of(finished, 6))
        shutil.rmtree(tmp_path / "run")


def test_a_run_resumed_between_rows_logs_what_one_never_stopped_does(tmp_path, whole, monkeypatch):
    """Times too, by a clock that ticks when it is looked at."""
    monkeypatch.setattr(journal.time, "perf_counter", itertools.count().__next__)
    settings = {"log_every": 4, "valid_every": 8, "checkpoint_every": 2, "steps": 12}
    once = replace(whole, out=str(tmp_path / "once"), train=replace(whole.train, **settings))
    train(once, show=False)
    again = replace(once, out=str(tmp_path / "again"))
    for stop in (2, 6):
        killed_after(again, stop)
    train(again, resume=True, show=False)
    ours, theirs = (read_log(Path(recipe.out) / "log.csv") for recipe in (again, once))
    assert ours == theirs
    assert [row.seconds for row in ours] == [2.0, 4.0, 6.0]


def killed_after(recipe: Recipe, step: int) -> None:
    """Train on, and end as if killed right after the checkpoint of a step."""
    save = checkpoints.save

    def last(*args: Any, **kwargs: Any) -> Any:
        save(*args, **kwargs)
        if args[1] == step:
            raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "save", last)
        with pytest.raises(RuntimeError, match="killed"):
            train(recipe, resume=Path(recipe.out).exists(), show=False)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("rate", "every", "message"),
    [
        (1e30, 9, "training diverged: the loss must be finite, got nan in step 6; .*"),
        (1e30, 1, "training diverged: the loss must be finite, got nan in step 6; .*"),
        (math.inf, 1, "training diverged: weights must be finite, but step 5 made some NaN or infinite"),
    ],
)
def test_a_run_that_diverges_is_an_error_and_no_bundle(tmp_path, whole, monkeypatch, rate, every, message):
    monkeypatch.setattr(loop, "learning_rate", lambda step, *_, **__: rate if step == 5 else 1e-3)
    settings = {"checkpoint_every": every, "valid_every": 9, "log_every": 9}
    recipe = replace(whole, out=str(tmp_path / "run"), train=replace(whole.train, **settings))
    with pytest.raises(InputError, match=f"^{message}$"):
        train(recipe, show=False)
    assert not (tmp_path / "run" / "bundle").exists()
    for path in checkpoints.list_checkpoints(tmp_path / "run" / "checkpoints"):
        assert all(tensor.isfinite().all() for tensor in checkpoints.load(path)["model"].values())


def test_a_text_that_changed_since_a_run_began_is_refused(tmp_path, make_recipe, text):
    changed = tmp_path / "changed.src"
    changed.write_text(Path(text["train_src"]).read_text().replace("one", "One"))
    recipe = make_recipe(tmp_path / "run")
    train(replace(recipe, train=replace(recipe.train, steps=4)), show=False)
    other = replace(recipe, data=replace(recipe.data, train_src=str(changed)))
    with pytest.raises(
        InputError, match=rf"^data\.train_src: {changed} must have the text that this run started with$"
    ):
        train(other, resume=True, show=False)
    changed.write_text(Path(text["train_src"]).read_text())
    train(other, resume=True, show=False)
    assert [step for step, _ in validation_losses(recipe)] == [2, 4, 6]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "wrong",
    [
        {"model": {}},
        {"optimizer": 3},
        {"scaler": None},
        {"progress": {"epochs": 1}},
        {"progress": None},
    ],
)
def test_a_checkpoint_with_another_content_is_told(tmp_path, finished, wrong):
    shutil.copytree(finished.out, tmp_path / "run")
    path = checkpoints.checkpoint_path(tmp_path / "run" / "checkpoints", 6)
    found = {name: value for name, value in checkpoints.load(path).items() if name not in ("format", "step")}
    checkpoints.save(path.parent, 6, {**found, **wrong}, keep=3)
    with pytest.raises(InputError, match=r"run: the checkpoint of step 6 must belong to this run: ") as error:
        train(replace(finished, out=str(tmp_path / "run")), resume=True, show=False)
    assert "\n" not in str(error.value)


def test_the_callers_settings_are_left_alone(tmp_path, make_recipe):
    environment, threads = dict(os.environ), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        train(make_recipe(tmp_path / "run", train={"threads": 1, "steps": 2}), show=False)
        assert (dict(os.environ), torch.get_num_threads()) == (environment, 2)
    finally:
        torch.set_num_threads(threads)


def test_a_finished_run_is_finished_again_and_can_be_given_more_steps(tmp_path, make_recipe):
    recipe = make_recipe(tmp_path / "run")
    train(recipe, show=False)
    before = (tmp_path / "run" / "log.csv").read_text()
    assert train(recipe, resume=True, show=False) == tmp_path / "run" / "bundle"
    assert (tmp_path / "run" / "log.csv").read_text() == before
    train(replace(recipe, train=replace(recipe.train, steps=8)), resume=True, show=False)
    assert [step for step, _ in validation_losses(recipe)] == [2, 4, 6, 8]


def test_a_run_that_never_came_to_a_checkpoint_starts_again(tmp_path, make_recipe, finished):
    recipe = replace(finished, out=str(tmp_path / "run"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "save", lambda *_, **__: (_ for _ in ()).throw(InputError("no space")))
        with pytest.raises(InputError, match="no space"):
            train(recipe, show=False)
    train(recipe, resume=True, show=False)
    assert_same(state_of(recipe, 6), state_of(finished, 6))


def test_the_directory_holds_what_it_should(finished):
    out = Path(finished.out)
    names = {"recipe.yaml", "tokenizer.model", "log.csv", "data", "checkpoints", "bundle", "tensorboard"}
    assert {path.name for path in out.iterdir()} == names
    assert [path.name for path in checkpoints.list_checkpoints(out / "checkpoints")] == [
        f"step-{step:08d}.ckpt" for step in (2, 4, 6)
    ]
    assert read_recipe(out) == finished
    assert (out / "tokenizer.model").read_bytes() == (out / "bundle" / "tokenizer.model").read_bytes()


def test_tensorboard_is_told_what_the_log_is(finished):
    (events,) = (Path(finished.out) / "tensorboard").glob("events.*")
    for name in ("loss", "tokens_per_second", "learning_rate", "valid_loss", "valid_bleu"):
        assert events.read_bytes().count(b"\n" + bytes([len(name)]) + name.encode()) == 3  # steps 2, 4 and 6


def independent_loss(model: Transformer, tokenizer: Tokenizer, pairs: list[tuple[str, str]]) -> float:
    """Nats a target token, sentence by sentence, without padding."""
    total = count = 0.0
    for src_text, tgt_text in pairs:
        src = torch.tensor([[*tokenizer.encode(src_text), 2]])
        tgt = tokenizer.encode(tgt_text)
        logits = model.eval()(src, torch.tensor([src.shape[1]]), torch.tensor([[1, *tgt]]))
        total += F.cross_entropy(logits[0], torch.tensor([*tgt, 2]), reduction="sum").item()
        count += len(tgt) + 1
    return total / count


def test_the_log_says_what_happened(finished, text):
    rows = read_log(Path(finished.out) / "log.csv")
    pairs = list(read_parallel(text["valid_src"], text["valid_tgt"]))
    tokenizer = Tokenizer.load(Path(finished.out) / "tokenizer.model")
    assert [row.step for row in rows] == [2, 4, 6]
    for row in rows:
        model = Transformer(finished.model, tokenizer.vocab_size)
        model.load_state_dict(state_of(finished, row.step)["model"])
        assert row.valid_loss == pytest.approx(independent_loss(model, tokenizer, pairs), rel=1e-5)
        greedy = TorchTranslator(model, tokenizer, replace(finished.search, beam_size=1))
        bleu = score(greedy.translate([src for src, _ in pairs[:3]]), [tgt for _, tgt in pairs[:3]]).bleu
        assert row.valid_bleu == pytest.approx(bleu, rel=1e-5, abs=1e-9)
        step = row.step
        assert row.learning_rate == pytest.approx(12**-0.5 * min(step**-0.5, step * 4**-1.5), rel=1e-5)
    assert rows == sorted(rows, key=lambda row: row.seconds)
    assert all(isinstance(row, Row) and row.tokens_per_second > 0 and row.loss > 0 for row in rows)


def test_the_first_loss_in_the_log_is_that_of_the_first_batch(tmp_path, make_recipe):
    """Before any step a model is near uniform in nothing but its loss: measured again here on all pairs of one step."""
    model = {"dropout": 0.0, "attention_dropout": 0.0}
    few = {"steps": 1, "log_every": 1, "label_smoothing": 0.0, "average": 1}
    recipe = make_recipe(tmp_path / "run", model=model, train=few, data={"max_tokens": 10_000})
    train(recipe, show=False)
    (row,) = read_log(tmp_path / "run" / "log.csv")
    tokenizer = Tokenizer.load(tmp_path / "run" / "tokenizer.model")
    torch.manual_seed(recipe.seed)
    fresh = Transformer(recipe.model, tokenizer.vocab_size)
    pairs = list(read_parallel(recipe.data.train_src, recipe.data.train_tgt))
    assert row.loss == pytest.approx(independent_loss(fresh, tokenizer, pairs), rel=1e-5)


def test_the_bundle_is_the_mean_of_the_last_and_its_card_has_the_scores(finished, text):
    out = Path(finished.out)
    states = [state_of(finished, step)["model"] for step in (4, 6)]
    assert_same(bundle.read_bundle(out / "bundle").state, average(states))
    card = (out / "bundle" / "README.md").read_text()
    pairs = list(read_parallel(text["valid_src"], text["valid_tgt"]))
    translations = bundle.read_bundle(out / "bundle").translator().translate([src for src, _ in pairs])
    scores = score(translations, [tgt for _, tgt in pairs])
    assert str(scores) in card
    assert dump(finished) in card
    assert "relattn translate PATH < in.txt" in card
    assert text["train_src"] in card


def test_averaging_afterwards(finished, tmp_path):
    average_run(finished.out, 3, tmp_path / "mean")
    expected = average(state_of(finished, step)["model"] for step in (2, 4, 6))
    assert_same(bundle.read_bundle(tmp_path / "mean").state, expected)
    for last in (0, 4):
        with pytest.raises(InputError, match=rf"last must be in \[1, 3\], the checkpoints of .*, got {last}"):
            average_run(finished.out, last, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_tokenizer_that_is_not_the_runs_is_refused(tmp_path, finished):
    shutil.copytree(finished.out, tmp_path / "run")
    path = tmp_path / "run" / "tokenizer.model"
    other = Tokenizer.train(["other text 0123456789"] * 5, Tokenizer.load(path).vocab_size, seed=1)
    path.write_bytes(other.model_bytes)
    message = rf"^{path} must be the tokenizer that this run started with, got another one$"
    with pytest.raises(InputError, match=message):
        average_run(tmp_path / "run", 2, tmp_path / "mean")
    with pytest.raises(InputError, match=message):
        train(replace(finished, out=str(tmp_path / "run")), resume=True, show=False)
    for content in (b"{", b"[]", b'{"digests": 3}'):
        (tmp_path / "run" / "data" / "text.json").write_bytes(content)
        with pytest.raises(InputError, match=r"text\.json: not as this version writes it: "):
            average_run(tmp_path / "run", 2, tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_training_stops_when_validation_has_not_improved_for_so_long(tmp_path, make_recipe):
    """A learning rate that ruins the model: the loss cannot get better for ever."""
    settings = {**EVERY_STEP, "steps": 500, "patience": 3, "learning_rate_factor": 50.0, "keep": 1}
    recipe = make_recipe(tmp_path / "run", train=settings)
    train(recipe, show=False)
    losses = [loss for _, loss in validation_losses(recipe)]
    assert len(losses) < 500
    best = losses.index(min(losses))
    assert len(losses) == best + 1 + 3
    train(recipe, resume=True, show=False)  # it stays stopped
    assert len(validation_losses(recipe)) == len(losses)

    other = replace(recipe, out=str(tmp_path / "other"))  # interrupted while it waits, it still knows how long it has
    train(replace(other, train=replace(recipe.train, steps=best + 2)), show=False)
    train(other, resume=True, show=False)
    assert validation_losses(other) == validation_losses(recipe)


@pytest.mark.whole
def test_bf16_trains_with_weights_in_fp32(tmp_path, make_recipe, finished):
    recipe = make_recipe(tmp_path / "run", train={"precision": "bf16-mixed"})
    train(recipe, show=False)
    state = state_of(recipe, 6)["model"]
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    close = {name: torch.allclose(tensor, state_of(finished, 6)["model"][name]) for name, tensor in state.items()}
    assert not all(close.values())  # it did compute in less than fp32
    losses = [loss for _, loss in validation_losses(recipe)]
    assert losses == pytest.approx([loss for _, loss in validation_losses(finished)], rel=0.05)


@pytest.mark.sampled(7)
@pytest.mark.filterwarnings("ignore:positions. none:UserWarning")
@pytest.mark.parametrize("positions", [name for name in SCHEMES if name != "relative"])  # which all others train
def test_every_scheme_trains(tmp_path, make_recipe, positions):
    recipe = make_recipe(tmp_path / "run", model={"positions": positions}, train={"steps": 2})
    loaded = bundle.read_bundle(train(recipe, show=False)).translator()
    assert loaded.model.config == recipe.model
    loaded.translate(["one cat sat"])


@pytest.fixture
def start(finished: Recipe) -> str:
    return f"{finished.out}/bundle"


def test_a_run_starts_from_a_bundle_with_its_tokenizer(tmp_path, make_recipe, finished, start):
    other = tmp_path / "other.txt"
    other.write_text("entirely different text\n" * 9)
    data = {"train_src": str(other), "train_tgt": str(other), "vocab_size": 280}
    slow = {"init_from": start, "steps": 1, "learning_rate_factor": 1e-9, "average": 1}
    recipe = make_recipe(tmp_path / "run", data=data, train=slow, model={"dropout": 0.3})
    train(recipe, show=False)
    assert (tmp_path / "run" / "tokenizer.model").read_bytes() == (Path(start) / "tokenizer.model").read_bytes()
    before, after = bundle.read_bundle(start).state, bundle.read_bundle(tmp_path / "run" / "bundle").state
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-8)
    assert not torch.equal(after["embedding"], before["embedding"])


def test_a_run_from_a_bundle_draws_the_random_numbers_of_a_new_run(tmp_path, make_recipe, start, monkeypatch):
    """Loading weights neither draws random numbers nor skips the draws of a new model."""
    recipe = make_recipe(tmp_path / "run", train={"init_from": start})
    begun = []

    def fit(*arguments: object, **options: object) -> int:
        begun.append(torch.get_rng_state())
        raise InputError("begun")

    monkeypatch.setattr("relattn.translation.training.train.fit", fit)
    with pytest.raises(InputError, match="begun"):
        train(recipe, show=False)
    torch.manual_seed(recipe.seed)
    Transformer(recipe.model, bundle.read_bundle(start).tokenizer.vocab_size)
    assert torch.equal(begun[0], torch.get_rng_state())


def test_a_bundle_of_another_model_is_refused(tmp_path, make_recipe, start):
    recipe = make_recipe(tmp_path / "run", model={"clip": 3, "norm": "post"}, train={"init_from": start})
    with pytest.raises(InputError, match=r"bundle: the model must be the recipe's, got clip: 2 → 3; norm: pre → post$"):
        train(recipe, show=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"train_src": "missing.en"}}, r"missing\.en: no such file"),
        ({"data": {"valid_src": "missing.en"}}, r"missing\.en: no such file"),
        ({"data": {"vocab_size": 5}}, "vocab_size must be at least .* got 5"),
        ({"train": {"init_from": "nowhere"}}, "nowhere: no such directory"),
        ({"train": {"devices": 3, "accelerator": "gpu"}}, r"devices must be at most the number of GPUs, \d, got 3"),
    ],
)
def test_what_cannot_be_trained_leaves_nothing(tmp_path, make_recipe, changes, message):
    recipe = make_recipe(tmp_path / "run", **changes)
    with pytest.raises(InputError, match=message):
        train(recipe, show=False)
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    with pytest.raises(InputError, match=message):
        train(recipe, show=False)
    assert list((tmp_path / "run").iterdir()) == []


def test_what_cannot_be_trained_leaves_directories_as_they_were(tmp_path, make_recipe, monkeypatch):
    """However the place is named: new parents go, a link, a mode and the working directory stay."""
    (tmp_path / "real").mkdir(mode=0o750)
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "real")
    for out in (tmp_path / "p" / "q" / "r", tmp_path / "link", tmp_path / "real", Path(".")):
        with pytest.raises(InputError, match="no such file"):
            train(make_recipe(out, data={"train_tgt": "missing.de"}), show=False)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
        assert (tmp_path / "link").is_symlink()
        assert list((tmp_path / "real").iterdir()) == []
        assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o750


def test_cleaning_up_does_not_hide_what_was_wrong(tmp_path, make_recipe, monkeypatch):
    unlink = Path.unlink

    def refuse(path: Path, **_: Any) -> None:
        raise OSError(errno.EBUSY, "a mount point", str(path))

    monkeypatch.setattr(Path, "rmdir", refuse)
    monkeypatch.setattr(Path, "unlink", lambda path, **o: (unlink if path.suffix == ".part" else refuse)(path, **o))
    with pytest.raises(InputError, match=r"missing\.en: no such file"):
        train(make_recipe(tmp_path / "run", data={"train_src": "missing.en"}), show=False)


def test_a_directory_that_is_not_its_own_is_left_alone(tmp_path, make_recipe, finished):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("a file")
    for out, message in (
        (tmp_path / "mine", "out must be an empty directory or a new one"),
        (tmp_path / "file", "out must be an empty directory or a new one"),
        (Path(finished.out), "contains a run; use --resume to continue it"),
    ):
        before = sorted(path.name for path in out.iterdir()) if out.is_dir() else None
        with pytest.raises(InputError, match=message):
            train(make_recipe(out), show=False)
        assert before == (sorted(path.name for path in out.iterdir()) if out.is_dir() else None)


def test_a_changed_recipe_is_not_resumed(finished):
    changed = replace(
        finished,
        seed=2,
        model=replace(finished.model, clip_right=4),
        train=replace(finished.train, steps=50, log_every=1, warmup_steps=5),
    )
    before = (Path(finished.out) / "log.csv").read_text()
    with pytest.raises(InputError) as error:
        train(changed, resume=True, show=False)
    assert str(error.value) == (
        f"{finished.out}: these settings must be as when the run started: "
        "model.clip_right: None → 4; seed: 1 → 2; train.warmup_steps: 4 → 5"
    )
    assert (Path(finished.out) / "log.csv").read_text() == before


def test_what_does_not_change_the_weights_may_change_on_resume(tmp_path, make_recipe):
    recipe = make_recipe(tmp_path, train={"steps": 4})
    train(recipe, show=False)
    kept = replace(recipe.train, steps=6, keep=2, average=1, checkpoint_every=3, patience=4, valid_every=1)
    train(replace(recipe, train=kept, search=replace(recipe.search, beam_size=3)), resume=True, show=False)
    assert bundle.read_bundle(tmp_path / "bundle").search.beam_size == 3
    assert [checkpoints.step_of(path) for path in checkpoints.list_checkpoints(tmp_path / "checkpoints")] == [6]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tensorboard", "tensorboard must be a directory"),
        ("bundle/notes.txt", "it contains more than a bundle: notes.txt"),
    ],
)
def test_what_would_stop_a_run_at_its_end_is_refused_at_its_start(tmp_path, make_recipe, name, message):
    recipe = make_recipe(tmp_path, train={"steps": 2})
    train(recipe, show=False)
    if (tmp_path / name).is_dir():
        shutil.rmtree(tmp_path / name)
    (tmp_path / name).write_text("mine", encoding="utf-8")
    before = (tmp_path / "log.csv").read_text(encoding="utf-8")
    with pytest.raises(InputError, match=message):
        train(replace(recipe, train=replace(recipe.train, steps=4)), resume=True, show=False)
    assert (tmp_path / "log.csv").read_text(encoding="utf-8") == before


@pytest.mark.parametrize("resume", [True, False])
def test_two_processes_do_not_train_one_run(tmp_path, make_recipe, resume):
    recipe = make_recipe(tmp_path)
    if resume:
        (tmp_path / "recipe.yaml").write_text(dump(recipe))
    with FileLock(tmp_path / ".lock"):
        before = list(tmp_path.iterdir())
        with pytest.raises(InputError, match="another process is training this run"):
            train(recipe, resume=resume, show=False)
        assert list(tmp_path.iterdir()) == before
    train(recipe, resume=resume, show=False)


@pytest.mark.parametrize("wrong", ["model: {clipp: 3}", "[1, 2]", "model: {"])
def test_a_recipe_changed_by_hand_is_told(tmp_path, make_recipe, wrong):
    (tmp_path / "recipe.yaml").write_text(wrong)
    with pytest.raises(InputError, match=r"recipe\.yaml: "):
        train(make_recipe(tmp_path), resume=True, show=False)


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir])
def test_there_is_nothing_to_resume(tmp_path, make_recipe, make: Callable[[Path], None]):
    make(tmp_path / "run")
    with pytest.raises(InputError, match=r"run: contains no run, because it has no recipe\.yaml"):
        train(make_recipe(tmp_path / "run"), resume=True, show=False)


def test_the_recipe_in_a_checkpoint_is_the_runs(finished):
    path = checkpoints.checkpoint_path(Path(finished.out) / "checkpoints", 6)
    assert checkpoints.load(path)["recipe"] == as_dict(finished)
