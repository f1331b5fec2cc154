"""A model of another toolkit as its reader found it, and what all readers do alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from relattn.translation import bundle
from relattn.translation.config import ModelConfig, SearchConfig
from relattn.translation.data.imported import AnyTokenizer, ImportedTokenizer, Vocabulary
from relattn.translation.errors import InputError, reading
from relattn.translation.formats.names import Names
from relattn.translation.model.transformer import SkipInitialization, Transformer

# What CTranslate2 does by default, with a wider beam. Other toolkits keep their search out of their models.
SEARCH = SearchConfig(length_penalty="average", alpha=1.0, early_stopping=True)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A model of another toolkit.

    Attributes:
        toolkit: its name.
        source: the file of its weights, as messages name it.
        config: what it is in ours. Dropout is not known.
        tensors: its weights, by its toolkit's names.
        names: what these are called in ours.
        tokenizer: its tokenizer.
        languages: source and target, where they are known; empty otherwise.
        search: how to search.
    """

    toolkit: str
    source: Path
    config: ModelConfig
    tensors: Mapping[str, Tensor]
    names: Names
    tokenizer: AnyTokenizer
    languages: tuple[str, str] = ("", "")
    search: SearchConfig = SEARCH

    def model(self) -> Transformer:
        """The model made. Raises InputError where its weights are not of the shapes that it should have."""
        sizes = self.tokenizer.vocab_sizes
        with SkipInitialization(), torch.device("meta"):
            wanted = bundle.weights_of(Transformer(self.config, *sizes))
        state = self.names.gather(self.tensors, wanted, self.config, self.source)
        return bundle.make_model(self.config, sizes, state, source=self.source)


def tokenizer_of(
    where: Path, src_model: Path | None, tgt_model: Path | None, /, **vocabulary: Any
) -> ImportedTokenizer:
    """A model's tokenizer.

    Args:
        where: what messages call the model.
        src_model: file of the source's SentencePiece model.
        tgt_model: of the target's; the same where None.
        vocabulary: fields of a `Vocabulary`.

    Raises:
        InputError: the vocabulary is none, there is no file, it cannot be read, or it has other pieces.
    """
    try:
        of_model = Vocabulary(**vocabulary)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if src_model is None:
        raise InputError(f"{where}: says what its pieces are, not how text becomes such pieces: give --tokenizer")
    tgt_model = tgt_model or src_model
    with reading(src_model, "cannot be read"):
        of_source = src_model.read_bytes()
    with reading(tgt_model, "cannot be read"):
        of_target = tgt_model.read_bytes()
    try:
        return ImportedTokenizer(of_source, of_target, of_model)
    except InputError as error:
        raise InputError(f"{src_model}: {error}") from error


def flatten_positions(tensors: dict[str, Tensor]) -> bool:
    """Give tables of added positions two dims, as OpenNMT-py and eole keep them in three; whether there are any."""
    tables = [name for name in tensors if name.endswith(".pe.pe")]
    for name in tables:
        tensors[name] = tensors[name].squeeze(1)  # (positions, 1, dim)
    return bool(tables)


def unlike(known: Mapping[str, Collection[Any]], value: Callable[[str, Any], Any]) -> Iterator[str]:
    """In words, settings that have other values than those that are known; the first of these is the default.

    Args:
        known: of each setting.
        value: of a setting, or the default that it is given.
    """
    for name, values in known.items():
        if (found := value(name, next(iter(values)))) not in values:
            yield f"{name} {found}"


def config_of(
    names: Names,
    tensors: Mapping[str, Tensor],
    source: Path,
    *,
    lacking: Iterable[str],
    says: Callable[[str], str | None] = str,
    **settings: Any,
) -> ModelConfig:
    """What a model is in ours: sizes as its weights have them, and settings that they do not tell.

    Args:
        names: of its weights.
        tensors: the weights, and what lies beside them.
        source: what messages call the file.
        lacking: what it has and ours have not, in words.
        says: what it means that a model has something of a name that ours have not; None where it means nothing.
        settings: of a `ModelConfig`: heads, norm, activation, scaled_embeddings, norm_epsilon.

    Raises:
        InputError: the model has what ours have not, which is all named; weights are missing; or settings will not do.
    """
    one = names.places(ModelConfig(encoder_layers=1, decoder_layers=1))
    needed = [one[ours].name for ours in ("src_embedding", "embedding", "output_weight")]
    needed.append(one["encoder.0.feed_forward.0.weight"].name)
    lacking = list(lacking)
    if missing := [name for name in needed if name not in tensors]:
        _require_none(lacking, source)
        raise InputError(f"{source}: has no {', no '.join(missing)}")
    src, tgt, output, inner = (tensors[name] for name in needed)
    keys = tensors.get(one["encoder.0.self_attention.attention.rel_key.weight"].name)
    added = tensors.get(one["src_positions.weight"].name)
    if keys is None and added is None:
        lacking.append("no positions")
    if keys is not None and added is not None:
        lacking.append("positions of two kinds")
    try:
        config = ModelConfig(
            dim=tgt.shape[-1],
            feed_forward_dim=len(inner),
            encoder_layers=names.layers(tensors, "encoder"),
            decoder_layers=names.layers(tensors, "decoder"),
            shared_embeddings=_shared(src, tgt, output),
            output_bias=one["output_bias"].name in tensors,
            positions="relative" if added is None else "learned",
            clip=None if keys is None or added is not None else len(keys) // 2,
            max_positions=None if added is None else len(added),
            **settings,
        )
    except (InputError, TypeError) as error:
        _require_none(lacking, source)
        raise InputError(f"{source}: {error}") from error
    strange = map(says, names.unknown(tensors, config))
    of_layers = (re.sub(r"(?<=[._])\d+(?=[./])", "*", what) for what in strange if what is not None)
    _require_none([*lacking, *of_layers], source)
    return config


def _shared(src: Tensor, tgt: Tensor, output: Tensor) -> Literal["all", "target", "inputs", "none"]:
    """Which of three matrices are the same."""
    inputs, target = (a is b or (a.shape == b.shape and torch.equal(a, b)) for a, b in ((src, tgt), (tgt, output)))
    return "all" if inputs and target else "target" if target else "inputs" if inputs else "none"


def _require_none(lacking: Iterable[str], source: Path) -> None:
    """Raise an InputError that names everything of a model that ours have not."""
    if features := list(dict.fromkeys(lacking)):
        raise InputError(f"{source}: has what models here have not: {'; '.join(features)}")
