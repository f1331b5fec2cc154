"""Models by language pair, and the translation of texts and files with them.

A text between two languages goes through one model, or through two if the server has a pivot language.
"""

from __future__ import annotations

import asyncio
import math
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from relattn_mt.documents.html import fill_pages, page_texts
from relattn_mt.serve import parsing
from relattn_mt.serve.limits import Limits
from relattn_mt.serve.metrics import Metrics
from relattn_mt.serve.pair_service import PairService, Word
from relattn_mt.serve.queue import RECENT, BatchQueue, QueueFull
from relattn_mt.support.errors import InputError, one_line, require, require_at_most
from relattn_mt.support.types import LanguagePair
from relattn_mt.text.marked import Marked
from relattn_mt.text.sentences import SplitText, split
from relattn_mt.tokens.text_files import require_no_nul
from relattn_mt.translate.options import DEFAULTS, SentenceOptions
from relattn_mt.translate.output_formats import report_row
from relattn_mt.translate.translation import Translation, kept_translation
from relattn_mt.translate.translator import Translator

_PROBE_SECONDS = 1.0  # that a check of the server's health waits for a translation
_PORTION = 2  # batches of a file that are in the queue at a time
_FULL_SECONDS = 0.5  # until a file tries a full queue again
_MOST_PAIRS = 1000  # whose queues are kept, each a few KB


@dataclass(frozen=True)
class ScoredText:
    """Translation of a text with confidences.

    Attributes:
        sentences: Sentences of the source text.
        words: Words of the translation and the white space between them.
        others: Other translations, best first.
        warnings: What is implausible in the translation of each sentence, as `implausibilities` names it. After two
            models, the sentences are those of the text between them.
        has_choices: Whether the words can be replaced, by a translation with a prefix.
    """

    sentences: list[str]
    words: list[Word]
    others: list[str]
    warnings: list[tuple[str, ...]]
    has_choices: bool = False


@dataclass(frozen=True)
class TranslatedText:
    """Translations of a text.

    Attributes:
        ranked: Different translations, best first. Without marks if they are those of plain text.
        warnings: What is implausible in the best one, as `implausibilities` names it.
        confidence: exp of the mean log-probability of the tokens of the best one. Of two models, and of the parts of a
            page, it is the least.
    """

    ranked: list[Any]
    warnings: list[str]
    confidence: float = 1.0


class TranslatedFile(NamedTuple):
    """Translation of a file.

    Attributes:
        content: The bytes of the file.
        rows: A row per sentence, as `report_row` makes it.
        flagged: Number of sentences with warnings.
    """

    content: bytes
    rows: list[str]
    flagged: int


