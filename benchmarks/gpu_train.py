"""Training of the paper's base model on `medium_en_de` on a GPU, and translation on the device.

The directory of the text has train, valid and newstest2013, each as .en.gz and .de.gz. Models differ in their position
scheme only. They are trained at the same time, in two processes: the loss and the translations count, not the time.
"""

import shutil
import time
from pathlib import Path
from typing import Any, Literal

from benchmarks.measure import Row
from benchmarks.workers import Task

TEXT = Path("data/medium_en_de")
TEXTS = ("valid", "newstest2013")
KEY = ("model", "positions", "text")


def train_and_translate(positions: str, steps: int, text: Path, out: Path, device: str) -> list[Row]:
    """Train a model, translate both texts, and return a row per text. Write the log and translations below `out`."""
    from relattn_mt import load
    from relattn_mt.config import DataConfig, Recipe, TrainConfig
    from relattn_mt.evaluation import score
    from relattn_mt.tokens.text_files import read_lines
    from relattn_mt.training.train import train

    from benchmarks.train_step import SIZES

    files: dict[str, Any] = {
        f"{part}_{side}": str(text / f"{name}.{language}.gz")
        for part, name in (("train", "train"), ("valid", "valid"))
        for side, language in (("src", "en"), ("tgt", "de"))
    }
    on_gpu, run = device == "cuda", out / "runs" / positions
    accelerator: Literal["cpu", "gpu"] = "gpu" if on_gpu else "cpu"
    size = SIZES["base" if on_gpu else "tiny"]
    warmup = max(1, steps // 5)
    recipe = Recipe(
        out=str(run),
        model=size if positions == "relative" else size.with_positions("sinusoidal"),
        data=DataConfig(src_lang="en", tgt_lang="de", vocab_size=8000 if on_gpu else 300, max_tokens=8192, **files),
        train=TrainConfig(
            steps=steps, warmup_steps=warmup, learning_rate_factor=min(1.0, (warmup / 4000) ** 0.5),  # the paper's peak
            precision="bf16-mixed", log_every=max(1, steps // 50),
            valid_every=max(1, steps // 4), checkpoint_every=max(1, steps // 20), accelerator=accelerator,
            threads=None if on_gpu else 1,
        ),
    )  # fmt: skip
    start = time.perf_counter()
    bundle = train(recipe, show=False)
    seconds = time.perf_counter() - start
    shutil.copy(run / "log.csv", out / f"train-{positions}-log.csv")
    rows = []
    translator = load(str(bundle), device=device)
    for name in TEXTS:
        sources, references = (list(read_lines(text / f"{name}.{language}.gz")) for language in ("en", "de"))
        start = time.perf_counter()
        hypotheses = translator.translate(sources)
        rows.append(
            {
                "model": "base" if on_gpu else "tiny", "positions": positions, "text": name, "steps": steps,
                "BLEU": round(score(hypotheses, references).bleu, 2), "train seconds": round(seconds, 1),
                "translate seconds": round(time.perf_counter() - start, 1), "lines": len(sources),
            }
        )  # fmt: skip
        (out / f"{name}-{positions}.de").write_text("\n".join([*hypotheses, ""]), encoding="utf-8")
    shutil.rmtree(run)
    return rows


def tasks(steps: int, text: Path, out: Path, device: str) -> dict[str, Task]:
    names = ("relative", "sinusoidal") if device == "cuda" else ("relative",)
    return {f"train {name}": (train_and_translate, (name, steps, text, out, device)) for name in names}
