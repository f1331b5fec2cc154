"""A run: interrupted and continued, its log, its bundle."""

import itertools
import math
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from relattn_mt import bundle
from relattn_mt.commands import main as cli
from relattn_mt.config import AugmentConfig, Recipe, StageConfig, dump
from relattn_mt.evaluation import score
from relattn_mt.model.transformer import Transformer
from relattn_mt.support.errors import Diverged, InputError
from relattn_mt.tokens.text_files import ParallelFiles
from relattn_mt.tokens.tokenizer import Tokenizer
from relattn_mt.training import checkpoints, journal, loop
from relattn_mt.training import train as module
from relattn_mt.training.checkpoints import average
from relattn_mt.training.journal import read_log
from relattn_mt.training.run import average_run
from relattn_mt.training.run_directory import read_recipe
from relattn_mt.training.train import train
from relattn_mt.translate.translator import Translator

from tests.support.bundles import tensors_of
from tests.support.engines import translator_of
from tests.support.training_states import assert_same, losses, state_of, with_train

# A session with fewer steps ends with a validation. If there is one after every step, the next session continues as if
# it had not ended.
EVERY_STEP = {"steps": 9, "valid_every": 1, "checkpoint_every": 1, "keep": 9, "valid_bleu_lines": 0, "average": 1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, make_recipe) -> Recipe:
    """A run with dropout, accumulated gradients and guided alignment that was not interrupted."""
    settings = {**EVERY_STEP, "accumulate": 2, "guided_alignment": 0.5}
    recipe = make_recipe(tmp_path_factory.mktemp("whole") / "run", model={"alignment_heads": 1}, train=settings)
    train(recipe, show=False)
    return recipe


# Interrupted and continued


def test_resumed_run_is_bitwise_equal(tmp_path, whole, caplog):
    """Sessions end within an epoch and between two. The third one finds its newest checkpoint damaged."""
    progress = [state_of(whole, step)["progress"] for step in range(1, 10)]
    places = [(each["epoch"], each["index"]) for each in progress]
    assert places == sorted(set(places))
    last = places.index((1, 1))  # the last step of epoch 0
    assert last > 1
    recipe = replace(whole, out=str(tmp_path / "run"))
    train(with_train(recipe, steps=last - 1), show=False)
    torch.manual_seed(99)  # random state outside of a step must not matter
    train(with_train(recipe, steps=last), resume=True, show=False)
    train(with_train(recipe, steps=last + 1), resume=True, show=False)
    newest = checkpoints.checkpoint_path(tmp_path / "run" / "checkpoints", last + 1)
    newest.write_bytes(newest.read_bytes()[:1000])
    caplog.clear()
    train(recipe, resume=True, show=False)
    (warning,) = (line for line in caplog.messages if "damaged" in line)
    assert newest.name in warning
    assert warning.endswith(f"continuing from step-{last:08d}.ckpt")
    for step in range(1, 10):
        assert_same(state_of(recipe, step), state_of(whole, step))
    assert losses(recipe) == losses(whole)
    assert_same(*(tensors_of(bundle.read_bundle(Path(each.out) / "bundle")) for each in (recipe, whole)))


