"""A bundle as a directory for CTranslate2, which serves it on CPUs and GPUs, in int8 too, without PyTorch.

    model.bin                the weights, in CTranslate2's own format
    config.json              tokens that it adds, and under "relattn" the languages and the search
    shared_vocabulary.json   the pieces, by their numbers; two files where source and target have others
    tokenizer.model          the SentencePiece model, of both sides; of an imported bundle all its tokenizer's files
    README.md                the bundle's card

CTranslate2 has clipped relative positions, one table for all heads of a layer, and vectors that are added to
embeddings. What it has not is named, with the setting of a recipe that would make a model exportable.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from relattn import RelativeAttention
from relattn.nn import SelfAttention
from relattn.translation.bundle import CARD, TOKENIZER_FILES, Bundle, weights_of
from relattn.translation.config import ModelConfig, Quantization, SearchConfig, as_dict
from relattn.translation.errors import InputError, require_installed
from relattn.translation.files import putting, require_replaceable
from relattn.translation.formats import with_report
from relattn.translation.formats.ctranslate2.translator import (
    CONFIG,
    DIRECTORY,
    MODEL,
    OF_SOURCE,
    OF_TARGET,
    OURS,
    SHARED,
    Description,
    load,
)
from relattn.translation.formats.names import CTRANSLATE2, CTRANSLATE2_ACTIVATIONS
from relattn.translation.formats.parity import FARTHEST, Parity, Reference
from relattn.translation.model.layers import DecoderLayer, EncoderLayer
from relattn.translation.model.positions import PositionScheme
from relattn.translation.model.positions.absolute import Learned, sinusoids
from relattn.translation.model.transformer import Transformer

_ADDED = ("sinusoidal", "learned")  # positions that it adds to embeddings, from a table
FILES = MODEL, CONFIG, *(f"{name}.json" for name in (SHARED, OF_SOURCE, OF_TARGET)), *TOKENIZER_FILES["imported"], CARD
POSITIONS = 4096  # of a sinusoidal model: CTranslate2's own sinusoids are others, so that it has ours in a table


def require_exportable(config: ModelConfig, source: str | Path) -> None:
    """Raise an InputError that names everything of a model that CTranslate2 has not. `source` is the bundle's name."""
    reasons = []
    if config.positions not in ("relative", "sinusoidal", "learned", "none"):
        reasons.append(f"no {config.positions} positions (train with --model.positions relative)")
    if config.tables_per_head:
        reasons.append("no tables for each head (train with --model.tables_per_head false)")
    if config.beyond == "zero":
        reasons.append("no tables with zero beyond the clipping range (train with --model.beyond clip)")
    if reasons:
        raise InputError(f"{source}: not for CTranslate2, which has {'; '.join(reasons)}")


@dataclass(frozen=True)
class Report:
    """What an export was found to be.

    Attributes:
        ours: how the bundle searches.
        theirs: how the export does.
        parities: with weights of each type that was checked, in which order, how far the two agree.
    """

    ours: SearchConfig
    theirs: SearchConfig
    parities: dict[Quantization, Parity]

    def __str__(self) -> str:
        told = [f"length penalty: {_penalty(self.ours)} here, {_penalty(self.theirs)} there"]
        return "\n\n".join([*told, *(f"{weights}: {parity}" for weights, parity in self.parities.items())])


def export(parts: Bundle, out: Path, *, quantization: Quantization, sample: Sequence[str]) -> Report:
    """Write a bundle for CTranslate2 and check that it says the same.

    Args:
        parts: of the bundle.
        out: the directory; one that holds an export is replaced.
        quantization: type of the weights, which CTranslate2 may compute in. The check is made in float32 too.
        sample: lines to check it with.

    Raises:
        InputError: ctranslate2 is not installed, the model has what it has not, the check fails, `out` holds something
            else or cannot be written. `out` is then as it was.
    """
    require_installed("ctranslate2", extra="export")
    require_exportable(parts.model, parts.path)
    out = out.resolve()
    require_replaceable(out, FILES, DIRECTORY)
    ours = parts.translator()
    if not any(line.strip() for line in sample):
        raise InputError("there is nothing to check the export with: no lines")
    lengths = [len(best.tokens) + 1 for (best,) in ours.n_best(sample)]
    search = of_ctranslate2(parts.search, sum(lengths) / len(lengths))
    reference, report = Reference.of(ours, sample, search), Report(parts.search, search, {})
    with putting(out) as aside:
        kinds: list[Quantization] = ["float32", quantization]
        for weights in dict.fromkeys(kinds):
            if aside.exists():
                shutil.rmtree(aside)
            _write(aside, parts, ours.model, search, weights)
            parity = reference.compare(load(aside))
            if weights == "float32" and not parity.worst <= FARTHEST:
                raise InputError(f"{out}: not exported: it would not say the same: {parity}")
            report.parities[weights] = parity
        (aside / CARD).write_text(with_report(parts.card, report), encoding="utf-8")
    return report


