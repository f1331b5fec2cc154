"""From sentences to requests of an engine: what the model does not read is removed, the rest is encoded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from relattn_mt.config import SearchConfig
from relattn_mt.search.types import MOST_POSITIONS, Request
from relattn_mt.support.errors import InputError, one_line, require, require_at_most
from relattn_mt.support.types import LanguagePair
from relattn_mt.text.marked import Marked
from relattn_mt.text.patterns import has_text, literal_pattern, tag_pattern
from relattn_mt.tokens.imported_tokenizer import AnyTokenizer, ImportedTokenizer
from relattn_mt.tokens.normalization import with_usual_signs
from relattn_mt.tokens.text_files import require_no_nul
from relattn_mt.translate.glossary import Glossary
from relattn_mt.translate.options import DEFAULTS, CallOptions, SentenceOptions
from relattn_mt.translate.prefixes import Prefixes

if TYPE_CHECKING:
    from relattn_mt.text.strip import StrippedText

LONGEST_LINE = 1 << 14  # characters per line; the time of attention grows with the square of the length

# unknown languages, and those whose nouns are capitalized
_WITH_CAPITALS = re.compile(r"\Z|(?:de|deu|ger|gsw|lb|ltz|nds)(?![^\W_])", re.IGNORECASE)
_WITH_MARK = re.compile(r"(?<![\d.,])\d+(?:[.,]\d{3})*[.,]\d+(?![.,]*\d)")


@dataclass(frozen=True)
class Sentence:
    """A sentence to translate, with its own options.

    Attributes:
        text: The sentence. Its marks are placed in the translation.
        options: How to translate it.
        prefix: Text that each translation begins with; it requires a text without marks.
    """

    text: Marked
    options: SentenceOptions = DEFAULTS
    prefix: str = ""

    def __post_init__(self) -> None:
        if self.prefix:
            require(not self.options.keep_tags, "keep_tags does not work with prefixes: restoring tags moves words")
            require(not self.text.marks, "marks do not work with prefixes: placing marks moves words")

    @property
    def removed(self) -> re.Pattern[str] | None:
        """Pattern of what the model does not read, besides marks; None if it reads all."""
        if self.options.keep_tags:
            return tag_pattern()
        return literal_pattern() if self.text.marks and self.options.keep_literals else None

    @property
    def may_lose_literals(self) -> bool:
        """Whether literals are removed only if the model reads and changes them."""
        options = self.options
        return options.keep_literals and not (options.keep_tags or options.align or self.text.marks or self.prefix)


@dataclass(frozen=True)
class Prepared:
    """A sentence as the model reads it.

    Attributes:
        number: Its line number.
        name: What it is called in messages; empty: no warnings are logged.
        sentence: The sentence.
        stripped: What was removed from it, and what is left; None if nothing was removed.
        is_copied: Whether it is its own translation.
        src_ids: Its source pieces, without special tokens.
        request: What the engine gets; None if the model does not read it.
        terms: Glossary whose terms are compared with the alignment; None without terms or a known alignment.
    """

    number: int
    name: str
    sentence: Sentence
    stripped: StrippedText | None
    is_copied: bool = False
    src_ids: Sequence[int] = ()
    request: Request | None = None
    terms: Glossary | None = None

    @property
    def is_aligned(self) -> bool:
        """Whether the words of source and translation are aligned."""
        return self.sentence.options.align or self.stripped is not None or self.terms is not None


@dataclass(frozen=True)
class Preparation:
    """Makes requests for a model.

    Attributes:
        tokenizer: Tokenizer of both sides.
        search: Default search.
        max_length: Longest sequence that the model can hold, in pieces with special tokens; None if unlimited.
        languages: Source and target language; empty if unknown.
        knows_alignment: As of the engine.
    """

    tokenizer: AnyTokenizer
    search: SearchConfig
    max_length: int | None
    languages: LanguagePair = ("", "")
    knows_alignment: bool = False

    @property
    def names(self) -> tuple[list[bool], Callable[[str], int]]:
        """What `implausibilities` needs to find names."""
        capitals = [not _WITH_CAPITALS.match(code) for code in self.languages]
        return capitals, lambda word: len(self.tokenizer.encode(word))

    @cached_property
    def prefixes(self) -> Prefixes:
        """Prefixes that the tokenizer can spell."""
        return Prefixes(self.tokenizer)

    @property
    def max_source(self) -> int:
        """Maximum number of pieces of a source that is translated, without special tokens."""
        if self.max_length is None:
            return MOST_POSITIONS // 2  # a translation may be longer
        return self.max_length - self.tokenizer.special.per_source

    @property
    def max_target(self) -> int:
        """Maximum number of tokens of a translation, end of sentence included."""
        return min(self.max_length or MOST_POSITIONS, MOST_POSITIONS) - len(self.tokenizer.special.tgt_begin)

    def limit(self, src_pieces: int, search: SearchConfig | None = None) -> int:
        """Return the maximum number of generated tokens for a number of source pieces, end of sentence included."""
        return min(search_limit(src_pieces, search or self.search), self.max_target)

    def holds(self, src_ids: Sequence[int], tgt_ids: Sequence[int]) -> bool:
        """Return whether a sentence and a translation, without special tokens, are short enough for the model."""
        special = self.tokenizer.special
        longest = max(len(src_ids) + special.per_source, len(tgt_ids) + special.per_target)
        return self.max_length is None or longest <= self.max_length

    def excess(self, sentence: Sentence) -> str:
        """Return the length of a sentence that is too long to be translated; empty if it is not."""
        text = sentence.text.text
        options = sentence.options
        if len(text) > LONGEST_LINE:
            return f"{len(text):,} characters"
        if len(text.encode(errors="replace")) < self.max_source:  # a piece has a byte at least
            return ""
        from relattn_mt.text.strip import strip

        line = strip(sentence.text, literal_pattern() if sentence.may_lose_literals else sentence.removed).line
        if options.copy and not needs_translation(line):
            return ""
        pieces = len(self.tokenizer.encode(line))
        return f"{pieces:,} pieces" if pieces > self.max_source else ""

    def find_long(self, sentences: Iterable[tuple[int, Sentence]], unit: str, where: str = "") -> dict[int, str]:
        """Return the lengths of sentences that are too long, by number. All sentences are read.

        Raises:
            InputError: There are some that must not be long. The message begins with `where`, and names all of them
                as a `unit`, or the first ones.
        """
        lengths = {}
        refused = []
        for number, sentence in sentences:
            if length := self.excess(sentence):
                lengths[number] = length
                if sentence.prefix or sentence.options.long_lines == "error":
                    refused.append(f"{unit} {number} has {length}")
        most = f"{self.max_source:,} pieces and {LONGEST_LINE:,} characters (longer: {len(refused):,} of the input)"
        listed = f"{where}{one_line(', '.join(refused), 300)}, but this model reads at most {most}"
        require(not refused, f"{listed}: shorten them, or set long_lines to copy or split")
        return lengths

    def require_held(self, pieces: int, special: int, where: str) -> None:
        """Raise an InputError if a line with `special` special tokens is longer than the model can hold."""
        if self.max_length is not None and pieces + special > self.max_length:
            raise InputError(f"{where} has {pieces} pieces, but this model reads at most {self.max_length - special}")

    def check(self, sentence: Sentence, number: int, call: CallOptions) -> None:
        """Raise an InputError if a sentence cannot be translated as its options and those of the call say.

        Its length is not checked.
        """
        options = sentence.options
        search = call.search or self.search
        if options.n_best > search.beam_size:
            raise InputError(f"n_best must be at most the beam size {search.beam_size}, got {options.n_best}")
        if options.glossary and search.restrains:
            raise InputError("a glossary does not work with no_repeat_ngram and repetition_penalty")
        is_bpe = isinstance(self.tokenizer, ImportedTokenizer) and self.tokenizer.vocabulary.bpe
        if is_bpe and (sentence.prefix or options.glossary):
            raise InputError("prefixes and glossaries do not work with BPE of Moses tokens")
        require_readable(sentence.text.text, f"{call.unit} {number}")
        require_readable(sentence.prefix, f"prefix {number}")
        require_length(sentence.prefix, f"prefix {number}")
        if has_text(sentence.prefix) and not has_text(sentence.text.text):
            raise InputError(f"line {number} is blank, so its prefix must be blank too")

    def prepare(self, number: int, sentence: Sentence, removed: re.Pattern[str] | None, call: CallOptions) -> Prepared:
        """Return a sentence without its marks and without what a pattern matches, as a request.

        Raises:
            InputError: It is longer than the model can read, or its prefix and its terms leave no room.
        """
        stripped = None
        if not sentence.prefix and (sentence.text.marks or removed is not None):
            from relattn_mt.text.strip import strip  # few sentences have marks, and importing it takes milliseconds

            removal = strip(sentence.text, removed)
            stripped = removal if removal.tags else None
        line = stripped.line if stripped else self.tokenizer.normalize(sentence.text.text)
        name = f"{call.unit} {number}" if call.unit else ""
        prepared = Prepared(number, name, sentence, stripped)
        if sentence.options.copy and not needs_translation(line) and not has_text(sentence.prefix):
            return replace(prepared, is_copied=has_text(sentence.text.text) or bool(sentence.text.marks))
        line = with_usual_signs(line)
        ids = self.tokenizer.encode(line) if has_text(line) else []
        if not ids:  # normalization may leave nothing of a line
            return prepared
        self.require_held(len(ids), self.tokenizer.special.per_source, f"{call.unit} {number}")
        request = self._request(number, line, ids, sentence, call)
        terms = sentence.options.glossary if self.knows_alignment and request.phrases else None
        return replace(prepared, src_ids=ids, request=request, terms=terms)

    def _request(self, number: int, line: str, src_ids: list[int], sentence: Sentence, call: CallOptions) -> Request:
        encode = self.tokenizer.encode_target
        most = self.max_target
        glossary = sentence.options.glossary
        prefix_ids, spelling = self.prefixes.encode(sentence.prefix) if sentence.prefix else ([], None)
        terms = glossary.find(line) if glossary else []
        phrases = tuple(tuple(encode(words)) for words in terms)
        spelled = int(spelling.needed[-1]) if spelling else 0
        required = len(prefix_ids) + spelled + sum(map(len, phrases))
        if required >= most:
            held = f"at most {most - 1} pieces, the maximum of this model"
            raise InputError(f"prefix and terms of {call.unit} {number} must have {held}, got {required} pieces")
        special = self.tokenizer.special
        limit = max(self.limit(len(src_ids), call.search), required + 1)
        source = [*special.src_begin, *src_ids, *special.src_end]
        prefix = [*special.tgt_begin, *prefix_ids]
        return Request(number, source, limit + len(special.tgt_begin), prefix, phrases, spelling)


def needs_translation(line: str) -> bool:
    """Return whether a line has a letter of any script, or a number with a decimal or thousands mark, unlike 1.2.3."""
    return any(map(str.isalpha, line)) or _WITH_MARK.search(line) is not None


def search_limit(src_pieces: int, search: SearchConfig) -> int:
    """Return the maximum number of generated tokens that a search allows, whatever the model can hold."""
    return max(1, int(search.max_length_ratio * src_pieces) + search.max_length_extra)


def require_length(line: str, name: str) -> None:
    """Raise an InputError, which begins with `name`, if a line has more than LONGEST_LINE characters."""
    require_at_most(LONGEST_LINE, len(line), name, "characters")


def require_readable(line: str, name: str) -> None:
    """Raise an InputError, which begins with `name`, if a line has NUL or is not Unicode text."""
    require_no_nul(line, name)
    try:
        line.encode()
    except UnicodeEncodeError as error:  # a surrogate, which stands for a byte of an argument that is not UTF-8
        raise InputError(f"{name} must be UTF-8, got '{one_line(line, 60)}'") from error
