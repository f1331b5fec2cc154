"""Names of the weights of a model in other toolkits.

The keys are our names, the values are the toolkit's. A key that ends in a dot is a module with a weight and a bias.
CTranslate2 stacks the projections of one input in one matrix: "NAME 2/3" is the second third of the rows of NAME.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from relattn_mt.config import ModelConfig
from relattn_mt.support.errors import InputError, one_line
from relattn_mt.weights import LazyWeights, TensorDict, Tensors, Weight, shape_and_dtype

_MOST_NAMED = 8  # weights named in one message
_LEAVES = "weight", "bias"


class Place(NamedTuple):
    """Place of a weight: one of `parts` equal parts of the rows of a tensor."""

    name: str
    part: int
    parts: int


@dataclass(frozen=True)
class Names:
    """Names of a model's weights in another toolkit.

    Attributes:
        shared: Weights outside of the layers.
        encoder: Prefix of an encoder layer, with {} for its number, and the weights in it.
        decoder: The same for a decoder layer.
        norm: Names of the weight and the bias of a layer normalisation.
        has_biases: Whether all layers must have their biases.
        first: Number of the first layer.
        factors: Numbers that weights are multiplied by, by the last parts of our names.
    """

    shared: Mapping[str, str]
    encoder: tuple[str, Mapping[str, str]]
    decoder: tuple[str, Mapping[str, str]]
    norm: tuple[str, str] = _LEAVES
    has_biases: bool = False
    first: int = 0
    factors: Mapping[str, float] = field(default_factory=dict)

    def places(self, config: ModelConfig) -> dict[str, Place]:
        """Return the place of each weight that a model of this configuration may have, by our names."""
        normed = config.embedding_norm
        entries = {ours: name for ours, name in self.shared.items() if normed or "positions.norm" not in ours}
        for stack, count in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
            prefix, names = getattr(self, stack)
            for layer in range(count):
                entries |= {
                    f"{stack}.{layer}.{ours}": prefix.format(layer + self.first) + name for ours, name in names.items()
                }
        places = {}
        for ours, theirs in entries.items():
            name, _, share = theirs.partition(" ")
            part, _, parts = (share or "1/1").partition("/")
            leaves = zip(_LEAVES, self.norm if "norm" in ours else _LEAVES, strict=True)
            for leaf, their_leaf in leaves if ours.endswith(".") else [("", "")]:
                places[ours + leaf] = Place(name + their_leaf, int(part) - 1, int(parts))
        return places

    def gather(
        self, tensors: Tensors, expected: Mapping[str, Weight], config: ModelConfig, source: str | Path
    ) -> LazyWeights:
        """Return the weights of our model, in float32, from the toolkit's tensors. `source` is their name in messages.

        Each is made when it is asked for. A missing bias becomes zeros, unless all layers must have one, and except in
        a normalisation, which would be of another kind without a bias.

        Raises:
            InputError: Tensors are missing or have other shapes; the message names them all.
        """
        places = self.places(config)
        wrong = []
        for ours, weight in expected.items():
            name, _, parts = places[ours]
            whole = (weight.shape[0] * parts, *weight.shape[1:])
            if name not in tensors:
                if not ours.endswith("bias") or "norm" in ours or self.has_biases:
                    wrong.append(f"{name} is missing")
                continue
            shape, _ = shape_and_dtype(tensors, name)
            if tuple(shape) != whole:
                wrong.append(f"{name} must have shape {whole}, got {tuple(shape)}")
        if wrong:
            messages = [one_line(fault, 120) for fault in dict.fromkeys(wrong)]
            more = f"; and {len(messages) - _MOST_NAMED} more" if len(messages) > _MOST_NAMED else ""
            raise InputError(f"{source}: {'; '.join(messages[:_MOST_NAMED])}{more}")

        def make(ours: str) -> np.ndarray:
            name, part, parts = places[ours]
            if name not in tensors:
                return np.zeros(expected[ours].shape, np.float32)
            weight = np.ascontiguousarray(np.split(tensors[name], parts)[part], np.float32)
            for end, factor in self.factors.items():
                if ours.endswith(end):
                    weight = weight * np.float32(factor)
            return weight

        return LazyWeights(expected, make)

    def scatter(self, state: Tensors, config: ModelConfig) -> TensorDict:
        """Return the toolkit's tensors, as copies, from the weights of our model."""
        parts: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for ours, place in self.places(config).items():
            if ours in state:
                parts[place.name].append((place.part, ours))
        return {name: np.concatenate([state[ours] for _, ours in sorted(rows)]) for name, rows in parts.items()}

    def layers(self, tensors: Iterable[str], stack: str) -> int:
        """Return the number of layers of the "encoder" or the "decoder" in the toolkit's tensors."""
        prefix, names = getattr(self, stack)
        inner = names.get("feed_forward.0.") or names["feed_forward.0.weight"]
        before, after = map(re.escape, f"{prefix}{inner}".split("{}"))
        return len({match[1] for name in tensors if (match := re.match(rf"{before}(\d+){after}", name))})

    def unknown(self, tensors: Iterable[str], config: ModelConfig) -> list[str]:
        """Return the names of the toolkit's tensors that our model does not have."""
        return sorted(set(tensors) - {place.name for place in self.places(config).values()})


