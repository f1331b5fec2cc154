"""Attention with relative position representations (Shaw, Uszkoreit, Vaswani 2018), exact, for any PyTorch model."""

from relattn.cache import AttentionCache
from relattn.functional import relation_attention, relative_attention
from relattn.nn import RelativeAttention, RelativePositionTable, RelativeSelfAttention

__version__ = "0.1.0"

__all__ = [
    "AttentionCache",
    "RelativeAttention",
    "RelativePositionTable",
    "RelativeSelfAttention",
    "relation_attention",
    "relative_attention",
]
