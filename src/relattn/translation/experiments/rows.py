"""A row: one model, trained from one seed and measured, as a JSON file that is written once and stays."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import relattn
from relattn.translation import bundle, processor
from relattn.translation.analysis.positions import PositionBin, by_position
from relattn.translation.analysis.table_norms import Norms, table_norms
from relattn.translation.config import Recipe, as_dict
from relattn.translation.data.storage import open_pairs
from relattn.translation.errors import Diverged, reading
from relattn.translation.evaluation import item_accuracy, score
from relattn.translation.experiments.scales import Pairs, Scale
from relattn.translation.experiments.tables import Entry
from relattn.translation.files import remove, write_atomically
from relattn.translation.training.journal import Row, read_log
from relattn.translation.training.train import train


@dataclass(frozen=True)
class Result:
    """What one model came to.

    Attributes:
        name: of the model, as `Entry.name`.
        seed: of weights, batches and dropout.
        recipe: of the run, as nested dictionaries; `out` left out.
        conditions: what figures mean nothing without: code, versions, processor.
        fault: why there are no figures: the run diverged. Empty otherwise.
        parameters: weights in all.
        seconds: of training, validation and saving not counted.
        wall: seconds that the row took in all, in the session that finished it.
        longest: pieces of the longest target trained on.
        log: what the run said of itself.
        translations: of the scale's pairs.
        scores: BLEU, chrF and BLEU's signature; items and lines right where lines are lists of items.
        positions: for each set of lines, how its pieces were predicted by position.
        norms: of the tables of relative positions, where there are any.
    """

    name: str
    seed: int
    recipe: dict[str, Any]
    conditions: dict[str, str]
    fault: str = ""
    parameters: int = 0
    seconds: float = 0.0
    wall: float = 0.0
    longest: int = 0
    log: tuple[Row, ...] = ()
    translations: tuple[str, ...] = ()
    scores: dict[str, Any] = field(default_factory=dict)
    positions: dict[str, list[PositionBin]] = field(default_factory=dict)
    norms: dict[str, Norms] = field(default_factory=dict)


def path_of(rows: Path, name: str, seed: int | str, words: int | None) -> Path:
    """Where the file of a row lies, of a model trained on lines of at most `words` words where that is not None."""
    return rows / f"{name}{'' if words is None else f'-{words}words'}-seed{seed}.json"


def recipe_of(scale: Scale, entry: Entry, seed: int, out: Path, words: int | None) -> Recipe:
    """What trains a row."""
    data = scale.recipe.data if words is None else replace(scale.recipe.data, max_words=words)
    return replace(scale.recipe, out=str(out), seed=seed, model=entry.model(scale.recipe.model), data=data)


def make(entry: Entry, recipe: Recipe, pairs: Pairs, sets: dict[str, Pairs], width: int) -> Result:
    """Train a row, or go on with it where it was left, and measure it.

    Args:
        entry: the model.
        recipe: of the run.
        pairs: to be translated and scored.
        sets: of lines, whose pieces are predicted by position.
        width: of a bin of positions.

    Raises:
        InputError, Interrupted: as `train`; a run that diverged is a result.
    """
    started, out = time.perf_counter(), Path(recipe.out)
    about: dict[str, Any] = {"name": entry.name, "seed": recipe.seed, "recipe": as_dict(recipe) | {"out": ""}}
    about["conditions"] = conditions(recipe)
    try:
        trained = train(recipe, resume=(out / "recipe.yaml").exists(), again="the same command")
    except Diverged as error:
        return Result(**about, fault=str(error), wall=time.perf_counter() - started)
    translator = bundle.read_bundle(trained).translator()
    translations = tuple(translator.translate([src for src, _ in pairs]))
    references = [reference for _, reference in pairs]
    log = tuple(read_log(out / "log.csv"))
    targets = open_pairs(out / "data" / "train.arrow").tgt
    return Result(
        **about,
        parameters=sum(parameter.numel() for parameter in translator.model.parameters()),
        seconds=log[-1].seconds,
        wall=time.perf_counter() - started,
        longest=int(targets.lengths().max()),
        log=log,
        translations=translations,
        scores=_scores(translations, references, items=recipe.data.builtin),
        positions={name: by_position(translator, lines, width=width) for name, lines in sets.items()},
        norms=table_norms(translator.model),
    )


def _scores(translations: tuple[str, ...], references: list[str], *, items: bool) -> dict[str, Any]:
    scores = score(translations, references)
    found: dict[str, Any] = {"bleu": scores.bleu, "chrf": scores.chrf, "signature": scores.bleu_signature}
    if items:
        found |= item_accuracy(translations, references)._asdict()
    return found


def conditions(recipe: Recipe) -> dict[str, str]:
    """What a figure means nothing without."""
    return {
        "relattn": relattn.__version__,
        "code": code(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": processor.describe(),
        "threads": str(recipe.train.threads or torch.get_num_threads()),
    }


def code() -> str:
    """Eight hexadecimal digits that change with any line of the package's code."""
    package = Path(relattn.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".c", ".h"):
            digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]


def write(path: Path, result: Result) -> None:
    """Put a row's file at `path`, in one piece."""
    content = asdict(result)
    content["log"] = [list(asdict(row).values()) for row in result.log]
    content["positions"] = {
        name: [
            [b.positions and b.positions.start, b.positions and b.positions.stop, b.pieces, b.right, b.nats]
            for b in bins
        ]
        for name, bins in result.positions.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(content, ensure_ascii=False, indent=0) + "\n").encode())


def read(path: Path) -> Result:
    """A row from its file.

    Raises:
        InputError: the file cannot be read, or is no row.
    """
    with reading(path, "not a row of a table"):
        content = json.loads(path.read_bytes())
        content["log"] = tuple(Row(*values) for values in content["log"])
        content["translations"] = tuple(content["translations"])
        content["positions"] = {
            name: [PositionBin(None if b[0] is None else range(b[0], b[1]), *b[2:]) for b in bins]
            for name, bins in content["positions"].items()
        }
        content["norms"] = {name: Norms(*norms) for name, norms in content["norms"].items()}
        return Result(**content)


def clear(out: Path) -> None:
    """Take away what a finished row's run no longer needs; its bundle and its log stay."""
    for name in ("checkpoints", "data"):
        remove(out / name)
