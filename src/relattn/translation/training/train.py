"""A run from a recipe to a bundle, in a directory of its own: `relattn train`."""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch._subclasses.fake_tensor import FakeTensorMode

from relattn.translation import bundle
from relattn.translation.allocation import freed_memory_kept
from relattn.translation.config import Recipe, dump
from relattn.translation.data.builtin import builtin
from relattn.translation.data.encode import (
    ValidationSet,
    check_text,
    has_data,
    language_pairs,
    load_data,
    read_tokenizer,
)
from relattn.translation.data.imported_tokenizer import AnyTokenizer
from relattn.translation.data.mixture import CorpusFiles
from relattn.translation.errors import one_line, require
from relattn.translation.evaluation import score
from relattn.translation.model.transformer import Transformer
from relattn.translation.training import checkpoints, estimate
from relattn.translation.training.distributed import (
    ended_by_agent,
    fabric_of,
    fit_to_started,
    is_first_process,
    join_restarted,
    launch,
    must_launch,
    restarts,
    stop_with_agent,
)
from relattn.translation.training.initial import read_initial_bundle
from relattn.translation.training.loop import Start, fit
from relattn.translation.training.run_directory import (
    BUNDLE,
    CHECKPOINTS,
    RECIPE,
    claim,
    newest_checkpoint,
    read_recipe,
    require_space,
)
from relattn.translation.training.stop import Stop
from relattn.translation.translate.torch_translator import TorchTranslator

_EXAMPLES = 3  # lines of the built-in corpus in the card of a bundle
_log = logging.getLogger(__name__)


def train(
    recipe: Recipe, *, resume: bool = False, show: bool = True, again: str = "the same command with --resume"
) -> Path:
    """Train a model by a recipe, and return the directory of its bundle.

    With several devices, this starts one process per device, unless torchrun, SLURM or MPI started this process. Then
    all processes call this function, and the first one prepares the data and writes all files. Processes that torchrun
    restarts continue the run. If it starts more or fewer than the recipe has, `accumulate` changes, and steps do not.

    Args:
        recipe: Recipe of the run.
        resume: Continue from the newest checkpoint in the recipe's directory.
        show: Show a progress bar if standard error is a terminal.
        again: Command that continues the run, for messages.

    Raises:
        InputError: The recipe, its files or its directory cannot be used.
        Diverged: A loss or weight is not finite.
        LostProcess: A process of the run was killed or failed.
        Interrupted: A signal stopped the run. Resumed, it continues as if it had never stopped.
    """
    recipe = fit_to_started(recipe)
    with _quiet_lightning(), _threads_kept(), freed_memory_kept():
        fabric = fabric_of(recipe)
        if must_launch(fabric):
            launch(recipe, resume=resume)
        else:
            with Stop() as stop:
                stop_with_agent()
                resume = resume or (restarts() > 0 and (Path(recipe.out) / RECIPE).exists())
                if is_first_process():
                    _train_as_first(fabric, recipe, stop, resume=resume, show=show, again=again)
                else:
                    _train_as_other(fabric, recipe, stop)
    return Path(recipe.out) / BUNDLE


def check(recipe: Recipe, files: Sequence[CorpusFiles], unwritten: Set[Path]) -> None:
    """Check a recipe before some of its training text is written.

    Args:
        recipe: Recipe of the run, which is started or continued.
        files: Files of the training text.
        unwritten: Resolved paths of the files that are not read.

    Raises:
        InputError: `train` would, whatever is in the other files. Nothing is left of the check.
    """
    out = Path(recipe.out)
    with _quiet_lightning():
        fabric_of(recipe)
    with claim(recipe, resume=(out / RECIPE).exists()):
        initial = read_initial_bundle(recipe)
        with FakeTensorMode():
            model = estimate.make_model(recipe)
        if initial is not None:
            model = bundle.make_model(
                recipe.model, initial.tokenizer.vocab_sizes, initial.state, source=recipe.train.init_from
            )
        require_space(out, model, recipe.train.keep)
        check_text(recipe, files, unwritten, None if initial is None else initial.tokenizer)