class Router:
    """Translates texts and files between all languages of a server.

    Args:
        translators: Translator of each language pair.
        limits: Limits on requests.
        pivot: Language to translate through if no model translates a pair directly; none if empty.

    Raises:
        InputError: No model translates into the pivot, or none from it.
    """

    def __init__(
        self,
        translators: Mapping[LanguagePair, Translator],
        limits: Limits,
        *,
        pivot: str = "",
    ) -> None:
        self.limits = limits
        self.metrics = Metrics(limits)
        self._pivot = pivot
        self._probing = asyncio.Lock()  # so that many checks of the server's health are not more work than one
        self._make_queue = partial(
            BatchQueue,
            threads=ThreadPoolExecutor(1, thread_name_prefix="translate"),
            limits=limits,
            on_batch=self.metrics.batch_sentences.observe,
            recent=deque(maxlen=RECENT),
        )
        self._parsers = parsing.ParserPool(limits)
        self._translators = translators
        self._models: dict[LanguagePair, PairService] = {}  # of the pairs that are in use
        self.metrics.waiting.set_function(lambda: sum(queue.waiting for queue in self.queues))
        self.pairs = sorted(translators)
        self.sources = sorted({source for source, _ in self.pairs})
        self.codes = sorted({code for pair in self.pairs for code in pair})
        first_by_source = {pair[0]: pair for pair in reversed(self.pairs)}
        first_by_target = {pair[1]: pair for pair in reversed(self.pairs)}
        shown = {*first_by_source.values(), *first_by_target.values()}  # not all: a model may have 100,000 pairs
        described = {pair: translators[pair] for pair in self.pairs if pair in shown}
        self.examples = {source: described[pair].examples for source, pair in first_by_source.items()}  # texts
        self.cards = _union([translator.card] for translator in described.values())
        targets = {target for _, target in self.pairs}
        fits = not pivot or (pivot in self.sources and pivot in targets)
        require(fits, f"pivot must be a language that models translate from and into, got {one_line(pivot, 40)}")

    def targets(self, source: str) -> list[str]:
        """Return the languages that a language can be translated into."""
        return [code for code in self.codes if self._route(source, code)]

    @property
    def queues(self) -> list[BatchQueue]:
        """Queues of the pairs that are in use."""
        return [queue for model in self._models.values() for queue in model.queues]

    async def translate(
        self,
        texts: Sequence[str],
        sources: Sequence[str],
        target: str,
        options: SentenceOptions,
        *,
        html: bool,
    ) -> list[TranslatedText]:
        """Return the translations of each text. A text that is in the target language is left unchanged.

        Args:
            texts: Texts in any of the languages.
            sources: Language of each text.
            target: Language to translate into.
            options: Options of each sentence. `n_best` is the maximum number of translations per text; the beam size
                also limits it.
            html: Whether the texts are HTML.

        Raises:
            InputError: No model translates the languages, a text cannot be read, or there are too many sentences.
            QueueFull: Too many sentences are waiting.
            ParsingLimitExceeded: HTML takes too much time or memory to parse.
        """
        results = {}
        for source in dict.fromkeys(sources):
            group = [text for text, text_source in zip(texts, sources, strict=True) if text_source == source]
            translations = [TranslatedText([text], []) for text in group]
            if source != target or source not in self.codes:
                route = self._require_route(source, target)
                if html:
                    translations = await self._translate_pages(route, group, options)
                else:
                    translated = await self._translate_route(route, [Marked(text) for text in group], options)
                    translations = [
                        replace(result, ranked=[best.text for best in result.ranked]) for result in translated
                    ]
            results[source] = iter(translations)
        return [next(results[source]) for source in sources]

    async def _translate_pages(
        self, route: Sequence[PairService], texts: Sequence[str], options: SentenceOptions
    ) -> list[TranslatedText]:
        """Return the translations of each HTML text."""
        pages = await self._parsers.run(page_texts, texts)
        texts_of_pages = list(chain(*pages))
        translated = iter(await self._translate_route(route, texts_of_pages, options))
        parts = [[next(translated) for _ in page] for page in pages]
        versions = [_combine([part.ranked for part in page]) for page in parts]
        filled = await self._parsers.run(fill_pages, texts, versions)
        results = []
        for ranked, page in zip(filled, parts, strict=True):
            confidence = min((part.confidence for part in page), default=1.0)
            results.append(TranslatedText(ranked, _union(part.warnings for part in page), confidence))
        return results

    async def words(
        self,
        text: str,
        source: str,
        target: str,
        options: SentenceOptions,
        *,
        prefix: str,
        choice: str,
    ) -> ScoredText:
        """Return the words of a translation of a plain text, and other translations.

        Args:
            text: Plain text.
            source: Its language.
            target: Language to translate into.
            options: Options of each sentence. `n_best` is the maximum number of translations; the beam size also limits
                it.
            prefix: Text that each translation begins with; it requires a text of one sentence, and one model.
            choice: Translation whose words are returned, out of the `n_best` best ones; the best one if empty.

        Errors are those of `translate`, or an InputError if `choice` is not among the translations.
        """
        route = self._require_route(source, target)
        *earlier_models, model = route
        marked = Marked(text)
        sentences = [sentence.text for sentence in split(marked, *route[0].splitting, not prefix).sentences]
        is_direct = not earlier_models
        fits = is_direct and len(sentences) == 1
        require(not prefix or fits, "prefix requires one sentence and a direct model")
        if earlier_models:
            (between,) = await self._translate_route(earlier_models, [marked], DEFAULTS)
            marked = between.ranked[0]
        ((split_text, translations),) = await self._translate_sentences(model, [marked], options, prefix)
        versions = {version.text: parts for version, parts in _versions(split_text, translations).items()}
        require(not choice or choice in versions, "choice must be one of the translations")
        chosen = versions.pop(choice or next(iter(versions)))
        words = [Word(split_text.between[0])]
        lines = [sentence.text for sentence in split_text.sentences]
        scored = await model.words.submit(list(zip(lines, chosen, strict=True)))
        for number, (sentence, space) in enumerate(zip(scored, split_text.between[1:], strict=True)):
            for word in sentence:
                # after two models, ranges are those of the text between them
                words.append(word._replace(sentence=number) if is_direct else Word(word.text, word.confidence))
            words.append(Word(space))
        return ScoredText(
            sentences,
            [word for word in words if word.text],
            list(versions),
            [translation.warnings for translation in chosen],
            has_choices=is_direct,
        )

    async def document(
        self,
        name: str,
        content: bytes,
        source: str,
        target: str,
        options: SentenceOptions,
        *,
        report: Callable[[float], object] = lambda share: None,
    ) -> TranslatedFile:
        """Return the translation of a file, with a table of its sentences.

        A file may be longer than a request. Its sentences enter the queue in portions, and only their translations and
        the rows of the table are kept. Of two models, the table has the sentences of both, one after the other.

        Args:
            name: Name of the file.
            content: Its bytes.
            source: Language of its text.
            target: Language to translate into.
            options: Options of each sentence, with an `n_best` of 1.
            report: Function that is called with the share of the work that is done.

        Errors are those of `read_document` and `translate`, but if the queue is full, the file waits.
        """
        if source == target and source in self.codes:
            return TranslatedFile(content, [], 0)
        route = self._require_route(source, target)
        rows = []
        flagged = 0
        file = (name, content, self.limits.unpacked)
        parse = self._parsers.run
        texts, kept = await parse(parsing.pickled_texts, *file, self.limits.file)
        size = max(1, min(_PORTION * self.limits.batch, self.limits.waiting // 4))
        for number, model in enumerate(route):
            splitting = *model.splitting, options.keep_literals
            split_texts, portions = await parse(parsing.split_pickled, texts, size, *splitting)
            report(number / len(route))
            translated = []
            for portion in portions:
                items = [model.sentence(sentence, options) for sentence in pickle.loads(portion)]
                while True:
                    try:
                        ranked = await model.sentences.submit(items)
                        break
                    except QueueFull:
                        await asyncio.sleep(_FULL_SECONDS)
                translated.append(pickle.dumps([best.marked for (best,) in ranked]))
                rows += [report_row(item.text.text, best) for item, (best,) in zip(items, ranked, strict=True)]
                flagged += sum(bool(best.warnings) for (best,) in ranked)
                report((number + len(translated) / len(portions)) / len(route))
            texts = await parse(parsing.join_pickled, split_texts, translated)
        rows += [report_row(text, kept_translation(text)) for text in kept]
        filled = await parse(parsing.fill_pickled, *file, texts, target)
        return TranslatedFile(filled, rows, flagged + len(kept))

    async def readable_texts(self, texts: Sequence[str]) -> list[str]:
        """Return the texts of HTML without tags, to detect their languages."""
        pages = await self._parsers.run(page_texts, texts)
        return [" ".join(text.text for text in page) for page in pages]

    async def readable_text(self, name: str, content: bytes) -> str:
        """Return the text of a file without tags, to detect its language."""
        return await self._parsers.run(parsing.readable_text, name, content, self.limits.unpacked, self.limits.file)

    def check_texts(self, texts: Sequence[str]) -> None:
        """Raise an InputError if texts have too many characters in total, or NUL."""
        require_at_most(self.limits.characters, sum(map(len, texts)), "a request", "characters")
        for text in texts:
            require_no_nul(text, "q")

    async def unavailable_reason(self) -> str:
        """Return why texts cannot be translated; empty if they can.

        Unless other work shows it, a word is translated, and one with each model whose last batch failed.
        """
        async with self._probing:
            seconds = [queue.seconds for queue in self.queues if queue.seconds is not None]
            if max(seconds, default=0.0) > self.limits.seconds:
                return f"a batch has taken longer than {self.limits.seconds:g} seconds"
            models = [model for model in self._models.values() if model.sentences.failed]
            if not models and not seconds:
                models = [self._model(self.pairs[0])]
            return next(filter(None, await asyncio.gather(*map(self._probe, models))), "")

    async def _probe(self, model: PairService) -> str:
        """Return why a word is not translated; empty if it is, or if there is other work."""
        try:
            await asyncio.wait_for(model.sentences.submit([model.sentence(Marked("OK"))]), _PROBE_SECONDS)
        except (QueueFull, InputError):  # the model works
            return ""
        except TimeoutError:
            is_working = not model.sentences.failed and any(queue.seconds is not None for queue in self.queues)
            return "" if is_working else "the model does not answer"
        except Exception as error:
            return f"the model fails with {type(error).__name__}"
        return ""

    def _route(self, source: str, target: str) -> list[LanguagePair]:
        """Return the language pairs to translate a text with, in order. Empty if no models connect the languages."""
        pairs = [(source, target)]
        if source != target and pairs[0] not in self._translators:
            pairs = [(source, self._pivot), (self._pivot, target)]
        return pairs if all(pair in self._translators for pair in pairs) else []

    def _require_route(self, source: str, target: str) -> list[PairService]:
        route = self._route(source, target)
        require(route, f"no model translates from {source[:40]!r} to {target[:40]!r}")
        return list(map(self._model, route))

    def _model(self, pair: LanguagePair) -> PairService:
        """Return the translator of a pair with its queues. Unused ones are dropped if there are many."""
        if pair not in self._models:
            if len(self._models) >= _MOST_PAIRS:
                self._models = {key: model for key, model in self._models.items() if model.is_busy}
            self._models[pair] = PairService(pair, self._translators[pair], self._make_queue)
        return self._models[pair]

    async def _translate_route(
        self, route: Sequence[PairService], texts: Sequence[Marked], options: SentenceOptions
    ) -> list[TranslatedText]:
        """Return the translations of each text, with marks. Only the last model has alternatives and a glossary."""
        *earlier_models, model = route
        earlier = [TranslatedText([text], []) for text in texts]
        if earlier_models:
            once = replace(options, n_best=1, glossary=None)
            earlier = await self._translate_route(earlier_models, texts, once)
        translated = await self._translate_sentences(model, [text.ranked[0] for text in earlier], options)
        results = []
        for (split_text, sentences), before in zip(translated, earlier, strict=True):
            best = [ranked[0] for ranked in sentences]
            warnings = _union([before.warnings, *(translation.warnings for translation in best)])
            confidence = min(before.confidence, _confidence(best))
            results.append(TranslatedText(list(_versions(split_text, sentences)), warnings, confidence))
        return results

    async def _translate_sentences(
        self, model: PairService, texts: Sequence[Marked], options: SentenceOptions, prefix: str = ""
    ) -> list[tuple[SplitText, list[list[Translation]]]]:
        """Return the sentences of each text, and the translations of each sentence, best first."""
        split_texts = [split(text, *model.splitting, options.keep_literals and not prefix) for text in texts]
        sentences = [sentence for text in split_texts for sentence in text.sentences]
        require_at_most(self.limits.sentences, len(sentences), "a request", "sentences")
        items = [model.sentence(sentence, options, prefix) for sentence in sentences]
        translations = iter(await model.sentences.submit(items))
        return [(text, [next(translations) for _ in text.sentences]) for text in split_texts]


def _confidence(translations: Sequence[Translation]) -> float:
    """Return exp of the mean log-probability of all tokens of a text."""
    counts = [len(translation.tokens) + 1 for translation in translations]
    total = sum(translation.mean_log_prob * count for translation, count in zip(translations, counts, strict=True))
    return math.exp(min(0.0, total / sum(counts))) if counts else 1.0


def _combine(options: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Return the best option of each part, then the second best of each, …; a part with fewer repeats its last one."""
    count = max(map(len, options), default=1)
    return [[ranked[min(k, len(ranked) - 1)] for ranked in options] for k in range(count)]


def _union(names: Iterable[Iterable[str]]) -> list[str]:
    """Return the different names, in the order of their first occurrence."""
    return list(dict.fromkeys(chain.from_iterable(names)))


def _versions(
    split_text: SplitText, translations: Sequence[Sequence[Translation]]
) -> dict[Marked, Sequence[Translation]]:
    """Return the different translations of a text, best first, each with those of its sentences."""
    versions: dict[Marked, Sequence[Translation]] = {}
    for chosen in _combine(translations):
        text = split_text.join([translation.marked for translation in chosen])
        versions.setdefault(text, chosen)
    return versions
