"""CTranslate2 as an engine: searches and scores, to compare exports and imports with.

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

from relattn_mt.formats.ctranslate2.directory import CONFIG, MODEL, read_vocabularies
from relattn_mt.formats.foreign_model import read_json
from relattn_mt.search.types import Hypothesis, Request, SearchRules
from relattn_mt.support.errors import InputError, reading, require, require_installed
from relattn_mt.tokens.imported_tokenizer import AnyTokenizer
from relattn_mt.translate.runner import MAX_TOKENS


class CTranslate2Engine:
    """A model that CTranslate2 runs on a CPU.

    Args:
        path: The directory.
        tokenizer: Tokenizer of both sides.
        max_length: Longest sequence that the model can hold; None if unlimited.
        threads: Number of threads; None takes CTranslate2's default.
        compute_type: Type that CTranslate2 computes in; "default" is that of the weights.
        adds: Whether CTranslate2 adds the token before each source, and the one after it; None reads config.json.

    Raises:
        InputError: The vocabulary is not the tokenizer's, ctranslate2 is not installed, or it cannot use the model.
    """

    can_step = False
    device = "cpu"
    name = "CTranslate2"

    def __init__(
        self,
        path: Path,
        tokenizer: AnyTokenizer,
        max_length: int | None,
        *,
        threads: int | None = None,
        compute_type: str = "default",
        adds: tuple[bool, bool] | None = None,
    ) -> None:
        for own, its in zip(tokenizer.vocabularies, read_vocabularies(path, tokenizer.unknown_piece), strict=True):
            # an imported model may have one more piece than CTranslate2, which the decoder starts with
            if own[: len(its)] != its or len(own) > len(its) + 1:
                raise InputError(f"{path}: the tokenizer and the vocabulary must have the same pieces")
        self._src_pieces, self._tgt_pieces = tokenizer.vocabularies
        self.max_length = max_length
        config = read_json(path / CONFIG) if (path / CONFIG).is_file() else {}  # not before CTranslate2 3
        self._adds = adds or (bool(config.get("add_source_bos")), bool(config.get("add_source_eos")))
        self._ids = {piece: i for i, piece in enumerate(self._tgt_pieces)}
        require_installed("export", "ctranslate2")
        import ctranslate2

        with reading(path / MODEL, "cannot be used"):
            self._model = ctranslate2.Translator(str(path), intra_threads=threads or 0, compute_type=compute_type)
        self.precision = str(self._model.compute_type)  # depends on the processor

    def __repr__(self) -> str:
        return f"CTranslate2, {self.precision}"

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
        results = self._model.translate_batch(
            self._sources([request.src_ids for request in requests]),
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
        results = self._model.score_batch(
            self._sources(sources),
            [[self._tgt_pieces[i] for i in target[1:-1]] for target in targets],
            max_batch_size=MAX_TOKENS,
            batch_type="tokens",
            max_input_length=0,
        )
        return [result.log_probs for result in results]

    def start(self, sources: Sequence[Sequence[int]], capacity: int) -> Any:
        raise NotImplementedError

    def step(self, *_: Any) -> Any:
        raise NotImplementedError

    def align(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Any:
        raise InputError("CTranslate2 does not support alignments here; use the bundle")

    def _sources(self, sources: Sequence[Sequence[int]]) -> list[list[str]]:
        """Return the pieces of sources, without the tokens that CTranslate2 adds."""
        begin, end = self._adds
        return [[self._src_pieces[i] for i in ids[int(begin) : len(ids) - int(end)]] for ids in sources]
