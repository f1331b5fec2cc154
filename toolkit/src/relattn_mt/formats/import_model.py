"""Import a model of another toolkit as a bundle, and check that both agree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import yaml

from relattn_mt import bundle
from relattn_mt.alignment_head import with_best
from relattn_mt.config import as_dict
from relattn_mt.formats import argos, marian
from relattn_mt.formats.ctranslate2 import read as ctranslate2
from relattn_mt.formats.ctranslate2.directory import MODEL
from relattn_mt.formats.ctranslate2.scores import CTranslate2Model
from relattn_mt.formats.foreign_model import ForeignModel
from relattn_mt.formats.packed import unpacked
from relattn_mt.formats.parity import Reference, Report
from relattn_mt.formats.transformers import directory as transformers
from relattn_mt.formats.transformers import read as transformers_reader
from relattn_mt.support.errors import InputError, language_pairs, naming, require, require_language
from relattn_mt.support.types import Sample, SentencePair
from relattn_mt.weights import weight_table

_CONVERT = (
    "convert other models first, with ct2-opennmt-py-converter, python -m ctranslate2.converters.eole_ct2, "
    "ct2-marian-converter or ct2-fairseq-converter"
)


def import_model(
    path: Path,
    out: Path,
    *,
    tokenizer: Path | None,
    tgt_tokenizer: Path | None,
    src_lang: str,
    tgt_lang: str,
    sample: Sample,
    alignment_text: Sequence[SentencePair] = (),
    overwrite: bool = False,
    origin: str = "",
) -> Report:
    """Write a bundle with a model of another toolkit, and report what it is.

    If the model is in CTranslate2's format and CTranslate2 is installed, CTranslate2 scores the translations of some
    lines, with weights in float32, and the scores must agree.

    Args:
        path: a directory of transformers, CTranslate2 or Marian, or a package for Argos Translate.
        out: Directory of the bundle.
        tokenizer: SentencePiece model of the source, or of both sides.
        tgt_tokenizer: SentencePiece model of the target; None takes the source's.
        src_lang: Source language; empty takes the one in the model.
        tgt_lang: Target language; empty takes the one in the model.
        sample: Lines for the check, or the number of lines to draw from the vocabulary.
        alignment_text: Pairs of sentences, by which the layer and the head are chosen that align words best.
        overwrite: Replace a bundle at `out`.
        origin: Where the model is from and its licence, for the bundle's card.

    Raises:
        InputError: a file is missing, damaged or not such a model; the model has unsupported features; a language is
            unknown; the check fails; `out` is not empty, holds something else than a bundle or cannot be written.
    """
    bundle.require_writable(out, overwrite)
    with _opened(path, tokenizer, tgt_tokenizer) as (directory, foreign):
        src_lang = src_lang or foreign.languages[0]
        tgt_lang = tgt_lang or foreign.languages[1]
        require(src_lang and tgt_lang, f"{directory}: the languages are unknown: give --src_lang and --tgt_lang")
        require_language("src_lang", src_lang)
        require_language("tgt_lang", tgt_lang)
        with naming(directory):
            own_tokenizer = foreign.tokenizer.with_languages(src_lang, tgt_lang)
        foreign = replace(foreign, tokenizer=own_tokenizer)
        weights = foreign.weights()
        config = foreign.config
        table = weight_table(config, own_tokenizer.vocab_sizes)
        sizes = " and ".join(f"{size:,}" for size in own_tokenizer.vocab_sizes)
        summary = (
            f"{foreign.toolkit}: {config.positions} positions; {config.encoder_layers} and {config.decoder_layers} "
            f"layers, dim {config.dim}, feed-forward {config.feed_forward_dim:,}, {config.heads} heads; vocabularies "
            f"of {sizes} pieces; {sum(math.prod(shape) for shape, _ in table.values()):,} weights"
        )
        notes = [summary, *foreign.notes]
        parities = {}
        pairs = language_pairs(foreign.pairs, directory)
        if (src_lang, tgt_lang) not in pairs:  # a T5 that was trained for a pair without a prompt
            pairs = []
        shortlist = bundle.read_shortlist(foreign.shortlist, own_tokenizer) if foreign.shortlist else None
        imported = bundle.Bundle(
            out, config, foreign.search, src_lang, tgt_lang, weights, own_tokenizer, pairs, shortlist
        )
        can_run = (directory / MODEL).is_file() and foreign.toolkit != "Marian"  # whose file may have the same name
        if can_run and find_spec("ctranslate2") is None:
            notes.append("not checked: ctranslate2 is not installed")
        elif can_run:
            theirs = CTranslate2Model(directory, own_tokenizer, foreign.adds, compute_type="float32")
            ours = imported.translator()
            reference = Reference(ours, sample, foreign.search)
            parity = reference.compare(theirs.log_probs)
            parity.require_close(f"{directory}: not imported")
            parities["float32"] = parity
        if (quantized := foreign.quantized(weights)) is not None:
            imported = replace(imported, state=quantized)
            notes.append("weights: the integers of the model, in int8")
        note = config.alignment_note
        if alignment_text:
            imported, note = with_best(imported, alignment_text)
        report = Report([*notes, note], parities)
        imported.save(_card(imported, foreign.toolkit, report, origin))
    return report


@contextmanager
def _opened(path: Path, tokenizer: Path | None, tgt_tokenizer: Path | None) -> Iterator[tuple[Path, ForeignModel]]:
    """Yield a directory with the files of a model, and the model. Errors of the block name `path` instead of it."""
    if path.suffix == argos.SUFFIX or argos.is_package(path):
        with argos.unpacked(path) as (directory, metadata):
            foreign = ctranslate2.read(directory, tokenizer, tgt_tokenizer)
            yield directory, argos.with_metadata(foreign, metadata)
    else:
        with unpacked(path) as directory:
            yield directory, read(directory, tokenizer, tgt_tokenizer)


def _card(imported: bundle.Bundle, toolkit: str, report: Report, origin: str) -> str:
    """Return the card of a bundle."""
    card = (
        f"# {imported.src_lang} → {imported.tgt_lang}\n\n"
        f"A Transformer with {imported.model.positions} positions, imported from {toolkit}.\n\n"
        "    relattn-mt translate PATH < in.txt > out.txt\n\n"
        "## Recipe\n\nTo continue training, use this model in a recipe, with this bundle as `train.init_from`:\n\n"
        f"```yaml\n{yaml.safe_dump({'model': as_dict(imported.model)}, sort_keys=False)}```\n\n## Import\n\n{report}\n"
    )
    return f"{card}\n## Source\n\n{origin}\n" if origin else card


def read(path: Path, tokenizer: Path | None, tgt_tokenizer: Path | None) -> ForeignModel:
    """Read the model at a path, of any toolkit, without compressed files. Arguments and errors as of `import_model`."""
    transformers.require_no_adapter([file.name for file in path.glob("*.json")], path)
    if marian.weight_files(path):
        reader = marian.read
    elif (path / MODEL).is_file():
        reader = ctranslate2.read
    elif transformers.is_model(path):
        reader = transformers_reader.read
    else:
        require(path.exists(), f"{path}: no such file or directory")
        raise InputError(
            f"{path}: must be a directory with {MODEL} (CTranslate2), with {transformers.CONFIG} and a model_type "
            f"(transformers) or with a model of Marian (*.npz, *.bin), or a package for Argos Translate; {_CONVERT}"
        )
    return reader(path, tokenizer, tgt_tokenizer)
