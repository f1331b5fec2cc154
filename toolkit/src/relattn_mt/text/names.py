"""Names of a text that its translation lacks.

A name is a capitalized word within a sentence whose lower-case form is not a single piece of the vocabulary, as those
of common words are. Its translation may be spelled in another way: Athens is Athen, Egypt is Ägypten. So it is a word
with the same first consonants, also after the vowel that may begin it. A name beside one that stays the same stays the
same too, as in Anna Smith.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_CAPITALIZED = re.compile(r"(?<![\w@#&/.-])[A-ZÀ-ÖØ-Þ][a-zß-öø-ÿ]\w+")
_BEGIN = re.compile(r"(?:\A|[^\w\s,;]|\n)\s*\Z")  # of a sentence or quotation, before its first word
_WORD = re.compile(r"[^\W\d_]+")
_OTHER_SCRIPTS = re.compile(r"[^\W\d_\u0041-\u024f\u1e00-\u1eff]")
# English words that are capitalized and become other words
_TRANSLATED = re.compile(
    r"(?:mon|tues|wednes|thurs|fri|satur|sun|christmas)day|christmas|easter|god|lord|bible|pope|americ\w+|british|britain"
    r"|french|france|german\w*|dutch|greek|greece|spanish|spain|danish|turkish|hungar\w+|jew\w*|czech\w*|swiss|swed\w+"
    r"|states?|kingdom|republic|cologne|munich|vienna|mrs?|ms|miss|dr|prof|sir|lady|king|queen|prince\w*|uncle|aunt"
    r"|mount|lake|river|street|saint|captain|sergeant|mayor|chief|red|cross|supreme|holy"
    r"|\w{3,}(?:[tsc]ion|ment|ty|ship|ence|ance|[a-z]ism|ists?|ish|ese|ics?|ous|ure|ency|ry|ans?|ing|[tl]ed)s?"
)
_SOUNDS = [(re.compile(pattern), sound) for pattern, sound in (("c(?=[eiy])|z", "s"), ("[cq]", "k"), ("ph|[vw]", "f"))]


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
    words = set(_WORD.findall(other))
    sounds: set[str] = set()
    end = -2  # of the name before
    was_kept = False
    for found in capitalized:
        name = found[0]
        if _TRANSLATED.fullmatch(name.lower()) or pieces(name.lower()) == 1:
            continue
        is_kept = name in words
        if not is_kept:
            sounds = sounds or set(map(_first_sounds, words))
            is_similar = name.casefold() in other.casefold() or _first_sounds(name) in sounds
            if not is_similar and _BEGIN.search(text, 0, found.start()):
                continue  # this may be no name
            if not is_similar:
                return True
        if found.start() == end + 1 and was_kept != is_kept:
            return True
        end = found.end()
        was_kept = is_kept
    return False


def _first_sounds(word: str) -> str:
    """Return the first two consonants of a word, as they sound in most languages, after a star for a first vowel."""
    spelled = re.sub(r"[\u0300-\u036f]", "", unicodedata.normalize("NFKD", word).casefold())
    for pattern, sound in _SOUNDS:
        spelled = pattern.sub(sound, spelled)
    consonants = re.sub(r"[aeiouyh]|(.)(?=\1)", "", spelled)
    return ("*" if spelled[:1] in "aeiouy" else "") + consonants[:2]
