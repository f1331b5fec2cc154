"""`relattn demo`"""

from pathlib import Path

from relattn.translation.config import Positions
from relattn.translation.errors import require


def demo(
    *,
    compare: list[Positions] = [],  # noqa: B006
    steps: int = 2000,
    seed: int = 1,
    src_lang: str = "en",
    tgt_lang: str = "de",
    out: str = "runs/demo",
) -> None:
    """Train a small model on the built-in corpus, with nothing to download, and show what it learned.

    Args:
        compare: Further position schemes to train for comparison with relative positions.
        steps: Number of optimizer steps per scheme.
        seed: Random seed of weights, batches and dropout.
        src_lang: Source locale.
        tgt_lang: Target locale.
        out: Directory of the runs, the table and the picture.
    """
    require(bool(out), "out must name a directory")

    from relattn.translation.demo import demo as run

    schemes: list[Positions] = list(dict.fromkeys(["relative", *compare]))
    run(Path(out), schemes, steps=steps, seed=seed, src_lang=src_lang, tgt_lang=tgt_lang)
