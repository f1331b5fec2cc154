"""Directory of a run: what is refused before a run starts or continues, and what is left then."""

import hashlib
import os
import shutil
import stat
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock
from relattn_mt.data.storage import open_pairs, write_pairs
from relattn_mt.model.transformer import Transformer
from relattn_mt.support.errors import InputError
from relattn_mt.tokens.tokenizer import Tokenizer
from relattn_mt.training import checkpoints, run_directory
from relattn_mt.training.run import average_run
from relattn_mt.training.train import train

from tests.support.training_states import losses, tree, with_train


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"data": {"valid_src": "missing.en"}}, r"missing\.en: no such file"),
        ({"train": {"patience": 3}, "data": {"valid_src": "", "valid_tgt": ""}}, "train.patience requires .*, got 3"),
        ({"train": {"init_from": "nowhere"}}, "nowhere: no such directory"),
        ({"train": {"accelerator": "gpu"}}, "there must be a GPU per process, got 0 for 1"),
        ({"model": {"positions": "learned", "max_positions": 9}, "data": {"max_length": 9}}, "at most 8, .* got 9"),
        ({"model": {"clip": 3, "norm": "post"}, "train": {"init_from": "bundle"}}, "clip: 2 → 3; norm: pre → post"),
    ],
    ids=str,
)
def test_run_that_cannot_start_leaves_nothing(tmp_path, make_recipe, finished, monkeypatch, changes, fact):
    monkeypatch.chdir(finished.out)
    recipe = make_recipe(tmp_path / "run", **changes)
    with pytest.raises(InputError, match=fact):
        train(recipe, show=False)
    assert tree(tmp_path) == {}


def test_run_that_cannot_start_restores_directories(tmp_path, make_recipe, monkeypatch):
    """New parents are removed. A link, a mode and the working directory stay."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real").chmod(0o750)
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "real")
    for out in (tmp_path / "p" / "q" / "r", tmp_path / "link", tmp_path / "real", Path(".")):
        with pytest.raises(InputError, match="no such file"):
            train(make_recipe(out, data={"train_tgt": "missing.de"}), show=False)
        assert tree(tmp_path) == {"link": None, "real": None}
        assert (tmp_path / "link").is_symlink()
        assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o750


def test_names_of_directories_are_taken_literally(tmp_path, make_recipe, monkeypatch):
    """Some libraries expand a user's home directory and environment variables."""
    for directory in ("home", "work"):
        (tmp_path / directory).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    steps = {"steps": 1, "average": 1, "valid_bleu_lines": 0}
    for out in (Path("$HOME/run"), Path("~/run"), Path("a::b")):
        train(make_recipe(out, train=steps), show=False)
        assert {"bundle", "data"} <= {path.name for path in out.iterdir()}
    assert tree(tmp_path / "home") == {}
    assert {path.name for path in Path().iterdir()} == {"$HOME", "~", "a::b"}


def test_directory_that_is_in_use_is_left_alone(tmp_path, make_recipe, finished):
    for name in ("other", "locked"):
        (tmp_path / name).mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("content")
    for out, fact in (
        (tmp_path / "other", "empty directory"),
        (tmp_path / "other" / "thesis.tex", "empty directory"),
        (Path(finished.out), "--resume"),
        (tmp_path / "locked", "another process"),
    ):
        with FileLock(tmp_path / "locked" / ".relattn.lock"):
            before = tree(out)
            with pytest.raises(InputError, match=f"{out}: .*{fact}"):
                train(make_recipe(out), show=False)
            assert tree(out) == before
    assert (tmp_path / "other" / "thesis.tex").read_text() == "content"


