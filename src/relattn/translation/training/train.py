"""A run, from a recipe to a bundle, in a directory of its own: what `relattn train` does."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from relattn.translation import bundle, hub
from relattn.translation.config import Recipe, as_dict, differences, dump
from relattn.translation.data.encode import ValidationSet, load_data, read_tokenizer
from relattn.translation.data.imported_tokenizer import AnyTokenizer
from relattn.translation.errors import InputError
from relattn.translation.evaluation import score
from relattn.translation.locking import locked
from relattn.translation.model.transformer import Transformer
from relattn.translation.settings import of_version_1, read_yaml, to_config
from relattn.translation.training import checkpoints
from relattn.translation.training.averaging import average
from relattn.translation.training.distributed import (
    fabric_of,
    first_process,
    launch,
    require_devices,
    restarted,
)
from relattn.translation.training.loop import fit
from relattn.translation.training.run_directory import (
    BUNDLE,
    CHECKPOINTS,
    RECIPE,
    TRAINING,
    begun,
    how_far,
    newest_checkpoint,
    require_layout,
    require_same_run,
    require_space,
)
from relattn.translation.training.stop import Stop
from relattn.translation.training.together import Together
from relattn.translation.translate.confidence import calibrate
from relattn.translation.translate.torch_translator import TorchTranslator

_log = logging.getLogger(__name__)


def train(
    recipe: Recipe, *, resume: bool = False, show: bool = True, again: str = "the same command with --resume"
) -> Path:
    """Train what the recipe says and return the directory of the finished bundle.

    With several devices or nodes, every process calls it. The first one alone writes; it prepares the data before it
    joins the others. Where nothing else starts them (torchrun, SLURM), the first starts the others itself, by running
    the command it was started with. Where torchrun starts them once more, they go on with what they had begun.

    Args:
        recipe: the run.
        resume: go on from the newest checkpoint in the recipe's directory.
        show: draw progress on standard error, where that is a terminal.
        again: what goes on with a run that was stopped, as it is told then.

    Raises:
        InputError: the recipe, its files or its directory will not do.
        Diverged: training came to numbers that are not finite.
        LostProcess: another process of the run ended.
        Interrupted: a signal stopped it; resumed, it goes on as if it had not been.
    """
    out, first = Path(recipe.out), first_process()
    resume = resume or (restarted() and (out / RECIPE).exists())
    require_devices(recipe.train)
    with Stop() as stop, ExitStack() as stack:
        stack.enter_context(_quiet_libraries())
        stack.enter_context(_settings_kept())
        stop.at_once("stopped before the first step; the same command begins again")
        fabric = fabric_of(recipe, out)
        together = Together(recipe.train.processes, lambda what: f"{what}{how_far(out, again)}")
        if first:
            if resume:
                require_same_run(read_recipe(out), recipe)
            stack.enter_context(locked(out, TRAINING) if resume else begun(recipe))
            require_layout(out)
        else:
            stack.enter_context(together)
            launch(fabric, recipe.train, together.children)  # waits for the first one, which comes with the data
        start = _start(recipe)
        data = load_data(
            recipe.data, out, seed=recipe.seed, tokenizer=None if start is None else start.tokenizer, check=first
        )
        torch.manual_seed(recipe.seed)
        model = Transformer(recipe.model, *data.tokenizer.vocab_sizes)
        if start is not None:
            bundle.load_weights(model, start.state, source=recipe.train.init_from)
        if first:
            require_space(out, model, recipe.train)
        state = newest_checkpoint(out, warn=first) if resume else None
        if first:
            _tell_left_out(data.dropped)
            stack.enter_context(together)
            launch(fabric, recipe.train, together.children)
        stop.when_agreed()
        steps = fit(fabric, recipe, data, model, state, stop, show=show)
        together.over()
        if not first:
            return out / BUNDLE
        stop.at_once(f"stopped after step {steps}; {again} goes on from there")
        paths = checkpoints.listed(out / CHECKPOINTS)[-recipe.train.average :]
        write_bundle(recipe, paths, data.tokenizer, data.valid, out / BUNDLE)
    return out / BUNDLE


def write_bundle(
    recipe: Recipe, paths: list[Path], tokenizer: AnyTokenizer, valid: list[ValidationSet], path: Path
) -> None:
    """Average checkpoints into a bundle at `path`, scored by the validation sets and calibrated by the first."""
    model = Transformer(recipe.model, *tokenizer.vocab_sizes)
    mean = average(checkpoints.load(checkpoint)["model"] for checkpoint in paths)
    bundle.load_weights(model, mean, source=f"the mean of {', '.join(path.name for path in paths)}")
    card, calibration = _card(recipe, paths), None
    if valid:
        card += "\n## Scores\n"
        translator = TorchTranslator(model, tokenizer, recipe.search)
    for each in valid:
        sources, references = [src for src, _ in each.pairs], [tgt for _, tgt in each.pairs]
        found = [best for (best,) in translator.n_best(sources)]
        scores = score([best.text for best in found], references)
        of = f" of {each.name}" if len(valid) > 1 else ""
        card += f"\nOn the {scores.sentences} validation sentences{of}:\n\n{scores}\n"
        calibration = calibration or calibrate(found, references)
    bundle.save(path, model=model, recipe=recipe, tokenizer=tokenizer, card=card, calibration=calibration)


def average_run(run: str | Path, last: int, path: str | Path, *, overwrite: bool = False) -> None:
    """Average the last checkpoints of a run into a bundle, which replaces another only with `overwrite`.

    Raises:
        InputError: the directory holds no run, or not that many checkpoints.
    """
    bundle.require_writable(path, overwrite)
    run = Path(run)
    recipe = read_recipe(run)
    paths = checkpoints.listed(run / CHECKPOINTS)
    if not 1 <= last <= len(paths):
        raise InputError(f"{run}: cannot average the last {last} checkpoints, it holds {len(paths)}")
    write_bundle(recipe, paths[-last:], read_tokenizer(run), [], Path(path))


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
    files = f"`{data.train_list}`" if data.train_list else f"`{data.train_src}` and `{data.train_tgt}`"
    source = "the built-in corpus" if data.builtin else files
    steps = ", ".join(str(checkpoints.step_of(path)) for path in paths)
    return (
        f"# {data.src_lang} → {data.tgt_lang}\n\n"
        f"A Transformer with {recipe.model.positions} positions, trained with relattn on {source}; "
        f"the mean of the weights after steps {steps}.\n\n"
        "    relattn translate PATH < in.txt > out.txt\n\n"
        "## Recipe\n\n```yaml\n" + dump(recipe) + "```\n"
    )


def _start(recipe: Recipe) -> bundle.Bundle | None:
    """The bundle that training starts from, if the recipe names one."""
    if not recipe.train.init_from:
        return None
    start = bundle.read_bundle(hub.resolve(recipe.train.init_from))
    changed = [line for line in differences(as_dict(start.model), as_dict(recipe.model)) if "dropout" not in line]
    if changed:
        raise InputError(f"{recipe.train.init_from}: is another model than the recipe's: {'; '.join(changed)}")
    return start


def _tell_left_out(counts: dict[str, int]) -> None:
    left_out = ", ".join(f"{count:,} ({reason})" for reason, count in counts.items() if count)
    if left_out:
        _log.info("training pairs left out: %s", left_out)


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
