"""CTranslate2 as an engine, to compare our search and its speed with.

CTranslate2's search is ours with `early_stopping`; without a length penalty, it ends as soon as the best hypothesis of
a step is complete. All sentences of a call have the same length limit. A translation that exceeds the limit of its own
sentence is therefore made again, alone.

CTranslate2 removes forbidden tokens before it normalizes probabilities, which changes all scores; by default it forbids
the empty translation. We forbid nothing: no trained model generates padding or the begin mark, and decoding drops both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relattn_mt.formats.ctranslate2.directory import CONFIG
from relattn_mt.formats.ctranslate2.scores import CTranslate2Model
from relattn_mt.formats.foreign_model import read_json
from relattn_mt.search.types import Hypothesis, Request, SearchRules
from relattn_mt.support.errors import InputError, require
from relattn_mt.tokens.imported_tokenizer import AnyTokenizer


class CTranslate2Engine:
    """A model that CTranslate2 runs on a CPU.

    Args:
        path: The directory.
        tokenizer: Tokenizer of both sides.
        max_length: Longest sequence that the model can hold; None if unlimited.
        threads: Number of threads.
    """

    knows_alignment = False
    device = "cpu"
    name = "CTranslate2"

    def __init__(self, path: Path, tokenizer: AnyTokenizer, max_length: int | None, threads: int) -> None:
        config = read_json(path / CONFIG)
        adds = config["add_source_bos"], config["add_source_eos"]
        self.scorer = CTranslate2Model(path, tokenizer, adds, threads=threads)
        self.max_length = max_length
        self.precision = self.scorer.precision
        self._tgt_pieces = tokenizer.vocabularies[1]
        self._ids = {piece: i for i, piece in enumerate(self._tgt_pieces)}

    def search(self, requests: Sequence[Request], rules: SearchRules) -> list[list[Hypothesis]]:
        require(rules.config.early_stopping is not False, "CTranslate2 only supports a search with early stopping")
        results = self._search(requests, max(request.limit for request in requests), rules)
        for i, (hypotheses, request) in enumerate(zip(results, requests, strict=True)):
            if len(hypotheses[0].tokens) >= request.limit:
                (results[i],) = self._search([request], request.limit, rules)
        return results

    def _search(self, requests: Sequence[Request], limit: int, rules: SearchRules) -> list[list[Hypothesis]]:
        """Return the best translations of each request, of at most `limit` tokens with the end of sentence."""
        search = rules.config
        prefixes = [[self._tgt_pieces[i] for i in request.prefix] for request in requests]
        results = self.scorer.model.translate_batch(
            self.scorer.sources([request.src_ids for request in requests]),
            target_prefix=prefixes if any(prefixes) else None,
            beam_size=search.beam_size,
            num_hypotheses=rules.n_best,
            length_penalty=0.0 if search.length_penalty == "none" else search.alpha,
            no_repeat_ngram_size=search.no_repeat_ngram,
            repetition_penalty=search.repetition_penalty,
            max_input_length=0,
            min_decoding_length=0,
            max_decoding_length=max(1 + rules.given, limit - 1),
            return_scores=True,
        )
        return [
            [
                Hypothesis([self._ids[piece] for piece in pieces], score)
                for pieces, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        results = self.scorer.model.score_batch(
            self.scorer.sources(sources),
            [[self._tgt_pieces[i] for i in target[1:-1]] for target in targets],
            max_input_length=0,
        )
        return [result.log_probs for result in results]

    def start(self, sources: Sequence[Sequence[int]], capacity: int) -> Any:
        raise NotImplementedError

    def step(self, *_: Any) -> Any:
        raise NotImplementedError

    def align(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Any:
        raise InputError("CTranslate2 does not support alignments here; use the bundle")