def _train_as_first(fabric: Fabric, recipe: Recipe, stop: Stop, *, resume: bool, show: bool, again: str) -> None:
    """Train as the first process of a run, which alone prepares the data, reports and writes the bundle."""
    out = Path(recipe.out)
    command = f"{again} continues it" if resume else "the same command starts again"
    stop.immediately(f"stopped before the first step; {command}")
    with claim(recipe, resume=resume):
        if restarts():
            _log.warning("a process was lost; restart %d continues from the newest checkpoint", restarts())
        start = _load(recipe, resume=resume, first=True)
        require_space(out, start.model, recipe.train.keep)
        _log_dropped(start.data.dropped)
        _log_run(recipe, start)
        steps = _train_together(fabric, recipe, start, stop, show=show)
        stop.immediately(f"stopped after step {steps}; {again} continues from there")
        paths = checkpoints.list_checkpoints(out / CHECKPOINTS)[-recipe.train.average :]
        write_bundle(recipe, paths, start.data.tokenizer, language_pairs(out), start.data.valid, out / BUNDLE)


def _train_as_other(fabric: Fabric, recipe: Recipe, stop: Stop) -> None:
    """Train as another process of a run, which waits for the data of the first one.

    It starts from the newest checkpoint, as the first one does: a run that is not continued has none.
    """
    stop.kill()
    _wait_for_data(Path(recipe.out))
    start = _load(recipe, resume=True, first=False)
    _train_together(fabric, recipe, start, stop, show=False)


def _load(recipe: Recipe, *, resume: bool, first: bool) -> Start:
    """Load the data, the initial weights and the newest checkpoint of a run.

    The first process checks that the text of the run has not changed, and logs damaged checkpoints.
    """
    initial = read_initial_bundle(recipe)
    data = load_data(recipe, tokenizer=None if initial is None else initial.tokenizer, check=first)
    torch.manual_seed(recipe.seed)
    model = Transformer(recipe.model, *data.tokenizer.vocab_sizes)
    if initial is not None:
        bundle.load_weights(model, initial.state, source=recipe.train.init_from)
    return Start(data, model, newest_checkpoint(Path(recipe.out), warn=first) if resume else None)


def _train_together(fabric: Fabric, recipe: Recipe, start: Start, stop: Stop, *, show: bool) -> int:
    """Join the other processes of the run, train with them, and return the number of steps."""
    train = recipe.train
    with ended_by_agent(stop, train.processes):
        if train.processes > 1:
            stop.kill()  # nothing would be lost, and no other handler runs while this process waits for others
            join_restarted(fabric.device)
        fabric.launch()
        if train.threads is not None:
            torch.set_num_threads(train.threads)
        stop.after_step()
        steps = fit(fabric, recipe, start, stop, show=show)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return steps


def _wait_for_data(out: Path) -> None:
    """Wait until the first process has prepared the data, which may take longer than a process group waits."""
    while not has_data(out):
        time.sleep(0.2)


def _log_run(recipe: Recipe, start: Start) -> None:
    """Log what is trained, on what and how."""
    model, text, train = recipe.model, start.data.train, recipe.train
    weights, threads = sum(map(torch.numel, start.model.parameters())), train.threads or torch.get_num_threads()
    layers = f"{model.encoder_layers} and {model.decoder_layers} layers"
    _log.info(f"model: {model.positions} positions, dim {model.dim}, {layers}, {weights:,} weights")
    _log.info(f"text: {len(text.pairs.src):,} pairs of {one_line(', '.join(text.names), 200)}")
    _log.info(f"run: {train.steps:,} steps, {train.precision}, threads per process: {threads}")


