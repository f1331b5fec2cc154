"""Configuration of the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from relattn_mt.config.base import number
from relattn_mt.config.positions import OPTION_NAMES, PositionConfig, Positions
from relattn_mt.support.errors import require


@dataclass(frozen=True, kw_only=True)
class ModelConfig(PositionConfig):
    """Encoder–decoder Transformer (Vaswani et al. 2017) and its position scheme.

    Args:
        dim: Model dimension, of embeddings and residual connections.
        heads: Number of attention heads. It must divide dim.
        feed_forward_dim: Inner dimension of the feed-forward layers.
        encoder_layers: Number of encoder layers.
        decoder_layers: Number of decoder layers.
        decoder_mixer: First sub-layer of decoder layers: that of the position scheme ("scheme"), or a recurrent unit
            without attention (SSRU, Kim et al. 2019), which makes decoding faster.
        norm: Layer normalization before each sub-layer ("pre") or after its residual connection ("post", as in the
            paper).
        dropout: Dropout probability on embeddings and on the output of every sub-layer.
        attention_dropout: Dropout probability on attention probabilities.
        activation_dropout: Dropout probability inside the feed-forward layers, after the activation.
        activation: Activation of the feed-forward layers. "gelu_tanh" is the tanh approximation of GELU, "gelu_sigmoid"
            is x·sigmoid(1.702x), which Marian calls GELU, "swish" is SiLU.
        shared_embeddings: Which matrices are shared: source, target and output ("all"), target and output ("target"),
            source and target ("inputs"), or none.
        scaled_embeddings: Multiply embeddings by √dim before positions are added, as in the paper.
        embedding_norm: Normalize embeddings after positions are added, as in mBART.
        output_bias: Add a bias to the logits.
        norm_epsilon: Constant that layer normalization adds to the variance.
    """

    dim: int = number(512, "[1, 65536]")
    heads: int = number(8, "[1, 65536]")
    feed_forward_dim: int = number(2048, "[1, 1048576]")
    encoder_layers: int = number(6, "[1, 1000]")
    decoder_layers: int = number(6, "[1, 1000]")
    decoder_mixer: Literal["scheme", "ssru"] = "scheme"
    norm: Literal["pre", "post"] = "pre"
    dropout: float = number(0.1, "[0, 1)")
    attention_dropout: float = number(0.1, "[0, 1)")
    activation_dropout: float = number(0.0, "[0, 1)")
    activation: Literal["relu", "gelu", "gelu_tanh", "gelu_sigmoid", "swish"] = "relu"
    shared_embeddings: Literal["all", "target", "inputs", "none"] = "all"
    scaled_embeddings: bool = True
    embedding_norm: bool = False
    output_bias: bool = False
    norm_epsilon: float = number(1e-5, "[1e-12, 1]")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.dim % self.heads == 0, f"heads must divide dim, got heads {self.heads} and dim {self.dim}")
        for part in self.position_spec.parts:
            value = {None: 0, "dim": self.dim, "dim / heads": self.dim // self.heads}[part.even]
            require(value % 2 == 0, f"{part.even} must be even for {self.positions} positions, got {value}")

    def with_positions(self, positions: Positions, **options: Any) -> ModelConfig:
        """Return the same model with another position scheme. Options that are not given have their defaults."""
        return replace(self, positions=positions, **{**dict.fromkeys(OPTION_NAMES), **options})
