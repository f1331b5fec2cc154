"""Configuration of the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from relattn_mt.config.base import number
from relattn_mt.config.positions import OPTION_NAMES, SSRU, Mixer, PositionConfig, Positions
from relattn_mt.support.errors import require

Activation = Literal["relu", "gelu", "gelu_tanh", "gelu_sigmoid", "swish"]  # in the order of `relattn_mt.h`


@dataclass(frozen=True, kw_only=True)
class ModelConfig(PositionConfig):
    """Encoder–decoder Transformer (Vaswani et al. 2017) and its position scheme.

    Args:
        dim: Model dimension, of embeddings and residual connections.
        heads: Number of attention heads. It must divide dim, unless head_dim is set.
        head_dim: Dimension of each head. 0: dim / heads.
        feed_forward_dim: Inner dimension of the feed-forward layers.
        feed_forward: Feed-forward layers with one input map ("plain"), or with a second one whose outputs multiply the
            activations ("gated", Shazeer 2020).
        encoder_layers: Number of encoder layers.
        decoder_layers: Number of decoder layers.
        decoder_mixer: First sub-layer of decoder layers: that of the position scheme ("scheme"), or a recurrent unit
            without attention (SSRU, Kim et al. 2019), which makes decoding faster.
        norm: Layer normalization before each sub-layer ("pre") or after its residual connection ("post", as in the
            paper), or division by the root of the mean square before each sub-layer ("rms", Zhang and Sennrich 2019).
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
        norm_epsilon: Constant that normalization adds to the variance or the mean square.
        alignment_layer: Decoder layer, counted from 0, whose attention to the source gives word alignments. "assumed":
            unknown, and the last one is used; at the end of training, it is measured.
        alignment_heads: Number of heads of that layer, from the first on, whose mean attention gives word alignments.
            0: all.
    """

    dim: int = number(512, "[1, 65536]")
    heads: int = number(8, "[1, 65536]")
    head_dim: int = number(0, "[0, 65536]")
    feed_forward_dim: int = number(2048, "[1, 1048576]")
    feed_forward: Literal["plain", "gated"] = "plain"
    encoder_layers: int = number(6, "[1, 1000]")
    decoder_layers: int = number(6, "[1, 1000]")
    decoder_mixer: Literal["scheme", "ssru"] = "scheme"
    norm: Literal["pre", "post", "rms"] = "pre"
    dropout: float = number(0.1, "[0, 1)")
    attention_dropout: float = number(0.1, "[0, 1)")
    activation_dropout: float = number(0.0, "[0, 1)")
    activation: Activation = "relu"
    shared_embeddings: Literal["all", "target", "inputs", "none"] = "all"
    scaled_embeddings: bool = True
    embedding_norm: bool = False
    output_bias: bool = False
    norm_epsilon: float = number(1e-5, "[1e-12, 1]")
    alignment_layer: int | Literal["assumed"] = "assumed"
    alignment_heads: int = number(0, "[0, 65536]")

    def __post_init__(self) -> None:
        super().__post_init__()
        divides = self.head_dim > 0 or self.dim % self.heads == 0
        require(divides, f"heads must divide dim or head_dim be set, got heads {self.heads} and dim {self.dim}")
        layer = self.alignment_layer
        last = self.decoder_layers - 1
        is_valid = layer == "assumed" or 0 <= layer <= last
        require(is_valid, f"alignment_layer must be in [0, {last}], the decoder layers, or assumed, got {layer}")
        heads = self.alignment_heads
        require(heads <= self.heads, f"alignment_heads must be at most heads, got {heads} and heads {self.heads}")
        for part in self.position_spec.parts:
            value = {None: 0, "dim": self.dim, "head_dim": self.head_size}[part.even]
            require(value % 2 == 0, f"{part.even} must be even for {self.positions} positions, got {value}")

    @property
    def head_size(self) -> int:
        """Dimension of each head."""
        return self.head_dim or self.dim // self.heads

    @property
    def summary(self) -> str:
        """Its layers, dimension and position scheme."""
        layers = f"{self.encoder_layers} and {self.decoder_layers} layers"
        return f"{layers}, dim {self.dim}, {self.positions} positions"

    def mixer(self, is_causal: bool) -> Mixer:
        """Return the first sub-layer of the encoder's layers, or of the decoder's, which are causal."""
        return SSRU() if is_causal and self.decoder_mixer == "ssru" else self.position_spec.mixer

    @property
    def alignment(self) -> tuple[int, int]:
        """Decoder layer, counted from 0, and number of its first heads, whose mean attention aligns words."""
        layer = self.decoder_layers - 1 if self.alignment_layer == "assumed" else self.alignment_layer
        return layer, self.alignment_heads or self.heads

    @property
    def alignment_note(self) -> str:
        """Description of the layer and the heads that align words, in one line."""
        layer, heads = self.alignment
        which = "all heads" if heads == self.heads else "the first head" if heads == 1 else f"the first {heads} heads"
        note = f"word alignment: {which} of decoder layer {layer + 1}"
        return f"{note} (assumed)" if self.alignment_layer == "assumed" else note

    def with_positions(self, positions: Positions, **options: Any) -> ModelConfig:
        """Return the same model with another position scheme. Options that are not given have their defaults."""
        return replace(self, positions=positions, **{**dict.fromkeys(OPTION_NAMES), **options})
