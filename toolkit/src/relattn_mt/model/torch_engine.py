"""PyTorch as an engine: for GPUs, and for what the compiled engine does not support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from relattn_mt.model.transformer import Cache, Transformer
from relattn_mt.search import beam
from relattn_mt.search.engine import NextTokens
from relattn_mt.search.types import Hypotheses, Request, SearchRules
from relattn_mt.support.types import IdRows


@dataclass
class TorchState:
    """State of decoding: the cache of the model."""

    cache: Cache


class TorchEngine:
    """Runs a PyTorch model.

    Args:
        model: The model; it is moved to `device` and set to evaluation mode.
        device: Device to compute on.
        reason: Why no faster engine runs the model.

    Attributes:
        alignment: `ModelConfig.alignment`.
    """

    def __init__(self, model: Transformer, device: str | torch.device = "cpu", reason: str = "") -> None:
        self.model = model.to(device).eval()
        self.device = str(device)
        self.max_length = model.max_length
        self.alignment = model.config.alignment
        self.knows_alignment = model.config.alignment_layer != "assumed"
        self.name = f"PyTorch ({reason})" if reason else "PyTorch"
        self.precision = "bf16" if model.embedding.dtype == torch.bfloat16 else "fp32"

    def __repr__(self) -> str:
        return f"{self.model.config.summary}, {self.precision} on {self.device}"

    def search(self, requests: Sequence[Request], rules: SearchRules) -> Hypotheses:
        return beam.search(self, requests, rules)

    @torch.inference_mode()
    def start(self, sources: IdRows, capacity: int) -> TorchState:
        src, lengths = self._padded(sources)
        return TorchState(self.model.start(self.model.encode(src, lengths), lengths, capacity))

    @torch.inference_mode()
    def step(
        self, state: TorchState, tokens: Sequence[int], rows: Sequence[int], rules: SearchRules, k: int
    ) -> NextTokens:
        if list(rows) != list(range(state.cache.rows)):
            state.cache = state.cache.select(self._tensor(rows))
        logits, state.cache = self.model.step(self._tensor(tokens)[:, None], state.cache)
        logits = logits[:, -1].float()
        log_sums = logits.logsumexp(1)
        log_probs = logits - log_sums[:, None]
        log_probs[:, list(rules.banned)] = float("-inf")
        values, best = log_probs.topk(min(k, logits.shape[1]))
        return NextTokens(
            values.cpu().numpy(), best.cpu().numpy(), log_sums.cpu().numpy(), cache(lambda: logits.cpu().numpy())
        )

    @torch.inference_mode()
    def score(self, sources: IdRows, targets: IdRows) -> list[list[float]]:
        tgt, _ = self._padded(targets)
        log_probs = self._read(sources, tgt).float().log_softmax(-1)
        scores = log_probs.gather(-1, tgt[:, 1:, None]).squeeze(-1)  # (rows, tgt_len)
        return [row[: len(target) - 1] for row, target in zip(scores.tolist(), targets, strict=True)]

    @torch.inference_mode()
    def align(self, sources: IdRows, targets: IdRows) -> list[np.ndarray]:
        tgt, _ = self._padded(targets)
        _, weights = self._read(sources, tgt, self.alignment)
        rows = zip(weights.cpu().numpy(), sources, targets, strict=True)
        return [row[: len(target) - 1, : len(source)] for row, source, target in rows]

    def _read(self, sources: IdRows, tgt: Tensor, alignment: tuple[int, int] | None = None) -> Any:
        """Return what the model returns while it reads complete targets."""
        return self.model(*self._padded(sources), tgt[:, :-1], alignment)

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.device)

    def _padded(self, sequences: IdRows) -> tuple[Tensor, Tensor]:
        """Return sequences (rows, length), padded on the right with any token, and their lengths (rows,)."""
        rows = [self._tensor(ids) for ids in sequences]
        return pad_sequence(rows, batch_first=True), self._tensor([len(ids) for ids in sequences])