def of_ctranslate2(search: SearchConfig, length: float) -> SearchConfig:
    """A search that CTranslate2 has: it stops early, with a length penalty of len^α, or none.

    ((5 + len) / 6)^α is none of its. Near a length n it grows as len^(α n / (n + 5)) does, which is taken for it.

    Args:
        search: of the bundle.
        length: n, in tokens, end counted.
    """
    search = replace(search, early_stopping=True)
    if search.length_penalty != "gnmt":
        return search
    return replace(search, length_penalty="average", alpha=round(search.alpha * length / (length + 5), 3))


def _penalty(search: SearchConfig) -> str:
    return {
        "gnmt": f"((5 + len) / 6)^{search.alpha}",
        "average": f"len^{search.alpha}",
        "none": "none",
    }[search.length_penalty]


def _write(out: Path, parts: Bundle, model: Transformer, search: SearchConfig, weights: Quantization) -> None:
    """The files of an export, in a new directory."""
    marks, (src_pieces, tgt_pieces) = parts.tokenizer.marks, parts.tokenizer.vocabularies
    spec = _spec(model)
    spec.register_source_vocabulary(src_pieces)
    spec.register_target_vocabulary(tgt_pieces)
    spec.config.bos_token = src_pieces[marks.src_begin[0]] if marks.src_begin else tgt_pieces[marks.bos]
    spec.config.eos_token, spec.config.decoder_start_token = tgt_pieces[marks.eos], tgt_pieces[marks.bos]
    spec.config.unk_token = parts.tokenizer.unknown_piece
    spec.config.add_source_bos, spec.config.add_source_eos = bool(marks.src_begin), bool(marks.src_end)
    spec.config.layer_norm_epsilon = parts.model.norm_epsilon
    spec.config.add_attribute(
        OURS,
        as_dict(
            Description(
                src_lang=parts.src_lang,
                tgt_lang=parts.tgt_lang,
                max_length=_longest(model),
                search=search,
                calibration=parts.calibration,
            )
        ),
    )
    spec.validate()
    spec.optimize(weights)
    out.mkdir(parents=True)
    spec.save(str(out))
    for name, content in parts.tokenizer.files.items():
        (out / name).write_bytes(content)


def _longest(model: Transformer) -> int | None:
    return POSITIONS if model.config.positions == "sinusoidal" else model.max_length


def _spec(model: Transformer) -> Any:
    """CTranslate2's description of the model, with its weights."""
    from ctranslate2.specs import TransformerSpec, common_spec
    from ctranslate2.specs.model_spec import index_spec

    config = model.config
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm == "pre",
        with_relative_position=config.positions not in _ADDED,  # no positions at all are tables of zeros
        activation=common_spec.Activation(CTRANSLATE2_ACTIVATIONS[config.activation]),
    )
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = config.scaled_embeddings
    for name, tensor in CTRANSLATE2.scatter(_state(model), config).items():
        scope, _, attribute = name.rpartition("/")
        setattr(index_spec(spec, scope), attribute, tensor)
    return spec


def _state(model: Transformer) -> dict[str, Tensor]:
    """A model's weights by our names, with all those that CTranslate2 has of such a model."""
    state = {name: tensor.detach() for name, tensor in weights_of(model).items()}
    state.setdefault("src_embedding", state["embedding"])
    state.setdefault("output_weight", state["embedding"])
    if model.config.positions in _ADDED:
        state["src_positions.weight"] = _added(model.src_positions)
        state["tgt_positions.weight"] = _added(model.tgt_positions)
        return state
    for stack, layers in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, layer in enumerate(cast("Iterable[EncoderLayer | DecoderLayer]", layers)):
            of_layer = f"{stack}.{number}.self_attention.attention"
            state[f"{of_layer}.rel_key.weight"], state[f"{of_layer}.rel_value.weight"] = _tables(layer.self_attention)
    return state


def _added(positions: PositionScheme) -> Tensor:
    """(positions, dim) vectors that are added to embeddings."""
    if isinstance(positions, Learned):
        return positions.weight.detach().clone()
    return sinusoids(torch.arange(POSITIONS), positions.config.dim)


def _tables(ours: nn.Module) -> tuple[Tensor, Tensor]:
    """Tables (2k + 1, head_dim) of keys and values of a layer; one that a model has not is zeros."""
    assert isinstance(ours, SelfAttention)
    attention = ours.attention
    if not isinstance(attention, RelativeAttention):
        nothing = torch.zeros(1, ours.head_dim)
        return nothing, nothing
    both = [
        None if table is None else _symmetric(table.weight.detach(), attention.clip)
        for table in (attention.rel_key, attention.rel_value)
    ]
    there = next(table for table in both if table is not None)
    key, value = (torch.zeros_like(there) if table is None else table for table in both)
    return key, value


def _symmetric(table: Tensor, clipping_range: tuple[int, int]) -> Tensor:
    """A table that reaches as far to one side as to the other; rows past the clipping distance are the edge's."""
    left, right = clipping_range
    wide = max(clipping_range)
    return table[torch.arange(-wide, wide + 1).clamp(-left, right) + left]
