"""The weights of a model by the names that other toolkits have for them.

A table of `Names` says where each weight of ours is found. What ends in a dot is a module, with a weight and a bias; {}
is the number of a layer. CTranslate2 keeps maps of one input as one, the rows of each after those of the other: an
entry "2/3 name" is the second of three there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from relattn.translation.config import ModelConfig
from relattn.translation.errors import InputError, one_line

_MOST_NAMED = 8  # weights named in one message


class Place(NamedTuple):
    """Where a weight is found: in the rows of a tensor, of which it has one of so many even parts."""

    name: str
    part: int
    parts: int


@dataclass(frozen=True)
class Names:
    """What the weights of a model are called in another toolkit.

    Attributes:
        entries: our names, and where each is found there.
        of_norms: what weight and bias of layer normalisation are called there.
    """

    entries: Mapping[str, str]
    of_norms: tuple[str, str] = ("weight", "bias")

    def places(self, config: ModelConfig) -> dict[str, Place]:
        """Where each weight that a model of so many layers may have is found, by its name in ours."""
        found = {}
        for ours, theirs in self.entries.items():
            stack = ours.partition(".")[0]
            layers = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}.get(stack, 1)
            leaves = [("", "")]
            if ours.endswith("."):
                theirs_of = self.of_norms if "norm" in ours else ("weight", "bias")
                leaves = [("weight", theirs_of[0]), ("bias", theirs_of[1])]
            share, _, name = theirs.rpartition(" ")
            part, _, parts = (share or "1/1").partition("/")
            for layer in range(layers):
                for our_leaf, their_leaf in leaves:
                    place = Place(f"{name.format(layer)}{their_leaf}", int(part) - 1, int(parts))
                    found[f"{ours.format(layer)}{our_leaf}"] = place
        return found

    def gather(
        self, tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], config: ModelConfig, source: str | Path
    ) -> dict[str, Tensor]:
        """The weights of a model of ours, taken from tensors named as theirs, in float32.

        A bias that they have not is zeros, but those of norms, which without one are of another kind.

        Args:
            tensors: by their names.
            wanted: tensors of the shapes that the model has, by our names.
            config: of the model.
            source: what messages call the file.

        Raises:
            InputError: tensors are missing, or of other shapes; all are named.
        """
        places, state, wrong = self.places(config), {}, []
        for name, shape in ((name, tensor.shape) for name, tensor in wanted.items()):
            place = places[name]
            whole = torch.Size([shape[0] * place.parts, *shape[1:]])
            if place.name not in tensors and name.endswith("bias") and "norm" not in name:
                state[name] = torch.zeros(shape)
            elif place.name not in tensors:
                wrong.append(f"{place.name} is missing")
            elif tensors[place.name].shape != whole:
                wrong.append(f"{place.name} is {tuple(tensors[place.name].shape)}, its model has {tuple(whole)}")
            else:
                state[name] = tensors[place.name].chunk(place.parts)[place.part].float().contiguous()
        if wrong:
            told = [one_line(each, 120) for each in dict.fromkeys(wrong)]
            more = f"; and {len(told) - _MOST_NAMED} more" if len(told) > _MOST_NAMED else ""
            raise InputError(f"{source}: {'; '.join(told[:_MOST_NAMED])}{more}")
        return state

    def scatter(self, state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """The tensors that hold a model's weights elsewhere, by their names, none of them shared with ours."""
        parts: dict[str, dict[int, Tensor]] = defaultdict(dict)
        for name, place in self.places(config).items():
            if name in state:
                parts[place.name][place.part] = state[name]
        return {name: torch.cat([tensor for _, tensor in sorted(of.items())]) for name, of in parts.items()}

    def layers(self, tensors: Iterable[str], stack: str) -> int:
        """How many layers of the "encoder" or the "decoder" there are tensors of."""
        before, _, after = self.entries[f"{stack}.{{}}.feed_forward.0."].partition("{}")
        pattern = re.compile(rf"{re.escape(before)}(\d+){re.escape(after)}")
        return len({found[1] for name in tensors if (found := pattern.match(name))})

    def unknown(self, tensors: Iterable[str], config: ModelConfig) -> list[str]:
        """The names among theirs that are none of such a model's."""
        known = {place.name for place in self.places(config).values()}
        return sorted(name for name in tensors if name not in known)