@pytest.mark.parametrize(
    ("number", "owner", "name", "call", "step"),
    [
        (signal.SIGTERM, module, "open_run", 1, 0),
        (signal.SIGINT, loop, "take_step", 4, 4),
        (signal.SIGTERM, loop, "take_step", 5, 5),
        (signal.SIGINT, checkpoints, "save", 1, 9),
        (signal.SIGTERM, bundle.Bundle, "save", 1, 9),
        (signal.SIGHUP, module, "open_run", 1, 0),
        (signal.SIGHUP, loop, "take_step", 3, 3),
    ],
)
def test_signal_leaves_a_checkpoint_to_continue_from(
    tmp_path, whole, monkeypatch, capsys, number, owner, name, call, step
):
    recipe = with_train(replace(whole, out=str(tmp_path / "p" / "run")), checkpoint_every=9)
    (tmp_path / "recipe.yaml").write_text(dump(recipe))
    original, calls = getattr(owner, name), itertools.count(1)

    def signalled(*args: Any, **options: Any) -> Any:
        if next(calls) == call:
            signal.raise_signal(number)
        return original(*args, **options)

    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    handlers = [signal.getsignal(each) for each in numbers]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, signalled)
        assert cli.main(["train", str(tmp_path / "recipe.yaml")]) == 128 + number
    assert [signal.getsignal(each) for each in numbers] == handlers
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("relattn-mt: stopped ")
    if step == 0:
        assert not (tmp_path / "p").exists()
        return
    assert f"after step {step};" in err.splitlines()[-1]
    assert [path.stem for path in Path(recipe.out, "checkpoints").glob("*.ckpt")] == [f"step-{step:08d}"]
    assert not (Path(recipe.out) / "bundle").exists()
    train(recipe, resume=True, show=False)
    assert_same(state_of(recipe), state_of(whole, 9))
    assert losses(recipe) == losses(whole)
    assert (Path(recipe.out) / "bundle").exists()


def train_and_kill(recipe: Recipe, owner: object, name: str, *, step: int | None = None, **options: Any) -> None:
    """Train, and end as if the process was killed after a call of a function (whose second argument is `step`)."""
    original = getattr(owner, name)

    def last(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        if step in (None, args[1]):
            raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, last)
        with pytest.raises(RuntimeError, match="killed"):
            train(recipe, show=False, **options)


TEMPORARY = ".relattn-0123456789abcdef.part"


def test_run_killed_before_its_first_checkpoint_starts_again(tmp_path, finished):
    """Killed when it had its data, after another was killed earlier, and while it prepared its data."""
    for number, left in enumerate(([".relattn.lock", TEMPORARY], ["tokenizer.model", f"data/{TEMPORARY}"])):
        recipe = replace(finished, out=str(tmp_path / f"run {number}"))
        (Path(recipe.out) / "data").mkdir(parents=True)
        for name in left:
            (Path(recipe.out) / name).write_text("half")
        if number == 0:
            (Path(recipe.out) / "data").rmdir()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(checkpoints, "save", lambda *_, **__: None)
                train_and_kill(recipe, module, "fit")
        else:
            (Path(recipe.out) / "recipe.yaml").write_text(dump(recipe))
        train(recipe, resume=True, show=False)
        assert_same(state_of(recipe), state_of(finished))


def test_resumed_run_with_stages_is_bitwise_equal(tmp_path, make_recipe, text, monkeypatch):
    """Sessions end within a stage and between two, and between two rows of the log.

    Times are equal too, by a clock that advances each time it is read.
    """
    monkeypatch.setattr(journal.time, "perf_counter", itertools.count().__next__)
    sides = f"{text['train_src']}\t{text['train_tgt']}\n"
    (tmp_path / "list").write_text(2 * sides)
    data = {"train_list": str(tmp_path / "list"), "train_src": "", "train_tgt": ""}
    stages = (
        StageConfig(steps=3, weights=(1.0, 0.0), augment=AugmentConfig(typos=0.5)),
        StageConfig(steps=2, augment=AugmentConfig(join_lines=0.5, upper_case=0.5)),
        StageConfig(weights=(0.0, 1.0)),
    )
    settings = {**EVERY_STEP, "log_every": 4, "valid_every": 8}
    whole = replace(make_recipe(tmp_path / "whole", data=data, train=settings), stages=stages)
    train(whole, show=False)
    recipe = replace(whole, out=str(tmp_path / "run"))
    for step in (2, 3, 4, 5):
        train_and_kill(recipe, checkpoints, "save", step=step, resume=step > 2)
    train(recipe, resume=True, show=False)
    assert_same(state_of(recipe), state_of(whole))
    rows = read_log(tmp_path / "run" / "log.csv")
    assert rows == read_log(tmp_path / "whole" / "log.csv")
    assert [row.seconds for row in rows] == [4.0, 8.0, 9.0]
    with pytest.raises(InputError, match="stages: "):
        train(replace(recipe, stages=stages[1:]), resume=True, show=False)


