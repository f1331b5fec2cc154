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

from relattn.translation.config import SamplingConfig, SearchConfig
from relattn.translation.data.batching import Batch, collate
from relattn.translation.data.imported import AnyTokenizer
from relattn.translation.data.plan import runs
from relattn.translation.errors import InputError
from relattn.translation.model.ensemble import Ensemble
from relattn.translation.model.transformer import Transformer
from relattn.translation.search import constrained
from relattn.translation.search.beam import FREE, Rules, search
from relattn.translation.search.length_penalty import length_penalty
from relattn.translation.search.sampling import sample
from relattn.translation.translate.alignment import Links, attention, links
from relattn.translation.translate.glossary import within_words
from relattn.translation.translate.pipeline import MAX_TOKENS, B, Finished, LineTranslator, R, Sentence


class Translator(LineTranslator):
    """A model with its tokenizer and how to search.

    With `workers` of its own, a processor's threads each search a batch, instead of all working at one product.

    Args:
        model: one, or an ensemble; put on `device` and into evaluation mode.
        tokenizer: of both sides.
        search: beam size, length penalty and length limits.
        device: where to compute.
    """

    model: Any  # Transformer | Ensemble, whose caches are not of one type

    def __init__(
        self,
        model: Transformer | Ensemble,
        tokenizer: AnyTokenizer,
        search: SearchConfig,
        *,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(tokenizer, search)
        self.device = torch.device(device)
        self.model = model.to(self.device).eval()

    @property
    def max_length(self) -> int | None:  # type: ignore[override]
        """Longest sequence, in pieces, end included, that the model can hold; None where there is no limit."""
        longest: int | None = self.model.max_length
        return longest

    def of_each(self, work: Callable[[B], R], batches: Sequence[B]) -> Iterator[R]:
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
    def search_batch(self, sentences: list[Sentence], n: int) -> list[list[Finished]]:
        if self.sampling is not None:
            return self._draw(sentences, n, self.sampling)
        found: dict[int, list[Finished]] = {}
        for search_some, wanted in ((self._search, False), (self._search_with_phrases, True)):
            some = [each for each in sentences if bool(each.phrases) == wanted]
            if some:
                found.update(zip((each.number for each in some), search_some(some, self._rules(n)), strict=True))
        return [found[each.number] for each in sentences]

    def _search(self, sentences: list[Sentence], rules: Rules) -> list[list[Finished]]:
        cache, limits, prefixes = self._start(sentences)
        return search(self._step, cache, limits, rules, prefixes)

    def _search_with_phrases(self, sentences: list[Sentence], rules: Rules) -> list[list[Finished]]:
        asked = [constrained.Constrained(each.phrases, each.limit, tuple(each.prefix)) for each in sentences]
        cache, _, _ = self._start(sentences)
        return constrained.search(self._step, cache, asked, rules, self._within, self.device)

    @cached_property
    def _within(self) -> np.ndarray:
        """(vocab,) the target pieces that go on within a word."""
        return np.array(within_words(self.tokenizer.vocabularies[1]))

    def _draw(self, sentences: list[Sentence], n: int, how: SamplingConfig) -> list[list[Finished]]:
        if any(each.phrases for each in sentences):
            raise InputError("translations that are drawn keep to no glossary: search for them")
        cache, limits, prefixes = self._start(sentences)
        longest, each = int(limits.max()), torch.arange(len(sentences), device=self.device).repeat_interleave(n)
        draws = [(one.number, draw) for one in sentences for draw in range(n)]
        numbers = np.stack([np.random.default_rng([how.seed, *which]).random(longest) for which in draws])
        found = sample(
            self._step,
            cache.select(each),
            limits[each],
            self._rules(1),
            prefixes[each],
            how,
            torch.from_numpy(numbers).to(self.device),
        )
        return [found[i : i + n] for i in range(0, len(found), n)]

    def _rules(self, n: int) -> Rules:
        marks = self.tokenizer.marks
        return Rules(
            beam_size=self.search.beam_size,
            bos=marks.bos,
            eos=marks.eos,
            banned=marks.banned,
            penalty=length_penalty(self.search.length_penalty, self.search.alpha),
            n_best=n,
            early_stopping=self.search.early_stopping,
        )

    def _start(self, sentences: list[Sentence]) -> tuple[Any, Tensor, Tensor]:
        """The cache before the first piece, (sentences,) limits, and (sentences, longest) prefixes."""
        marks = self.tokenizer.marks
        rows = [self._tensor([*marks.src_begin, *each.src_ids, *marks.src_end]) for each in sentences]
        src = pad_sequence(rows, batch_first=True, padding_value=marks.pad)
        src_lengths = self._tensor([len(row) for row in rows])
        limits = [each.limit for each in sentences]
        begun = [self._tensor(each.prefix) for each in sentences]
        cache = self.model.start(self.model.encode(src, src_lengths), src_lengths, max(limits))
        return cache, self._tensor(limits), pad_sequence(begun, batch_first=True, padding_value=FREE)

    def _tensor(self, ids: list[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.device)

    @torch.inference_mode()
    def forced(self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]) -> list[list[float]]:
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
