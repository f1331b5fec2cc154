"""Read a model of transformers: MarianMT (OPUS-MT), M2M-100, NLLB, mBART-50, or of T5's kinds. No code of it is run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from relattn_mt.formats.foreign_model import (
    NEVER_GENERATED,
    ForeignModel,
    model_config,
    names_guided_alignment,
    read_tokenizer,
    require_matrices,
    require_setting,
    require_weights,
)
from relattn_mt.formats.names import TRANSFORMERS
from relattn_mt.formats.transformers import t5
from relattn_mt.formats.transformers.directory import (
    ACTIVATIONS,
    DIRECTORY,
    Settings,
    licence,
    weights_in,
)
from relattn_mt.formats.transformers.generation import Generation
from relattn_mt.formats.transformers.vocabulary import read_vocabulary
from relattn_mt.support.errors import require
from relattn_mt.support.files import require_files
from relattn_mt.support.types import Fields, LanguagePair, VocabSizes
from relattn_mt.weights import TensorDict

_SOURCE, _TARGET, _OUTPUT = (TRANSFORMERS.entries[name] for name in ("src_embedding", "embedding", "output_weight"))
_MOST_POSITIONS = 65_536


def read(path: Path, src_tokenizer: Path | None, tgt_tokenizer: Path | None) -> ForeignModel:
    """Read the model in a directory.

    A model of several languages has the tokens of the first one around its sources. `ForeignModel.tokenizer` can be
    changed to other languages.

    Args:
        path: The directory.
        src_tokenizer: SentencePiece model of the source; None takes the one in the directory.
        tgt_tokenizer: SentencePiece model of the target; None takes the one in the directory, or the source's.

    Raises:
        InputError: a file is missing or damaged, the architecture is not supported, or the model has unsupported
            features, which are all named.
    """
    settings = Settings(path)
    family = settings.family
    if family.norm == "rms":
        return t5.read(settings, src_tokenizer, tgt_tokenizer)
    generation = Generation(settings)
    tensors = {name: x for name, x in weights_in(path).items() if not name.endswith(".embed_positions.weights")}
    require_weights(tensors, path)
    tensors = _with_shared(tensors, settings)
    sizes = _vocab_sizes(tensors, settings)
    positions = settings.number("max_position_embeddings")
    dim = tensors[_TARGET].shape[-1]
    most = f"{settings.file}: max_position_embeddings must be at most {_MOST_POSITIONS:,}, got {positions:,}"
    require(positions <= _MOST_POSITIONS, most)
    for name in (f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")):
        if family.positions is not None:
            tensors.setdefault(name, family.positions(positions, dim, settings.number("pad_token_id")))
        elif name in tensors:
            tensors[name] = np.atleast_1d(tensors[name])[2:]
    vocabulary, (src_model, tgt_model) = read_vocabulary(settings, sizes)
    languages = _add_tokens(vocabulary, generation, settings)
    if src_tokenizer is None and src_model.is_file():
        require_files(path, src_model.name, tgt_model.name, what=DIRECTORY)
        src_tokenizer = src_model
    if tgt_tokenizer is None and tgt_model != src_model and tgt_model.is_file():
        tgt_tokenizer = tgt_model
    tokenizer = read_tokenizer(path, src_tokenizer, tgt_tokenizer, **vocabulary)
    search, notes = generation.search(len(vocabulary["target_begin"]), tokenizer.special.banned)
    impossible = [token for token in tokenizer.special.banned if generation.removes(token)]
    if impossible:
        bias = np.array(tensors.get("final_logits_bias", np.zeros(sizes[1])), np.float32)
        bias[impossible] = NEVER_GENERATED
        tensors["final_logits_bias"] = bias
    alignment: Fields = {}
    if settings["model_type"] == "marian" and names_guided_alignment(path):
        alignment = {"alignment_layer": TRANSFORMERS.layers(tensors, "decoder") - 1, "alignment_heads": 1}
    model = model_config(
        TRANSFORMERS,
        tensors,
        path,
        unsupported=settings.unsupported(),
        heads=settings.number("encoder_attention_heads"),
        norm=family.norm,
        activation=ACTIVATIONS.get(str(settings["activation_function"]), "relu"),
        scaled_embeddings=settings.flag("scale_embedding"),
        embedding_norm=family.positions is None,
        norm_epsilon=1e-5,
        dropout=settings.number("dropout", float),
        attention_dropout=settings.number("attention_dropout", float),
        activation_dropout=settings.number("activation_dropout", float),
        **alignment,
    )
    for name in ("encoder_layers", "decoder_layers"):
        layers = getattr(model, name)
        count = settings.number(name)
        require_setting(count == layers, settings.file, name, f"{layers}, as the weights have layers", count)
    return ForeignModel(
        toolkit=f"transformers ({family.architecture})",
        source=path,
        config=model,
        tensors=tensors,
        names=TRANSFORMERS,
        tokenizer=tokenizer,
        languages=languages,
        search=search,
        notes=(*notes, *licence(path)),
    )


def _add_tokens(vocabulary: Fields, generation: Generation, settings: Settings) -> LanguagePair:
    """Add the first and the last token of the decoder, and a forced one, and return the default languages."""
    target = vocabulary["target"]
    vocabulary["start"] = generation.piece("decoder_start_token_id", target)
    vocabulary["end"] = generation.piece("eos_token_id", target)
    src_lang, tgt_lang = settings.languages()
    if generation.content.get("forced_bos_token_id") is not None:
        piece = generation.piece("forced_bos_token_id", target)
        tgt_lang = next((code for code, token in vocabulary["languages"].items() if token == piece), tgt_lang)
        vocabulary["target_begin"] = vocabulary["target_begin"] or [piece]
    return src_lang, tgt_lang


def _vocab_sizes(tensors: TensorDict, settings: Settings) -> VocabSizes:
    """Return the sizes of the vocabularies. Raise an InputError unless the embeddings have as many rows."""
    shared = settings.flag("share_encoder_decoder_embeddings")
    sizes = []
    for name, setting in ((_SOURCE, "vocab_size"), (_TARGET, "vocab_size" if shared else "decoder_vocab_size")):
        rows = len(tensors[name])
        size = settings.number(setting)
        require(rows == size, f"{settings.file}: {setting} must be {rows:,}, as {name} has rows, got {size:,}")
        sizes.append(size)
    return sizes[0], sizes[1]


def _with_shared(tensors: TensorDict, settings: Settings) -> TensorDict:
    """Return the weights with each shared matrix under all of its names.

    Raises:
        InputError: a matrix is missing, or one that must be shared has two values.
    """
    tensors = dict(tensors)
    matrices = _SOURCE, _TARGET, _OUTPUT
    shared = tensors.pop("model.shared.weight", None)

    def share(name: str, matrix: np.ndarray | None, setting: str) -> None:
        if matrix is not None:
            same = np.array_equal(tensors.setdefault(name, matrix), matrix)
            fault = f"must be false, because {name} differs from the matrix that it is shared with"
            require(same, f"{settings.file}: {setting} {fault}")

    if settings.flag("share_encoder_decoder_embeddings"):
        if shared is None:
            shared = next((tensors[name] for name in matrices if name in tensors), None)
        share(_SOURCE, shared, "share_encoder_decoder_embeddings")
        share(_TARGET, shared, "tie_word_embeddings")
    if settings.flag("tie_word_embeddings"):
        share(_OUTPUT, tensors.get(_TARGET), "tie_word_embeddings")
    require_matrices(tensors, settings.path, matrices)
    if "final_logits_bias" in tensors:
        tensors["final_logits_bias"] = tensors["final_logits_bias"].flatten()
    return tensors