def _layers(
    encoder: str,
    decoder: str,
    *,
    attention: tuple[str, str],
    projections: Mapping[str, tuple[str, str]],
    tables: tuple[str, str],
    feed_forward: tuple[str, str],
    norms: tuple[tuple[str, str], tuple[str, str, str]],
) -> dict[str, str]:
    """Entries of both stacks' layers.

    Args:
        encoder: a layer of the encoder is called so.
        decoder: one of the decoder.
        attention: self-attention and that to the source, within a layer.
        projections: of query, key, value and out, the names in the one and in the other.
        tables: those of keys and values, within self-attention.
        feed_forward: the two maps, within a layer.
        norms: of the sub-layers of a layer of the encoder and of the decoder.
    """
    entries = {}
    for ours, theirs, of_norms in (("encoder.{}.", encoder, norms[0]), ("decoder.{}.", decoder, norms[1])):
        for number, norm in enumerate(of_norms):
            entries[f"{ours}residuals.{number}.norm."] = f"{theirs}{norm}"
        for number, name in zip((0, 3), feed_forward, strict=True):
            entries[f"{ours}feed_forward.{number}."] = f"{theirs}{name}"
        for which, kind in enumerate(("self_attention",) if ours.startswith("encoder") else _BOTH):
            for projection, names in projections.items():
                share, _, name = names[which].rpartition(" ")
                entries[f"{ours}{kind}.{projection}."] = f"{share} {theirs}{attention[which]}{name}".lstrip()
        for table, name in zip(("rel_key", "rel_value"), tables, strict=True):
            entries[f"{ours}self_attention.attention.{table}.weight"] = f"{theirs}{attention[0]}{name}"
    return entries


_BOTH = ("self_attention", "cross_attention")

CTRANSLATE2 = Names(
    {
        "src_embedding": "encoder/embeddings_0/weight",
        "embedding": "decoder/embeddings/weight",
        "output_weight": "decoder/projection/weight",
        "output_bias": "decoder/projection/bias",
        "src_positions.weight": "encoder/position_encodings/encodings",
        "tgt_positions.weight": "decoder/position_encodings/encodings",
        "encoder_norm.": "encoder/layer_norm/",
        "decoder_norm.": "decoder/layer_norm/",
        **_layers(
            "encoder/layer_{}/",
            "decoder/layer_{}/",
            attention=("self_attention/", "attention/"),
            projections={
                "query": ("1/3 linear_0/", "linear_0/"),
                "key": ("2/3 linear_0/", "1/2 linear_1/"),
                "value": ("3/3 linear_0/", "2/2 linear_1/"),
                "out": ("linear_1/", "linear_2/"),
            },
            tables=("relative_position_keys", "relative_position_values"),
            feed_forward=("ffn/linear_0/", "ffn/linear_1/"),
            norms=(
                ("self_attention/layer_norm/", "ffn/layer_norm/"),
                ("self_attention/layer_norm/", "attention/layer_norm/", "ffn/layer_norm/"),
            ),
        ),
    },
    of_norms=("gamma", "beta"),
)

CTRANSLATE2_ACTIVATIONS = {"relu": 0, "gelu_tanh": 1, "swish": 2, "gelu": 3}  # our names, its numbers

_TABLE = "relative_positions_embeddings.weight"
SCALED = ".scaled"  # at the end of what a reader makes of a tensor: times √head_dim

_opennmt_layers = partial(  # of OpenNMT-py and eole, whose layers have one table for keys and values
    _layers,
    attention=("self_attn.", "context_attn."),
    projections={
        "query": ("linear_query.", "linear_query."),
        "key": ("linear_keys.", "linear_keys."),
        "value": ("linear_values.", "linear_values."),
        "out": ("final_linear.", "final_linear."),
    },
    tables=(_TABLE, _TABLE),
)

OPENNMT_PY = Names(
    {
        "src_embedding": "encoder.embeddings.make_embedding.emb_luts.0.weight",
        "embedding": "decoder.embeddings.make_embedding.emb_luts.0.weight",
        "output_weight": "generator.weight",
        "output_bias": "generator.bias",
        "src_positions.weight": "encoder.embeddings.make_embedding.pe.pe",
        "tgt_positions.weight": "decoder.embeddings.make_embedding.pe.pe",
        "encoder_norm.": "encoder.layer_norm.",
        "decoder_norm.": "decoder.layer_norm.",
        **_opennmt_layers(
            "encoder.transformer.{}.",
            "decoder.transformer_layers.{}.",
            feed_forward=("feed_forward.w_1.", "feed_forward.w_2."),
            norms=(
                ("layer_norm.", "feed_forward.layer_norm."),
                ("layer_norm_1.", "layer_norm_2.", "feed_forward.layer_norm."),
            ),
        ),
    }
)

EOLE = Names(
    {
        "src_embedding": "src_emb.embeddings.weight",
        "embedding": "tgt_emb.embeddings.weight",
        "output_weight": "generator.weight",
        "output_bias": "generator.bias",
        "src_positions.weight": "src_emb.pe.pe",
        "tgt_positions.weight": "tgt_emb.pe.pe",
        "encoder_norm.": "encoder.layer_norm.",
        "decoder_norm.": "decoder.layer_norm.",
        **_opennmt_layers(
            "encoder.transformer_layers.{}.",
            "decoder.transformer_layers.{}.",
            tables=(f"{_TABLE}{SCALED}", _TABLE),
            feed_forward=("mlp.gate_up_proj.", "mlp.down_proj."),
            norms=(
                ("input_layernorm.", "post_attention_layernorm."),
                ("input_layernorm.", "precontext_layernorm.", "post_attention_layernorm."),
            ),
        ),
    }
)
