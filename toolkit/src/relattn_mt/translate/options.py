"""Options of what is translated: those of a sentence, and those of a call that translates sentences together."""

from __future__ import annotations

from dataclasses import dataclass

from relattn_mt.config import SearchConfig
from relattn_mt.config.base import Config, number
from relattn_mt.support.errors import require
from relattn_mt.translate import LongLines
from relattn_mt.translate.glossary import Glossary


@dataclass(frozen=True, kw_only=True)
class SentenceOptions(Config):
    """Options of a sentence. Sentences of one call may have different ones.

    Attributes:
        n_best: Number of translations per line, best first; at most the beam size.
        glossary: Terms whose translations are given.
        keep_tags: Copy tags, numbers with units and literals unchanged into the translation. It cannot be combined with
            `align`.
        keep_literals: Copy emoji and other symbols, and literals that the model changes or leaves out: placeholders,
            addresses, handles, hashtags, numbers of 8 digits or more, and identifiers. It has no effect on lines with a
            prefix, and none with `align`.
        copy: Copy lines such as ``-`` or ``1.`` instead of translating them: they have no letter of any script, and no
            number such as ``1,204.5``.
        align: Align the words of source and translation.
        long_lines: What is done with a sentence that is longer than the model can read: "error" raises an InputError,
            "copy" leaves it untranslated, with the warning `long`, and "split" translates its parts. It has no effect
            on sentences with a prefix.
        check_language: In documents and in the server, also warn of sentences in another language, which takes time.

    Raises:
        InputError: Options contradict each other or are out of range.
    """

    n_best: int = number(1, "[1, 1000]")
    glossary: Glossary | None = None
    keep_tags: bool = False
    keep_literals: bool = True
    copy: bool = True
    align: bool = False
    long_lines: LongLines = "error"
    check_language: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        is_split = self.long_lines == "split"
        require(not (is_split and self.align), "long_lines split does not work with align: parts are aligned alone")
        require(not (self.keep_tags and self.align), "keep_tags does not work with align: restoring tags moves words")


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """Options of a call, which all its sentences share, because they are searched together.

    Attributes:
        search: Beam size, length penalty and length limits. By default, those of the translator.
        unit: Noun for a sentence in errors and logged warnings. If it is empty, no warnings are logged.
    """

    search: SearchConfig | None = None
    unit: str = "line"


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(CallOptions, SentenceOptions):
    """Options of a call that translates lines, which all have the same ones. They never change a translator.

    The attributes are those of `SentenceOptions` and `CallOptions`.

    Raises:
        InputError: Options contradict each other or are out of range.
    """


DEFAULTS = TranslateOptions()
