"""Whether a pair stays in training text, and if not, why."""

from __future__ import annotations

import re

from relattn.translation.config import CleaningConfig
from relattn.translation.corpus.overlap import HeldOut
from relattn.translation.corpus.words import Scripts, words

REASONS = {  # in the order in which they are looked for; a pair is dropped for the first that it meets
    "empty": "a side has no text",
    "control": "control characters, NUL among them, or U+FFFD, which stands for what could not be read",
    "long": "a side has too many characters or words",
    "ratio": "a side has too many words for those of the other",
    "script": "a side is mostly in letters that its language is not written in",
    "overlap": "a side has words in a row in common with a held-out line",
    "duplicate": "the pair occurred before",
}

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffd]")  # a lone surrogate is no character either

OPTIONS = {  # which decide whether a pair is dropped for a reason
    "long": ("max_words", "max_characters"),
    "ratio": ("max_ratio",),
    "script": ("min_script",),
    "overlap": ("ngram",),
    "duplicate": ("keep_duplicates",),
}


class Cleaner:
    """The rules that a pair can be held to by itself: all but "duplicate".

    Args:
        config: the rules.
        languages: of source and target.
        held_out: lines that a pair must have nothing of.
    """

    def __init__(self, config: CleaningConfig, languages: tuple[str, str], held_out: list[str]) -> None:
        self.config = config
        self._scripts = [Scripts(language) for language in languages]
        self._held_out = HeldOut(held_out, config.ngram) if config.ngram is not None and held_out else None

    def reason(self, src: str, tgt: str) -> str | None:
        """Why a pair is dropped, one of REASONS; None if it stays. Both sides are `words.plain` text."""
        config, held_out = self.config, self._held_out
        if not src or not tgt:
            return "empty"
        if _CONTROL.search(src) or _CONTROL.search(tgt):
            return "control"
        if config.max_characters is not None and max(len(src), len(tgt)) > config.max_characters:
            return "long"
        src_words, tgt_words = words(src), words(tgt)
        fewer, more = sorted((len(src_words), len(tgt_words)))
        if config.max_words is not None and more > config.max_words:
            return "long"
        if config.max_ratio is not None and more > config.max_ratio * (fewer + 1):
            return "ratio"
        of_src, of_tgt = self._scripts
        if config.min_script is not None and min(of_src.share(src), of_tgt.share(tgt)) < config.min_script:
            return "script"
        if held_out is not None and (held_out.overlaps(src_words) or held_out.overlaps(tgt_words)):
            return "overlap"
        return None
