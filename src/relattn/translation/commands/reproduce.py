"""`relattn reproduce`"""

from pathlib import Path
from typing import Literal


def reproduce(
    table: Literal["positions", "clip", "tables"],
    *,
    scale: Literal["demo", "multi30k", "medium", "wmt14"] = "demo",
    seeds: list[int] = [1, 2, 3],  # noqa: B006
    rows: list[str] = [],  # noqa: B006
    steps: int | None = None,
    data: str = "",
    out: str = "results",
    runs: str = "runs/reproduce",
) -> None:
    """Train the models of a table of the paper and write a page. Models that have been trained are not trained again.

    The page is SCALE.md. It has all tables whose models have been trained.

    Args:
        table: Models to compare: position schemes (positions), clipping distances (clip), or aK and aV (tables).
        scale: Corpus, model size and number of steps. A model takes minutes (demo, multi30k), hours (medium),
            or weeks on one GPU (wmt14).
        seeds: Random seeds. Each model is trained once per seed.
        rows: Names of the models to train. By default, all of the table.
        steps: Number of training steps, instead of the scale's.
        data: Directory of the training and validation text. By default, data/multi30k, data/medium_en_de or
            data/wmt14-en-de.
        out: Directory of the pages, with one file per model and seed under rows/SCALE.
        runs: Directory of the training runs.
    """
    from relattn.translation.experiments.reproduce import reproduce as run

    print(run(table, scale, seeds=seeds, models=rows, steps=steps, data=data, out=Path(out), runs=Path(runs)))
