"""A model of ours, with its tokenizer and how to search: what translates lines in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from relattn.translation.config import Calibration, SearchConfig
from relattn.translation.data.batching import Batch, collate
from relattn.translation.data.imported import AnyTokenizer
from relattn.translation.data.plan import runs
from relattn.translation.model.ensemble import Ensemble
from relattn.translation.model.transformer import Transformer
from relattn.translation.search import beam, constrained
from relattn.translation.search.length_penalty import length_penalty
from relattn.translation.search.sampling import sample
from relattn.translation.search.types import FREE, Hypothesis, Request, SamplingOptions, SearchRules
from relattn.translation.translate.alignment import Links, attention, links
from relattn.translation.translate.glossary import within_words
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.pipeline import MAX_TOKENS, B, R, Translator


class TorchTranslator(Translator):
    """Translates with a PyTorch model.

    With several `workers`, each thread searches one batch, which on a CPU is faster than all threads sharing each
    matrix product.

    Args:
        model: model or ensemble; it is moved to `device` and set to evaluation mode.
        tokenizer: tokenizer of both sides.
        search: default beam size, length penalty and length limits.
        device: device to compute on.
        languages, calibration, workers: as in `Translator`.
    """

    model: Any  # Transformer | Ensemble, whose caches have different types

    def __init__(
        self,
        model: Transformer | Ensemble,
        tokenizer: AnyTokenizer,
        search: SearchConfig,
        *,
        device: str | torch.device = "cpu",
        languages: tuple[str, str] = ("", ""),
        calibration: Calibration = Calibration(),  # noqa: B008 - it is frozen
        workers: int = 1,
    ) -> None:
        super().__init__(
            tokenizer,
            search,
            languages=languages,
            max_length=model.max_length,
            calibration=calibration,
            workers=workers,
        )
        self.device = torch.device(device)
        self.model = model.to(self.device).eval()

    def map_batches(self, work: Callable[[B], R], batches: Sequence[B]) -> Iterator[R]:
        """What `work` makes of each of `batches`, in their order, by as many threads as there are `workers`."""
        if min(self.workers, len(batches)) == 1:
            yield from map(work, batches)
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # of each worker, which takes this when it begins
        try:
            with ThreadPoolExecutor(self.workers) as pool:
                yield from pool.map(work, batches)
        finally:
            torch.set_num_threads(threads)

    @torch.inference_mode()
    def search_batch(
        self, requests: list[Request], search: SearchConfig, options: TranslateOptions
    ) -> list[list[Hypothesis]]:
        rules = self._rules(search, options.n_best if options.sampling is None else 1)
        if options.sampling is not None:
            return self._sample(requests, rules, options.n_best, options.sampling)
        results: dict[int, list[Hypothesis]] = {}
        for run, with_phrases in ((self._beam_search, False), (self._constrained_search, True)):
            chosen = [request for request in requests if bool(request.phrases) == with_phrases]
            if chosen:
                results.update(zip((request.number for request in chosen), run(chosen, rules), strict=True))
        return [results[request.number] for request in requests]

    def _beam_search(self, requests: list[Request], rules: SearchRules) -> list[list[Hypothesis]]:
        cache, limits, prefixes = self._start(requests)
        return beam.search(self._step, cache, limits, rules, prefixes)

    def _constrained_search(self, requests: list[Request], rules: SearchRules) -> list[list[Hypothesis]]:
        cache, _, _ = self._start(requests)
        return constrained.search(self._step, cache, requests, rules, self._within_words, self.device)

    @cached_property
    def _within_words(self) -> np.ndarray:
        """(vocab,) bool, the target pieces that continue a word."""
        return np.array(within_words(self.tokenizer.vocabularies[1]))

    def _sample(
        self, requests: list[Request], rules: SearchRules, n: int, options: SamplingOptions
    ) -> list[list[Hypothesis]]:
        cache, limits, prefixes = self._start(requests)
        longest, rows = int(limits.max()), torch.arange(len(requests), device=self.device).repeat_interleave(n)
        draws = [(request.number, draw) for request in requests for draw in range(n)]
        numbers = np.stack([np.random.default_rng([options.seed, *which]).random(longest) for which in draws])
        drawn = sample(
            self._step,
            cache.select(rows),
            limits[rows],
            rules,
            prefixes[rows],
            options,
            torch.from_numpy(numbers).to(self.device),
        )
        return [drawn[i : i + n] for i in range(0, len(drawn), n)]

    def _rules(self, search: SearchConfig, n: int) -> SearchRules:
        marks = self.tokenizer.marks
        return SearchRules(
            beam_size=search.beam_size,
            bos=marks.bos,
            eos=marks.eos,
            banned=marks.banned,
            penalty=length_penalty(search.length_penalty, search.alpha),
            n_best=n,
            early_stopping=search.early_stopping,
        )

    def _start(self, requests: list[Request]) -> tuple[Any, Tensor, Tensor]:
        """Return the cache before the first step, limits (requests,) and prefixes (requests, longest)."""
        marks = self.tokenizer.marks
        rows = [self._tensor([*marks.src_begin, *each.src_ids, *marks.src_end]) for each in requests]
        src = pad_sequence(rows, batch_first=True, padding_value=marks.pad)
        src_lengths = self._tensor([len(row) for row in rows])
        limits = [each.limit for each in requests]
        begun = [self._tensor(each.prefix) for each in requests]
        cache = self.model.start(self.model.encode(src, src_lengths), src_lengths, max(limits))
        return cache, self._tensor(limits), pad_sequence(begun, batch_first=True, padding_value=FREE)

    def _tensor(self, ids: list[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.device)

    @torch.inference_mode()
    def log_probs(self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        scores: list[list[float]] = [[]] * len(src_ids)
        for chosen, batch in self._batches(src_ids, tgt_ids):
            log_probs = self.model(batch.src, batch.src_lengths, batch.tgt_in).float().log_softmax(-1)
            of_pieces = log_probs.gather(-1, batch.tgt_out[..., None])[..., 0]  # (rows, tgt_len)
            for i, row, length in zip(chosen, of_pieces.tolist(), batch.tgt_lengths.tolist(), strict=True):
                scores[i] = row[:length]
        return scores

    def align_batch(self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]) -> list[Links]:
        (source, target), marks = self.tokenizer.vocabularies, self.tokenizer.marks
        found: list[Links] = [[]] * len(src_ids)
        for chosen, batch in self._batches(src_ids, tgt_ids):
            weights = attention(self.model, batch).cpu().numpy()
            for i, row, width in zip(chosen, weights, batch.src_lengths.tolist(), strict=True):
                sides = [source[piece] for piece in src_ids[i]], [target[piece] for piece in tgt_ids[i]]
                found[i] = links(row[:, :width], *sides, marks)
        return found

    def _batches(
        self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]
    ) -> Iterator[tuple[list[int], Batch]]:
        """Batches of pairs of similar length, and which pairs each has."""
        around = self.tokenizer.marks.around_src
        longest = np.maximum([len(ids) + around for ids in src_ids], [len(ids) + 1 for ids in tgt_ids])
        for indices in runs(np.argsort(longest, kind="stable"), longest, MAX_TOKENS):
            chosen = indices.tolist()
            sides = [src_ids[i] for i in chosen], [tgt_ids[i] for i in chosen]
            yield chosen, collate(*sides, self.tokenizer.marks).to(self.device)

    def _step(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """(rows,) tokens -> (rows, vocab) logits of the next."""
        logits, cache = self.model.step(tokens[:, None], cache)
        return logits[:, -1], cache
