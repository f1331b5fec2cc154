"""Names of the weights of a model in other toolkits, by ours: the tables in names.toml."""

from __future__ import annotations

import re
import tomllib
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
        entries: Names in the toolkit by ours, as in names.toml.
        norm: Names of the weight and the bias of a layer normalisation.
        has_biases: Whether all layers must have their biases.
        first: Number of the first layer.
        factors: Numbers that weights are multiplied by, by the last parts of our names.
    """

    entries: Mapping[str, str]
    norm: tuple[str, str] = _LEAVES
    has_biases: bool = False
    first: int = 0
    factors: Mapping[str, float] = field(default_factory=dict)

    def places(self, config: ModelConfig) -> dict[str, Place]:
        """Return the place of each weight that a model of this configuration may have, by our names."""
        counts = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
        places = {}
        for ours, theirs in self.entries.items():
            if "positions.norm" in ours and not config.embedding_norm:
                continue
            name, _, share = theirs.partition(" ")
            part, _, parts = (share or "1/1").partition("/")
            leaves = [("", "")]
            if ours.endswith("."):
                leaves = list(zip(_LEAVES, self.norm if "norm" in ours else _LEAVES, strict=True))
            count = counts[ours.partition(".")[0]] if "{}" in ours else 1
            for layer in range(count):
                for leaf, their_leaf in leaves:
                    place = Place(name.format(layer + self.first) + their_leaf, int(part) - 1, int(parts))
                    places[ours.format(layer) + leaf] = place
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
            is_optional = ours.endswith("bias") and "norm" not in ours and not self.has_biases
            if name in tensors:
                shape = tuple(shape_and_dtype(tensors, name)[0])
                if shape != whole:
                    wrong.append(f"{name} must have shape {whole}, got {shape}")
            elif not is_optional:
                wrong.append(f"{name} is missing")
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
        tensors = {}
        for name, rows in parts.items():
            tensors[name] = np.concatenate([state[ours] for _, ours in sorted(rows)])
        return tensors

    def layers(self, tensors: Iterable[str], stack: str) -> int:
        """Return the number of layers of the "encoder" or the "decoder" in the toolkit's tensors."""
        layer = f"{stack}.{{}}.feed_forward.0."
        inner = self.entries.get(layer) or self.entries[f"{layer}weight"]
        pattern = re.compile(re.escape(inner).replace(r"\{\}", r"(\d+)"))
        return len({match[1] for match in map(pattern.match, tensors) if match})


TABLES: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CTRANSLATE2 = Names(TABLES["ctranslate2"], norm=("gamma", "beta"))
TRANSFORMERS = Names(TABLES["transformers"], has_biases=True)

# Our names, and CTranslate2's numbers.
CTRANSLATE2_ACTIVATIONS = {name: i for i, name in enumerate(("relu", "gelu_tanh", "swish", "gelu", "gelu_sigmoid"))}