def _log_dropped(counts: dict[str, int]) -> None:
    dropped = ", ".join(f"{count:,} ({reason})" for reason, count in counts.items() if count)
    if dropped:
        _log.info("training pairs dropped: %s", dropped)


def write_bundle(
    recipe: Recipe,
    paths: list[Path],
    tokenizer: AnyTokenizer,
    pairs: Sequence[tuple[str, str]],
    valid: list[ValidationSet],
    path: Path,
) -> None:
    """Average checkpoints into a bundle, and score it on the validation sets.

    Args:
        recipe: Recipe of the run.
        paths: Checkpoints.
        tokenizer: Tokenizer of the run.
        pairs: Pairs of languages that the run trains on.
        valid: Validation sets.
        path: Directory of the bundle.
    """
    languages = recipe.data.src_lang, recipe.data.tgt_lang
    tokenizer = tokenizer.with_languages(*languages)
    pairs = pairs if recipe.data.given_tokens else ()
    model = Transformer(recipe.model, *tokenizer.vocab_sizes)
    mean = checkpoints.average(checkpoints.load(checkpoint)["model"] for checkpoint in paths)
    bundle.load_weights(model, mean, source=f"the mean of {', '.join(path.name for path in paths)}")
    card = _card(recipe, paths)
    if valid:
        card += "\n## Scores\n"
        translator = TorchTranslator(model, tokenizer, recipe.search, languages=languages, pairs=pairs)
    for each in valid:
        sources, references = [src for src, _ in each.pairs], [tgt for _, tgt in each.pairs]
        scores = score(translator.with_languages(*each.languages).translate(sources), references)
        name = f" of {each.name}" if len(valid) > 1 else ""
        card += f"\nOn the {scores.sentences} validation sentences{name}:\n\n{scores}\n"
    bundle.save(path, model=model, recipe=recipe, tokenizer=tokenizer, card=card, pairs=pairs)


def average_run(run: str | Path, last: int, path: str | Path, *, overwrite: bool = False) -> None:
    """Average the last checkpoints of a run into a bundle.

    Args:
        run: Directory of the run.
        last: Number of checkpoints.
        path: Directory of the bundle.
        overwrite: Replace a bundle that exists at `path`.

    Raises:
        InputError: The directory contains no run, or fewer checkpoints.
    """
    bundle.require_writable(path, overwrite)
    run = Path(run)
    recipe = read_recipe(run)
    paths = checkpoints.list_checkpoints(run / CHECKPOINTS)
    require(1 <= last <= len(paths), f"last must be in [1, {len(paths)}], the checkpoints of {run}, got {last}")
    write_bundle(recipe, paths[-last:], read_tokenizer(run, recipe.data), language_pairs(run), [], Path(path))


def _card(recipe: Recipe, paths: list[Path]) -> str:
    data = recipe.data
    files = f"`{data.train_list}`" if data.train_list else f"`{data.train_src}` and `{data.train_tgt}`"
    source = "the built-in corpus" if data.builtin else files
    steps = ", ".join(str(checkpoints.step_of(path)) for path in paths)
    lines = builtin("valid", src_lang=data.src_lang, tgt_lang=data.tgt_lang, lines=_EXAMPLES) if data.builtin else []
    texts = "".join(f"- text: {json.dumps(src, ensure_ascii=False)}\n" for src, _ in lines)
    return (
        (f"---\nwidget:\n{texts}---\n\n" if texts else "") + f"# {data.src_lang} → {data.tgt_lang}\n\n"
        f"A Transformer with {recipe.model.positions} positions, trained with relattn on {source}; "
        f"the mean of the weights after steps {steps}.\n\n"
        "    relattn translate PATH < in.txt > out.txt\n\n"
        "## Recipe\n\n```yaml\n" + dump(recipe) + "```\n"
    )


@contextmanager
def _threads_kept() -> Iterator[None]:
    """Restore the number of threads at the end."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Hide Lightning's messages about its own setup."""
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
