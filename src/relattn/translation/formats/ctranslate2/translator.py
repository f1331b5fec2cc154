"""Translate with a model for CTranslate2, without PyTorch.

CTranslate2's search is ours with `early_stopping`; without a length penalty, it ends as soon as the best hypothesis of
a step is complete. All sentences of a call have the same length limit. A translation that exceeds the limit of its own
sentence is therefore made again, alone.

CTranslate2 removes forbidden tokens before it normalizes probabilities, which changes all scores; by default it forbids
the empty translation. We forbid nothing: no trained model generates padding or the begin mark, and decoding drops both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from relattn.translation.config import SearchConfig
from relattn.translation.data.imported_tokenizer import AnyTokenizer, tokenizer_in
from relattn.translation.data.tokenizer import TOKENIZER
from relattn.translation.errors import InputError, language_pairs, reading, require, require_installed
from relattn.translation.files import require_files
from relattn.translation.formats.ctranslate2.directory import (
    CONFIG,
    DIRECTORY,
    MODEL,
    SECTION,
    ExportSettings,
    read_config,
    read_settings,
    read_vocabularies,
)
from relattn.translation.search.types import Hypothesis, Request
from relattn.translation.text.alignment import Links, links
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.pipeline import MAX_TOKENS, Translator, cached_sentences

_UNSUPPORTED = "an export for CTranslate2 does not support {}; use the bundle"


class CTranslate2Translator(Translator):
    """A model that CTranslate2 runs.

    Args:
        path: The directory.
        tokenizer: Tokenizer of both sides.
        settings: Languages, default search and longest sequence.
        device: "cpu", "cuda" or "cuda:1".
        threads: Number of CPU threads; None takes CTranslate2's default.
        compute_type: Type that CTranslate2 computes in; "default" is that of the weights.
        adds: Whether CTranslate2 adds the token before each source, and the one after it; None reads config.json.

    Raises:
        InputError: The vocabulary is not the tokenizer's, ctranslate2 is not installed, or it cannot use the model or
            the device.
    """

    supports_prefixes = False

    def __init__(
        self,
        path: Path,
        tokenizer: AnyTokenizer,
        settings: ExportSettings,
        *,
        device: str = "cpu",
        threads: int | None = None,
        compute_type: str = "default",
        adds: tuple[bool, bool] | None = None,
    ) -> None:
        super().__init__(
            tokenizer,
            settings.search,
            languages=(settings.src_lang, settings.tgt_lang),
            pairs=language_pairs(settings.pairs, path / CONFIG),
            max_length=settings.max_length,
        )
        for own, its in zip(tokenizer.vocabularies, read_vocabularies(path, tokenizer.unknown_piece), strict=True):
            # an imported model may have one more piece than CTranslate2, which the decoder starts with
            if own[: len(its)] != its or len(own) > len(its) + 1:
                raise InputError(f"{path}: the tokenizer and the vocabulary must have the same pieces")
        self._src_pieces, self._tgt_pieces = tokenizer.vocabularies
        config = read_config(path)
        self._adds = adds or (bool(config.get("add_source_bos")), bool(config.get("add_source_eos")))
        self._ids = {piece: i for i, piece in enumerate(self._tgt_pieces)}
        kind, _, index = device.partition(":")
        require_installed("ctranslate2", extra="export")
        import ctranslate2

        with reading(path / MODEL, f"cannot be used on {device}"):
            self._model = ctranslate2.Translator(
                str(path),
                device=kind,
                device_index=int(index or 0),
                intra_threads=threads or 0,
                compute_type=compute_type,
            )

    @property
    def compute_type(self) -> str:
        """Type that CTranslate2 computes in, which depends on the processor."""
        return str(self._model.compute_type)

    def _description(self) -> list[str]:
        return [f"{self.compute_type} on {self._model.device}"]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(self.src_lang, self.tgt_lang)] if self._adds[0] else super().pairs

    @property
    def _tgt_begin(self) -> list[str]:
        return [self._tgt_pieces[i] for i in self.tokenizer.special.tgt_begin]

    @property
    def engine(self) -> str:
        return "CTranslate2"

    def max_sentences(self, beam_size: int) -> int:
        return cached_sentences(beam_size) if self._model.device == "cpu" else super().max_sentences(beam_size)

    def search_batch(
        self, requests: list[Request], search: SearchConfig, options: TranslateOptions
    ) -> list[list[Hypothesis]]:
        for wanted, what in (
            (options.sampling is not None, "sampling"),
            (any(request.prefix or request.spelling for request in requests), "prefixes"),
            (any(request.phrases for request in requests), "a glossary"),
            (not search.early_stopping, "a search without early stopping"),
        ):
            require(not wanted, _UNSUPPORTED.format(what))
        results = self._search([r.src_ids for r in requests], max(r.limit for r in requests), search, options.n_best)
        for i, (hypotheses, request) in enumerate(zip(results, requests, strict=True)):
            if len(hypotheses[0].tokens) >= request.limit:
                (results[i],) = self._search([request.src_ids], request.limit, search, options.n_best)
        return results

    def log_probs(self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        results = self._model.score_batch(
            self._sources(src_ids),
            [self._tgt_begin + row for row in _pieces(self._tgt_pieces, tgt_ids)],
            max_batch_size=MAX_TOKENS,
            batch_type="tokens",
            max_input_length=0,
        )
        return [result.log_probs[len(self._tgt_begin) :] for result in results]

    def align_batch(self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]) -> list[Links]:
        special, given = self.tokenizer.special, len(self._tgt_begin)
        begin = len(special.src_begin) - self._adds[0]  # tokens before the sources; CTranslate2 leaves out its own
        aligned = [i for i, (src, tgt) in enumerate(zip(src_ids, tgt_ids, strict=True)) if src and tgt]
        sources, targets = ([side[i] for i in aligned] for side in (src_ids, tgt_ids))
        results = self._model.translate_batch(
            self._sources(sources),
            target_prefix=[self._tgt_begin + row for row in _pieces(self._tgt_pieces, targets)],
            beam_size=1,
            max_batch_size=MAX_TOKENS,
            batch_type="tokens",
            max_input_length=0,
            max_decoding_length=given + max(map(len, targets), default=0),
            return_attention=True,
        )
        alignments: list[Links] = [[]] * len(src_ids)
        for i, src, tgt, result in zip(aligned, sources, targets, results, strict=True):
            weights = np.array(result.attention[0], dtype=np.float32)[given:, begin : begin + len(src)]
            before, after = len(special.src_begin), len(special.src_end)
            rows = np.pad(weights, ((0, 0), (before, after)))
            if before or after:  # the links need only the sum of these columns
                rows[:, 0 if before else -1] = 1 - weights.sum(1)
            sides = _pieces(self._src_pieces, [src])[0], _pieces(self._tgt_pieces, [tgt])[0]
            alignments[i] = links(rows, *sides, special)
        return alignments

    def _search(
        self, src_ids: Sequence[Sequence[int]], limit: int, search: SearchConfig, n: int
    ) -> list[list[Hypothesis]]:
        """Return the n best translations of each source, of at most `limit` tokens with the end of sentence."""
        given = len(self._tgt_begin)
        results = self._model.translate_batch(
            self._sources(src_ids),
            target_prefix=[self._tgt_begin] * len(src_ids) if given else None,
            beam_size=search.beam_size,
            num_hypotheses=n,
            length_penalty=0.0 if search.length_penalty == "none" else search.alpha,
            no_repeat_ngram_size=search.no_repeat_ngram,
            repetition_penalty=search.repetition_penalty,
            max_input_length=0,
            min_decoding_length=0,
            max_decoding_length=max(1, limit - 1) + given,
            return_scores=True,
        )
        return [
            [
                Hypothesis([self._ids[piece] for piece in pieces[given:]], score)
                for pieces, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]

    def _sources(self, src_ids: Sequence[Sequence[int]]) -> list[list[str]]:
        """Return the pieces of sources, with those special tokens around them that CTranslate2 does not add."""
        special, (adds_begin, adds_end) = self.tokenizer.special, self._adds
        begin = [self._src_pieces[i] for i in special.src_begin[int(adds_begin) :]]
        end = [self._src_pieces[i] for i in special.src_end[: len(special.src_end) - adds_end]]
        return [[*begin, *row, *end] for row in _pieces(self._src_pieces, src_ids)]


def load(path: str | Path, *, device: str = "cpu", threads: int | None = None) -> CTranslate2Translator:
    """Load an export of a bundle. Options are those of `CTranslate2Translator`.

    Raises:
        InputError: a file is missing, damaged or not part of an export; or as `CTranslate2Translator`.
    """
    path = Path(path)
    require_files(path, MODEL, CONFIG, TOKENIZER, what=DIRECTORY)
    settings = read_settings(path)
    if settings is None:
        raise InputError(
            f"{path / CONFIG}: not an export of relattn: it has no group {SECTION}; `relattn import` may convert it"
        )
    tokenizer = tokenizer_in(path).with_languages(settings.src_lang, settings.tgt_lang)
    return CTranslate2Translator(path, tokenizer, settings, device=device, threads=threads)


def _pieces(vocabulary: list[str], ids: Sequence[Sequence[int]]) -> list[list[str]]:
    return [[vocabulary[i] for i in row] for row in ids]
