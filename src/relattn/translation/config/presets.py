"""The paper's recipes, and Tensor2Tensor's, by name: `relattn train wmt14-en-de-base`.

They are what section 4.1 of the paper says, and Vaswani et al. (2017) where it refers to them. Each has a twin with
sinusoids in place of relative positions, as the paper compares them: `wmt14-en-de-base-sinusoidal`.
"""

from __future__ import annotations

from dataclasses import replace

from relattn.translation.config import DataConfig, ModelConfig, Recipe, TrainConfig

_BASE = Recipe(
    out="runs/wmt14-en-de-base",
    model=ModelConfig(
        dim=512,
        heads=8,
        feed_forward_dim=1024,
        encoder_layers=6,
        decoder_layers=6,
        norm="post",  # as in Vaswani et al.; the paper does not say
        dropout=0.1,
        attention_dropout=0.1,
        positions="relative",
        clip=16,
        tables_per_head=True,
    ),
    data=DataConfig(
        src_lang="en",
        tgt_lang="de",
        train_src="data/wmt14-en-de/train.en.gz",
        train_tgt="data/wmt14-en-de/train.de.gz",
        valid_src="data/wmt14-en-de/newstest2013.en.gz",
        valid_tgt="data/wmt14-en-de/newstest2013.de.gz",
        vocab_size=32_768,
        max_tokens=4096,  # padded: about 25,000 pieces a side are left of eight times as many
    ),
    train=TrainConfig(
        steps=100_000,
        accumulate=8,  # the paper's eight GPUs; with as many, devices: 8 and accumulate: 1 is the same step
        warmup_steps=4000,
        label_smoothing=0.1,
        keep=5,
        average=1,
    ),
)

_BIG = replace(
    _BASE,
    out="runs/wmt14-en-de-big",
    model=replace(_BASE.model, dim=1024, heads=16, feed_forward_dim=4096, dropout=0.3, clip=8, tables_per_head=False),
    # The last 20 checkpoints, one every 10 minutes: at Vaswani et al.'s second a step on the same GPUs, 600 steps.
    train=replace(_BASE.train, steps=300_000, checkpoint_every=600, keep=20, average=20),
)


def _french(recipe: Recipe, *, dropout: float) -> Recipe:
    data = replace(
        recipe.data,
        tgt_lang="fr",
        train_src="data/wmt14-en-fr/train.en.gz",
        train_tgt="data/wmt14-en-fr/train.fr.gz",
        valid_src="data/wmt14-en-fr/newstest2013.en.gz",
        valid_tgt="data/wmt14-en-fr/newstest2013.fr.gz",
    )
    model = replace(recipe.model, dropout=dropout)
    return replace(recipe, out=recipe.out.replace("en-de", "en-fr"), model=model, data=data)


_T2T = replace(  # its `transformer_relative`, which is not the paper's model; its Adam has β₂ = 0.997, ours 0.98
    _BASE,
    out="runs/t2t-relative-base",
    model=replace(
        _BASE.model, feed_forward_dim=2048, norm="pre", activation_dropout=0.1, clip=20, tables_per_head=False
    ),
    train=replace(_BASE.train, steps=250_000, warmup_steps=8000, learning_rate_factor=2.0),
)


def _twin(recipe: Recipe) -> Recipe:
    return replace(recipe, out=f"{recipe.out}-sinusoidal", model=recipe.model.with_positions("sinusoidal"))


_RELATIVE = {
    "wmt14-en-de-base": _BASE,
    "wmt14-en-de-big": _BIG,
    "wmt14-en-fr-base": _french(_BASE, dropout=0.1),
    "wmt14-en-fr-big": _french(_BIG, dropout=0.1),
    "t2t-relative-base": _T2T,
}
PRESETS = {**_RELATIVE, **{f"{name}-sinusoidal": _twin(recipe) for name, recipe in _RELATIVE.items()}}
