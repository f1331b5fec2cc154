"""A run, from a recipe to a bundle, in a directory of its own.

    out/recipe.yaml  out/tokenizer.model  out/log.csv  out/data/  out/checkpoints/  out/bundle/

Lightning has the loop, the devices and the precision; `watch.py` is all that happens between steps.
"""

from __future__ import annotations

import fcntl
import importlib.util
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning
import torch

from relattn.translation import bundle
from relattn.translation.config import Recipe, TrainConfig, as_dict, differences, dump
from relattn.translation.config import read_recipe as read_recipe_file
from relattn.translation.data.datamodule import TranslationData
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.errors import InputError, Interrupted
from relattn.translation.evaluation import score
from relattn.translation.files import write_atomically
from relattn.translation.model.transformer import Transformer
from relattn.translation.training import checkpoints
from relattn.translation.training.averaging import average
from relattn.translation.training.task import TranslationTask, first_process
from relattn.translation.training.watch import Watch

RESUMABLE_CHANGES = ("out: ", "train.steps: ", "train.threads: ", "train.log_every: ")  # they do not touch the model


def train(recipe: Recipe, *, resume: bool = False, show: bool = True) -> Path:
    """Train what the recipe says and return the directory of the finished bundle.

    Args:
        recipe: the run.
        resume: go on from the newest checkpoint in the recipe's directory.
        show: progress on standard error.

    Raises:
        InputError: the recipe, its files or its directory will not do.
        Interrupted: a signal stopped it; resumed, it goes on as if it had not been.
    """
    out = Path(recipe.out)
    show = show and first_process()
    _require_devices(recipe.train)
    if recipe.train.threads is not None:
        torch.set_num_threads(recipe.train.threads)
        os.environ["OMP_NUM_THREADS"] = str(recipe.train.threads)  # or Lightning takes a number of its own
    with _quiet_libraries(), _run_directory(out, recipe, resume=resume) as state:
        data, model = _prepare(recipe, out, state, show=show)
        task = TranslationTask(recipe, model)
        if state is not None:
            task.load(state)
            data.position = task.position
        watch = Watch(task, data, out, state, show=show)
        if task.step < recipe.train.steps and not watch.out_of_patience:
            trainer = _trainer(recipe, out, watch, recipe.train.steps - task.step)
            with watch.stopping_on_signals():
                trainer.fit(task, datamodule=data)
        if not first_process():
            return out / "bundle"
        if watch.stopped or watch.stop_asked:
            raise Interrupted(f"stopped after step {task.step}; the same command with --resume goes on from there")
        paths = checkpoints.listed(out / "checkpoints")[-recipe.train.average :]
        write_bundle(recipe, paths, data.tokenizer, data.valid_pairs, out / "bundle")
    return out / "bundle"


def write_bundle(
    recipe: Recipe, paths: list[Path], tokenizer: Tokenizer, valid_pairs: list[tuple[str, str]], path: Path
) -> None:
    """Average checkpoints into a bundle at `path`, with its scores on the validation pairs in its card."""
    model = Transformer(recipe.model, tokenizer.vocab_size)
    model.load_state_dict(average(checkpoints.load(checkpoint)["model"] for checkpoint in paths))
    card = _card(recipe, paths)
    bundle.save(path, model=model, recipe=recipe, tokenizer=tokenizer, card=card)
    if valid_pairs:
        translator = bundle.load(path)
        scores = score(translator.translate([src for src, _ in valid_pairs]), [tgt for _, tgt in valid_pairs])
        card += f"\n## Scores\n\nOn the {scores.sentences} validation sentences:\n\n{scores}\n"
        write_atomically(path / "README.md", card.encode())


def average_run(run: str | Path, last: int, path: str | Path) -> None:
    """Average the last checkpoints of a run into a bundle.

    Raises:
        InputError: the directory holds no run, or not that many checkpoints.
    """
    run = Path(run)
    recipe = read_recipe(run)
    paths = checkpoints.listed(run / "checkpoints")
    if not 1 <= last <= len(paths):
        raise InputError(f"{run}: cannot average the last {last} checkpoints, it holds {len(paths)}")
    write_bundle(recipe, paths[-last:], Tokenizer.load(run / "tokenizer.model"), [], Path(path))


def read_recipe(run: Path) -> Recipe:
    """The recipe of a run.

    Raises:
        InputError: the directory holds no run, or its recipe was changed by hand into something else.
    """
    path = run / "recipe.yaml"
    if not path.exists():
        raise InputError(f"{run}: holds no run: there is no recipe.yaml")
    try:
        return read_recipe_file(path)
    except InputError as error:
        fault = str(error).removeprefix(f"{path}: ")
        raise InputError(f"{path}: is not as this version writes it: {fault}") from error


