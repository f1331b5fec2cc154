"""Recipes of the paper and of Tensor2Tensor, by name: `relattn-mt train wmt14-en-de-base`.

They follow section 4.1 of the paper, and Vaswani et al. (2017) where the paper refers to them. The paper compares each
with the same model with sinusoids: `--model.positions sinusoidal`.
"""

from __future__ import annotations

from dataclasses import replace

from relattn_mt.config.data import DataConfig
from relattn_mt.config.model import ModelConfig
from relattn_mt.config.recipe import Recipe, TrainConfig


def _data(tgt_lang: str) -> DataConfig:
    directory = f"data/wmt14-en-{tgt_lang}"
    return DataConfig(
        src_lang="en",
        tgt_lang=tgt_lang,
        train_src=f"{directory}/train.en.gz",
        train_tgt=f"{directory}/train.{tgt_lang}.gz",
        valid_src=f"{directory}/newstest2013.en.gz",
        valid_tgt=f"{directory}/newstest2013.{tgt_lang}.gz",
        vocab_size=32_768,
        max_tokens=4096,  # with accumulate: 8, about 25,000 tokens per side and step without padding
    )


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
    data=_data("de"),
    train=TrainConfig(
        steps=100_000,
        accumulate=8,  # the paper's eight GPUs; devices: 8 and accumulate: 1 give the same steps
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
    # The last 20 checkpoints, one every 10 minutes. Vaswani et al. report one second per step, so 600 steps.
    train=replace(_BASE.train, steps=300_000, checkpoint_every=600, keep=20, average=20),
)

_T2T = replace(  # `transformer_relative` of Tensor2Tensor differs from the paper; its Adam has β₂ = 0.997, ours 0.98
    _BASE,
    out="runs/t2t-relative-base",
    model=replace(
        _BASE.model, feed_forward_dim=2048, norm="pre", activation_dropout=0.1, clip=20, tables_per_head=False
    ),
    train=replace(_BASE.train, steps=250_000, warmup_steps=8000, learning_rate_factor=2.0),
)

_RECIPES = (
    _BASE,
    _BIG,
    replace(_BASE, out="runs/wmt14-en-fr-base", data=_data("fr")),
    replace(_BIG, out="runs/wmt14-en-fr-big", data=_data("fr"), model=replace(_BIG.model, dropout=0.1)),
    _T2T,
)
PRESETS = {recipe.out.removeprefix("runs/"): recipe for recipe in _RECIPES}
