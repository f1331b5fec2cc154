"""Runs an engine on sentences: in batches of similar length, and several batches at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from relattn_mt.config import SearchConfig
from relattn_mt.search.engine import Engine
from relattn_mt.search.types import DIVERGED, Hypotheses, Request, SearchRules
from relattn_mt.support.errors import Diverged, InputError, require
from relattn_mt.support.types import IdRows
from relattn_mt.text.alignment import Links, WordAlignment, align_words
from relattn_mt.tokens.imported_tokenizer import AnyTokenizer, marked_pieces
from relattn_mt.tokens.planning import batch_by_size
from relattn_mt.translate.glossary import continue_words

MAX_SENTENCES = 128  # per batch, before the beam: enough to keep a GPU busy
MAX_TOKENS = 4096  # padded source pieces per batch, which bounds memory


def max_sentences(engine: Engine, beam_size: int) -> int:
    """Return the largest number of sentences per batch. On a CPU, keys, values and logits then stay in its cache."""
    return max(1, min(64, 128 // beam_size)) if engine.device == "cpu" else MAX_SENTENCES


@dataclass
class Runner:
    """Runs an engine on sentences of a tokenizer.

    Attributes:
        engine: What runs the model.
        tokenizer: Tokenizer of both sides.
        workers: Number of batches that run at the same time, with one thread each.
    """

    engine: Engine
    tokenizer: AnyTokenizer
    workers: int

    def batches(self, requests: Sequence[Request], search: SearchConfig) -> list[np.ndarray]:
        """Return indices of requests, the longest first, in batches of similar length."""
        lengths = np.array([len(request.src_ids) for request in requests], dtype=np.int64)
        per_worker = -(-len(requests) // self.workers)
        most = min(max_sentences(self.engine, search.beam_size), per_worker)
        return batch_by_size(np.argsort(-lengths, kind="stable"), lengths, MAX_TOKENS, most)

    def map(self, work: Callable[[Any], Any], batches: Sequence[Any]) -> Iterator[Any]:
        """Yield `work(batch)` for each of `batches`, in order, with a thread per worker."""
        if min(self.workers, len(batches)) <= 1:
            yield from map(work, batches)
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(self.workers) as pool:
            yield from pool.map(work, batches)

    def search(self, requests: Sequence[Request], search: SearchConfig, counts: Sequence[int]) -> Hypotheses:
        """Return the best hypotheses of each request, as many as `counts` says. Lengths should be similar.

        Raises:
            InputError: The engine does not support this.
            Diverged: The model's log-probabilities are NaN for a sentence, as after training diverged.
        """
        special = self.tokenizer.special
        has_phrases = any(request.phrases for request in requests)
        rules = SearchRules(
            config=search,
            bos=special.bos,
            eos=special.eos,
            banned=special.banned,
            n_best=max(counts),
            given=len(special.tgt_begin),
            continues_word=self._continues_word if has_phrases else None,
        )
        results = self.engine.search(requests, rules)
        if diverged := [request.number for request, best in zip(requests, results, strict=True) if not best]:
            raise Diverged(f"line {min(diverged)}: {DIVERGED}")
        return [hypotheses[:count] for hypotheses, count in zip(results, counts, strict=True)]

    @cached_property
    def _continues_word(self) -> np.ndarray:
        """(vocab,) bool, True for target pieces that continue a word."""
        return np.array(continue_words(self.tokenizer.vocabularies[1]))

    def log_probs(self, src_ids: IdRows, tgt_ids: IdRows) -> list[list[float]]:
        """Return the log-probability, in nats, of each piece of given translations, and of the end of sentence.

        Ids are without special tokens.

        Raises:
            InputError: There are not as many sources as targets, or an id is not in the vocabulary.
        """
        begin = len(self.tokenizer.special.tgt_begin)
        return [row[begin:] for row in self._by_length(self.engine.score, src_ids, tgt_ids)]

    def align(self, src_ids: IdRows, tgt_ids: IdRows) -> list[Links]:
        """Return the (source word, target word) pairs of given translations, counted from 0, as `alignment.links`.

        Arguments are those of `log_probs`.
        """
        return [alignment.links for alignment in self.align_words(src_ids, tgt_ids)]

    def align_words(self, src_ids: IdRows, tgt_ids: IdRows) -> list[WordAlignment]:
        """Return the alignments of the words of given translations. Arguments are those of `log_probs`."""
        return self.alignments(src_ids, tgt_ids, self.attention(src_ids, tgt_ids))

    def attention(self, src_ids: IdRows, tgt_ids: IdRows) -> list[np.ndarray]:
        """Return the attention weights of given translations, as `Engine.align` does, for ids without special ones."""
        return self._by_length(self.engine.align, src_ids, tgt_ids)

    def alignments(self, src_ids: IdRows, tgt_ids: IdRows, attention: Sequence[np.ndarray]) -> list[WordAlignment]:
        """Return the alignments of the words of given translations, for their attention weights."""
        special = self.tokenizer.special
        alignments = []
        for src, tgt, weights in zip(src_ids, tgt_ids, attention, strict=True):
            src_pieces = marked_pieces(self.tokenizer, 0, src)
            tgt_pieces = marked_pieces(self.tokenizer, 1, tgt)
            alignments.append(align_words(weights[len(special.tgt_begin) :], src_pieces, tgt_pieces, special))
        return alignments

    def _by_length(self, work: Callable[..., list[Any]], src_ids: IdRows, tgt_ids: IdRows) -> list[Any]:
        """Return the results of a function of complete sources and targets, which gets batches of similar length."""
        src_ids, tgt_ids = ([[*ids] for ids in rows] for rows in (src_ids, tgt_ids))
        counts = len(src_ids), len(tgt_ids)
        require(
            counts[0] == counts[1], f"src_ids and tgt_ids must have the same length, got {counts[0]} and {counts[1]}"
        )
        for name, rows, size in zip(
            ("src_ids", "tgt_ids"), (src_ids, tgt_ids), self.tokenizer.vocab_sizes, strict=True
        ):
            if wrong := [i for ids in rows for i in ids if not 0 <= i < size]:
                raise InputError(f"{name} must be ids of pieces in [0, {size}), got {wrong[0]}")
        special = self.tokenizer.special
        sources = [[*special.src_begin, *ids, *special.src_end] for ids in src_ids]
        targets = [[special.bos, *special.tgt_begin, *ids, special.eos] for ids in tgt_ids]
        longest = np.array([*map(max, map(len, sources), map(len, targets))], dtype=np.int64)
        batches = batch_by_size(np.argsort(longest, kind="stable"), longest, MAX_TOKENS)

        def run(batch: np.ndarray) -> list[Any]:
            return work([sources[i] for i in batch], [targets[i] for i in batch])

        results: list[Any] = [None] * len(sources)
        for batch, batch_results in zip(batches, self.map(run, batches), strict=True):
            for i, result in zip(batch, batch_results, strict=True):
                results[i] = result
        return results