_CTRANSLATE2_LAYER = {
    "residuals.0.norm.": "self_attention/layer_norm/",
    "residuals.1.norm.": "ffn/layer_norm/",
    "self_attention.query.": "self_attention/linear_0/ 1/3",
    "self_attention.key.": "self_attention/linear_0/ 2/3",
    "self_attention.value.": "self_attention/linear_0/ 3/3",
    "self_attention.out.": "self_attention/linear_1/",
    "self_attention.attention.rel_key.weight": "self_attention/relative_position_keys",
    "self_attention.attention.rel_value.weight": "self_attention/relative_position_values",
    "feed_forward.0.": "ffn/linear_0/",
    "feed_forward.3.": "ffn/linear_1/",
}
CTRANSLATE2 = Names(
    {
        "src_embedding": "encoder/embeddings_0/weight",
        "embedding": "decoder/embeddings/weight",
        "output_weight": "decoder/projection/weight",
        "output_bias": "decoder/projection/bias",
        "src_positions.signal.weight": "encoder/position_encodings/encodings",
        "tgt_positions.signal.weight": "decoder/position_encodings/encodings",
        "src_positions.norm.": "encoder/layernorm_embedding/",
        "tgt_positions.norm.": "decoder/layernorm_embedding/",
        "encoder_norm.": "encoder/layer_norm/",
        "decoder_norm.": "decoder/layer_norm/",
    },
    encoder=("encoder/layer_{}/", _CTRANSLATE2_LAYER),
    decoder=(
        "decoder/layer_{}/",
        _CTRANSLATE2_LAYER
        | {
            "residuals.1.norm.": "attention/layer_norm/",
            "residuals.2.norm.": "ffn/layer_norm/",
            "cross_attention.query.": "attention/linear_0/",
            "cross_attention.key.": "attention/linear_1/ 1/2",
            "cross_attention.value.": "attention/linear_1/ 2/2",
            "cross_attention.out.": "attention/linear_2/",
        },
    ),
    norm=("gamma", "beta"),
)

# Our names, and CTranslate2's numbers.
CTRANSLATE2_ACTIVATIONS = {name: i for i, name in enumerate(("relu", "gelu_tanh", "swish", "gelu", "gelu_sigmoid"))}

_TRANSFORMERS_LAYER = {
    "self_attention.query.": "self_attn.q_proj.",
    "self_attention.key.": "self_attn.k_proj.",
    "self_attention.value.": "self_attn.v_proj.",
    "self_attention.out.": "self_attn.out_proj.",
    "feed_forward.0.": "fc1.",
    "feed_forward.3.": "fc2.",
    "residuals.0.norm.": "self_attn_layer_norm.",
}
TRANSFORMERS = Names(
    {
        "src_embedding": "model.encoder.embed_tokens.weight",
        "embedding": "model.decoder.embed_tokens.weight",
        "output_weight": "lm_head.weight",
        "output_bias": "final_logits_bias",
        "src_positions.signal.weight": "model.encoder.embed_positions.weight",
        "tgt_positions.signal.weight": "model.decoder.embed_positions.weight",
        "src_positions.norm.": "model.encoder.layernorm_embedding.",
        "tgt_positions.norm.": "model.decoder.layernorm_embedding.",
        "encoder_norm.": "model.encoder.layer_norm.",
        "decoder_norm.": "model.decoder.layer_norm.",
    },
    encoder=("model.encoder.layers.{}.", _TRANSFORMERS_LAYER | {"residuals.1.norm.": "final_layer_norm."}),
    decoder=(
        "model.decoder.layers.{}.",
        _TRANSFORMERS_LAYER
        | {
            "cross_attention.query.": "encoder_attn.q_proj.",
            "cross_attention.key.": "encoder_attn.k_proj.",
            "cross_attention.value.": "encoder_attn.v_proj.",
            "cross_attention.out.": "encoder_attn.out_proj.",
            "residuals.1.norm.": "encoder_attn_layer_norm.",
            "residuals.2.norm.": "final_layer_norm.",
        },
    ),
    has_biases=True,
)
