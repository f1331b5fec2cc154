"""What tables are trained on: a corpus and a budget a model, from minutes on one core to weeks of GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relattn.translation.config import DataConfig, ModelConfig, Recipe, TrainConfig
from relattn.translation.config.presets import PRESETS
from relattn.translation.data.builtin import builtin
from relattn.translation.data.text_files import read_parallel
from relattn.translation.demo import recipe as demo_recipe

Pairs = list[tuple[str, str]]
DEMO_LINES = 400  # of each split


@dataclass(frozen=True)
class Scale:
    """A corpus and a budget.

    Attributes:
        name: on the command line.
        recipe: of every run, but for its position scheme, seed and directory.
        short: longest training sentences, in words, where a table wants them short; None: they are short as they are.
        width: target positions in a bin.
        edges: last lengths of the buckets in which BLEU is counted, in words of the source.
        longer: sets of lines whose pieces are predicted by position, made of the pairs that are translated.
    """

    name: str
    recipe: Recipe
    short: int | None
    width: int
    edges: tuple[int, ...]
    longer: Callable[[Pairs], dict[str, Pairs]]

    def pairs(self) -> Pairs:
        """What the models translate: text that none was trained on."""
        data = self.recipe.data
        if data.builtin:
            return builtin("test", src_lang=data.src_lang, tgt_lang=data.tgt_lang, lines=DEMO_LINES)
        return list(read_parallel(data.valid_src, data.valid_tgt))


def at(recipe: Recipe, directory: Path) -> Recipe:
    """The same recipe with its files in `directory`."""
    names = ("train_src", "train_tgt", "valid_src", "valid_tgt")
    paths: dict[str, Any] = {name: str(directory / Path(getattr(recipe.data, name)).name) for name in names}
    return replace(recipe, data=replace(recipe.data, **paths))


def joined(pairs: Pairs) -> dict[str, Pairs]:
    """Lines one by one, and joined by twos, fours and sixes."""
    sets = {}
    for name, count in (("single lines", 1), ("joined by twos", 2), ("joined by fours", 4), ("joined by sixes", 6)):
        groups = [pairs[start : start + count] for start in range(0, len(pairs) - count + 1, count)]
        sets[name] = [(" ".join(src for src, _ in group), " ".join(tgt for _, tgt in group)) for group in groups]
    return sets


def _builtin_splits(pairs: Pairs) -> dict[str, Pairs]:
    return {"test": pairs, "long": builtin("long", src_lang="en", tgt_lang="de", lines=DEMO_LINES)}


def _demo() -> Recipe:
    recipe = demo_recipe(Path("run"), "relative", steps=2000, seed=1, src_lang="en", tgt_lang="de")
    return replace(recipe, model=recipe.model.with_positions("relative"), train=replace(recipe.train, threads=1))


def _multi30k() -> Recipe:
    """The tiny Transformer of the literature on this corpus, for a quarter of an hour of one core."""
    return Recipe(
        model=ModelConfig(dim=128, heads=4, feed_forward_dim=256, encoder_layers=4, decoder_layers=4),
        data=DataConfig(
            train_src="data/multi30k/train.en.gz",
            train_tgt="data/multi30k/train.de.gz",
            valid_src="data/multi30k/valid.en",
            valid_tgt="data/multi30k/valid.de",
            vocab_size=4000,
            max_tokens=2048,
        ),
        train=TrainConfig(
            steps=2000, warmup_steps=600, threads=1, log_every=100, valid_every=500, checkpoint_every=100
        ),
    )


def _medium() -> Recipe:
    """The paper's recipe at the demo's size, on a corpus twenty times as small: WMT14 without the download."""
    paper = PRESETS["wmt14-en-de-base"]
    size = ModelConfig(dim=128, heads=4, feed_forward_dim=256, encoder_layers=2, decoder_layers=2)
    names = ("dim", "heads", "feed_forward_dim", "encoder_layers", "decoder_layers")
    data = replace(paper.data, vocab_size=8000, max_tokens=4096)
    train = replace(paper.train, steps=2000, warmup_steps=600, threads=1, log_every=100, valid_every=500)
    train = replace(train, checkpoint_every=100, average=5)
    recipe = replace(paper, model=replace(paper.model, **{name: getattr(size, name) for name in names}))
    return at(replace(recipe, data=data, train=train), Path("data/medium_en_de"))


SCALES = {
    scale.name: scale
    for scale in (
        Scale("demo", _demo(), None, 15, (4, 8, 12, 16), _builtin_splits),
        Scale("multi30k", _multi30k(), 12, 15, (8, 10, 12, 14, 16, 20), joined),
        Scale("medium", _medium(), 12, 20, (5, 10, 15, 20, 30), joined),
        Scale("wmt14", PRESETS["wmt14-en-de-base"], 25, 20, (10, 20, 30, 40, 50, 60), joined),
    )
}
