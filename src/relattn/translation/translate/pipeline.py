"""From lines of text to lines of text: tokenize, batch by length, search, and restore the order.

Lines are translated longest first, in batches of similar length, which needs the least padding. A translation and its
score do not depend on the batch that the line was in. A translation ends after at most
`max_length_ratio · source pieces + max_length_extra` generated tokens. A line that is longer than the model can read,
or than `LONGEST_LINE` characters, is refused, and the message has its line number.
"""

from __future__ import annotations

import copy
import logging
import math
import re
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from tqdm import tqdm

from relattn.translation.config import SearchConfig
from relattn.translation.data.imported_tokenizer import AnyTokenizer, ImportedTokenizer
from relattn.translation.data.planning import batch_by_size
from relattn.translation.data.text_files import has_text
from relattn.translation.errors import InputError, one_line, require, same_language, unknown
from relattn.translation.search.length_penalty import length_penalty
from relattn.translation.search.types import Hypothesis, Request
from relattn.translation.text.marked import Mark, Marked
from relattn.translation.text.patterns import LITERAL, SYMBOL, TAG, literals
from relattn.translation.text.place import place
from relattn.translation.text.plausibility import implausibilities
from relattn.translation.text.strip import StrippedText, strip
from relattn.translation.translate.options import DEFAULTS, TranslateOptions
from relattn.translation.translate.prefixes import Prefixes

MAX_SENTENCES = 128  # per batch, before the beam: enough to keep the processor busy
MAX_TOKENS = 4096  # padded source pieces per batch, which bounds memory
PAIRS = 4096  # pairs that are scored in one chunk, grouped by length
LONGEST_LINE = 1 << 14  # characters per line; the time of attention grows with the square of the length

_log = logging.getLogger(__name__)


