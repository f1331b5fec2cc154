"""A translation, and how it is made of what an engine found."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from relattn_mt.config import SearchConfig
from relattn_mt.search.length_penalty import length_penalty
from relattn_mt.search.types import Hypothesis
from relattn_mt.support.errors import one_line
from relattn_mt.support.types import LanguagePair
from relattn_mt.text.alignment import Links, WordAlignment
from relattn_mt.text.marked import Mark, Marked
from relattn_mt.text.plausibility import KEPT, LANGUAGE, TERMS, implausibilities, is_in_other_language
from relattn_mt.translate.prepare import Preparation, Prepared, search_limit

if TYPE_CHECKING:
    from relattn_mt.text.sentences import SplitText

_log = logging.getLogger(__name__)


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
    alignment: Links = field(default_factory=list)
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


def untranslated(prepared: Prepared, preparation: Preparation) -> Translation:
    """Return the translation of a sentence that the model does not read: its text, or without words its marks."""
    text = prepared.sentence.text
    options = prepared.sentence.options
    if not prepared.is_copied:
        return _with_marks(Translation("", 0.0, []), prepared)
    words = range(len(text.text.split())) if options.align else ()
    tokens = preparation.tokenizer.encode_target(text.text)
    return Translation(text.text, 0.0, tokens, alignment=[(word, word) for word in words], marks=text.marks)


def kept_translation(text: str) -> Translation:
    """Return the translation of a text of a document that stays as it is, with a warning."""
    return Translation(text, 0.0, [], warnings=(KEPT,))


def joined(text: SplitText, parts: Sequence[Translation]) -> Translation:
    """Return the translation of a text whose sentences have these translations. Its confidence is the least."""
    whole = text.join([part.marked for part in parts])
    score = sum(part.score for part in parts)
    tokens = [token for part in parts for token in part.tokens]
    warnings = dict.fromkeys(name for part in parts for name in part.warnings)
    least = min(part.mean_log_prob for part in parts)
    return Translation(whole.text, score, tokens, least, warnings=tuple(warnings), marks=whole.marks)


def check_language(source: str, ranked: list[Translation], languages: LanguagePair) -> list[Translation]:
    """Return translations of a sentence, the best one with a warning if it or the source is in another language."""
    best, *others = ranked
    if is_in_other_language(source, languages[0]) or is_in_other_language(best.text, languages[1]):
        best = replace(best, warnings=(*best.warnings, LANGUAGE))
    return [best, *others]


def translations_of(
    prepared: Prepared,
    hypotheses: Sequence[Hypothesis],
    alignments: Sequence[WordAlignment | None],
    preparation: Preparation,
    search: SearchConfig,
) -> list[Translation]:
    """Return the translations of a sentence for what was found, best first, and warn if the best one was cut."""
    tokenizer = preparation.tokenizer
    given = len(tokenizer.special.tgt_begin)
    sentence = prepared.sentence
    request = prepared.request
    results = []
    assert request is not None
    for hypothesis, alignment in zip(hypotheses, alignments, strict=True):
        tokens = hypothesis.tokens[given:]
        length = len(tokens) + 1
        mean = hypothesis.score * length_penalty(search, length + given) / length
        text = tokenizer.decode(tokens)
        if sentence.prefix:
            text = preparation.prefixes.complete(sentence.prefix, request, tokens)
        links = [] if alignment is None or not sentence.options.align else alignment.links
        result = _with_marks(Translation(text, hypothesis.score, tokens, mean, links), prepared, alignment)
        pieces = len(prepared.src_ids), len(tokens)
        warnings = implausibilities(sentence.text.text, result.text, *pieces, *preparation.names)
        line = prepared.stripped.line if prepared.stripped else sentence.text.text
        if prepared.terms and alignment and prepared.terms.is_misplaced(line, text, alignment.links):
            warnings = (*warnings, TERMS)
        results.append(replace(result, warnings=warnings))
    limit = request.limit - given
    most = preparation.max_target
    is_cut = limit == most == len(results[0].tokens) + 1 and limit < search_limit(len(prepared.src_ids), search)
    if is_cut and prepared.name:
        _log.warning("%s: its translation was cut at %d pieces, the most this model can hold", prepared.name, limit)
    return results


def _with_marks(translation: Translation, prepared: Prepared, alignment: WordAlignment | None = None) -> Translation:
    """Return a translation with what was removed from its sentence, and warn about marks whose place is a guess."""
    if prepared.stripped is None:
        return translation
    from relattn_mt.text.place import place

    words = WordAlignment([], []) if alignment is None else alignment
    placed, guessed = place(prepared.stripped, translation.text, *words)
    if guessed and prepared.name:
        _log.warning("%s: the place of %s is a guess", prepared.name, one_line(" ".join(guessed), 80))
    return replace(translation, text=placed.text, marks=placed.marks, alignment=[])