def test_run_without_disk_space_is_not_started(tmp_path, make_recipe, finished, monkeypatch):
    """The space of checkpoints that exist counts as available, other files do not."""
    (*_, saved) = checkpoints.list_checkpoints(Path(finished.out) / "checkpoints")
    used = 6 * saved.stat().st_size + (Path(finished.out) / "bundle" / "model.safetensors").stat().st_size
    recipe = make_recipe(tmp_path / "run", train={"keep": 5, "steps": 1, "average": 1})
    free = used // 2
    monkeypatch.setattr(run_directory.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(InputError, match=r"run: the disk must have .* for 5 checkpoints"):
        train(recipe, show=False)
    assert checkpoints.list_checkpoints(tmp_path / "run" / "checkpoints") == []
    free = used
    train(recipe, resume=True, show=False)
    model, free = Transformer(recipe.model, 300), 0
    for name in ("data/train.pairs", "checkpoints/step-00000001.ckpt"):
        os.truncate(tmp_path / "run" / name, used)
        with nullcontext() if name.startswith("checkpoints") else pytest.raises(InputError, match="the disk must have"):
            run_directory.require_space(recipe, model)


def rewrite_checkpoint(**changes: Any) -> Callable[[Path], None]:
    """Return a function that replaces a part of the newest checkpoint of a run."""

    def rewrite(out: Path) -> None:
        content = checkpoints.newest(out / "checkpoints")
        step = content.pop("step")
        checkpoints.save(out / "checkpoints", step, {**content, **changes}, keep=3)

    return rewrite


def replace_tokenizer(out: Path) -> None:
    path = out / "tokenizer.model"
    size = Tokenizer.load(path).vocab_size
    path.write_bytes(Tokenizer.train(["other text 0123456789"] * 5, size, seed=1).files["tokenizer.model"])


def writes(name: str, content: str) -> Callable[[Path], object]:
    return lambda out: (out / name).write_text(content)


def truncates(size: int) -> Callable[[Path], object]:
    return lambda out: os.truncate(out / "data/train.pairs", size)


def change_ids(out: Path) -> None:
    path = out / "data/train.pairs"
    pairs = open_pairs(path)
    rows = [[side[::-1].tolist() for side in pairs.row(i)] for i in range(len(pairs.src))]
    write_pairs(path, rows, vocab_size=300)


def lose_a_pair(out: Path) -> None:
    path = out / "data/train.pairs"
    pairs = open_pairs(path)
    write_pairs(path, [tuple(map(list, pairs.row(0)))], vocab_size=300)


def repeat_an_entry(out: Path) -> None:
    for path in checkpoints.list_checkpoints(out / "checkpoints"):
        with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr(archive.namelist()[0], archive.read(archive.namelist()[0]))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        path.with_suffix(".sha256").write_text(f"{digest}  {path.name}\n")


@pytest.mark.parametrize(
    ("damage", "fact"),
    [
        (rewrite_checkpoint(model={}), "checkpoint of step 6 .*"),
        (rewrite_checkpoint(optimizer=3), "checkpoint of step 6 .*"),
        (rewrite_checkpoint(progress={"epochs": 1}), "checkpoint of step 6 .*"),
        (repeat_an_entry, r"step-00000006\.ckpt: damaged: it must have each entry once.*"),
        *((truncates(size), r"train\.pairs: .*") for size in (0, 4, 100, 1000)),
        (change_ids, r"train\.pairs: damaged: .*"),
        (lose_a_pair, r"train\.pairs: .* must have 48 pairs, got 1"),
        (replace_tokenizer, r"tokenizer\.model must be the tokenizer that this run started with.*"),
        (writes("data/text.json", "{"), r"text\.json: .*"),
        (writes("data/text.json", '{"digests": 3}'), r"text\.json: .*"),
        (writes("recipe.yaml", "model: {clipp: 3}"), r"recipe\.yaml: .*clipp.*"),
        (lambda out: (out / "recipe.yaml").unlink(), r"run: .* no recipe\.yaml"),
        (shutil.rmtree, r"run: .* no recipe\.yaml"),
        (lambda out: (shutil.rmtree(out / "checkpoints"), (out / "checkpoints").touch()), "must be a directory, .*"),
        (writes("bundle/notes.txt", ""), r".*notes\.txt"),  # would be lost when the bundle is replaced
    ],
)
def test_damaged_run_is_not_resumed(tmp_path, finished, damage, fact):
    out = tmp_path / "run"
    shutil.copytree(finished.out, out)
    damage(out)
    before = tree(tmp_path)
    more = with_train(replace(finished, out=str(out)), steps=8)
    with pytest.raises(InputError, match=f"{out.parent}.*{fact}$"):
        train(more, resume=True, show=False)
    assert tree(tmp_path) == before
    if "tokenizer" in fact or "text" in fact:
        with pytest.raises(InputError, match=fact):
            average_run(out, 2, tmp_path / "mean")
        assert not (tmp_path / "mean").exists()


def test_run_with_a_directory_of_another_user_is_not_resumed(tmp_path, finished, monkeypatch):
    """Without its checkpoints, it would start again."""
    shutil.copytree(finished.out, tmp_path / "run")
    before, run = tree(tmp_path), with_train(replace(finished, out=str(tmp_path / "run")), steps=8)
    for name in ("checkpoints", "data"):
        monkeypatch.setattr(os, "access", lambda path, mode, name=name: Path(path).name != name)
        with pytest.raises(InputError, match=f"run/{name} must be readable and writable"):
            train(run, resume=True, show=False)
    assert tree(tmp_path) == before


def test_run_is_not_resumed_with_another_recipe_text_or_process(tmp_path, finished, text):
    out = tmp_path / "run"
    shutil.copytree(finished.out, out)
    recipe = with_train(replace(finished, out=str(out)), steps=8)
    changed = with_train(
        replace(recipe, seed=2, model=replace(recipe.model, clip_right=4)), log_every=1, warmup_steps=5
    )
    with pytest.raises(InputError, match=r"model\.clip_right: None → 4; seed: 1 → 2; train\.warmup_steps: 4 → 5$"):
        train(changed, resume=True, show=False)
    with pytest.raises(InputError, match=r"train\.steps must be at least 6, .*, got 5$"):
        train(with_train(recipe, steps=5), resume=True, show=False)
    (tmp_path / "sets").write_text(f"{text['valid_src']}\t{text['valid_tgt']}\n")
    for sets in ("", str(tmp_path / "sets")):  # no validation, and a list of the same set
        data = replace(recipe.data, valid_src="", valid_tgt="", valid_list=sets)
        with pytest.raises(InputError, match=r"must be as when the run started: data\.valid_\w+: "):
            train(replace(recipe, data=data), resume=True, show=False)
    copy = tmp_path / "copy.src"
    copy.write_text(Path(text["train_src"]).read_text().replace("one", "One"))
    other = replace(recipe, data=replace(recipe.data, train_src=str(copy)))
    with pytest.raises(InputError, match=rf"data\.train_src: {copy} must have the text"):
        train(other, resume=True, show=False)
    with FileLock(out / ".relattn.lock"), pytest.raises(InputError, match="another process"):
        train(recipe, resume=True, show=False)
    assert (out / "log.csv").read_bytes() == (Path(finished.out) / "log.csv").read_bytes()
    copy.write_text(Path(text["train_src"]).read_text())
    train(other, resume=True, show=False)
    assert [step for step, *_ in losses(other)] == [2, 4, 6, 8]
