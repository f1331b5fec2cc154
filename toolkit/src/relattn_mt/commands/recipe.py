"""`relattn-mt recipe`"""

from pathlib import Path

from relattn_mt.config import DataConfig, Recipe, TrainConfig, dump
from relattn_mt.config.presets import PRESETS
from relattn_mt.support.errors import unknown

_WARMUP, _RATE = 200, 1e-4  # steps and highest learning rate of fine-tuning


def recipe(name: str) -> None:
    """Print a known recipe as YAML, or one that continues the training of a bundle on other text.

    Examples: `relattn-mt recipe wmt14-en-de-base > my.yaml`; `relattn-mt recipe opus-en-de > tune.yaml` for a bundle.

    Args:
        name: Name of a recipe: wmt14-en-de-base, wmt14-en-de-big, wmt14-en-fr-base, wmt14-en-fr-big or
            t2t-relative-base. Or the directory of a bundle, or the name of a model: everyday-en-de, or org/name on the
            hub.
    """
    if name in PRESETS and not Path(name).is_dir():
        print(dump(PRESETS[name]), end="")
        return

    from relattn_mt.hub import resolve

    if not resolve(name).is_dir():
        raise unknown("recipe", name, PRESETS)
    print(dump(fine_tuning_recipe(name)), end="")


def fine_tuning_recipe(path: str) -> Recipe:
    """Return a recipe that continues the training of a bundle, with the files of its text left out.

    The learning rate rises to 1e-4 and falls as step^-0.5, and training stops when the validation loss no longer falls.

    Raises:
        InputError: The bundle is missing or damaged.
    """
    from relattn_mt.bundle import read_bundle
    from relattn_mt.hub import resolve

    initial = read_bundle(resolve(path))
    longest, special = initial.model.position_spec.max_length, initial.tokenizer.special
    max_length = (longest or 1 << 20) - special.per_source - special.per_target
    return Recipe(
        out="runs/tuned",
        model=initial.model,
        data=DataConfig(
            src_lang=initial.src_lang, tgt_lang=initial.tgt_lang, max_length=min(DataConfig.max_length, max_length)
        ),
        train=TrainConfig(
            init_from=path,
            steps=4000,
            warmup_steps=_WARMUP,
            learning_rate_factor=round(_RATE * (initial.model.dim * _WARMUP) ** 0.5, 4),
            valid_every=200,
            checkpoint_every=200,
            average=1,
            patience=3,
        ),
        search=initial.search,
    )
