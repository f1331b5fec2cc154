"""From lines of text to lines of text: prepare, batch by length, search, and restore the order.

Lines are translated longest first, in batches of similar length, which needs the least padding. A translation and its
score do not depend on the batch that the line was in. A translation ends after at most
`max_length_ratio · source pieces + max_length_extra` generated tokens. A line that is longer than the model can read,
or than `LONGEST_LINE` characters, is refused, and the message has its line number.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import islice
from typing import Any, final

import numpy as np
from tqdm import tqdm

from relattn.translation.config import SearchConfig
from relattn.translation.data.imported_tokenizer import AnyTokenizer, ImportedTokenizer
from relattn.translation.data.planning import batch_by_size
from relattn.translation.errors import InputError, one_line, require, same_language, unknown
from relattn.translation.search.engine import Engine
from relattn.translation.search.sampling import sample
from relattn.translation.search.types import Request, SearchRules
from relattn.translation.text.alignment import Links, links
from relattn.translation.text.marked import Marked
from relattn.translation.text.patterns import LITERAL, SYMBOL, literals
from relattn.translation.translate.glossary import continue_words
from relattn.translation.translate.options import DEFAULTS, TranslateOptions
from relattn.translation.translate.prepare import Preparation, Prepared, Sentence, require_readable
from relattn.translation.translate.translation import Translation, translations_of, untranslated

MAX_SENTENCES = 128  # per batch, before the beam: enough to keep a GPU busy
MAX_TOKENS = 4096  # padded source pieces per batch, which bounds memory
PAIRS = 4096  # pairs that are scored in one chunk, grouped by length


def max_sentences(engine: Engine, beam_size: int) -> int:
    """Return the largest number of sentences per batch. On a CPU, keys, values and logits then stay in its cache."""
    return max(1, min(64, 128 // beam_size)) if engine.device == "cpu" else MAX_SENTENCES


@final
class Translator:
    """Translates lines of text.

    A translator does not change after it was made, and may be used by several threads.

    Args:
        engine: What runs the model.
        tokenizer: Tokenizer of both sides.
        search: Default beam size, length penalty and length limits.
        languages: Source and target language; empty if unknown.
        pairs: Pairs of languages of a model that was trained on several. An imported tokenizer has its own.
        examples: Source lines from the card of the model.
        workers: Number of batches that are searched at the same time, with one thread each.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: AnyTokenizer,
        search: SearchConfig,
        *,
        languages: tuple[str, str] = ("", ""),
        pairs: Sequence[tuple[str, str]] = (),
        examples: Sequence[str] = (),
        workers: int = 1,
    ) -> None:
        self.engine, self.tokenizer, self.search, self.workers = engine, tokenizer, search, workers
        self.src_lang, self.tgt_lang = languages
        self.examples, self._pairs = list(examples), list(pairs)
        self.preparation = Preparation(tokenizer, search, engine.max_length)

    def __repr__(self) -> str:
        pair = f"{self.src_lang or 'unknown'} to {self.tgt_lang or 'unknown'}"
        pair += f" of {len(self.pairs):,} pairs" if len(self.pairs) > 1 else ""
        return f"Translator({pair}, {self.engine!r})"

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of source and target language that the model translates."""
        vocabulary = self.tokenizer.vocabulary if isinstance(self.tokenizer, ImportedTokenizer) else None
        if self._pairs or vocabulary is None or not vocabulary.languages:
            return self._pairs or [(self.src_lang, self.tgt_lang)]
        sources = vocabulary.languages if vocabulary.reads_source_language else [self.src_lang]
        return [(source, target) for source in sources for target in vocabulary.languages if source != target]

    def with_languages(self, src_lang: str = "", tgt_lang: str = "") -> Translator:
        """Return a translator of the same model for another pair of languages.

        Args:
            src_lang: Source language. By default that of this translator, or if `tgt_lang` is that language, the only
                other one.
            tgt_lang: Target language. The default is chosen as for `src_lang`.

        Raises:
            InputError: The model does not translate this pair.
        """
        fitting = _pairs_with(self.pairs, src_lang, tgt_lang)
        src_lang, tgt_lang = src_lang or self.src_lang, tgt_lang or self.tgt_lang
        if same_language(src_lang, tgt_lang) and len(fitting) == 1:
            ((src_lang, tgt_lang),) = fitting
        if same_language(src_lang, self.src_lang) and same_language(tgt_lang, self.tgt_lang):
            return self
        pairs = _pairs_with(self.pairs, src_lang, tgt_lang)
        if not pairs:
            given = f"{one_line(src_lang, 40)} to {one_line(tgt_lang, 40)}"
            if len(self.pairs) == 1:
                raise InputError(f"the model translates {self.src_lang} to {self.tgt_lang}, got {given}")
            for side, (name, code) in enumerate((("src_lang", src_lang), ("tgt_lang", tgt_lang))):
                codes = sorted({pair[side] for pair in self.pairs})
                if not any(same_language(code, each) for each in codes):
                    raise unknown(name, code, codes)
            raise InputError(f"the languages must differ, got {given}")
        translator = Translator(
            self.engine,
            self.tokenizer.with_languages(*pairs[0]),
            self.search,
            languages=pairs[0],
            pairs=self._pairs,
            examples=self.examples if same_language(src_lang, self.src_lang) else [],
            workers=self.workers,
        )
        vars(translator)["characters"] = self.characters  # all pairs share them
        return translator

    @cached_property
    def characters(self) -> frozenset[str]:
        """Characters of sources that the tokenizer does not spell in bytes."""
        return frozenset(" ").union(*self.tokenizer.vocabularies[0])

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
                the number of lines, a blank line has a prefix, or a prefix leaves no room for a translation; the engine
                does not support an option.
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
            self.preparation.check(sentence, number)
        removed = {number: sentence.removed for number, sentence in numbered.items()}
        own: dict[int, Counter[str]] = {}
        too_long = set()
        for number, sentence in numbered.items():
            if sentence.may_lose_literals and (found := literals(sentence.text.text)):
                own[number], removed[number] = found, SYMBOL
                if not self.preparation.holds(self.tokenizer.encode(sentence.text.text), ()):
                    too_long.add(number)
        report_done(len(too_long))
        first = {number: sentence for number, sentence in numbered.items() if number not in too_long}
        results = self._translate(first, removed, report_done)
        kept = {number: [literals(each.text) == own[number] for each in results.get(number, ())] for number in own}
        lost = {number: numbered[number] for number in own if number in too_long or not all(kept[number])}
        for number, others in self._translate(lost, dict.fromkeys(lost, LITERAL), lambda count: None).items():
            if kept[number][:1] == [True]:
                others = [
                    each if is_kept else others[min(place, len(others) - 1)]
                    for place, (each, is_kept) in enumerate(zip(results[number], kept[number], strict=True))
                ]
            results[number] = others
        return [results[number] for number in numbered]

    def _translate(
        self,
        sentences: Mapping[int, Sentence],
        removed: Mapping[int, re.Pattern[str] | None],
        report_done: Callable[[int], object],
    ) -> dict[int, list[Translation]]:
        """Translate sentences by number. What `removed` matches is removed before, like marks, and put back."""
        prepared = [self.preparation.prepare(number, each, removed[number]) for number, each in sentences.items()]
        read = [each for each in prepared if each.request is not None]
        results = {each.number: [untranslated(each, self.preparation)] for each in prepared if each.request is None}
        report_done(len(results))
        if not read:
            return results
        options = read[0].sentence.options
        search = options.search or self.search
        lengths = np.array([len(each.request.src_ids) for each in read if each.request], dtype=np.int64)
        most = min(max_sentences(self.engine, search.beam_size), -(-len(read) // self.workers))
        batches = [
            [read[i] for i in indices]
            for indices in batch_by_size(np.argsort(-lengths, kind="stable"), lengths, MAX_TOKENS, most)
        ]
        for batch, translations in zip(
            batches, self._map(lambda batch: self._translate_batch(batch, search), batches), strict=True
        ):
            results.update(zip((each.number for each in batch), translations, strict=True))
            report_done(len(batch))
        return results

    def _map(self, work: Callable[[Any], Any], batches: Sequence[Any]) -> Iterator[Any]:
        """Yield `work(batch)` for each of `batches`, in order, with a thread per worker."""
        if min(self.workers, len(batches)) == 1:
            yield from map(work, batches)
            return
        with ThreadPoolExecutor(self.workers) as pool:
            yield from pool.map(work, batches)

    def _translate_batch(self, batch: Sequence[Prepared], search: SearchConfig) -> list[list[Translation]]:
        """Return the translations of sentences that the model reads."""
        requests = [each.request for each in batch if each.request]
        counts = [each.sentence.options.n_best for each in batch]
        sampling, special = batch[0].sentence.options.sampling, self.tokenizer.special
        rules = SearchRules(
            config=search,
            bos=special.bos,
            eos=special.eos,
            banned=special.banned,
            n_best=1 if sampling else max(counts),
            given=len(special.tgt_begin),
            continues_word=self._continues_word if any(each.phrases for each in requests) else None,
        )
        self._require_supported(requests, rules, samples=sampling is not None)
        if sampling:
            found = sample(self.engine, requests, rules, sampling, max(counts))
        else:
            found = self.engine.search(requests, rules)
        found = [hypotheses[:count] for hypotheses, count in zip(found, counts, strict=True)]
        aligned = [(i, each) for i, prepared in enumerate(batch) if prepared.is_aligned for each in found[i]]
        alignments = iter(
            self._align(
                [requests[i].src_ids for i, _ in aligned],
                [[special.bos, *each.tokens, special.eos] for _, each in aligned],
            )
            if aligned
            else []
        )
        return [
            translations_of(
                each,
                hypotheses,
                [next(alignments) if each.is_aligned else [] for _ in hypotheses],
                self.preparation,
                search,
            )
            for each, hypotheses in zip(batch, found, strict=True)
        ]

    def _require_supported(self, requests: Sequence[Request], rules: SearchRules, *, samples: bool) -> None:
        """Raise an InputError if the engine has no `step`, which a search needs."""
        for wanted, what in (
            (samples, "sampling"),
            (any(len(each.prefix) > rules.given or each.spelling for each in requests), "prefixes"),
            (any(each.phrases for each in requests), "a glossary"),
        ):
            require(self.engine.can_step or not wanted, f"{self.engine.name} does not support {what}; use the bundle")

    @cached_property
    def _continues_word(self) -> np.ndarray:
        """(vocab,) bool, True for target pieces that continue a word."""
        return np.array(continue_words(self.tokenizer.vocabularies[1]))

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
            src_ids.append(self.preparation.encode_source(source, f"source line {number}"))
            require_readable(target, f"target line {number}")
            tgt_ids.append(self.tokenizer.encode_target(target))
            special = self.tokenizer.special.per_target
            self.preparation.require_held(len(tgt_ids[-1]), special, f"target line {number}")
        return src_ids, tgt_ids

    def log_probs(self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability, in nats, of each piece of given translations, and of the end of sentence.

        Args:
            src_ids: Source pieces, without special tokens.
            tgt_ids: Target pieces, without special tokens.
        """
        given = len(self.tokenizer.special.tgt_begin)
        return [row[given:] for row in self._by_length(self.engine.score, *self._complete(src_ids, tgt_ids))]

    def align(self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]) -> list[Links]:
        """Return the (source word, target word) pairs of given translations, counted from 0, as `alignment.links`.

        Arguments are those of `log_probs`.
        """
        return self._align(*self._complete(src_ids, tgt_ids))

    def _align(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Links]:
        """Return the alignments of complete sequences."""
        (src_pieces, tgt_pieces), special = self.tokenizer.vocabularies, self.tokenizer.special
        before, after, given = len(special.src_begin), len(special.src_end), len(special.tgt_begin)
        return [
            links(
                weights[given:],
                [src_pieces[i] for i in source[before : len(source) - after]],
                [tgt_pieces[i] for i in target[1 + given : -1]],
                special,
            )
            for source, target, weights in zip(
                sources, targets, self._by_length(self.engine.align, sources, targets), strict=True
            )
        ]

    def _complete(
        self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Return the sequences with their special tokens."""
        special = self.tokenizer.special
        return (
            [[*special.src_begin, *ids, *special.src_end] for ids in src_ids],
            [[special.bos, *special.tgt_begin, *ids, special.eos] for ids in tgt_ids],
        )

    def _by_length(
        self, work: Callable[..., list[Any]], sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[Any]:
        """Return the results of a function of sources and targets, which gets batches of similar length."""
        longest = np.array([*map(max, map(len, sources), map(len, targets))], dtype=np.int64)
        batches = [each.tolist() for each in batch_by_size(np.argsort(longest, kind="stable"), longest, MAX_TOKENS)]
        results: list[Any] = [None] * len(sources)
        found = self._map(lambda batch: work([sources[i] for i in batch], [targets[i] for i in batch]), batches)
        for batch, batch_results in zip(batches, found, strict=True):
            for i, result in zip(batch, batch_results, strict=True):
                results[i] = result
        return results


def _pairs_with(pairs: Sequence[tuple[str, str]], *languages: str) -> list[tuple[str, str]]:
    """Return the pairs with a source and a target language. An empty one fits all."""
    return [
        pair
        for pair in pairs
        if all(not code or same_language(code, own) for code, own in zip(languages, pair, strict=True))
    ]
