"""Rules that decide whether a sentence pair is kept, and the words and scripts that they count."""

from __future__ import annotations

import re
from functools import cache

import regex
from babel.core import get_global

from relattn_mt.config import CleaningConfig, SyntheticCleaningConfig
from relattn_mt.corpus.overlap import HeldOutText
from relattn_mt.support.types import LanguagePair
from relattn_mt.text.patterns import has_text

REASONS = {  # in the order of the checks; a pair is dropped for the first reason that applies
    "empty": "a side has no visible character",
    "control": "a side has a control character such as NUL, or U+FFFD, which replaces undecodable bytes",
    "long": "a side has more than max_characters characters or max_words words",
    "ratio": "the sides differ too much in their numbers of words and of bytes (max_ratio)",
    "script": "less than min_script of a side's letters are in the scripts of its language",
    "copy": "the sides have the same words (see keep_copies)",
    "score": "the teacher gave the translation a lower score than min_score",
    "overlap": "a side shares ngram consecutive words with a held-out line",
    "duplicate": "the pair occurred before (see keep_duplicates)",
}

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffd]")  # including lone surrogates

# Scripts that are written without spaces: each character counts as a word.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = regex.compile(rf"[\w--[{_UNSPACED}]]+|[\w&&[{_UNSPACED}]]", regex.V1)
_SPACED_WORD = regex.compile(r"\w+")  # equivalent for text without these scripts, and twice as fast
_MAYBE_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u19ff\u2e80-\U0010ffff]")
_LETTER = regex.compile(r"\p{L}")

# Some script codes of ISO 15924 combine or vary scripts of Unicode.
_UNICODE_SCRIPTS = {
    "Hans": ("Hani",),
    "Hant": ("Hani",),
    "Jpan": ("Hani", "Hira", "Kana"),
    "Kore": ("Hang", "Hani"),
    "Latf": ("Latn",),
    "Latg": ("Latn",),
}


def split_words(text: str) -> list[str]:
    """Return the case-folded words of a text.

    A word is a run of letters, marks, digits and underscores, or one character of a script without spaces.
    """
    word = _WORD if _MAYBE_UNSPACED.search(text) else _SPACED_WORD
    return word.findall(text.casefold())


def script_share(text: str, language: str) -> float:
    """Return the share of a text's letters that belong to the scripts of a language, or to no particular script.

    Args:
        text: Any text; the share is 1 if it has no letters.
        language: a code such as ``en``, ``zh-TW`` or ``sr_Latn``. The share is 1 if its script is unknown.
    """
    pattern = _foreign_letter(language)
    foreign = len(pattern.findall(text)) if pattern is not None else 0
    return 1 - foreign / len(_LETTER.findall(text)) if foreign else 1.0


@cache
def _foreign_letter(language: str) -> regex.Pattern[str] | None:
    """Return a pattern of letters outside of a language's scripts; None if these are not known."""
    script = _likely_script(language)
    if script is None:
        return None
    scripts = "".join(rf"\p{{Script={name}}}" for name in _UNICODE_SCRIPTS.get(script, (script,)))
    try:
        return regex.compile(rf"[\p{{L}}--[{scripts}\p{{Common}}\p{{Inherited}}]]", regex.V1)
    except regex.error:  # Unicode has no such script
        return None


def has_known_script(language: str) -> bool:
    """Return whether `script_share` knows the script of a language."""
    return _foreign_letter(language) is not None


def _likely_script(language: str) -> str | None:
    """Return the ISO 15924 code of a language's script: the one in its code, or the likely one by CLDR."""
    name, *subtags = language.replace("-", "_").split("_")
    for subtag in subtags:
        if len(subtag) == 4 and subtag.isalpha():
            return subtag.title()
    likely = get_global("likely_subtags")
    aliases = get_global("language_aliases")
    name = aliases.get(name.lower(), name)  # of three letters
    for code in (*(f"{name.lower()}_{subtag.upper()}" for subtag in subtags), name.lower()):
        if code in likely and name.lower() != "und":
            return str(likely[code].split("_")[1])
    return None


class Cleaner:
    """All rules except "duplicate", which needs the other pairs of the corpus.

    Args:
        config: Limits of the rules.
        languages: Codes of the source and target languages.
        held_out: Lines that training text must not overlap with.
    """

    def __init__(self, config: CleaningConfig, languages: LanguagePair, held_out: list[str]) -> None:
        self.config = config
        self._src_lang, self._tgt_lang = languages
        self._min_score = config.min_score if isinstance(config, SyntheticCleaningConfig) else None
        self._held_out = None
        if config.ngram is not None and held_out:
            self._held_out = HeldOutText(map(split_words, held_out), config.ngram)

    def drop_reason(self, src: str, tgt: str, score: float = 0.0) -> str | None:
        """Return the first of REASONS for which a pair of normalized lines is dropped; None to keep it.

        `score` is the mean log-probability per token of a synthetic side, in nats.
        """
        config = self.config
        held_out = self._held_out
        if not (has_text(src) and has_text(tgt)):
            return "empty"
        if _CONTROL.search(src) or _CONTROL.search(tgt):
            return "control"
        if config.max_characters is not None and max(len(src), len(tgt)) > config.max_characters:
            return "long"
        src_words = split_words(src)
        tgt_words = split_words(tgt)
        min_count, max_count = sorted((len(src_words), len(tgt_words)))
        if config.max_words is not None and max_count > config.max_words:
            return "long"
        if config.max_ratio is not None and max_count > config.max_ratio * (min_count + 1):
            # One long word, such as a German number, can translate many short ones; then the bytes are in proportion.
            shorter, longer = sorted((len(src.encode()), len(tgt.encode())))
            if longer > config.max_ratio * shorter:
                return "ratio"
        if config.min_script is not None:
            script_fraction = min(script_share(src, self._src_lang), script_share(tgt, self._tgt_lang))
            if script_fraction < config.min_script:
                return "script"
        if not config.keep_copies and src_words == tgt_words and _LETTER.search(src):
            return "copy"
        if self._min_score is not None and score < self._min_score:
            return "score"
        if held_out is not None and (held_out.overlaps(src_words) or held_out.overlaps(tgt_words)):
            return "overlap"
        return None
