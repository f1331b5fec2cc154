"""A model of ours, with its tokenizer and how to search: what translates lines in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from relattn.translation.config import SearchConfig
from relattn.translation.data.batching import collate, runs
from relattn.translation.data.imported import AnyTokenizer
from relattn.translation.model.ensemble import Ensemble
from relattn.translation.model.transformer import Transformer
from relattn.translation.search.beam import Rules, search
from relattn.translation.search.lines import MAX_TOKENS, Finished, LineTranslator
from relattn.translation.search.scoring import length_penalty


class Translator(LineTranslator):
    """A model with its tokenizer and how to search.

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
        longest: int | None = self.model.max_length
        return longest

    @torch.inference_mode()
    def search_batch(self, src_ids: list[list[int]], limits: list[int], n: int) -> list[list[Finished]]:
        marks = self.tokenizer.marks
        rows = [torch.tensor([*marks.src_begin, *ids, *marks.src_end], device=self.device) for ids in src_ids]
        src = pad_sequence(rows, batch_first=True, padding_value=marks.pad)
        src_lengths = torch.tensor([len(row) for row in rows], device=self.device)
        rules = Rules(
            beam_size=self.search.beam_size,
            bos=marks.bos,
            eos=marks.eos,
            banned=marks.banned,
            penalty=length_penalty(self.search.length_penalty, self.search.alpha),
            n_best=n,
        )
        cache = self.model.start(self.model.encode(src, src_lengths), src_lengths, max(limits))
        return search(self._step, cache, torch.tensor(limits, device=self.device), rules)

    @torch.inference_mode()
    def forced(self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        scores: list[list[float]] = [[]] * len(src_ids)
        around = self.tokenizer.marks.around_src
        longest = np.maximum([len(ids) + around for ids in src_ids], [len(ids) + 1 for ids in tgt_ids])
        for indices in runs(np.argsort(longest, kind="stable"), longest, MAX_TOKENS):
            chosen = indices.tolist()
            sides = [src_ids[i] for i in chosen], [tgt_ids[i] for i in chosen]
            batch = collate(*sides, self.tokenizer.marks).to(self.device)
            log_probs = self.model(batch.src, batch.src_lengths, batch.tgt_in).float().log_softmax(-1)
            of_pieces = log_probs.gather(-1, batch.tgt_out[..., None])[..., 0]  # (rows, tgt_len)
            for i, row, length in zip(chosen, of_pieces.tolist(), batch.tgt_lengths.tolist(), strict=True):
                scores[i] = row[:length]
        return scores

    def _step(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """(rows,) tokens -> (rows, vocab) logits of the next."""
        logits, cache = self.model.step(tokens[:, None], cache)
        return logits[:, -1], cache
