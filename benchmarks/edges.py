"""Find out why both tables extrapolate worse than keys alone: train the demo's model in variants, and test long lines.

    python -m benchmarks.edges --seeds 1 2 3

Beyond the clipping distance k, a pair uses the edge row of a table. The value table adds its edge row times the total
probability of all keys beyond k, which grows with the length. `values_within` has no value rows beyond k; its keys keep
their edge rows. `long` is teacher forcing on lines more than twice as long as those of training.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from relattn.translation.model.positions.relative import Relative

from benchmarks.measure import Row, command, parse, record
from relattn import RelativeAttention, relative_attention
from relattn.translation import bundle
from relattn.translation.analysis.positions import by_position
from relattn.translation.config import Recipe
from relattn.translation.data.builtin import builtin
from relattn.translation.demo import recipe
from relattn.translation.evaluation import item_accuracy
from relattn.translation.training.train import train

REACH = 160  # the longest distance of the lines
WIDTH = 15  # positions per column of nats


class ValuesWithin(RelativeAttention):
    """`RelativeAttention` whose value table has no edge rows: pairs beyond k add no vector to the values."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Any:
        assert self.rel_key is not None
        assert self.rel_value is not None
        left, right = self.clip
        distance = torch.arange(-REACH, REACH + 1)
        row, within = distance.clamp(-left, right) + left, (distance >= -left) & (distance <= right)
        rel_value = self.rel_value()[row] * within[:, None]
        options = {"dropout_p": self.dropout if self.training else 0.0, **options}
        return relative_attention(query, key, value, self.rel_key()[row], rel_value, clip=REACH, **options)


VARIANTS: dict[str, dict[str, Any]] = {  # changes of the model, and augmentation
    "both": {},
    "values_within": {},
    "keys": {"model": {"relative_tables": "keys"}},
    "zero": {"model": {"beyond": "zero"}},
    "join": {"augment": {"join_lines": 0.2}},
}


def recipe_of(name: str, out: Path, seed: int, steps: int) -> Recipe:
    changes, made = VARIANTS[name], recipe(out, "relative", steps=steps, seed=seed, src_lang="en", tgt_lang="de")
    augment = replace(made.data.augment, **changes.get("augment", {}))
    return replace(
        made,
        model=replace(made.model, **changes.get("model", {})),
        data=replace(made.data, augment=augment),
        train=replace(made.train, threads=torch.get_num_threads(), valid_bleu_lines=0),
    )


def fit(name: str, out: Path, seed: int, steps: int) -> None:
    """Train a variant, or continue its run, unless its bundle exists."""
    if (out / "bundle").exists():
        return
    attention = Relative.attention
    if name == "values_within":
        Relative.attention = lambda self: without_edges(attention(self))  # type: ignore[method-assign]
    try:
        train(recipe_of(name, out, seed, steps), resume=(out / "recipe.yaml").exists(), show=False)
    finally:
        Relative.attention = attention  # type: ignore[method-assign]


def without_edges(module: RelativeAttention) -> RelativeAttention:
    module.__class__ = ValuesWithin
    return module


def evaluate(out: Path, within: bool, lines: int) -> Row:
    """Return accuracies in percent, and nats per token of long lines by target position."""
    translator = bundle.read_bundle(out / "bundle").translator()
    if within:
        translator.pytorch_reason = "its attention is that of this benchmark"
        for module in list(translator.model.modules()):
            if type(module) is RelativeAttention:
                without_edges(module)
    test, long = (builtin(split, src_lang="en", tgt_lang="de", lines=lines) for split in ("test", "long"))
    row: Row = {}
    for name, pairs in (("test", test), ("long", long[: -(-lines // 4)])):
        translations = translator.translate([src for src, _ in pairs])
        row[f"{name} items"] = round(100 * item_accuracy(translations, [tgt for _, tgt in pairs]).items, 1)
    bins = [each for each in by_position(translator, long, width=WIDTH) if each.tokens >= lines or not each.positions]
    return row | {f"nats {each.label.replace('–', '-')}": round(each.nats, 3) for each in bins}


def main() -> None:
    parser = command("edges", __doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="random seeds (%(default)s)")
    parser.add_argument("--runs", type=Path, default=Path("runs/edges"), help="directory of the runs (%(default)s)")
    parser.add_argument("--steps", type=int, default=2000, help="optimizer steps per model (%(default)s)")
    parser.add_argument("--lines", type=int, default=400, help="lines per test (%(default)s)")
    given = parse(parser, "edges-demo.csv", threads=1)
    for seed in given.seeds:
        for name in VARIANTS:
            out = given.runs / f"{name}-{seed}"
            fit(name, out, seed, given.steps)
            tests = [(name, name == "values_within")]
            if name == "both":
                tests.append(("both, values_within when tested", True))
            for label, within in tests:
                row = {"variant": label, "seed": seed, "steps": given.steps, **evaluate(out, within, given.lines)}
                record(given, [row], ("variant", "seed", "steps"))


if __name__ == "__main__":
    main()
