"""Literals of lines: the model reads them, and those that it changes are left out and put back.

A line is translated without symbols, and then without its other literals if its translations have lost some. Long
literals, or many, are left out at once: each character may be a piece that takes a step of the search. A sentence is
complete without its symbols. Without another literal it may lack its subject or object.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from relattn_mt.text.patterns import SYMBOL, literal_pattern, literals
from relattn_mt.translate.prepare import Preparation, Sentence
from relattn_mt.translate.translation import Translation

_MOST_CHARACTERS = 100  # in all literals of a sentence, up to which the model reads them
Sentences = Mapping[int, Sentence]  # by number
Translations = dict[int, list[Translation]]  # of sentences by number
Removed = Mapping[int, "re.Pattern[str] | None"]  # by number: what is removed before a translation, and put back
Translate = Callable[[Sentences, Removed], Translations]


def translate_with_literals(sentences: Sentences, preparation: Preparation, translate: Translate) -> Translations:
    """Return the translations of sentences, which have the literals of those that may lose them.

    The best translation does not depend on how many are wanted.
    """
    own: dict[int, Counter[str]] = {}  # literals of the sentences that may lose them
    removed = {}
    read = dict(sentences)  # what the model reads with its literals
    for number, sentence in sentences.items():
        removed[number] = sentence.removed
        if sentence.may_lose_literals and (found := literals(sentence.text.text)):
            own[number] = found
            removed[number] = SYMBOL
            if _is_too_long(sentence, found, preparation):
                del read[number]
    results = translate(read, removed)
    kept: dict[int, list[tuple[Translation, bool]]] = {}  # translations, and whether each has the literals
    lost = {}
    for number, expected in own.items():
        kept[number] = [(each, literals(each.text) == expected) for each in results.get(number, ())]
        if not kept[number] or not all(has_literals for _, has_literals in kept[number]):
            lost[number] = sentences[number]
    if lost:  # the pattern takes milliseconds to compile
        for number, others in translate(lost, dict.fromkeys(lost, literal_pattern())).items():
            results[number] = merged(kept[number], others)
    return results


def _is_too_long(sentence: Sentence, found: Counter[str], preparation: Preparation) -> bool:
    """Return whether the model does not read the literals of a sentence."""
    if sum(map(len, found.elements())) > _MOST_CHARACTERS:
        return True
    return len(preparation.tokenizer.encode(sentence.text.text)) > preparation.max_source


def merged(own: Sequence[tuple[Translation, bool]], others: Sequence[Translation]) -> list[Translation]:
    """Return different translations of a sentence that have what they must have, best first; there may be fewer.

    The first one is the best of `own` if it has that, and else the best of `others`.

    Args:
        own: Translations of the sentence, best first, and whether each has what it must have.
        others: Translations that all have it, best first.
    """
    best = own[0][0] if own and own[0][1] else others[0]
    candidates = [best, *(each for each, is_kept in own if is_kept), *others]
    ranked = sorted((each for each in candidates if each.score <= best.score), key=lambda each: -each.score)
    different: dict[str, Translation] = {}
    for each in ranked:
        different.setdefault(each.text, each)
    return list(different.values())[: max(len(own), len(others))]
