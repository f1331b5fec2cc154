"""Names of a text that its translation lacks.

A name is a capitalized word within a sentence whose lower-case form is not a single piece of the vocabulary, as those
of common words are. Its translation may be spelled in another way: Athens is Athen, Egypt is Ägypten. So it is a word
with nearly the same letters, or with the same first consonants, also after the vowel that may begin it. A name beside
one that stays the same stays the same too, as in Anna Smith. The name of an institution is translated, such as the
Constituent Assembly: words after an article, or beside a common word that is capitalized and translated.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection
from difflib import SequenceMatcher

_CAPITALIZED = re.compile(r"(?<![\w@#&/.-])[A-ZÀ-ÖØ-Þ][a-zß-öø-ÿ]\w+")
_BEGIN = re.compile(r"(?:\A|[^\w\s,;]|\n)\s*\Z")  # of a sentence or quotation, before its first word
_WORD = re.compile(r"[^\W\d_]+")
_OTHER_SCRIPTS = re.compile(r"[^\W\d_\u0041-\u024f\u1e00-\u1eff]")
# English words that are capitalized and become other words
_TRANSLATED = (  # slow to compile
    r"(?:mon|tues|wednes|thurs|fri|satur|sun|christmas)day|christmas|easter|god|lord|bible|pope|americ\w+|british|britain"
    r"|french|france|german\w*|dutch|greek|greece|spanish|spain|danish|turkish|hungar\w+|jew\w*|czech\w*|swiss|swed\w+"
    r"|states?|kingdom|republic|cologne|munich|vienna|mrs?|ms|miss|dr|prof|sir|lady|king|queen|prince\w*|uncle|aunt"
    r"|mount|lake|river|street|square|saint|captain|sergeant|colonel|mayor|chief|minister|prime|president|secretary|shah"
    r"|duke|duchess|count|countess|earl|baron|emperor|empress|hero|chairperson|associate|red|cross|supreme|holy"
    r"|(?:north|south|east|west)\w*|(?:feder|medic|nation|centr|internation|region|municip|gener)al|greater|lesser|upper|lower"
    r"|euro|union|assembly|parliament|congress|senate|district|directorate|army|navy|trade|bankruptcy|rights?|laws?|legion"
    r"|labs?|laborator\w+|psychology|peoples?|heads?|summit|games|weapons?|sheet|cosmos|celsius|airlines?|honou?r|\w+ties"
    r"|(?:jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)"
    r"|\w{3,}(?:[tsc]ion|ment|ty|ship|ence|ance|[a-z]ism|ists?|ish|ese|ics?|ous|ure|ency|ry|ans?|ing|[tl]ed|hood|(?<!vic)tor|ness|tern|tute)s?"
)
# share of equal letters of similar names, and letters of a long one
_SIMILAR = 0.7
_LONG = 5
# Capitalized words before and after one, also beyond "of", an article before such words, and the words to the last one
_BEFORE = re.compile(r"\b([A-Z]\w+)(?:'s)?[ -](?:of (?:the )?|and |for |on )?\Z")
_ARTICLE = re.compile(r"\b[Tt]he (?:[A-Z][\w-]*[ -])*\Z")
_REST = re.compile(r"(?:[ -]?([A-Z]\w+))+")
_AFTER = re.compile(r"[ -](?:of (?:the )?|and |for |on )?([A-Z]\w+)")
# Words before a part of a country, which may be a compound in the translation
_DIRECTIONS = r"(?:[Nn]orth|[Ss]outh|[Ee]ast|[Ww]est)\w*|[Cc]entral|[Uu]pper|[Ll]ower|[Gg]reater"
_DIRECTION = re.compile(rf"\b(?:{_DIRECTIONS})[ -]\Z")
_TITLE = re.compile(
    r"(?:Mrs?|Ms|Miss|Dr|Prof\w*|Sir|Lady|King|Queen|Prince\w*|President|Uncle|Aunt|Saint|Captain|Mayor"
    rf"|Minister|Colonel|Duke|Duchess|Count|Countess|Earl|Emperor|Empress|Shah|{_DIRECTIONS})"
)
_SOUNDS = [
    (re.compile(pattern), sound)
    for pattern, sound in (
        ("dsch", "j"),
        ("t?sch", "ch"),
        ("c(?=[eiy])|z|ts", "s"),
        ("[cq]", "k"),
        ("ph|[vw]", "f"),
        ("th", "d"),
        ("j", "y"),
    )
]


def lacks_names(text: str, other: str, pieces: Callable[[str], int]) -> bool:
    """Return whether a name of a text is not in another text, which has another spelling or none of it.

    Args:
        text: Text in a language that capitalizes names and few other words.
        other: Its translation, or its source.
        pieces: Function that returns the number of pieces of a word.
    """
    if _OTHER_SCRIPTS.search(text) or _OTHER_SCRIPTS.search(other):
        return False
    capitalized = list(_CAPITALIZED.finditer(text))
    if len(capitalized) > 1 + max(2, len(_WORD.findall(text)) / 2):  # a heading
        return False

    def is_common(word: str) -> bool:
        return re.fullmatch(_TRANSLATED, word.lower()) is not None or pieces(word.lower()) == 1

    names = [found for found in capitalized if not is_common(found[0])]
    if not names:
        return False
    words = {_folded(word) for word in _WORD.findall(other)}
    spelled = [_spelled(word) for word in words]
    sounds = {_first_sounds(word) for word in spelled}

    def is_translated(word: str) -> bool:
        return is_common(word) and not _TITLE.fullmatch(word) and not _is_among(_folded(word), words)

    def is_institution(begin: int, end: int) -> bool:
        """Return whether the word in a range of the text is in the name of an institution."""
        before = _BEFORE.search(text, 0, begin)
        after = _AFTER.match(text, end)
        if (before or after) and _ARTICLE.search(text, 0, begin):
            last = _REST.match(text, begin)
            if last and not _is_among(_folded(last[1]), words):
                return True
        if after and is_translated(after[1]):
            return True
        return before is not None and not _BEGIN.search(text, 0, before.start()) and is_translated(before[1])

    def is_in_compound(name: re.Match[str]) -> bool:
        stem = _spelled(name[0])[:3]
        return _DIRECTION.search(text, 0, name.start()) is not None and any(stem in word for word in spelled)

    end = -2  # of the name before
    was_kept = False
    for found in names:
        is_kept = _is_among(_folded(found[0]), words) or is_in_compound(found)
        is_similar = is_kept or _first_sounds(_spelled(found[0])) in sounds
        may_change = (not is_similar and _BEGIN.search(text, 0, found.start())) or is_institution(*found.span())
        is_beside = is_similar and found.start() == end + 1
        if not may_change and (not is_similar or (is_beside and was_kept != is_kept)):
            return True
        if is_similar:
            end = found.end()
            was_kept = is_kept
    return False


def _is_among(name: str, words: Collection[str]) -> bool:
    """Return whether words have a name, or one that has nearly the same letters, also at the end of a compound."""
    if name in words:
        return True
    size = len(name)
    return size >= _LONG and any(
        len(word) >= size - 2 and SequenceMatcher(None, name, word[-size - 1 :]).ratio() >= _SIMILAR for word in words
    )


def _folded(word: str) -> str:
    """Return a word in lower case, without accents."""
    return re.sub(r"[\u0300-\u036f]", "", unicodedata.normalize("NFKD", word).casefold())


def _spelled(word: str) -> str:
    """Return a word without accents, with one spelling per sound."""
    spelled = _folded(word)
    for pattern, sound in _SOUNDS:
        spelled = pattern.sub(sound, spelled)
    return spelled


def _first_sounds(spelled: str) -> str:
    """Return the first two consonants of a word that `_spelled` returned, after a star for a first vowel."""
    consonants = re.sub(r"[aeiouyh]|(.)(?=\1)", "", spelled)
    return ("*" if spelled[:1] in "aeiouy" else "") + consonants[:2]
