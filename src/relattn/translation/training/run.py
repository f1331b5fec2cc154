"""A run, from a recipe to a bundle, in a directory of its own: what `relattn train` does."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import TensorBoardLogger
from lightning.fabric.utilities.rank_zero import rank_zero_only

from relattn.translation import bundle, hub
from relattn.translation.config import Recipe, TrainConfig, as_dict, differences, dump
from relattn.translation.data.imported import AnyTokenizer
from relattn.translation.data.prepare import prepare, tokenizer_of
from relattn.translation.errors import InputError
from relattn.translation.evaluation import score
from relattn.translation.model.transformer import Transformer
from relattn.translation.search.confidence import calibrated
from relattn.translation.search.translator import Translator
from relattn.translation.settings import of_version_1, read_yaml, to_config
from relattn.translation.training import checkpoints
from relattn.translation.training.averaging import average
from relattn.translation.training.budget import require_space
from relattn.translation.training.directory import (
    BUNDLE,
    CHECKPOINTS,
    RECIPE,
    begun,
    locked,
    newest_checkpoint,
    require_same_run,
)
from relattn.translation.training.loop import fit
from relattn.translation.training.stop import Stop

_PARENT = "RELATTN_FIRST_PROCESS"  # in the environment of processes that it starts


def train(
    recipe: Recipe, *, resume: bool = False, show: bool = True, again: str = "the same command with --resume"
) -> Path:
    """Train what the recipe says and return the directory of the finished bundle.

    With several devices or nodes, every process calls it. The first one alone writes; it prepares the data before it
    joins the others. Where nothing else starts them (torchrun, SLURM), the first starts the others itself, by running
    the command it was started with.

    Args:
        recipe: the run.
        resume: go on from the newest checkpoint in the recipe's directory.
        show: progress on standard error.
        again: what goes on with a run that was stopped, as it is told then.

    Raises:
        InputError: the recipe, its files or its directory will not do.
        Diverged: training came to numbers that are not finite.
        Interrupted: a signal stopped it; resumed, it goes on as if it had not been.
    """
    out, first = Path(recipe.out), first_process()
    _require_devices(recipe.train)
    with ExitStack() as stack, Stop() as stop:
        stack.enter_context(_quiet_libraries())
        stack.enter_context(_settings_kept())
        stop.at_once("stopped before the first step; the same command begins again")
        fabric = _fabric(recipe, out)
        if first:
            if resume:
                require_same_run(read_recipe(out), recipe)
            stack.enter_context(locked(out) if resume else begun(recipe))
        else:
            _end_with_parent()
            _launch(fabric, recipe.train)  # waits for the first process, which comes when the data are there
        start = _start(recipe)
        data = prepare(
            recipe.data, out, seed=recipe.seed, tokenizer=None if start is None else start.tokenizer, check=first
        )
        torch.manual_seed(recipe.seed)
        model = Transformer(recipe.model, *data.tokenizer.vocab_sizes)
        if start is not None:
            bundle.load_weights(model, start.state, source=recipe.train.init_from)
        if first:
            require_space(out, model, recipe.train)
        state = newest_checkpoint(out, warn=first) if resume else None
        left_out = ", ".join(f"{count:,} ({reason})" for reason, count in data.dropped.items() if count)
        if show and first and left_out:
            print(f"training pairs left out: {left_out}", file=sys.stderr)
        if first:
            stack.enter_context(_children_ended(fabric))
            os.environ[_PARENT] = str(os.getpid())
            _launch(fabric, recipe.train)
        stop.when_agreed()
        steps = fit(fabric, recipe, data, model, state, stop, show=show)
        if not first:
            return out / BUNDLE
        stop.at_once(f"stopped after step {steps}; {again} goes on from there")
        paths = checkpoints.listed(out / CHECKPOINTS)[-recipe.train.average :]
        write_bundle(recipe, paths, data.tokenizer, data.valid_pairs, out / BUNDLE)
    return out / BUNDLE


def first_process() -> bool:
    """Whether this is the one training process that writes files, which is so before others are started too."""
    return rank_zero_only.rank == 0  # type: ignore[attr-defined]


def write_bundle(
    recipe: Recipe, paths: list[Path], tokenizer: AnyTokenizer, valid_pairs: list[tuple[str, str]], path: Path
) -> None:
    """Average checkpoints into a bundle at `path`, scored and calibrated by the validation pairs."""
    model = Transformer(recipe.model, *tokenizer.vocab_sizes)
    mean = average(checkpoints.load(checkpoint)["model"] for checkpoint in paths)
    bundle.load_weights(model, mean, source=f"the mean of {', '.join(path.name for path in paths)}")
    card, calibration = _card(recipe, paths), None
    if valid_pairs:
        sources, references = [src for src, _ in valid_pairs], [tgt for _, tgt in valid_pairs]
        translator = Translator(model, tokenizer, recipe.search)
        found = [best for (best,) in translator.n_best(sources, 1)]
        scores, calibration = (
            score([best.text for best in found], references),
            calibrated(translator, found, references),
        )
        card += f"\n## Scores\n\nOn the {scores.sentences} validation sentences:\n\n{scores}\n"
    bundle.save(path, model=model, recipe=recipe, tokenizer=tokenizer, card=card, calibration=calibration)


def average_run(run: str | Path, last: int, path: str | Path) -> None:
    """Average the last checkpoints of a run into a bundle.

    Raises:
        InputError: the directory holds no run, or not that many checkpoints.
    """
    run = Path(run)
    recipe = read_recipe(run)
    paths = checkpoints.listed(run / CHECKPOINTS)
    if not 1 <= last <= len(paths):
        raise InputError(f"{run}: cannot average the last {last} checkpoints, it holds {len(paths)}")
    write_bundle(recipe, paths[-last:], tokenizer_of(run), [], Path(path))


def read_recipe(run: Path) -> Recipe:
    """The recipe of a run.

    Raises:
        InputError: the directory holds no run, or its recipe was changed by hand into something else.
    """
    path = run / RECIPE
    if not path.exists():
        raise InputError(f"{run}: holds no run: there is no {RECIPE}")
    try:
        content = read_yaml(path, "a recipe")
        return to_config(Recipe, {**content, "model": of_version_1(content.get("model", {}))}, path)
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


def _start(recipe: Recipe) -> bundle.Parts | None:
    """The bundle that training starts from, if the recipe names one."""
    if not recipe.train.init_from:
        return None
    start = bundle.load_parts(hub.resolve(recipe.train.init_from))
    changed = [line for line in differences(as_dict(start.model), as_dict(recipe.model)) if "dropout" not in line]
    if changed:
        raise InputError(f"{recipe.train.init_from}: is another model than the recipe's: {'; '.join(changed)}")
    return start


def _require_devices(train: TrainConfig) -> None:
    gpus = torch.cuda.device_count()
    on_gpus = train.accelerator == "gpu" or (train.accelerator == "auto" and gpus > 0)
    if on_gpus and train.devices > gpus:
        raise InputError(f"devices is {train.devices}, but the GPUs here are {gpus} (accelerator {train.accelerator})")
    if train.nodes > 1 and not any(name in os.environ for name in ("TORCHELASTIC_RUN_ID", "SLURM_NTASKS")):
        raise InputError(f"nodes is {train.nodes}: start the processes on all of them by torchrun or srun")


def _fabric(recipe: Recipe, out: Path) -> Fabric:
    train = recipe.train
    started = int(os.environ.get("WORLD_SIZE", train.devices * train.nodes))  # by torchrun
    if started != train.devices * train.nodes:
        raise InputError(f"devices is {train.devices} and nodes {train.nodes}, but {started} processes were started")
    known = any(importlib.util.find_spec(name) for name in ("tensorboard", "tensorboardX"))
    return Fabric(
        accelerator=train.accelerator,
        devices=train.devices,
        num_nodes=train.nodes,
        strategy="ddp" if train.devices * train.nodes > 1 else "auto",
        precision="32-true" if train.precision == "fp32" else "bf16-mixed",
        loggers=TensorBoardLogger(out, name="tensorboard", version="") if known else None,
    )


def _launch(fabric: Fabric, train: TrainConfig) -> None:
    """Join the other processes; the first one starts them where nothing else did."""
    fabric.launch()
    if train.threads is not None:
        torch.set_num_threads(train.threads)


@contextmanager
def _children_ended(fabric: Fabric) -> Iterator[None]:
    """End the processes that this one started when it fails: they would wait for it."""
    try:
        yield
    except BaseException:
        for process in getattr(fabric.strategy.launcher, "procs", ()):
            process.kill()
        raise
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _end_with_parent() -> None:
    """Let a process that the first one started end when that one is gone: it would wait for it, for half an hour."""
    parent = os.environ.get(_PARENT)

    def watch() -> None:
        while str(os.getppid()) == parent:
            time.sleep(0.5)
        os._exit(1)

    if parent is not None:
        threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _settings_kept() -> Iterator[None]:
    """Leave the caller's environment and number of threads as they were: starting processes sets both."""
    environment, threads = dict(os.environ), torch.get_num_threads()
    try:
        yield
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        torch.set_num_threads(threads)


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
