"""A model in a directory for CTranslate2, as `export.ctranslate2` writes it: what translates lines without PyTorch.

CTranslate2's search differs from ours in its ends. A hypothesis that ends counts only where it is among the `beam_size`
best of a step, and with a penalty of 0 a search is over when the best of a step ends. One limit of length holds for all
sentences of a call, so a translation that came out longer than its own sentence's limit is made again, alone.

Whatever it is told not to write, the end of an empty translation by default, it takes out before probabilities are
normalised, which changes the scores of all that is left. So it is told of nothing; padding and begin, which no trained
model writes, are not text where they come out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from relattn.translation.config import SearchConfig
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.errors import InputError, reading, require_installed
from relattn.translation.search.lines import MAX_TOKENS, Finished, LineTranslator
from relattn.translation.settings import read_yaml, to_config

MODEL, CONFIG, VOCABULARY, TOKENIZER = "model.bin", "config.json", "shared_vocabulary.json", "tokenizer.model"
OURS = "relattn"  # the part of config.json that CTranslate2 does not read


@dataclass(frozen=True, kw_only=True)
class Description:
    """What config.json says of an exported model beside what CTranslate2 reads.

    Attributes:
        src_lang: the source language.
        tgt_lang: the target language.
        max_length: longest sequence, in pieces, end included; None where there is no limit.
        search: how to search, with a length penalty that CTranslate2 has.
    """

    src_lang: str
    tgt_lang: str
    max_length: int | None
    search: SearchConfig = field(default_factory=SearchConfig)


class CTranslate2Translator(LineTranslator):
    """A model in CTranslate2.

    Args:
        path: the directory.
        device: "cpu", "cuda" or "cuda:1".
        threads: of the processor; as many as CTranslate2 finds good where None.

    Attributes:
        about: the languages, and how to search by default.

    Raises:
        InputError: a file is missing, damaged or not one of an export, ctranslate2 is not installed, or it cannot use
            the device.
    """

    def __init__(self, path: str | Path, *, device: str = "cpu", threads: int | None = None) -> None:
        path = Path(path)
        missing = [name for name in (MODEL, CONFIG, VOCABULARY, TOKENIZER) if not (path / name).is_file()]
        if missing:
            raise InputError(f"{path}: not a complete export: it has no {', no '.join(missing)}")
        content = read_yaml(path / CONFIG, "a model's configuration").get(OURS)
        if not isinstance(content, dict):
            raise InputError(f"{path / CONFIG}: says nothing of {OURS}: the directory is none of its exports")
        self.about = to_config(Description, content, path / CONFIG, whole=True)
        super().__init__(Tokenizer.load(path / TOKENIZER), self.about.search)
        self.max_length = self.about.max_length
        self._pieces = self.tokenizer.pieces
        with reading(path / VOCABULARY, "not JSON"):
            same = json.loads((path / VOCABULARY).read_bytes()) == self._pieces
        if not same:
            raise InputError(f"{path / TOKENIZER}: has other pieces than {VOCABULARY}")
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}
        kind, _, index = device.partition(":")
        require_installed("ctranslate2", extra="export")
        import ctranslate2

        with reading(path / MODEL, f"cannot be used on {device}"):
            self._model = ctranslate2.Translator(
                str(path), device=kind, device_index=int(index or 0), intra_threads=threads or 0
            )

    def search_batch(self, src_ids: list[list[int]], limits: list[int], n: int) -> list[list[Finished]]:
        found = self._search(src_ids, max(limits), n)
        for i, (hypotheses, limit) in enumerate(zip(found, limits, strict=True)):
            if len(hypotheses[0].tokens) >= limit:
                (found[i],) = self._search([src_ids[i]], limit, n)
        return found

    def forced(self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        results = self._model.score_batch(
            self._spelt(src_ids),
            self._spelt(tgt_ids),
            max_batch_size=MAX_TOKENS,
            batch_type="tokens",
            max_input_length=0,
        )
        return [result.log_probs for result in results]

    def _search(self, src_ids: Sequence[Sequence[int]], limit: int, n: int) -> list[list[Finished]]:
        """The n best of each, closed where they would have more tokens than `limit`, end counted."""
        results = self._model.translate_batch(
            self._spelt(src_ids),
            beam_size=self.search.beam_size,
            num_hypotheses=n,
            length_penalty=0.0 if self.search.length_penalty == "none" else self.search.alpha,
            max_input_length=0,
            min_decoding_length=0,
            max_decoding_length=max(1, limit - 1),
            return_scores=True,
        )
        return [
            [
                Finished([self._ids[piece] for piece in pieces], score)
                for pieces, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]

    def _spelt(self, ids: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[self._pieces[i] for i in row] for row in ids]