def cached_sentences(beam_size: int) -> int:
    """Return the number of sentences per batch with which keys, values and logits stay in the cache of most CPUs."""
    return max(1, min(64, 128 // beam_size))


@dataclass(frozen=True)
class Translation:
    """One translation of a line.

    Attributes:
        text: The translation.
        score: Log-probability of its tokens and the end of sentence, in nats, divided by the length penalty; 0 for a
            line that is blank or copied.
        tokens: Its pieces, without the end of sentence.
        mean_log_prob: Mean log-probability of its tokens and the end of sentence, in nats; 0 for a line that is
            blank or copied.
        alignment: (source word, target word) pairs, counted from 0, if they were asked for.
        warnings: What is implausible in it, as `implausibilities` names it.
        marks: Marks of the source in their places in `text`.
    """

    text: str
    score: float
    tokens: list[int]
    mean_log_prob: float = 0.0
    alignment: list[tuple[int, int]] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()

    @property
    def confidence(self) -> float:
        """exp(mean_log_prob), the geometric mean of the probabilities of the tokens and the end, in [0, 1]."""
        return math.exp(min(self.mean_log_prob, 0.0))

    @property
    def marked(self) -> Marked:
        """The text with its marks."""
        return Marked(self.text, self.marks)


@dataclass(frozen=True)
class Sentence:
    """A sentence to translate, with its own options.

    Attributes:
        text: The sentence. Its marks are placed in the translation.
        options: How to translate it. `search` and `sampling` are those of the first sentence of a call.
        prefix: Text that each translation begins with; it requires a text without marks.
    """

    text: Marked
    options: TranslateOptions = DEFAULTS
    prefix: str = ""

    def __post_init__(self) -> None:
        if self.prefix:
            require(not self.options.keep_tags, "keep_tags does not work with prefixes: restoring tags moves words")
            require(not self.text.marks, "marks do not work with prefixes: placing marks moves words")

    @property
    def removed(self) -> re.Pattern[str] | None:
        """Pattern of what the model does not read, besides marks; None if it reads all."""
        if self.options.keep_tags:
            return TAG
        return LITERAL if self.text.marks and self.options.keep_literals else None

    @property
    def may_lose_literals(self) -> bool:
        """Whether literals are removed only if the model reads and changes them."""
        options = self.options
        return options.keep_literals and not (options.keep_tags or options.align or self.text.marks or self.prefix)


class Translator(ABC):
    """Translates lines of text; a subclass runs the model.

    A translator does not change after it was made, and may be used by several threads.

    Args:
        tokenizer: Tokenizer of both sides.
        search: Default beam size, length penalty and length limits.
        languages: Source and target language; empty if unknown.
        pairs: Pairs of languages of a model that was trained on several. An imported tokenizer has its own.
        max_length: Longest sequence that the model can hold, in pieces, end of sentence included; None if unlimited.
        workers: Number of batches that are searched at the same time, if the subclass supports it.
    """

    supports_prefixes = True
    is_torch = False  # whether PyTorch runs the model, so that it can be analyzed
    examples: Sequence[str] = ()  # source lines from the card of the model
    precision = "fp32"  # of weights and arithmetic, unless they are chosen or those of an export

    def __init__(
        self,
        tokenizer: AnyTokenizer,
        search: SearchConfig,
        *,
        languages: tuple[str, str] = ("", ""),
        pairs: Sequence[tuple[str, str]] = (),
        max_length: int | None = None,
        workers: int = 1,
    ) -> None:
        self.tokenizer, self.search, self.max_length = tokenizer, search, max_length
        self.src_lang, self.tgt_lang = languages
        self._pairs = list(pairs)
        self.workers = workers

    def __repr__(self) -> str:
        pair = f"{self.src_lang or 'unknown'} to {self.tgt_lang or 'unknown'}"
        pair += f" of {len(self.pairs):,} pairs" if len(self.pairs) > 1 else ""
        return f"{type(self).__name__}({', '.join([pair, *self._description()])})"

    def _description(self) -> list[str]:
        """Return what `repr` says about the model and how it computes."""
        return []

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of source and target language that the model translates."""
        vocabulary = self.tokenizer.vocabulary if isinstance(self.tokenizer, ImportedTokenizer) else None
        if vocabulary is None or not vocabulary.languages:
            return self._pairs or [(self.src_lang, self.tgt_lang)]
        sources = vocabulary.languages if vocabulary.reads_source_language else [self.src_lang]
        return [(source, target) for source in sources for target in vocabulary.languages if source != target]

    def _pairs_with(self, *languages: str) -> list[tuple[str, str]]:
        """Return the pairs with a source and a target language. An empty one fits all."""
        return [
            pair
            for pair in self.pairs
            if all(not code or same_language(code, own) for code, own in zip(languages, pair, strict=True))
        ]

    def with_languages(self, src_lang: str = "", tgt_lang: str = "") -> Translator:
        """Return a translator of the same model for another pair of languages.

        Args:
            src_lang: Source language. By default that of this translator, or if `tgt_lang` is that language, the only
                other one.
            tgt_lang: Target language. The default is chosen as for `src_lang`.

        Raises:
            InputError: The model does not translate this pair.
        """
        fitting = self._pairs_with(src_lang, tgt_lang)
        src_lang, tgt_lang = src_lang or self.src_lang, tgt_lang or self.tgt_lang
        if same_language(src_lang, tgt_lang) and len(fitting) == 1:
            ((src_lang, tgt_lang),) = fitting
        if same_language(src_lang, self.src_lang) and same_language(tgt_lang, self.tgt_lang):
            return self
        pairs = self._pairs_with(src_lang, tgt_lang)
        if not pairs:
            given = f"{one_line(src_lang, 40)} to {one_line(tgt_lang, 40)}"
            if len(self.pairs) == 1:
                raise InputError(f"the model translates {self.src_lang} to {self.tgt_lang}, got {given}")
            for side, (name, code) in enumerate((("src_lang", src_lang), ("tgt_lang", tgt_lang))):
                codes = sorted({pair[side] for pair in self.pairs})
                if not any(same_language(code, each) for each in codes):
                    raise unknown(name, code, codes)
            raise InputError(f"the languages must differ, got {given}")
        translator = copy.copy(self)
        vars(translator)["characters"] = self.characters  # all pairs share them
        if not same_language(src_lang, self.src_lang):
            translator.examples = ()
        translator.src_lang, translator.tgt_lang = pairs[0]
        translator.tokenizer = self.tokenizer.with_languages(*pairs[0])
        return translator

    @property
    def engine(self) -> str:
        """Name of the implementation that runs the searches, and why no faster one does, in one line."""
        return type(self).__name__

    def max_sentences(self, beam_size: int) -> int:
        """Return the largest number of sentences per batch."""
        return MAX_SENTENCES

    @abstractmethod
    def search_batch(
        self, requests: list[Request], search: SearchConfig, options: TranslateOptions
    ) -> list[list[Hypothesis]]:
        """Return the `options.n_best` best translations of each request, best first, or as many that are drawn.

        Args:
            requests: Sentences of similar length.
            search: How to search.
            options: Options of the call.

        Raises:
            InputError: Prefixes, phrases, sampling or this kind of search are not supported.
        """

    def map_batches(self, work: Callable[[list[Request]], Any], batches: list[list[Request]]) -> Iterator[Any]:
        """Yield `work(batch)` for each of `batches`, in order, with `workers` threads if that is supported."""
        return map(work, batches)

    @abstractmethod
    def log_probs(self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability, in nats, of each piece of given translations, and of the end of sentence.

        Args:
            src_ids: Source pieces, without special tokens.
            tgt_ids: Target pieces, without special tokens.
        """

    @abstractmethod
    def align_batch(
        self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]
    ) -> list[list[tuple[int, int]]]:
        """Return the (source word, target word) pairs of given translations, counted from 0, as `alignment.links`.

        Args:
            src_ids: Source pieces, without special tokens.
            tgt_ids: Target pieces, without special tokens.
        """

    def score(self, pairs: Iterable[tuple[str, str]]) -> Iterator[list[tuple[int, float]]]:
        """Yield, for each pair, the pieces of the given translation and the end of sentence with log-probabilities.

        Args:
            pairs: Source and target lines. A blank line has no pieces.

        Raises:
            InputError: a line is longer than the model can hold, or than LONGEST_LINE characters. The message has the
                side and the line number, counted from 1. Results of earlier lines have been yielded, but for a few.
        """
        remaining = iter(enumerate(pairs, start=1))
        while chunk := list(islice(remaining, PAIRS)):
            src_ids, tgt_ids = self.encode_pairs(chunk)
            for ids, log_probs in zip(tgt_ids, self.log_probs(src_ids, tgt_ids), strict=True):
                yield list(zip([*ids, self.tokenizer.special.eos], log_probs, strict=True))

    def encode_pairs(self, numbered: Sequence[tuple[int, tuple[str, str]]]) -> tuple[list[list[int]], list[list[int]]]:
        """Return the pieces of sources and of targets. Raises InputError as `score` does."""
        src_ids, tgt_ids = [], []
        for number, (source, target) in numbered:
            require_readable(source, f"source line {number}")
            src_ids.append(self._encode_source(source, f"source line {number}"))
            require_readable(target, f"target line {number}")
            tgt_ids.append(self.tokenizer.encode_target(target))
            self._require_held(len(tgt_ids[-1]), self.tokenizer.special.per_target, f"target line {number}")
        return src_ids, tgt_ids

    def _encode_source(self, line: str, where: str) -> list[int]:
        """Return the pieces of a source line. Raises InputError, which begins with `where`, if it is too long."""
        ids = self.tokenizer.encode(line)
        self._require_held(len(ids), self.tokenizer.special.per_source, where)
        return ids

    def holds(self, src_ids: Sequence[int], tgt_ids: Sequence[int]) -> bool:
        """Return whether a sentence and a translation, without special tokens, are short enough for the model."""
        special = self.tokenizer.special
        longest = max(len(src_ids) + special.per_source, len(tgt_ids) + special.per_target)
        return self.max_length is None or longest <= self.max_length

    def _require_held(self, pieces: int, special: int, where: str) -> None:
        """Raise an InputError if a line with `special` special tokens is longer than the model can hold."""
        if self.max_length is not None and pieces + special > self.max_length:
            raise InputError(f"{where} has {pieces} pieces, but this model reads at most {self.max_length - special}")

    def translate(
        self,
        lines: Iterable[str],
        options: TranslateOptions = DEFAULTS,
        *,
        prefixes: Iterable[str] | None = None,
        progress: bool = False,
    ) -> list[str]:
        """Return the best translation of each line, in order; that of a blank line is empty.

        A line without a letter and without a number such as ``1,204.5`` is copied, unless `options.copy` is False.

        Args:
            lines: One sentence each.
            options: Options of this call.
            prefixes: Text that each translation begins with, one per line; it is part of what is returned.
            progress: Show a progress bar on standard error.

        Raises:
            InputError: `options.n_best` is larger than the beam size; a line is longer than the model can read, or than
                LONGEST_LINE characters (the message has its line number, counted from 1); the number of prefixes is not
                the number of lines, a blank line has a prefix, or a prefix leaves no room for a translation.
            TypeError: Lines or prefixes are one string.
        """
        return [best.text for best, *_ in self.n_best(lines, options, prefixes=prefixes, progress=progress)]

    def n_best(
        self,
        lines: Iterable[str],
        options: TranslateOptions = DEFAULTS,
        *,
        prefixes: Iterable[str] | None = None,
        progress: bool = False,
    ) -> list[list[Translation]]:
        """Return the `options.n_best` best translations of each line, best first; a blank line has one, empty.

        With `options.sampling`, that many are drawn. Arguments and errors are those of `translate`.
        """
        for name, given in (("lines", lines), ("prefixes", prefixes)):
            if isinstance(given, str):  # an iterable of characters
                raise TypeError(f"{name} must be a list of strings, got the string {given[:40]!r}")
        return list(self.stream([list(lines)], options, prefixes=prefixes, progress=progress))

    def stream(
        self,
        chunks: Iterable[Sequence[str]],
        options: TranslateOptions = DEFAULTS,
        *,
        prefixes: Iterable[str] | None = None,
        progress: bool = False,
        first_line: int = 1,
    ) -> Iterator[list[Translation]]:
        """Yield the translations of each line of chunks of lines, in order, as `n_best` returns them.

        Each chunk is translated before the next is read. Lines are numbered from `first_line` on, in errors and in what
        sampling draws. The translations of earlier chunks have been yielded before an error. The progress bar has an
        end if `chunks` is a list.
        """
        total = sum(map(len, chunks)) if isinstance(chunks, list) else None
        remaining, given = iter(chunks), None if prefixes is None else iter(prefixes)
        before = 0
        with tqdm(total=total, unit="line", file=sys.stderr, disable=not progress) as bar:
            for chunk in remaining:
                of_chunk = [""] * len(chunk) if given is None else list(islice(given, len(chunk)))
                if len(of_chunk) < len(chunk):
                    lines = before + len(chunk) + sum(map(len, remaining))
                    raise InputError(
                        f"there must be a prefix per line, got {before + len(of_chunk)} prefixes for {lines} lines"
                    )
                pairs = zip(chunk, of_chunk, strict=True)
                sentences = [Sentence(Marked(line), options, prefix) for line, prefix in pairs]
                yield from self.translate_sentences(sentences, first_line + before, bar.update)
                before += len(chunk)
        if given is not None and (more := sum(1 for _ in given)):
            raise InputError(f"there must be a prefix per line, got {before + more} prefixes for {before} lines")

    def translate_sentences(
        self,
        sentences: Sequence[Sentence],
        first_line: int = 1,
        report_done: Callable[[int], object] = lambda count: None,
    ) -> list[list[Translation]]:
        """Return the `n_best` best translations of each sentence, best first. Sentences share batches.

        Lines are translated without symbols, and then without other literals those whose translations have lost some. A
        sentence is complete without its symbols. Without another literal it may lack its subject or object. The best
        translation does not depend on how many are wanted.

        Args:
            sentences: Sentences of one language.
            first_line: Number of the first one, in messages.
            report_done: Function that is called with the number of sentences that are ready.

        Raises:
            InputError: As `translate`.
        """
        numbered = dict(enumerate(sentences, start=first_line))
        for number, sentence in numbered.items():
            self._check(sentence, number)
        removed = {number: sentence.removed for number, sentence in numbered.items()}
        own: dict[int, Counter[str]] = {}
        too_long = set()
        for number, sentence in numbered.items():
            if sentence.may_lose_literals and (found := literals(sentence.text.text)):
                own[number], removed[number] = found, SYMBOL
                if not self.holds(self.tokenizer.encode(sentence.text.text), ()):
                    too_long.add(number)
        report_done(len(too_long))
        first = {number: sentence for number, sentence in numbered.items() if number not in too_long}
        results = self._translate_numbered(first, removed, report_done)
        kept = {number: [literals(each.text) == own[number] for each in results.get(number, ())] for number in own}
        lost = {number: numbered[number] for number in own if number in too_long or not all(kept[number])}
        removed = dict.fromkeys(lost, LITERAL)
        for number, others in self._translate_numbered(lost, removed, lambda count: None).items():
            if kept[number][:1] == [True]:
                others = [
                    each if is_kept else others[min(place, len(others) - 1)]
                    for place, (each, is_kept) in enumerate(zip(results[number], kept[number], strict=True))
                ]
            results[number] = others
        return [results[number] for number in numbered]

    def _check(self, sentence: Sentence, number: int) -> None:
        """Raise an InputError if a sentence cannot be translated as its options say."""
        options, search = sentence.options, sentence.options.search or self.search
        if options.sampling is None and options.n_best > search.beam_size:
            raise InputError(f"n_best must be at most the beam size {search.beam_size}, got {options.n_best}")
        if options.glossary and (search.no_repeat_ngram > 0 or search.repetition_penalty != 1.0):
            raise InputError("a glossary does not work with no_repeat_ngram and repetition_penalty")
        require_readable(sentence.text.text, f"line {number}")
        require_readable(sentence.prefix, f"prefix {number}")
        if has_text(sentence.prefix) and not has_text(sentence.text.text):
            raise InputError(f"line {number} is blank, so its prefix must be blank too")

    def _translate_numbered(
        self,
        sentences: Mapping[int, Sentence],
        removed: Mapping[int, re.Pattern[str] | None],
        report_done: Callable[[int], object],
    ) -> dict[int, list[Translation]]:
        """Translate sentences by number. What `removed` matches is removed before, like marks, and put back."""
        stripped = {}  # of the sentences with tags
        for number, sentence in sentences.items():
            if not sentence.prefix and (sentence.text.marks or removed[number] is not None):
                source = strip(sentence.text, removed[number])
                if source.tags:
                    stripped[number] = source
        lines = {
            number: stripped[number].line if number in stripped else self.tokenizer.normalize(sentence.text.text)
            for number, sentence in sentences.items()
        }
        results = {number: [Translation("", 0.0, [])] for number in sentences}
        copied = {
            number
            for number, sentence in sentences.items()
            if sentence.options.copy and not needs_translation(lines[number]) and not has_text(sentence.prefix)
        }
        encoded = {
            number: self._encode_source(line, f"line {number}")
            for number, line in lines.items()
            if number not in copied and has_text(line)
        }
        pieces = {number: ids for number, ids in encoded.items() if ids}  # normalization may leave nothing of a line
        report_done(len(lines) - len(pieces))
        requests = [self._request(number, lines[number], ids, sentences[number]) for number, ids in pieces.items()]
        for batch, translations in self._searched(requests, sentences, stripped):
            for request in batch:
                sentence, ranked = sentences[request.number], translations[request.number]
                self._warn_if_cut(request, ranked[0], sentence.options.search or self.search)
                if sentence.prefix:
                    texts = [self._prefixes.complete(sentence.prefix, request, each.tokens) for each in ranked]
                    ranked = [replace(each, text=text) for each, text in zip(ranked, texts, strict=True)]
                results[request.number] = ranked
            report_done(len(batch))
        for number in copied:
            text, options = sentences[number].text, sentences[number].options
            if has_text(text.text) or text.marks:
                words = range(len(text.text.split())) if options.align else ()
                tokens = self.tokenizer.encode_target(text.text)
                alignment = [(word, word) for word in words]
                results[number] = [Translation(text.text, 0.0, tokens, alignment=alignment, marks=text.marks)]
        for number, source in stripped.items():
            if number not in copied:
                results[number] = [self._with_tags(source, result, number) for result in results[number]]
        for number, ids in pieces.items():
            line = sentences[number].text.text
            results[number] = [
                replace(each, warnings=implausibilities(line, each.text, len(ids), len(each.tokens)))
                for each in results[number]
            ]
        return results

    def _searched(
        self, requests: list[Request], sentences: Mapping[int, Sentence], stripped: Mapping[int, StrippedText]
    ) -> Iterator[tuple[list[Request], dict[int, list[Translation]]]]:
        """Yield batches of requests of similar length with their translations by number."""
        if not requests:
            return
        used = [sentences[request.number].options for request in requests]
        options = replace(used[0], n_best=max(each.n_best for each in used))
        search = options.search or self.search
        around = self.tokenizer.special.per_source
        lengths = np.array([len(request.src_ids) + around for request in requests], dtype=np.int64)
        max_sentences = min(self.max_sentences(search.beam_size), -(-len(requests) // self.workers))
        prefix_lengths = np.array([len(request.prefix) for request in requests])  # equal ones are read in one pass
        batch_indices = batch_by_size(np.lexsort((-lengths, prefix_lengths)), lengths, MAX_TOKENS, max_sentences)
        batches = [[requests[i] for i in indices] for indices in batch_indices]
        counts = {request.number: each.n_best for request, each in zip(requests, used, strict=True)}
        aligned = {r.number for r, each in zip(requests, used, strict=True) if each.align or r.number in stripped}
        batch_results = self.map_batches(
            lambda batch: self._translate_batch(batch, search, options, aligned, counts), batches
        )
        yield from zip(batches, batch_results, strict=True)

    def _translate_batch(
        self,
        requests: list[Request],
        search: SearchConfig,
        options: TranslateOptions,
        aligned: Collection[int],
        counts: Mapping[int, int],
    ) -> dict[int, list[Translation]]:
        """Return the translations of some requests by number, `counts` of each, with alignments for `aligned`."""
        hypotheses = self.search_batch(requests, search, options)
        pairs = [
            (request, hypothesis)
            for request, line_hypotheses in zip(requests, hypotheses, strict=True)
            for hypothesis in line_hypotheses[: counts[request.number]]
        ]
        alignments: list[list[tuple[int, int]]] = [[]] * len(pairs)
        chosen = [i for i, (request, _) in enumerate(pairs) if request.number in aligned]
        if chosen:
            sides = [pairs[i][0].src_ids for i in chosen], [pairs[i][1].tokens for i in chosen]
            for i, links in zip(chosen, self.align_batch(*sides), strict=True):
                alignments[i] = links
        penalty, given = length_penalty(search.length_penalty, search.alpha), len(self.tokenizer.special.tgt_begin)
        translations: dict[int, list[Translation]] = {request.number: [] for request in requests}
        for (request, hypothesis), alignment in zip(pairs, alignments, strict=True):
            length = len(hypothesis.tokens) + 1
            mean = hypothesis.score * penalty(length + given) / length
            text = self.tokenizer.decode(hypothesis.tokens)
            translations[request.number].append(Translation(text, hypothesis.score, hypothesis.tokens, mean, alignment))
        return translations

    def _with_tags(self, source: StrippedText, translation: Translation, number: int) -> Translation:
        """Return a translation with the tags of its line, and warn about those whose place is a guess."""
        placed, guessed = place(source, translation.text, translation.alignment)
        if guessed:
            _log.warning("line %d: the place of %s is a guess", number, one_line(" ".join(guessed), 80))
        return replace(translation, text=placed.text, marks=placed.marks, alignment=[])

    def _request(self, number: int, line: str, src_ids: list[int], sentence: Sentence) -> Request:
        """Return the request of a sentence. Raises InputError if its prefix and its terms leave no room."""
        encode, max_length, glossary = self.tokenizer.encode_target, self._max_target, sentence.options.glossary
        prefix_ids, spelling = self._prefixes.encode(sentence.prefix) if sentence.prefix else ([], None)
        terms = glossary.find(line) if glossary else []
        phrases = tuple(tuple(encode(words)) for words in terms)
        spelled = int(spelling.needed[-1]) if spelling else 0
        required = len(prefix_ids) + spelled + sum(map(len, phrases))
        if max_length is not None and required >= max_length:
            most = f"at most {max_length - 1} pieces, the maximum of this model"
            raise InputError(f"prefix and terms of line {number} must have {most}, got {required} pieces")
        limit = max(self.limit(len(src_ids), sentence.options.search), required + 1)
        return Request(number, src_ids, limit, prefix_ids, phrases, spelling)

    @cached_property
    def characters(self) -> frozenset[str]:
        """Characters of sources that the tokenizer does not spell in bytes."""
        return frozenset(" ").union(*self.tokenizer.vocabularies[0])

    @cached_property
    def _prefixes(self) -> Prefixes:
        return Prefixes(self.tokenizer)

    def limit(self, src_pieces: int, search: SearchConfig | None = None) -> int:
        """Return the maximum number of generated tokens for a number of source pieces, end of sentence included."""
        search_limit = _limit(src_pieces, search or self.search)
        return search_limit if self._max_target is None else min(search_limit, self._max_target)

    @property
    def _max_target(self) -> int | None:
        """Maximum number of tokens of a translation that the model holds, end of sentence included."""
        return None if self.max_length is None else self.max_length - len(self.tokenizer.special.tgt_begin)

    def _warn_if_cut(self, request: Request, best: Translation, search: SearchConfig) -> None:
        """Warn if a translation ended because the model can hold no more. The search's own limit ends repetition."""
        limit = request.limit
        cut = limit == self._max_target and len(best.tokens) + 1 == limit
        if cut and limit < _limit(len(request.src_ids), search):
            _log.warning(
                "line %d: its translation was cut at %d pieces, the most this model can hold", request.number, limit
            )


def needs_translation(line: str) -> bool:
    """Return whether a line has a letter of any script, or a number with a decimal or thousands mark."""
    return any(map(str.isalpha, line)) or re.search(r"\d[.,]\d", line) is not None


def _limit(src_pieces: int, search: SearchConfig) -> int:
    """Return the maximum number of generated tokens that a search allows, whatever the model can hold."""
    return max(1, int(search.max_length_ratio * src_pieces) + search.max_length_extra)


def require_readable(line: str, name: str) -> None:
    """Raise an InputError if a line has too many characters or is not Unicode text. Messages begin with `name`."""
    if len(line) > LONGEST_LINE:
        raise InputError(f"{name} must have at most {LONGEST_LINE:,} characters, got {len(line):,}")
    try:
        line.encode()
    except UnicodeEncodeError as error:  # a surrogate, which stands for a byte of an argument that is not UTF-8
        raise InputError(f"{name} must be UTF-8, got '{one_line(line, 60)}'") from error
