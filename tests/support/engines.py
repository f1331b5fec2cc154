"""Engines that translate by a function of text, and translators of models that a test makes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from relattn_mt.config import SearchConfig
from relattn_mt.engine.decoder import NativeDecoder
from relattn_mt.engine.engine import NativeEngine
from relattn_mt.model.torch_engine import TorchEngine
from relattn_mt.model.transformer import Transformer
from relattn_mt.model.weights import arrays_of
from relattn_mt.search.engine import Engine
from relattn_mt.search.types import Hypothesis, Request, SearchRules
from relattn_mt.tokens.tokenizer import word_indices
from relattn_mt.translate.translator import Translator

Links = list[tuple[int, int]]


def in_order(source: str, target: str) -> Links:
    """Return links of each word to the word at its place."""
    return [(i, i) for i in range(source.count(" ") + 1)]


class TextEngine:
    """Engine that translates by a function of text. A translation may have as many variants as are asked for.

    Args:
        tokenizer: Tokenizer with special tokens as in `SpecialTokens`.
        change: Function of a text; of several texts, those are the best ones.
        links: Function of source and translation that returns the links of their words.
    """

    name, precision, device, max_length, knows_alignment = "a function", "fp32", "cpu", None, True

    def __init__(
        self, tokenizer: Any, change: Callable[[str], str | list[str]], links: Callable[[str, str], Links] = in_order
    ) -> None:
        self.tokenizer, self.change, self.links = tokenizer, change, links

    def search(self, requests: Sequence[Request], rules: SearchRules) -> list[list[Hypothesis]]:
        return [[self._hypothesis(text) for text in self._changed(request)][: rules.n_best] for request in requests]

    def _changed(self, request: Request) -> list[str]:
        found = self.change(self.tokenizer.decode(request.src_ids[:-1]))
        return [found] if isinstance(found, str) else found

    def _hypothesis(self, text: str) -> Hypothesis:
        return Hypothesis(self.tokenizer.encode_target(text), 0.0)

    def align(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[np.ndarray]:
        return [self._weights(list(src[:-1]), list(tgt[1:-1])) for src, tgt in zip(sources, targets, strict=True)]

    def _weights(self, src: list[int], tgt: list[int]) -> np.ndarray:
        weights, decode = np.zeros((len(tgt) + 1, len(src) + 1), np.float32), self.tokenizer.decode
        weights[:, -1] = 0.01
        sides = zip(self.tokenizer.vocabularies, (src, tgt), strict=True)
        sources, targets = (word_indices([pieces[i] for i in ids]) for pieces, ids in sides)
        for source, target in self.links(decode(src), decode(tgt)):
            rows, columns = (
                [i for i, word in enumerate(x) if word == y] for x, y in ((targets, target), (sources, source))
            )
            weights[np.ix_(rows, columns)] = 1
        return weights


def compiled(model: Transformer, *, int8: bool = False) -> Engine:
    """Return the compiled engine for a model."""
    return NativeEngine(NativeDecoder(model.config, model.vocab_sizes, arrays_of(model), int8=int8))


def translator_of(
    model: Transformer,
    tokenizer: Any,
    search: SearchConfig | None = None,
    *,
    int8: bool = False,
    torch: bool = False,
    **options: Any,
) -> Translator:
    """Return a translator of a model; with `torch`, on PyTorch, else compiled."""
    engine = TorchEngine(model) if torch else compiled(model, int8=int8)
    return Translator(engine, tokenizer, search or SearchConfig(), **options)
