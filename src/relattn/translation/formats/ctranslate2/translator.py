"""A model in a directory for CTranslate2, as `export.ctranslate2` writes it: what translates lines without PyTorch.

CTranslate2's search is ours with `early_stopping`, and there is no other; but with a penalty of 0 it is over when the
best of a step ends. One limit of length holds for all sentences of a call, so a translation that came out longer than
its own sentence's limit is made again, alone.

Whatever it is told not to write, the end of an empty translation by default, it takes out before probabilities are
normalised, which changes the scores of all that is left. So it is told of nothing; padding and begin, which no trained
model writes, are not text where they come out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from relattn.translation.config import Calibration, SearchConfig, as_dict
from relattn.translation.data.imported import AnyTokenizer, tokenizer_in
from relattn.translation.data.tokenizer import TOKENIZER
from relattn.translation.errors import InputError, reading, require_installed
from relattn.translation.files import require_files
from relattn.translation.search.types import Hypothesis, Request
from relattn.translation.settings import of_version_4, read_yaml, to_config
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.pipeline import MAX_TOKENS, Translator

MODEL, CONFIG = "model.bin", "config.json"
SHARED, OF_SOURCE, OF_TARGET = "shared_vocabulary", "source_vocabulary", "target_vocabulary"  # .json, or .txt once
DIRECTORY = "model for CTranslate2"  # what such a directory is called
OURS = "relattn"  # the part of config.json that CTranslate2 does not read


@dataclass(frozen=True, kw_only=True)
class Description:
    """What config.json says of an exported model beside what CTranslate2 reads.

    Attributes:
        src_lang: the source language.
        tgt_lang: the target language.
        max_length: longest sequence, in pieces, end included; None where there is no limit.
        search: how to search, with a length penalty that CTranslate2 has, stopping early.
        calibration: of confidences.
    """

    src_lang: str
    tgt_lang: str
    max_length: int | None
    search: SearchConfig = field(default_factory=SearchConfig)
    calibration: Calibration = field(default_factory=Calibration)


class CTranslate2Translator(Translator):
    """A model in CTranslate2.

    Args:
        path: the directory.
        tokenizer: of the model.
        search: how to search.
        max_length: longest sequence, in pieces, end included; None where there is no limit.
        device: "cpu", "cuda" or "cuda:1".
        threads: of the processor; as many as CTranslate2 finds good where None.
        compute_type: what it computes in: as the weights are by default, or "float32", …

    Raises:
        InputError: its vocabulary has other pieces than the tokenizer, ctranslate2 is not installed, or it cannot use
            the model or the device.
    """

    supports_alignment = False

    def __init__(
        self,
        path: Path,
        tokenizer: AnyTokenizer,
        search: SearchConfig,
        *,
        languages: tuple[str, str] = ("", ""),
        max_length: int | None = None,
        calibration: Calibration = Calibration(),  # noqa: B008 - it is frozen
        device: str = "cpu",
        threads: int | None = None,
        compute_type: str = "default",
    ) -> None:
        super().__init__(tokenizer, search, languages=languages, max_length=max_length, calibration=calibration)
        if tokenizer.vocabularies != read_vocabularies(path):
            raise InputError(f"{path}: its tokenizer has other pieces than its vocabulary")
        self._src_pieces, self._tgt_pieces = tokenizer.vocabularies
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

    def search_batch(
        self, requests: list[Request], search: SearchConfig, options: TranslateOptions
    ) -> list[list[Hypothesis]]:
        for unsupported, what in (
            (options.sampling is not None, "sampling"),
            (any(request.prefix for request in requests), "prefixes"),
            (any(request.phrases for request in requests), "a glossary"),
            (not search.early_stopping, "a search without early stopping"),
        ):
            if unsupported:
                raise InputError(f"{what} is not supported by an export for CTranslate2; use the bundle")
        results = self._search([r.src_ids for r in requests], max(r.limit for r in requests), search, options.n_best)
        for i, (hypotheses, request) in enumerate(zip(results, requests, strict=True)):
            if len(hypotheses[0].tokens) >= request.limit:
                (results[i],) = self._search([request.src_ids], request.limit, search, options.n_best)
        return results

    def log_probs(self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        results = self._model.score_batch(
            _spelt(self._src_pieces, src_ids),
            _spelt(self._tgt_pieces, tgt_ids),
            max_batch_size=MAX_TOKENS,
            batch_type="tokens",
            max_input_length=0,
        )
        return [result.log_probs for result in results]

    def align_batch(
        self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]
    ) -> list[list[tuple[int, int]]]:
        raise InputError("alignment is not supported by an export for CTranslate2; use the bundle")

    def _search(
        self, src_ids: Sequence[Sequence[int]], limit: int, search: SearchConfig, n: int
    ) -> list[list[Hypothesis]]:
        """The n best of each, closed where they would have more tokens than `limit`, end counted."""
        results = self._model.translate_batch(
            _spelt(self._src_pieces, src_ids),
            beam_size=search.beam_size,
            num_hypotheses=n,
            length_penalty=0.0 if search.length_penalty == "none" else search.alpha,
            max_input_length=0,
            min_decoding_length=0,
            max_decoding_length=max(1, limit - 1),
            return_scores=True,
        )
        return [
            [
                Hypothesis([self._ids[piece] for piece in pieces], score)
                for pieces, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]


def load(path: str | Path, *, device: str = "cpu", threads: int | None = None) -> CTranslate2Translator:
    """Load an export of a bundle. Options are those of `CTranslate2Translator`.

    Raises:
        InputError: a file is missing, damaged or not one of an export; or as `CTranslate2Translator`.
    """
    path = Path(path)
    require_files(path, MODEL, CONFIG, TOKENIZER, what=DIRECTORY)
    about = description(path)
    if about is None:
        raise InputError(
            f"{path / CONFIG}: says nothing of {OURS}: the directory is none of its exports; `relattn import` may "
            "make a bundle of it"
        )
    return CTranslate2Translator(
        path,
        tokenizer_in(path),
        about.search,
        languages=(about.src_lang, about.tgt_lang),
        max_length=about.max_length,
        calibration=about.calibration,
        device=device,
        threads=threads,
    )


def description(path: Path) -> Description | None:
    """What config.json says of a model that we exported; None of any other. Raises InputError where it is damaged."""
    content = read_yaml(path / CONFIG, "a model's configuration").get(OURS)
    if not isinstance(content, dict):
        return None
    uncalibrated = dict.fromkeys(as_dict(Calibration()), "null")  # as exports were before November 2026
    then = {"calibration": uncalibrated, **content, "search": of_version_4(content.get("search"), "true")}
    return to_config(Description, then, path / CONFIG, whole=True)


def _spelt(pieces: list[str], ids: Sequence[Sequence[int]]) -> list[list[str]]:
    return [[pieces[i] for i in row] for row in ids]


def read_vocabularies(path: Path) -> tuple[list[str], list[str]]:
    """The pieces of source and target in a directory for CTranslate2, by their numbers. Raises InputError."""
    return _vocabulary(path, SHARED, OF_SOURCE), _vocabulary(path, SHARED, OF_TARGET)


def _vocabulary(path: Path, *names: str) -> list[str]:
    for file in (path / f"{name}{kind}" for name in names for kind in (".json", ".txt")):
        if not file.is_file():
            continue
        with reading(file, "not JSON"):
            text = file.read_text(encoding="utf-8")
            pieces = json.loads(text) if file.suffix == ".json" else text.removesuffix("\n").split("\n")
        if not (isinstance(pieces, list) and all(isinstance(piece, str) for piece in pieces)):
            raise InputError(f"{file}: not a list of pieces")
        return pieces
    raise InputError(f"{path}: not a complete {DIRECTORY}: it has no {' or '.join(f'{name}.json' for name in names)}")