def _card(recipe: Recipe, paths: list[Path]) -> str:
    data = recipe.data
    source = "the embedded corpus" if data.embedded else f"`{data.train_src}` and `{data.train_tgt}`"
    steps = ", ".join(str(checkpoints.step_of(path)) for path in paths)
    return (
        f"# {data.src_lang} → {data.tgt_lang}\n\n"
        f"A Transformer with {recipe.model.positions} positions, trained with relattn on {source}; "
        f"the mean of the weights after steps {steps}.\n\n"
        "    relattn translate PATH < in.txt > out.txt\n\n"
        "## Recipe\n\n```yaml\n" + dump(recipe) + "```\n"
    )


@contextmanager
def _run_directory(out: Path, recipe: Recipe, *, resume: bool) -> Iterator[dict[str, Any] | None]:
    """Yield the checkpoint to go on from, or None to start; a directory made here in vain is taken away again."""
    if not first_process():  # the first process has seen to it
        yield checkpoints.newest(out / "checkpoints")[1] if checkpoints.listed(out / "checkpoints") else None
        return
    if resume:
        began = read_recipe(out)
        with _alone_in(out):
            yield _resumed(out, began, recipe)
        return
    if (out / "recipe.yaml").exists():
        raise InputError(f"{out}: holds a run already; give --resume to go on with it, or another directory as out")
    fresh = not out.exists()
    if not fresh and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: is not an empty directory; give another as out")
    out.mkdir(parents=True, exist_ok=True)
    with _alone_in(out):
        try:
            yield None
        finally:
            if not (out / "recipe.yaml").exists():
                shutil.rmtree(out)
                if not fresh:
                    out.mkdir()


@contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """Keep a second process from training the same run; the lock ends with this one, however it ends."""
    handle = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"{out}: another process is training this run") from error
        yield
    finally:
        os.close(handle)


def _resumed(out: Path, began: Recipe, recipe: Recipe) -> dict[str, Any] | None:
    lines = differences(as_dict(began), as_dict(recipe))
    changed = [line for line in lines if not line.startswith(RESUMABLE_CHANGES)]
    if changed:
        raise InputError(f"{out}: the recipe has changed since this run began: {'; '.join(changed)}")
    if not checkpoints.listed(out / "checkpoints"):
        return None
    path, state, passed_over = checkpoints.newest(out / "checkpoints")
    for line in passed_over:
        print(f"relattn: warning: {line}; going on from {path.name}", file=sys.stderr)
    return state


def _prepare(
    recipe: Recipe, out: Path, state: dict[str, Any] | None, *, show: bool
) -> tuple[TranslationData, Transformer]:
    """The data and a model with its first weights; the directory then counts as a run."""
    start = bundle.load(recipe.train.init_from) if recipe.train.init_from else None
    data = TranslationData(
        recipe.data, seed=recipe.seed, cache_dir=out / "data", tokenizer=None if start is None else start.tokenizer
    )
    data.prepare_data()
    data.setup("fit")
    torch.manual_seed(recipe.seed)
    model = Transformer(recipe.model, data.tokenizer.vocab_size)
    if start is not None:
        changed = differences(as_dict(start.model.config), as_dict(recipe.model))
        changed = [line for line in changed if "dropout" not in line]
        if changed:
            raise InputError(f"{recipe.train.init_from}: is another model than the recipe's: {'; '.join(changed)}")
        model.load_state_dict(start.model.state_dict())
    if state is None and first_process():
        write_atomically(out / "tokenizer.model", data.tokenizer.model_bytes)
        write_atomically(out / "recipe.yaml", dump(recipe).encode())
    left_out = ", ".join(f"{count:,} ({reason})" for reason, count in data.dropped.items() if count)
    if show and left_out:
        print(f"training pairs left out: {left_out}", file=sys.stderr)
    return data, model


def _require_devices(train: TrainConfig) -> None:
    gpus = torch.cuda.device_count()
    on_gpus = train.accelerator == "gpu" or (train.accelerator == "auto" and gpus > 0)
    if on_gpus and train.devices > gpus:
        raise InputError(f"devices is {train.devices}, but the GPUs here are {gpus} (accelerator {train.accelerator})")


def _trainer(recipe: Recipe, out: Path, watch: Watch, steps: int) -> lightning.Trainer:
    logger: Any = False
    if any(importlib.util.find_spec(name) for name in ("tensorboard", "tensorboardX")):
        logger = lightning.pytorch.loggers.TensorBoardLogger(out, name="tensorboard", version="")
    train = recipe.train
    return lightning.Trainer(
        accelerator=train.accelerator,
        devices=train.devices,
        strategy="ddp" if train.devices > 1 else "auto",
        precision="32-true" if train.precision == "fp32" else "bf16-mixed",
        max_steps=steps,
        logger=logger,
        callbacks=[watch],
        default_root_dir=out,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )


@contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Keep Lightning's remarks on its own set-up from the user's terminal."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
