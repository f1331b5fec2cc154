"""Synthetic training text: `relattn-mt distill` and `relattn-mt backtranslate`.

A model translates monolingual text. The pairs go through the rules of `relattn-mt prepare`, which writes
them part by part, so that a killed command continues after the last complete part. In distillation the translations are
the targets of a smaller model, the student (Kim and Rush 2016). In back-translation they are sources, with a tag before
them by which a model tells them from real ones (Sennrich et al. 2016; Caswell et al. 2019).

A part is always translated as a whole, in the same batches. So its text depends on the models, the options and its
lines, not on interruptions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

from relattn_mt.config import SyntheticCleaningConfig, as_dict
from relattn_mt.corpus.filter_pool import ScoredPair
from relattn_mt.corpus.filters import split_words
from relattn_mt.corpus.pipeline import prepare
from relattn_mt.corpus.report import FilterStats
from relattn_mt.corpus.sources import by_role, file_names
from relattn_mt.loading import weights_digest
from relattn_mt.support.errors import require, require_language
from relattn_mt.support.files import require_regular
from relattn_mt.support.types import Fields, LanguagePair
from relattn_mt.text.marked import Marked
from relattn_mt.text.patterns import has_text
from relattn_mt.tokens.normalization import normalize
from relattn_mt.tokens.text_files import read_lines
from relattn_mt.translate.options import TranslateOptions
from relattn_mt.translate.prepare import Sentence
from relattn_mt.translate.translation import Translation
from relattn_mt.translate.translator import Translator

PART = 2048  # lines that are translated at once, and lost if the process is killed


@dataclass(frozen=True)
class SyntheticText:
    """Monolingual text and its translations, as a source of pairs for `prepare`.

    Attributes:
        translator: The model.
        teacher: Its directory.
        files: Files of monolingual text.
        options: How to translate.
        cleaning: Rules of the preparation. Longer lines are not translated.
        precision: Precision and device of the translator, which the last digits of its scores depend on.
        exclude: Files of held-out lines.
        tag: For back-translation, the word before each synthetic source. None for distillation.
    """

    translator: Translator
    teacher: str
    files: tuple[str, ...]
    options: TranslateOptions
    cleaning: SyntheticCleaningConfig
    precision: str
    exclude: tuple[str, ...] = ()
    tag: str | None = None

    @property
    def languages(self) -> LanguagePair:
        """Codes of the source and target languages of the pairs."""
        languages = self.translator.src_lang, self.translator.tgt_lang
        return languages if self.tag is None else languages[::-1]

    @property
    def paths(self) -> dict[str, str]:
        """Paths of all files, by role."""
        return by_role("monolingual", self.files) | by_role("excluded", self.exclude)

    @cached_property
    def identity(self) -> Fields:
        """Everything that the pairs depend on: digests of text and models, and options."""
        require_regular(*self.paths.values())
        digests = {}
        lines = 0
        for role, path in self.paths.items():
            digest = hashlib.sha256()
            count = sum(1 for _ in read_lines(path, digest.update))
            digests[role] = digest.hexdigest()
            lines += count if role.startswith("monolingual") else 0
        search = as_dict(self.options.search or self.translator.search)
        options = {"n_best": self.options.n_best, "tag": self.tag, "precision": self.precision, "part": PART}
        return {
            "synthetic": "target" if self.tag is None else "source",
            "pairs": lines * self.options.n_best,
            "text": digests,
            "teacher": weights_digest(self.teacher),
            "translation": {**options, **search},
        }

    @property
    def origin(self) -> Fields:
        """Names of the files and of the teacher."""
        return {"files": file_names(self.paths), "teacher": "/".join(Path(self.teacher).parts[-2:])}

    def pairs(self, start: int) -> Iterator[ScoredPair]:
        """Yield the pairs from an index on, which is a multiple of the number of pairs per part."""
        n_best = self.options.n_best
        first = start // n_best
        total = self.identity["pairs"] // n_best
        for number, chunk in self._chunks(first, total):
            lines = [line if self._is_read(line) else "" for line in chunk]
            results = self.translator.stream([lines], self.options, first_line=number + 1)
            for line, translations in zip(chunk, results, strict=True):
                missing = [Translation("", 0.0, [])] * (n_best - len(translations))
                for translation in [*translations, *missing]:
                    yield self._pair(line, translation)

    def _chunks(self, first: int, total: int) -> Iterator[tuple[int, list[str]]]:
        """Yield the index of the first line and the lines of each part from an index on."""
        lines = islice(self._lines(), first, None)
        for number in range(first, total, PART):
            size = min(PART, total - number)
            chunk = list(islice(lines, size))
            got = number + len(chunk)
            require(len(chunk) == size, f"{', '.join(self.files)}: must have {total} lines as before, got {got}")
            yield number, chunk

    def _pair(self, line: str, best: Translation) -> ScoredPair:
        if self._is_long(line):
            return line, line, 0.0  # which the rules drop
        if self.tag is None:
            return line, best.text, best.mean_log_prob
        return f"{self.tag} {best.text}" if has_text(best.text) else "", line, best.mean_log_prob

    def _lines(self) -> Iterator[str]:
        return map(normalize, chain.from_iterable(map(read_lines, self.files)))

    def _is_long(self, line: str) -> bool:
        """Return whether the rules drop a line because it is long."""
        words = self.cleaning.max_words
        characters = self.cleaning.max_characters
        too_many_words = words is not None and len(split_words(line)) > words
        return too_many_words or (characters is not None and len(line) > characters)

    def _is_read(self, line: str) -> bool:
        """Return whether a line is translated. One that the model cannot read is dropped as empty."""
        return not self._is_long(line) and not self.translator.preparation.excess(Sentence(Marked(line), self.options))


def synthesize(text: SyntheticText, out: Path) -> FilterStats:
    """Write a synthetic corpus, or continue one that was interrupted, and return its statistics.

    Raises:
        InputError: As `prepare`, or a line cannot be translated.
    """
    for name, code in zip(("source language", "target language"), text.languages, strict=True):
        require_language(f"the {name} of the model", code)
    return prepare(text, out, text.cleaning, part=PART * text.options.n_best)
