"""Translator of one language pair in the server, with a queue for each kind of work."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from relattn_mt.serve.queue import BatchQueue
from relattn_mt.support.errors import require
from relattn_mt.support.types import LanguagePair, Span
from relattn_mt.text.alignment import Links
from relattn_mt.text.marked import Marked
from relattn_mt.text.sentences import separator_in
from relattn_mt.tokens.imported_tokenizer import marked_pieces
from relattn_mt.tokens.tokenizer import word_indices
from relattn_mt.translate.options import DEFAULTS, SentenceOptions
from relattn_mt.translate.prepare import Sentence
from relattn_mt.translate.translation import Translation, check_language
from relattn_mt.translate.translator import Translator

# pieces of a sentence, for confidences
_MOST_TERMS = 60
_COST_OF_TERMS = 4  # times that of other pieces
_MOST_PREFIX = 250
_MOST_SCORED = 300

Ranges = list[Span]  # of characters of a sentence


class Word(NamedTuple):
    """Word of a translation, or white space.

    Attributes:
        text: The word.
        confidence: Its probability; None for white space.
        sentence: Index of its source sentence; None for white space between sentences, and for all words if the text
            went through two models.
        sources: Ranges of characters of that sentence that it translates.
    """

    text: str
    confidence: float | None = None
    sentence: int | None = None
    sources: Sequence[Span] = ()


class PairService:
    """Translator of one language pair, with a queue for each kind of work.

    Args:
        pair: Source and target language.
        translator: Translator to use.
        make_queue: Function that makes a queue for a function that works on batches, with the argument `size` of
            `BatchQueue`.

    Attributes:
        sentences: Queue of `Sentence`: its translations, best first.
        words: Queue of (sentence, translation): the words of the translation, with confidences.
    """

    def __init__(
        self,
        pair: LanguagePair,
        translator: Translator,
        make_queue: Callable[..., BatchQueue],
    ) -> None:
        self.source, self.target = pair
        self.translator = translator
        self.sentences = make_queue(self._translate, size=self._size)
        self.words = make_queue(self._score_words, size=lambda each: self._pieces(each[0]))
        self.queues = [self.sentences, self.words]
        self.splitting = self.source, separator_in(self.target), translator.characters  # of `split`

    @property
    def is_busy(self) -> bool:
        return any(queue.waiting or queue.seconds for queue in self.queues)

    def sentence(self, text: Marked, options: SentenceOptions = DEFAULTS, prefix: str = "") -> Sentence:
        """Return an item of the queue `sentences`. The beam size also limits the number of its translations."""
        fits = self._pieces_of_terms(text, options) <= _MOST_TERMS and self._pieces(prefix) <= _MOST_PREFIX
        require(fits, f"terms of a sentence must have at most {_MOST_TERMS} pieces, and a prefix {_MOST_PREFIX}")
        most = self.translator.search.beam_size
        if options.n_best > most:
            options = replace(options, n_best=most)
        return Sentence(text, options, prefix)

    def _translate(self, sentences: Sequence[Sentence]) -> list[list[Translation]]:
        results = self.translator.translate_sentences(sentences)
        for i, sentence in enumerate(sentences):
            if sentence.options.check_language:
                results[i] = check_language(sentence.text.text, results[i], (self.source, self.target))
        return results

    def _size(self, sentence: Sentence) -> int:
        """Return the size of a sentence in the queue. A search that requires terms takes longer."""
        terms = self._pieces_of_terms(sentence.text, sentence.options)
        return self._pieces(sentence.text.text) + _COST_OF_TERMS * terms

    def _pieces_of_terms(self, text: Marked, options: SentenceOptions) -> int:
        return sum(map(self._pieces, options.glossary.find(text.text))) if options.glossary else 0

    def _pieces(self, text: str) -> int:
        return len(self.translator.tokenizer.encode(text))

    def _score_words(self, items: list[tuple[str, Translation]]) -> list[list[Word]]:
        """Return the words of each translation; those that the model cannot score are one word without confidence."""
        tokenizer = self.translator.tokenizer
        scored = {}  # pieces of the others, by their numbers
        for number, (sentence, translation) in enumerate(items):
            source = tokenizer.encode(sentence)
            target = translation.tokens  # which have no literals, and none of a prefix in another spelling
            if tokenizer.decode(target) != translation.text:
                target = tokenizer.encode_target(translation.text)
            if 0 < len(source) <= _MOST_SCORED and self.translator.preparation.holds(source, target):
                scored[number] = source, target
        sides = [[pair[side] for pair in scored.values()] for side in (0, 1)]
        results = zip(scored.items(), self.translator.log_probs(*sides), self.translator.align(*sides), strict=True)
        words = [[Word(translation.text)] for _, translation in items]
        for (number, (source, target)), log_probs, links in results:
            sentence, translation = items[number]
            sources = _source_ranges(sentence, marked_pieces(tokenizer, 0, source), links)
            words[number] = _words(translation.text, marked_pieces(tokenizer, 1, target), log_probs, sources)
        return words


def _words(text: str, pieces: Sequence[str], log_probs: Sequence[float], sources: Mapping[int, Ranges]) -> list[Word]:
    """Return the words of a sentence and the spaces between them.

    `log_probs` are those of the pieces and the end. `sources` are the ranges that a word translates, by its number.

    The confidence of a word is the geometric mean of the probabilities of its pieces. If the pieces do not form the
    words of the text, the sentence is returned as one word without confidence.
    """
    by_word: dict[int, list[float]] = {}
    for word, log_prob in zip(word_indices(pieces), log_probs, strict=False):
        if word is not None:
            by_word.setdefault(word, []).append(log_prob)
    parts = re.split("( +)", text)  # words, and spaces at odd indices
    if sum(map(bool, parts[::2])) != len(by_word):
        return [Word(text)]
    words = []
    numbers = iter(by_word)
    for i, part in enumerate(parts):
        if i % 2 or not part:
            words.append(Word(part))
            continue
        values = by_word[number := next(numbers)]
        confidence = round(math.exp(min(0.0, sum(values) / len(values))), 4)
        words.append(Word(part, confidence, sources=sources.get(number, [])))
    return words


def _source_ranges(sentence: str, pieces: Sequence[str], links: Links) -> dict[int, Ranges]:
    """Return the ranges of characters that each target word translates; none if the pieces do not form the words."""
    count = max((word for word in word_indices(pieces) if word is not None), default=-1) + 1
    for pattern in (r"\S+", "[^ ]+"):  # a tokenizer may take a no-break space for a space, or not
        words = [match.span() for match in re.finditer(pattern, sentence)]
        if len(words) == count:
            ranges: dict[int, Ranges] = {}
            for source, target in links:
                ranges.setdefault(target, []).append(words[source])
            return ranges
    return {}
