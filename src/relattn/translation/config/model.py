"""Configuration of the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from relattn.translation.config.base import Config, number
from relattn.translation.errors import require
from relattn.translation.model.positions.options import OPTION_NAMES, Positions, complete_options, require_even_dims


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    """Encoder–decoder Transformer (Vaswani et al. 2017) and its position scheme.

    Args:
        dim: Model dimension, of embeddings and residual connections.
        heads: Number of attention heads. It must divide dim.
        feed_forward_dim: Inner dimension of the feed-forward layers.
        encoder_layers: Number of encoder layers.
        decoder_layers: Number of decoder layers.
        norm: Layer normalization before each sub-layer ("pre") or after its residual connection ("post", as in the
            paper).
        dropout: Dropout probability on embeddings and on the output of every sub-layer.
        attention_dropout: Dropout probability on attention probabilities.
        activation_dropout: Dropout probability inside the feed-forward layers, after the activation.
        activation: Activation of the feed-forward layers. "gelu_tanh" is the tanh approximation of GELU, "swish" is
            SiLU.
        shared_embeddings: Which matrices are shared: source, target and output ("all"), target and output ("target"),
            source and target ("inputs"), or none.
        scaled_embeddings: Multiply embeddings by √dim before positions are added, as in the paper.
        output_bias: Add a bias to the logits.
        norm_epsilon: Constant that layer normalization adds to the variance.
        positions: Position scheme. "none" is a baseline that cannot tell word order.
        clip: For relative positions, the clipping distance k. By default 16. With clip_right, the distance to the left.
        clip_right: For relative positions, the clipping distance to the right. By default the same as clip.
        beyond: For relative positions, whether pairs beyond the clipping distance use the last row of a table ("clip",
            the default) or no relative term ("zero").
        relative_tables: For relative positions, which tables are learned: aK and aV ("both", the default), only aK
            ("keys") or only aV ("values").
        tables_per_head: For relative positions, learn one table per head, as in the paper's base model, instead of one
            per layer. By default false.
        max_positions: For learned positions, the maximum sequence length in tokens. By default 1024. Other schemes have
            no limit.
        kernel_size: For "cnn", the number of positions that a convolution covers. It must be odd. By default 3.
    """

    dim: int = number(512, "[1, 65536]")
    heads: int = number(8, "[1, 65536]")
    feed_forward_dim: int = number(2048, "[1, 1048576]")
    encoder_layers: int = number(6, "[1, 1000]")
    decoder_layers: int = number(6, "[1, 1000]")
    norm: Literal["pre", "post"] = "pre"
    dropout: float = number(0.1, "[0, 1)")
    attention_dropout: float = number(0.1, "[0, 1)")
    activation_dropout: float = number(0.0, "[0, 1)")
    activation: Literal["relu", "gelu", "gelu_tanh", "swish"] = "relu"
    shared_embeddings: Literal["all", "target", "inputs", "none"] = "all"
    scaled_embeddings: bool = True
    output_bias: bool = False
    norm_epsilon: float = number(1e-5, "[1e-12, 1]")
    positions: Positions = "relative"
    clip: int | None = number(None, "[0, 65536]")
    clip_right: int | None = number(None, "[0, 65536]")
    beyond: Literal["clip", "zero"] | None = None
    relative_tables: Literal["both", "keys", "values"] | None = None
    tables_per_head: bool | None = None
    max_positions: int | None = number(None, "[1, 1048576]")
    kernel_size: int | None = number(None, "[1, 999]")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.dim % self.heads == 0, f"heads must divide dim, got heads {self.heads} and dim {self.dim}")
        odd = self.kernel_size is None or self.kernel_size % 2 == 1
        require(odd, f"kernel_size must be odd, got {self.kernel_size}")
        require_even_dims(self.positions, self.dim, self.heads)
        options = {name: getattr(self, name) for name in OPTION_NAMES}
        for name, value in complete_options(self.positions, options).items():
            object.__setattr__(self, name, value)

    def with_positions(self, positions: Positions, **options: Any) -> ModelConfig:
        """Return the same model with another position scheme. Options that are not given have their defaults."""
        return replace(self, positions=positions, **{**dict.fromkeys(OPTION_NAMES), **options})

    @property
    def clipping_range(self) -> tuple[int, int]:
        """Clipping distances (left, right) of relative positions."""
        assert self.clip is not None
        return self.clip, self.clip if self.clip_right is None else self.clip_right
