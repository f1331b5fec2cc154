"""Terms of a glossary in translations.

A sentence is first translated without its terms, as many translations have them anyway. If one lacks them, a search
that requires them follows, which is slower. It first requires only those that the best translation lacks, since terms
compete for the beam. Where a term does not fit, that search adds it to a whole sentence: behind its end, to words that
are all there, or in the place of another word. Then the translation without the term is better, and has a warning. A
sentence that is one term, such as a button or a heading, needs no search.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from relattn_mt.support.errors import one_line
from relattn_mt.text.plausibility import TERMS
from relattn_mt.translate.literals import Sentences, Translations, merged
from relattn_mt.translate.translation import Translation

_log = logging.getLogger(__name__)
_END = re.compile(r"[.!?…](?=[\"'”’»)\s])|[。！？]")
_WORD = re.compile(r"\w+")


def translate_with_terms(
    sentences: Sentences, translate: Callable[[Sentences], Translations], unit: str = ""
) -> Translations:
    """Return the translations of sentences, some of which have terms of a glossary.

    Args:
        sentences: Sentences by number.
        translate: Function that translates sentences, with the terms that their options require.
        unit: What a sentence is called in messages; empty: no warnings are logged.
    """
    terms = {}
    first = dict(sentences)
    known: Translations = {}
    for number, sentence in sentences.items():
        glossary = sentence.options.glossary
        if glossary is None:
            continue
        whole = None if sentence.prefix else glossary.translate_whole(sentence.text)
        if whole is not None:
            known[number] = [Translation(whole.text, 0.0, [], marks=whole.marks)]
            del first[number]
        elif found := glossary.find(sentence.text.text):
            terms[number] = found
            first[number] = replace(sentence, options=replace(sentence.options, glossary=None))
    results = known | (translate(first) if first else {})
    own = {}
    missing = {}  # terms that the best translation lacks
    lacking = {}
    narrowed = {}  # sentences whose best translation has some terms, with the others only
    for number, found in terms.items():
        lacks = [_missing(each.text, found) for each in results[number]]
        own[number] = [(each, not lack) for each, lack in zip(results[number], lacks, strict=True)]
        missing[number] = lacks[0]
        sentence = sentences[number]
        glossary = sentence.options.glossary
        if any(lacks):
            lacking[number] = sentence
            if glossary and missing[number] and set(missing[number]) != set(found):
                options = replace(sentence.options, glossary=glossary.requiring(missing[number]))
                narrowed[number] = replace(sentence, options=options)
    complete: Translations = {}
    for number, others in translate(narrowed).items() if narrowed else ():
        best, _ = own[number][0]
        having = [each for each in others if not _missing(each.text, terms[number])]
        having = [each for each in having if _is_better(each, best, missing[number])]
        if others[0] in having:
            complete[number] = having
            results[number] = merged(own[number], having)
            if len(results[number]) == len(own[number]):
                del lacking[number]
    for number, others in translate(lacking).items() if lacking else ():
        best, has_terms = own[number][0]
        if number in complete or has_terms or _is_better(others[0], best, missing[number]):
            fitting = [each for each in others if _is_better(each, best, missing[number])]
            having = [*complete.get(number, ()), *fitting]
            results[number] = merged(own[number], having)[: max(len(own[number]), len(others))]
        else:
            if unit:
                left_out = one_line(", ".join(missing[number]), 80)
                _log.warning("%s %d: translated without terms that do not fit: %s", unit, number, left_out)
            results[number] = [replace(plain, warnings=(*plain.warnings, TERMS)) for plain in results[number]]
    return results


def _is_better(constrained: Translation, plain: Translation, terms: Sequence[str]) -> bool:
    """Return whether a translation that had to have terms has them, in place of words of a plain translation."""
    return TERMS not in constrained.warnings and _fits(plain.text, constrained.text, terms)


def _missing(text: str, terms: Sequence[str]) -> list[str]:
    """Return the terms that a translation lacks, as often as it lacks them."""
    missing = Counter(terms)
    for term in missing:
        missing[term] -= len(_whole(term).findall(text))
    return [*missing.elements()]


def _fits(plain: str, constrained: str, terms: Sequence[str]) -> bool:
    """Return whether terms replace words of a translation, rather than being added to it."""
    if len(_END.findall(constrained)) > len(_END.findall(plain)):
        return False
    rest = constrained
    for term in terms:
        rest = _whole(term).sub(" ", rest, count=1)
    words, others = (Counter(_WORD.findall(text.casefold())) for text in (plain, rest))
    return not words or bool(words - others)


def _whole(term: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(term)}(?!\w)")
