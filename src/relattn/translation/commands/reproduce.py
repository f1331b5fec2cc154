"""`relattn reproduce`"""

from pathlib import Path
from typing import Literal

from relattn.translation.errors import require


def reproduce(
    table: Literal["positions", "clip", "tables", "length"],
    *,
    scale: Literal["demo", "multi30k", "medium", "wmt14"] = "demo",
    seeds: list[int] = [1, 2, 3],  # noqa: B006
    rows: list[str] = [],  # noqa: B006
    steps: int | None = None,
    data: str = "",
    out: str = "results",
    runs: str = "runs/reproduce",
) -> None:
    """Train the models of a table of the paper and write its page. Rows that are there are not trained again.

    Args:
        table: positions (position schemes), clip (clipping distance), tables (aK, aV or both) or length.
        scale: Corpus and number of steps; minutes per model for demo, weeks on one GPU for wmt14.
        seeds: Random seeds. Each model is trained once per seed.
        rows: Names of the models to train. By default, all of the table.
        steps: Number of steps per model, instead of the scale's.
        data: Directory of the scale's text, instead of the usual one.
        out: Directory of the pages, with one file per row.
        runs: Directory of the training runs.
    """
    require(bool(out) and bool(runs), "out and runs must name directories")

    from relattn.translation.experiments.reproduce import reproduce as run

    place = Path(data) if data else None
    print(run(table, scale, seeds=seeds, chosen=rows, steps=steps, data=place, out=Path(out), runs=Path(runs)))