def test_one_model_for_several_pairs_of_languages(tmp_path, make_recipe, text):
    """Each pair has its token, in the bundle, in scores of validation and in further training; others are refused."""
    forth, back = f"{text['train_src']}\t{text['train_tgt']}", f"{text['train_tgt']}\t{text['train_src']}"
    (tmp_path / "train").write_text(f"{forth}\ten\tde\n{back}\tde\ten\n")
    (tmp_path / "valid").write_text(f"{text['valid_src']}\t{text['valid_tgt']}\ten\tde\n")
    lists = {"train_list": str(tmp_path / "train"), "valid_list": str(tmp_path / "valid"), "language_tokens": "target"}
    files = dict.fromkeys(("train_src", "train_tgt", "valid_src", "valid_tgt"), "")
    recipe = make_recipe(tmp_path / "run", data={**files, **lists}, train=EVERY_STEP)
    whole = bundle.read_bundle(train(recipe, show=False)).translator()
    average_run(recipe.out, 1, tmp_path / "mean")
    for translator in (whole, bundle.read_bundle(tmp_path / "mean").translator()):
        assert translator.pairs == [("en", "de"), ("de", "en")]
        for pair in translator.pairs:
            directed = translator.with_languages(*pair)
            token = translator.tokenizer.vocabularies[0][directed.tokenizer.special.src_begin[0]]
            assert token == f">>{pair[1]}<<"
            plain = Translator(directed.engine, directed.tokenizer, directed.search)
            assert directed.translate(["A line."]) == plain.translate(["A line."])
        with pytest.raises(InputError, match="the languages must differ"):
            translator.with_languages("de", "de")
        with pytest.raises(InputError, match="unknown tgt_lang"):
            translator.with_languages("de", "fr")

    initial = {"init_from": f"{recipe.out}/bundle", "steps": 2, "valid_every": 2, "checkpoint_every": 2}
    tuned = make_recipe(tmp_path / "tuned", train=initial, data={"src_lang": "de", "tgt_lang": "en"})
    translator = bundle.read_bundle(train(tuned, show=False)).translator()
    assert translator.pairs == [("de", "en")]
    assert translator.tokenizer.special == whole.with_languages("de", "en").tokenizer.special
    for settings, message in (
        ({"src_lang": "de", "tgt_lang": "fr"}, "unknown tgt_lang 'fr'"),
        ({"language_tokens": "target", "src_lang": "en", "tgt_lang": "fr"}, "unknown tgt_lang 'fr'"),
    ):
        with pytest.raises(InputError, match=message):
            train(make_recipe(tmp_path / "refused", train=initial, data=settings), show=False)


def test_finished_run_can_get_more_steps_and_other_settings(tmp_path, finished):
    shutil.copytree(finished.out, tmp_path / "run")
    recipe, out = replace(finished, out=str(tmp_path / "run")), tmp_path / "run"
    before = (out / "log.csv").read_text()
    environment, threads = dict(os.environ), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert train(recipe, resume=True, show=False) == out / "bundle"
        assert (dict(os.environ), torch.get_num_threads()) == (environment, 2)
    finally:
        torch.set_num_threads(threads)
    assert (out / "log.csv").read_text() == before
    more = with_train(recipe, steps=9, keep=2, average=1, checkpoint_every=3, patience=4, valid_every=1)
    train(replace(more, search=replace(recipe.search, beam_size=3)), resume=True, show=False)
    assert [step for step, *_ in losses(recipe)] == [2, 4, 6, 7, 8, 9]
    assert [checkpoints.step_of(path) for path in checkpoints.list_checkpoints(out / "checkpoints")] == [6, 9]
    assert bundle.read_bundle(out / "bundle").search.beam_size == 3


