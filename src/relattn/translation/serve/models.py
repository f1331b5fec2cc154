"""The models of a server: what languages there are between them, and how a text goes from one to another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from relattn.translation.config import SearchConfig
from relattn.translation.errors import InputError, one_line
from relattn.translation.serve.limits import Limits
from relattn.translation.serve.queue import Batches
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.pipeline import Translation, Translator

if TYPE_CHECKING:
    from relattn.translation.analysis.attention import Inspection

Pair = tuple[str, str]
LONGEST_INSPECTED = 60  # pieces of a sentence whose attention is shown


@dataclass(frozen=True)
class Asked:
    """A sentence, and how many translations of it."""

    sentence: str
    count: int


class Model:
    """A translator behind queues, each with what is asked of it.

    Args:
        translator: translator of lines.
        search: how it searches.
        target: language.
        threads: that it works in.
        limits: of the queue.
    """

    def __init__(
        self,
        translator: Translator,
        search: SearchConfig,
        target: str,
        threads: ThreadPoolExecutor,
        limits: Limits,
    ) -> None:
        self.translator, self.search, self.target = translator, search, target

        def queue(work: Callable[[list[Any]], list[Any]]) -> Batches[Any, Any]:
            return Batches(work, threads, size=limits.batch, most=limits.waiting, pause=limits.pause / 1000)

        self.plain: Batches[Asked, list[Translation]] = queue(partial(_translate, translator, search, keep_tags=False))
        self.tagged: Batches[Asked, list[Translation]] = queue(partial(_translate, translator, search, keep_tags=True))
        self.scored: Batches[tuple[str, list[int]], list[float]] = queue(partial(_score, translator))
        self.inspected: Batches[str, Inspection] = queue(partial(_inspect, translator, search))

    @property
    def queues(self) -> list[Batches[Any, Any]]:
        """All of them."""
        return [self.plain, self.tagged, self.scored, self.inspected]


def _translate(
    translator: Translator, search: SearchConfig, asked: list[Asked], *, keep_tags: bool
) -> list[list[Translation]]:
    options = TranslateOptions(n_best=max(each.count for each in asked), search=search, keep_tags=keep_tags)
    found = translator.n_best([each.sentence for each in asked], options)
    return [of_line[: each.count] for of_line, each in zip(found, asked, strict=True)]


def _score(translator: Translator, asked: list[tuple[str, list[int]]]) -> list[list[float]]:
    """The log-probabilities of the pieces of translations, given with their sentences, and of their ends."""
    sources, targets = zip(*asked, strict=True)
    return translator.log_probs([translator.tokenizer.encode(source) for source in sources], targets)


def _inspect(translator: Translator, search: SearchConfig, lines: list[str]) -> list[Inspection]:
    if not translator.supports_alignment:
        raise InputError("an export shows no attention: that needs the bundle it was made from")

    from relattn.translation.analysis.attention import inspect
    from relattn.translation.translate.torch_translator import TorchTranslator

    assert isinstance(translator, TorchTranslator)
    return [inspect(translator, line, TranslateOptions(search=search), longest=LONGEST_INSPECTED) for line in lines]


class Models:
    """The models by their languages.

    Args:
        translators: translator of each language pair.
        searches: search of each language pair; that of its translator by default.
        pivot: a language through which texts go between two that no model serves; none where empty.
        limits: of their queues.

    Raises:
        InputError: no model reads or writes the pivot.
    """

    def __init__(
        self,
        translators: Mapping[Pair, Translator],
        *,
        searches: Mapping[Pair, SearchConfig] | None = None,
        pivot: str,
        limits: Limits,
    ) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="translate")
        self.by_pair = {
            pair: Model(each, (searches or {}).get(pair, each.search), pair[1], self._threads, limits)
            for pair, each in translators.items()
        }
        self.sources = sorted({source for source, _ in self.by_pair})
        self.codes = sorted({code for pair in self.by_pair for code in pair})
        self._pivot = pivot
        if pivot and not ({source for source, target in self.by_pair if target == pivot} and pivot in self.sources):
            raise InputError(f"pivot is {one_line(pivot, 40)}, but no two models translate into it and from it")

    def route(self, source: str, target: str) -> list[Pair]:
        """The pairs of languages that a text goes through; none where there is no way, or none is needed."""
        if (source, target) in self.by_pair:
            return [(source, target)]
        through = [(source, self._pivot), (self._pivot, target)]
        return through if source != target and all(pair in self.by_pair for pair in through) else []

    def targets(self, source: str) -> list[str]:
        """What a language can be translated into."""
        return [code for code in self.codes if self.route(source, code)]

    def close(self) -> None:
        """Once what is worked on is done."""
        self._threads.shutdown()
