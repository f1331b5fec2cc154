"""`relattn-mt recipe`"""

from relattn_mt.config import DataConfig, Recipe, TrainConfig, dump

# steps and highest learning rate of fine-tuning
_WARMUP = 200
_RATE = 1e-4


def recipe(bundle: str) -> None:
    """Print a recipe that continues the training of a bundle on other text, as YAML with all settings.

    The learning rate rises to 1e-4 and falls as step^-0.5, and training stops when the validation loss no longer falls.

    Example: `relattn-mt recipe opus-en-de > tune.yaml`

    Args:
        bundle: Directory of a bundle, or name of a model: everyday-en-de, firefox:en-de, or org/name on the hub.
    """
    from relattn_mt.bundle import read_bundle
    from relattn_mt.hub import resolve

    initial = read_bundle(resolve(bundle))
    longest = initial.model.position_spec.max_length
    special = initial.tokenizer.special
    max_length = (longest or 1 << 20) - special.per_source - special.per_target
    tuned = Recipe(
        out="runs/tuned",
        model=initial.model,
        data=DataConfig(
            src_lang=initial.src_lang, tgt_lang=initial.tgt_lang, max_length=min(DataConfig.max_length, max_length)
        ),
        train=TrainConfig(
            init_from=bundle,
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
    print(dump(tuned), end="")