def test_patience_ends_a_run_that_no_longer_improves(tmp_path, make_recipe):
    """The learning rate is so high that the loss cannot improve for long."""
    settings = {**EVERY_STEP, "steps": 500, "patience": 3, "learning_rate_factor": 50.0, "keep": 1}
    recipe = make_recipe(tmp_path / "run", train=settings)
    train(recipe, show=False)
    validation = [loss for *_, loss in losses(recipe)]
    best = validation.index(min(validation))
    assert len(validation) == best + 1 + 3 < 500
    train(recipe, resume=True, show=False)
    assert len(validation) == len(losses(recipe))
    other = replace(recipe, out=str(tmp_path / "other"))
    train(with_train(other, steps=best + 2), show=False)  # interrupted while it waits
    train(other, resume=True, show=False)
    assert losses(other) == losses(recipe)


def test_patience_and_the_best_loss_are_of_the_first_validation_set(tmp_path, make_recipe, text):
    """On the training text the loss falls, on a repeated wrong word it rises, on a repeated right one it is lowest."""
    count = len(Path(text["valid_src"]).read_text(encoding="utf-8").splitlines())
    (tmp_path / "wrong").write_text(f"{'mat ' * 12}\n" * count)
    (tmp_path / "easy").write_text(f"{'Katze ' * 12}\n" * count)
    falls = f"{text['train_src']}\t{text['train_tgt']}\n"
    rises, lowest = (f"{text['valid_src']}\t{tmp_path / name}\n" for name in ("wrong", "easy"))
    ended = []
    for name, sets in (("falls", (falls, lowest, rises)), ("rises", (rises, lowest, falls))):
        (tmp_path / name).write_text("".join(sets))
        data = {"valid_list": str(tmp_path / name), "valid_src": "", "valid_tgt": ""}
        settings = {**EVERY_STEP, "steps": 30, "patience": 4, "learning_rate_factor": 3.0, "checkpoint_every": 30}
        recipe = make_recipe(tmp_path / f"run {name}", data=data, train=settings)
        train(recipe, show=False)
        ended.append(len(losses(recipe)))
        first = [loss for *_, loss in losses(recipe)]
        best = first.index(min(first))
        assert ended[-1] == best + 1 + 4
    assert ended[1] < ended[0]


@pytest.mark.parametrize(("rate", "fact"), [(1e30, "loss .* nan in step 6"), (math.inf, "weights .* step 5")])
def test_diverged_run_leaves_no_bundle(tmp_path, whole, monkeypatch, rate, fact):
    monkeypatch.setattr(loop, "learning_rate", lambda step, *_, **__: rate if step == 5 else 1e-3)
    recipe = with_train(replace(whole, out=str(tmp_path / "run")), checkpoint_every=1, valid_every=9, log_every=9)
    with pytest.raises(Diverged, match=fact):
        train(recipe, show=False)
    assert not (tmp_path / "run" / "bundle").exists()
    for path in checkpoints.list_checkpoints(tmp_path / "run" / "checkpoints"):
        assert all(tensor.isfinite().all() for tensor in checkpoints.load(path)["model"].values())


# Directory, log and bundle


def independent_loss(model: Transformer, tokenizer: Tokenizer, pairs: list[tuple[str, str]]) -> float:
    """Return nats per target token, computed sentence by sentence, without padding."""
    total = count = 0.0
    for src_text, tgt_text in pairs:
        src = torch.tensor([[*tokenizer.encode(src_text), 2]])
        tgt = tokenizer.encode(tgt_text)
        logits = model.eval()(src, torch.tensor([src.shape[1]]), torch.tensor([[1, *tgt]]))
        total += F.cross_entropy(logits[0], torch.tensor([*tgt, 2]), reduction="sum").item()
        count += len(tgt) + 1
    return total / count


