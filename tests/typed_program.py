"""A program by someone else, all of it typed: mypy checks it strictly against what relattn says of its public names."""

import relattn_mt
import torch
from relattn import (
    AttentionCache,
    RelativeAttention,
    RelativePositionTable,
    RelativeSelfAttention,
    relation_attention,
    relative_attention,
)
from relattn.integrations.transformers import disable, enable, report
from relattn_mt.config import ModelConfig, Recipe
from relattn_mt.support.errors import InputError


def attend(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    table = RelativePositionTable(4, x.shape[-1])
    out: torch.Tensor = relative_attention(x, x, x, table(), clip=4, is_causal=True)
    both: tuple[torch.Tensor, torch.Tensor] = relative_attention(x, x, x, return_lse=True)
    labels = torch.zeros(1, 1, x.shape[2], x.shape[2], dtype=torch.int64)
    return out + relation_attention(x, x, x, labels, table()) + RelativeAttention(x.shape[-1], 4)(x, x, x), both[1]


def decode(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    layer = RelativeSelfAttention(x.shape[-1], 2, 4, is_causal=True)
    cache: AttentionCache = layer.empty_cache(len(x), capacity=8)
    y, cache = layer(x, cache=cache)
    return y, cache.length


def translate(path: str, lines: list[str]) -> list[str]:
    try:
        return relattn_mt.load(path, precision="fp32").translate(lines)
    except InputError as error:
        return [str(error)]


def wider(recipe: Recipe) -> ModelConfig:
    return recipe.model.with_positions("relative", clip=recipe.model.clipping_range[0] + 1)


def speech(model: torch.nn.Module) -> str:
    enable(model)
    told: str = str(report(model))
    disable(model)
    return told
