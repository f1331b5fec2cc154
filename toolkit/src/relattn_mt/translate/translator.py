"""From lines of text to lines of text: prepare, batch by length, search, and restore the order.

Lines are translated longest first, in batches of similar length, which needs the least padding. A translation and its
score do not depend on the batch that the line was in. A translation ends after at most
`max_length_ratio · source pieces + max_length_extra` generated tokens. Lines that are longer than the model can read,
or than `LONGEST_LINE` characters, are refused before others are translated, unless `long_lines` says otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from itertools import islice, repeat
from typing import final

import numpy as np

from relattn_mt.config import SearchConfig
from relattn_mt.search.engine import Engine
from relattn_mt.search.types import Hypothesis, Request
from relattn_mt.support.console import progress_bar
from relattn_mt.support.errors import InputError, one_line, same_language, unknown
from relattn_mt.support.types import LanguagePair, SentencePair
from relattn_mt.text.marked import Marked
from relattn_mt.text.plausibility import LONG
from relattn_mt.tokens.imported_tokenizer import AnyTokenizer, ImportedTokenizer
from relattn_mt.translate.literals import Removed, Sentences, Translations, translate_with_literals
from relattn_mt.translate.options import DEFAULTS, CallOptions, TranslateOptions
from relattn_mt.translate.prepare import Preparation, Prepared, Sentence, require_length, require_readable
from relattn_mt.translate.runner import Runner
from relattn_mt.translate.terms import translate_with_terms
from relattn_mt.translate.translation import Translation, joined, translations_of, untranslated

_log = logging.getLogger(__name__)
PAIRS = 4096  # pairs that are scored in one chunk, grouped by length


@final
@dataclass(eq=False, repr=False)
class Translator:
    """Translator of lines of text.

    A translator does not change after it was made, and may be used by several threads.

    Args:
        engine: What runs the model.
        tokenizer: Tokenizer of both sides.
        search: Default beam size, length penalty and length limits.
        languages: Source and target language; empty if unknown.
        pairs: Pairs of languages of a model that was trained on several. An imported tokenizer has its own.
        make_examples: Returns source lines from the card of the model.
        card: The card, in Markdown.
        workers: Number of batches that are searched at the same time, with one thread each.
        earlier: Translator that translates first; its target language is the source language of the model.

    Attributes:
        pairs: The pairs of source and target language that the model translates.
        log_probs: Function that returns the log-probability of each piece of given translations.
        align: Function that returns the (source word, target word) pairs of given translations.
    """

    engine: Engine
    tokenizer: AnyTokenizer
    search: SearchConfig
    _: KW_ONLY
    languages: LanguagePair = ("", "")
    pairs: Sequence[LanguagePair] = ()
    make_examples: Callable[[], list[str]] = list
    card: str = ""
    workers: int = 1
    earlier: Translator | None = None

    def __post_init__(self) -> None:
        engine = self.engine
        self.src_lang, self.tgt_lang = self.languages
        self.pairs = pairs_of(self.tokenizer, self.pairs, self.languages)
        self.preparation = Preparation(
            self.tokenizer, self.search, engine.max_length, self.languages, engine.knows_alignment
        )
        self.runner = Runner(engine, self.tokenizer, self.workers)
        self.log_probs = self.runner.log_probs
        self.align = self.runner.align

    def __repr__(self) -> str:
        pair = f"{self.src_lang or 'unknown'} to {self.tgt_lang or 'unknown'}"
        pair += f" of {len(self.pairs):,} pairs" if len(self.pairs) > 1 else ""
        return f"Translator({pair}, {self.engine!r})"

    @property
    def examples(self) -> list[str]:
        """Source lines from the card of the model."""
        return self.make_examples()

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
        src_lang = src_lang or self.src_lang
        tgt_lang = tgt_lang or self.tgt_lang
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
        return self.for_pair(*pairs[0])

    def for_pair(self, src_lang: str, tgt_lang: str) -> Translator:
        """Return a translator of the same model for one of its `pairs`.

        Raises:
            InputError: The model has no such language.
        """
        other = replace(
            self,
            tokenizer=self.tokenizer.with_languages(src_lang, tgt_lang),
            languages=(src_lang, tgt_lang),
            make_examples=self.make_examples if same_language(src_lang, self.src_lang) else list,
        )
        other.characters = self.characters  # which takes long to find
        return other

    def with_engine(self, engine: Engine) -> Translator:
        """Return this translator with another engine of the same model."""
        return replace(self, engine=engine)

    def after(self, earlier: Translator) -> Translator:
        """Return a translator of the source language of another one, through the language between both.

        The other one translates first, with its own search and without a glossary. Scores are those of this one.
        """
        languages = earlier.src_lang, self.tgt_lang
        return replace(
            self,
            languages=languages,
            pairs=[languages],
            make_examples=earlier.make_examples,
            card="\n\n".join([earlier.card, self.card]),
            earlier=earlier,
        )

    @cached_property
    def characters(self) -> frozenset[str]:
        """Characters of sources that the tokenizer does not spell in bytes."""
        if self.earlier is not None:
            return self.earlier.characters
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

        Arguments and errors are those of `translate`.
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

        Each chunk is translated before the next is read. Lines are numbered from `first_line` on, in errors.
        The translations of earlier chunks have been yielded before an error. The progress bar has an
        end if `chunks` is a list.
        """
        total = sum(map(len, chunks)) if isinstance(chunks, list) else None
        remaining = iter(chunks)
        given = repeat("") if prefixes is None else iter(prefixes)
        before = 0
        with progress_bar(total, "line", shown=progress) as advance:
            for chunk in remaining:
                pairs = zip(chunk, given, strict=False)
                sentences = [Sentence(Marked(line), options, prefix) for line, prefix in pairs]
                if len(sentences) < len(chunk):
                    lines = before + len(chunk) + sum(map(len, remaining))
                    count = before + len(sentences)
                    raise InputError(f"there must be a prefix per line, got {count} prefixes for {lines} lines")
                yield from self.translate_sentences(sentences, options, first_line + before, advance)
                before += len(chunk)
        more = 0 if prefixes is None else sum(1 for _ in given)
        if more:
            raise InputError(f"there must be a prefix per line, got {before + more} prefixes for {before} lines")

    def translate_sentences(
        self,
        sentences: Sequence[Sentence],
        call: CallOptions = DEFAULTS,
        first_line: int = 1,
        report_done: Callable[[int], object] = lambda count: None,
    ) -> list[list[Translation]]:
        """Return the `n_best` best translations of each sentence, best first. Sentences share batches.

        Literals are those of the sources, as `literals.py` says. The best translation does not depend on how many are
        wanted.

        Args:
            sentences: Sentences of one language.
            call: Options of this call.
            first_line: Number of the first one, in messages.
            report_done: Function that is called with the number of sentences that are ready.

        Raises:
            InputError: As `translate`.
        """
        if self.earlier is not None:
            sentences = self._between(self.earlier, sentences, call, first_line)
        numbered = dict(enumerate(sentences, start=first_line))
        for number, sentence in numbered.items():
            self.preparation.check(sentence, number, call)
        long = self.preparation.find_long(numbered.items(), call.unit)
        short = {number: sentence for number, sentence in numbered.items() if number not in long}
        waiting = set(short)

        def translate(chosen: Sentences, removed: Removed) -> Translations:
            results = {}
            for batch in self._translate(chosen, removed, call):
                results.update(batch)
                report_done(len(waiting.intersection(batch)))
                waiting.difference_update(batch)
            return results

        with_literals = partial(translate_with_literals, preparation=self.preparation, translate=translate)
        results = translate_with_terms(short, with_literals, call.unit)
        report_done(len(waiting))
        for number, length in long.items():
            results[number] = self._translate_long(number, numbered[number], length, call)
            report_done(1)
        return [results[number] for number in numbered]

    def _translate_long(self, number: int, sentence: Sentence, length: str, call: CallOptions) -> list[Translation]:
        """Return the translations of a sentence that is too long: a copy, or the translations of its parts, joined."""
        if sentence.options.long_lines == "copy":
            if call.unit:
                _log.warning("%s %d has %s, more than this model reads, and was copied", call.unit, number, length)
            prepared = Prepared(number, "", sentence, None, is_copied=True)
            return [replace(untranslated(prepared, self.preparation), warnings=(LONG,))]
        from relattn_mt.text.sentences import MOST_PIECES, separator_in, split

        splitting = self.src_lang, separator_in(self.tgt_lang), self.characters, sentence.options.keep_literals
        pieces = MOST_PIECES
        parts = [sentence]
        while pieces and any(map(self.preparation.excess, parts)):
            text = split(sentence.text, *splitting, pieces)
            parts = [replace(sentence, text=part) for part in text.sentences]
            pieces //= 2  # an estimate
        return [joined(text, [best for best, *_ in self.translate_sentences(parts, replace(call, unit=""), number)])]

    def require_short(self, lines: Iterable[str], options: TranslateOptions, name: str) -> None:
        """Raise an InputError, which begins with `name`, if lines are too long and `options` say that this is an error.

        All lines are read.
        """
        preparation = self.preparation if self.earlier is None else self.earlier.preparation
        numbered = ((number, Sentence(Marked(line), options)) for number, line in enumerate(lines, start=1))
        preparation.find_long(numbered, options.unit, f"{name}: ")

    @staticmethod
    def _between(
        earlier: Translator, sentences: Sequence[Sentence], call: CallOptions, first_line: int
    ) -> list[Sentence]:
        """Return sentences as another translator translates them, without a glossary and with its own search."""
        if any(sentence.options.align for sentence in sentences):
            raise InputError("align requires one model: the words of a source are not those between two models")
        once = []
        for each in sentences:
            options = replace(each.options, n_best=1, glossary=None)
            once.append(Sentence(each.text, options))
        between = earlier.translate_sentences(once, CallOptions(unit=call.unit), first_line)
        return [replace(each, text=best.marked) for each, (best, *_) in zip(sentences, between, strict=True)]

    def _translate(self, sentences: Sentences, removed: Removed, call: CallOptions) -> Iterator[Translations]:
        """Yield translations of sentences by number, in batches. What `removed` matches is removed, and put back."""
        read: list[Prepared] = []
        unread: list[Prepared] = []
        requests: list[Request] = []
        for number, sentence in sentences.items():
            prepared = self.preparation.prepare(number, sentence, removed[number], call)
            if prepared.request is None:
                unread.append(prepared)
            else:
                read.append(prepared)
                requests.append(prepared.request)
        yield {each.number: [untranslated(each, self.preparation)] for each in unread}
        if not requests:
            return
        search = call.search or self.search

        def work(indices: np.ndarray) -> Translations:
            batch = [read[i] for i in indices]
            counts = [each.sentence.options.n_best for each in batch]
            found = self.runner.search([requests[i] for i in indices], search, counts)
            translations = self._finished(batch, found, search)
            return {each.number: ranked for each, ranked in zip(batch, translations, strict=True)}

        yield from self.runner.map(work, self.runner.batches(requests, search))

    def _finished(
        self, prepared: Sequence[Prepared], found: Sequence[Sequence[Hypothesis]], search: SearchConfig
    ) -> list[list[Translation]]:
        """Return the translations of sentences for the hypotheses of each."""
        given = len(self.tokenizer.special.tgt_begin)
        sources = []
        targets = []
        for sentence, hypotheses in zip(prepared, found, strict=True):
            if sentence.is_aligned:
                sources += [sentence.src_ids] * len(hypotheses)
                targets += [hypothesis.tokens[given:] for hypothesis in hypotheses]
        alignments = iter(self.runner.align_words(sources, targets) if sources else [])
        results = []
        for sentence, hypotheses in zip(prepared, found, strict=True):
            links = [next(alignments) if sentence.is_aligned else None for _ in hypotheses]
            results.append(translations_of(sentence, hypotheses, links, self.preparation, search))
        return results

    def score(self, pairs: Iterable[SentencePair]) -> Iterator[list[tuple[int, float]]]:
        """Yield, for each pair, the pieces of the given translation and the end of sentence with log-probabilities.

        Args:
            pairs: Source and target lines. A blank line has no pieces.

        Raises:
            InputError: a line is longer than the model can hold, or than LONGEST_LINE characters. The message has the
                side and the line number, counted from 1. Results of earlier lines have been yielded, but for a few. Or
                there are two models.
        """
        if self.earlier is not None:
            raise InputError("scores require one model: name those into and from the language between both")
        remaining = iter(enumerate(pairs, start=1))
        while chunk := list(islice(remaining, PAIRS)):
            src_ids, tgt_ids = self.encode_pairs(chunk)
            for ids, log_probs in zip(tgt_ids, self.log_probs(src_ids, tgt_ids), strict=True):
                yield list(zip([*ids, self.tokenizer.special.eos], log_probs, strict=True))

    def encode_pairs(self, numbered: Sequence[tuple[int, SentencePair]]) -> tuple[list[list[int]], list[list[int]]]:
        """Return the pieces of sources and of targets. Raises InputError as `score` does."""
        src_ids = []
        tgt_ids = []
        special = self.tokenizer.special
        for number, (source, target) in numbered:
            src_name = f"source line {number}"
            tgt_name = f"target line {number}"
            for line, name in ((source, src_name), (target, tgt_name)):
                require_length(line, name)
                require_readable(line, name)
            src_ids.append(self.tokenizer.encode(source))
            tgt_ids.append(self.tokenizer.encode_target(target))
            self.preparation.require_held(len(src_ids[-1]), special.per_source, src_name)
            self.preparation.require_held(len(tgt_ids[-1]), special.per_target, tgt_name)
        return src_ids, tgt_ids


def pairs_of(tokenizer: AnyTokenizer, pairs: Sequence[LanguagePair], languages: LanguagePair) -> Sequence[LanguagePair]:
    """Return the pairs of a model: `pairs`, or those of an imported vocabulary of several languages, or `languages`."""
    vocabulary = tokenizer.vocabulary if isinstance(tokenizer, ImportedTokenizer) else None
    if pairs or vocabulary is None or not vocabulary.languages:
        return pairs or [languages]
    from_any = vocabulary.reads_source_language or languages[0] in vocabulary.languages  # as in MADLAD-400
    sources = vocabulary.languages if from_any else languages[:1]
    return [(source, target) for source in sources for target in vocabulary.languages if source != target]


def _pairs_with(pairs: Sequence[LanguagePair], *languages: str) -> list[LanguagePair]:
    """Return the pairs with a source and a target language. An empty one fits all."""
    return [
        pair
        for pair in pairs
        if all(not code or same_language(code, own) for code, own in zip(languages, pair, strict=True))
    ]