def test_log_equals_independent_measurements(finished, text, tmp_path, make_recipe):
    rows = read_log(Path(finished.out) / "log.csv")
    pairs = list(ParallelFiles(text["valid_src"], text["valid_tgt"]))
    tokenizer = Tokenizer.load(Path(finished.out) / "tokenizer.model")
    assert [row.step for row in rows] == [2, 4, 6]
    for row in rows:
        model = Transformer(finished.model, tokenizer.vocab_size)
        model.load_state_dict(state_of(finished, row.step)["model"])
        assert row.valid_loss == pytest.approx(independent_loss(model, tokenizer, pairs), rel=1e-5)
        greedy = translator_of(model, tokenizer, replace(finished.search, beam_size=1))
        bleu = score(greedy.translate([src for src, _ in pairs[:3]]), [tgt for _, tgt in pairs[:3]]).bleu
        assert row.valid_bleu == pytest.approx(bleu, rel=1e-5, abs=1e-9)
        # Vaswani et al. (2017), section 5.3
        assert row.learning_rate == pytest.approx(12**-0.5 * min(row.step**-0.5, row.step * 4**-1.5), rel=1e-5)
    assert rows == sorted(rows, key=lambda row: row.seconds)

    no_dropout = {"dropout": 0.0, "attention_dropout": 0.0}
    one_step = {"steps": 1, "log_every": 1, "label_smoothing": 0.0, "average": 1}
    recipe = make_recipe(tmp_path / "run", model=no_dropout, train=one_step, data={"max_tokens": 10_000})
    train(recipe, show=False)
    (row,) = read_log(tmp_path / "run" / "log.csv")
    tokenizer = Tokenizer.load(tmp_path / "run" / "tokenizer.model")
    torch.manual_seed(recipe.seed)
    pairs = list(ParallelFiles(recipe.data.train_src, recipe.data.train_tgt))
    loss = independent_loss(Transformer(recipe.model, tokenizer.vocab_size), tokenizer, pairs)
    assert row.loss == pytest.approx(loss, rel=1e-5)


def test_the_alignment_is_measured_at_the_end_unless_the_recipe_names_it(tmp_path, make_recipe):
    """The model is the same but for the order of its heads."""
    settings = {"decoder_layers": 2, "alignment_layer": "assumed"}
    parts, named = (
        bundle.read_bundle(train(make_recipe(tmp_path / str(number), model={**settings, **more}), show=False))
        for number, more in enumerate(({}, {"alignment_layer": 1, "alignment_heads": 2}))
    )
    assert (named.model.alignment_layer, named.model.alignment_heads) == (1, 2)
    assert "Word alignment: the first 2 heads of decoder layer 2." in named.card
    assert parts.model.alignment_layer in (0, 1)
    assert "words that a lexicon knows" in parts.card
    for name, tensor in tensors_of(parts).items():
        expected = tensors_of(named)[name]
        if ".cross_attention." in name:
            tensor, expected = (each.flatten().sort()[0] for each in (tensor, expected))
        assert torch.equal(tensor, expected), name


def test_finished_run_has_an_average_and_a_card(finished, text, tmp_path):
    out, states = Path(finished.out), [state_of(finished, step)["model"] for step in (2, 4, 6)]
    names = {"recipe.yaml", "tokenizer.model", "log.csv", "data", "checkpoints", "bundle"}
    assert {path.name for path in out.iterdir()} == names
    assert read_recipe(out) == finished
    parts = bundle.read_bundle(out / "bundle")
    assert_same(tensors_of(parts), average(states[1:]))
    pairs = list(ParallelFiles(text["valid_src"], text["valid_tgt"]))
    scores = score(parts.translator().translate([src for src, _ in pairs]), [tgt for _, tgt in pairs])
    assert all(fact in parts.card for fact in (str(scores), dump(finished), text["train_src"]))
    average_run(finished.out, 3, tmp_path / "mean")
    assert_same(tensors_of(bundle.read_bundle(tmp_path / "mean")), average(states))
