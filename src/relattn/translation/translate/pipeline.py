"""From lines of text to lines of text: tokenise, batch by length, search, and put everything back in order.

Lines are translated longest first, in batches of similar length, which costs the least padding; a line's translation
and score do not depend on the batch it was in. A line has its own limit, max_length_ratio · pieces + max_length_extra
generated tokens, at which its translation is closed; a line the model cannot read whole, or of more than LONGEST_LINE
characters, is refused by its number.
"""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

import numpy as np
from tqdm import tqdm

from relattn.translation.config import Calibration, SamplingConfig, SearchConfig
from relattn.translation.data.imported import AnyTokenizer
from relattn.translation.data.plan import runs
from relattn.translation.errors import InputError, one_line
from relattn.translation.search.length_penalty import length_penalty
from relattn.translation.translate.confidence import confidence
from relattn.translation.translate.glossary import Glossary
from relattn.translation.translate.tags import Bare, bare, restored

MAX_SENTENCES = 128  # in a batch, times the beam: enough to keep the arithmetic busy
MAX_TOKENS = 4096  # padded source pieces in a batch, so that long lines do not exhaust memory
PAIRS = 4096  # that are scored at once, the likes together
LONGEST_LINE = 1 << 14  # characters, some thousand pieces: attention takes time by the square of them

_log = logging.getLogger(__name__)
B = TypeVar("B")
R = TypeVar("R")


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a line.

    Attributes:
        text: the translation.
        score: log-probability of its tokens and the end of sentence, in nats, over the length penalty; 0 for a blank
            line.
        tokens: its pieces, without the end of sentence.
        confidence: in (0, 1), as `confidence` gives it; 1 for a blank line.
        alignment: (source word, target word) pairs, where they were asked for.
    """

    text: str
    score: float
    tokens: list[int]
    confidence: float = 1.0
    alignment: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Finished:
    """One complete hypothesis."""

    tokens: list[int]  # generated tokens without the end of sentence
    score: float  # log-probability, end of sentence counted, over the length penalty


@dataclass(frozen=True)
class Sentence:
    """What is asked for of one line.

    Attributes:
        number: of the line, counted from 1.
        src_ids: its pieces, without end.
        limit: most tokens of its translation, end counted.
        prefix: pieces that its translation begins with.
        phrases: pieces of words that its translation has.
    """

    number: int
    src_ids: list[int]
    limit: int
    prefix: list[int] = field(default_factory=list)
    phrases: tuple[tuple[int, ...], ...] = ()


class LineTranslator(ABC):
    """Whatever translates pieces, made into what translates lines.

    Args:
        tokenizer: of both sides.
        search: beam size, length penalty and length limits.
    """

    max_length: int | None = None  # longest sequence, in pieces, end included; None where there is no limit
    sampling: SamplingConfig | None = None  # how translations are drawn; None where they are searched for
    glossary: Glossary | None = None  # of terms whose translations are given
    aligns: bool = True  # whether words can be aligned, and so tags be kept
    aligning: bool = False  # whether hypotheses are given their alignments
    calibration: Calibration = Calibration()  # of confidences
    keep_tags: bool = False  # whether tags, placeholders and the like are kept whole, as `tags` does it
    workers: int = 1  # batches that are searched at a time, where that can be chosen

    def __init__(self, tokenizer: AnyTokenizer, search: SearchConfig) -> None:
        self.tokenizer, self.search = tokenizer, search

    @abstractmethod
    def search_batch(self, sentences: list[Sentence], n: int) -> list[list[Finished]]:
        """The n best translations of each of some sentences, best first; or n that are drawn.

        Args:
            sentences: of similar length.
            n: at most the beam size, where they are searched for.

        Raises:
            InputError: this cannot be done with a prefix, with phrases, or by drawing.
        """

    def of_each(self, work: Callable[[B], R], batches: Sequence[B]) -> Iterator[R]:
        """What `work` makes of each batch, in order; where it can, of as many at a time as there are `workers`."""
        return map(work, batches)

    @abstractmethod
    def forced(self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probability of each piece of given translations, in nats, and of the end of each, the last.

        Args:
            src_ids: the pieces of each sentence, without end.
            tgt_ids: the pieces of its translation, without begin and end.
        """

    @abstractmethod
    def align_batch(
        self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]
    ) -> list[list[tuple[int, int]]]:
        """The (source word, target word) pairs of given translations, counted from 0, as `alignment.links`.

        Args:
            src_ids: the pieces of each sentence, without end.
            tgt_ids: the pieces of its translation, without begin and end.

        Raises:
            InputError: this cannot be done.
        """

    def score(self, pairs: Iterable[tuple[str, str]]) -> Iterator[list[tuple[int, float]]]:
        """What a model thinks of given translations: of each, its pieces and the end, with their log-probabilities.

        Args:
            pairs: source and target lines. A blank one has no pieces, and is read as that.

        Raises:
            InputError: a line is longer than the model can hold, or than LONGEST_LINE characters (the message has its
                side and number, counted from 1); those before it, but for a few, have been given out.
        """
        remaining = iter(enumerate(pairs, start=1))
        while chunk := list(islice(remaining, PAIRS)):
            src_ids, tgt_ids = self.encode_pairs(chunk)
            for ids, log_probs in zip(tgt_ids, self.forced(src_ids, tgt_ids), strict=True):
                yield list(zip([*ids, self.tokenizer.marks.eos], log_probs, strict=True))

    def encode_pairs(self, numbered: Sequence[tuple[int, tuple[str, str]]]) -> tuple[list[list[int]], list[list[int]]]:
        """The pieces of sources and of targets. Raises InputError as `score` does."""
        tokenizer = self.tokenizer
        sides: tuple[list[list[int]], list[list[int]]] = [], []
        encode = tokenizer.encode, tokenizer.encode_target
        for number, pair in numbered:
            for side, line in enumerate(pair):
                where = f"{('source', 'target')[side]} line {number}"
                require_readable(line, where)
                ids = encode[side](line)
                self._require_held(len(ids), (tokenizer.marks.around_src, 1)[side], where)
                sides[side].append(ids)
        return sides

    def _require_held(self, pieces: int, marks: int, where: str) -> None:
        """Refuse a line of more pieces than the model can hold, with so many marks, by an InputError."""
        longest = self.max_length
        if longest is not None and pieces + marks > longest:
            raise InputError(f"{where} has {pieces} pieces, but this model reads at most {longest - marks}")

    def translate(
        self, lines: Iterable[str], *, prefixes: Iterable[str] | None = None, progress: bool = False
    ) -> list[str]:
        """The best translation of each line, in order; a blank line gives an empty one.

        Args:
            lines: one sentence each.
            prefixes: what the translation of each begins with; it is a part of what is returned.
            progress: show a bar of lines done on standard error.

        Raises:
            InputError: a line is longer than the model can read, or than LONGEST_LINE characters (the message has its
                number, counted from 1), there are more prefixes than lines or fewer, a blank line has one, or one
                leaves no room for a translation.
        """
        return [best.text for (best,) in self.n_best(lines, 1, prefixes=prefixes, progress=progress)]

    def n_best(
        self, lines: Iterable[str], n: int, *, prefixes: Iterable[str] | None = None, progress: bool = False
    ) -> list[list[Hypothesis]]:
        """The n best translations of each line the beam finds, best first; a blank line has one, which is empty.

        With `sampling`, n that are drawn.

        Raises:
            InputError: n is not between 1 and the beam size; or as `translate`.
        """
        lines = list(lines)
        with tqdm(total=len(lines), unit="line", file=sys.stderr, disable=not progress) as bar:
            return list(self._stream([lines], n, prefixes, bar.update))

    def stream_n_best(
        self,
        chunks: Iterable[Sequence[str]],
        n: int,
        *,
        prefixes: Iterable[str] | None = None,
        progress: bool = False,
    ) -> Iterator[list[Hypothesis]]:
        """The n best translations of each line of chunks of lines, in order, as `n_best` gives them.

        Each chunk is translated before the next is asked for. Line numbers in errors count from the first chunk's
        first line; the lines of earlier chunks have then been given out.
        """
        with tqdm(unit="line", file=sys.stderr, disable=not progress) as bar:
            yield from self._stream(chunks, n, prefixes, bar.update)

    def _stream(
        self,
        chunks: Iterable[Sequence[str]],
        n: int,
        prefixes: Iterable[str] | None,
        done: Callable[[int], object],
    ) -> Iterator[list[Hypothesis]]:
        """As `stream_n_best`; `done` is told how many lines are ready."""
        remaining, given = iter(chunks), None if prefixes is None else iter(prefixes)
        before = 0
        for chunk in remaining:
            beginnings = [""] * len(chunk) if given is None else list(islice(given, len(chunk)))
            if len(beginnings) < len(chunk):
                lines = before + len(chunk) + sum(map(len, remaining))
                raise InputError(f"there are {before + len(beginnings)} prefixes for {lines} lines")
            yield from self._search_lines(chunk, beginnings, n, first_line=before + 1, done=done)
            before += len(chunk)
        if given is not None and (more := sum(1 for _ in given)):
            raise InputError(f"there are {before + more} prefixes for {before} lines")

    def _search_lines(
        self, lines: Sequence[str], prefixes: Sequence[str], n: int, *, first_line: int, done: Callable[[int], object]
    ) -> list[list[Hypothesis]]:
        """The n best of each line. `first_line` is the number of the first one; `done` is told how many are ready."""
        if self.sampling is None and not 1 <= n <= self.search.beam_size:
            raise InputError(f"cannot give the {n} best translations with beam_size {self.search.beam_size}")
        if n < 1:
            raise InputError(f"cannot draw {n} translations of a line")
        if self.keep_tags and (self.aligning or any(prefixes)):
            raise InputError("lines whose tags are kept have no prefixes and no alignments: their words move")
        for i, (line, prefix) in enumerate(zip(lines, prefixes, strict=True)):
            require_readable(line, f"line {first_line + i}")
            require_readable(prefix, f"prefix {first_line + i}")
            if prefix.strip() and not line.strip():
                raise InputError(f"line {first_line + i} is blank, but its translation is to begin with a prefix")
        stripped = [bare(line) for line in lines] if self.keep_tags else []
        if stripped:
            lines = [of.line for of in stripped]
        results = [[Hypothesis("", 0.0, [])] for _ in lines]
        encoded = {i: self.tokenizer.encode(line) for i, line in enumerate(lines) if line.strip()}
        pieces = {i: ids for i, ids in encoded.items() if ids}  # normalisation may leave nothing of a line
        done(len(lines) - len(pieces))
        marks = self.tokenizer.marks.around_src
        for i, ids in pieces.items():
            self._require_held(len(ids), marks, f"line {first_line + i}")
        asked = [self._sentence(first_line + i, lines[i], ids, prefixes[i]) for i, ids in pieces.items()]
        lengths = np.array([len(sentence.src_ids) + marks for sentence in asked], dtype=np.int64)
        most = min(MAX_SENTENCES, -(-len(asked) // self.workers))
        cut = runs(np.argsort(-lengths, kind="stable"), lengths, MAX_TOKENS, most)
        batches = [[asked[i] for i in indices] for indices in cut]

        def work(batch: list[Sentence]) -> tuple[list[list[Finished]], list[list[Hypothesis]]]:
            found = self.search_batch(batch, n)
            return found, self._hypotheses(batch, found)

        for batch, (found, hypotheses) in zip(batches, self.of_each(work, batches), strict=True):
            for sentence, of_line, as_text in zip(batch, found, hypotheses, strict=True):
                results[sentence.number - first_line] = as_text
                self._warn_if_closed(sentence, of_line[0])
            done(len(batch))
        for i, of in enumerate(stripped):
            results[i] = [self._with_tags(of, found, first_line + i) for found in results[i]]
        return results

    def _hypotheses(self, sentences: list[Sentence], found: list[list[Finished]]) -> list[list[Hypothesis]]:
        """What was found for some sentences, as text, and aligned where that is asked for."""
        each = [(sentence, one) for sentence, of_line in zip(sentences, found, strict=True) for one in of_line]
        alignments: list[list[tuple[int, int]]] = [[]] * len(each)
        if self.aligning or self.keep_tags:
            alignments = self.align_batch([sentence.src_ids for sentence, _ in each], [one.tokens for _, one in each])
        made = (
            Hypothesis(self.tokenizer.decode(one.tokens), one.score, one.tokens, self._confidence(one), alignment)
            for (_, one), alignment in zip(each, alignments, strict=True)
        )
        return [list(islice(made, len(of_line))) for of_line in found]

    def mean_log_prob(self, found: Finished | Hypothesis) -> float:
        """Of a translation's pieces, its end counted."""
        length = len(found.tokens) + 1
        penalty = length_penalty(self.search.length_penalty, self.search.alpha)
        return found.score * penalty(length) / length

    def _confidence(self, found: Finished) -> float:
        return confidence(self.mean_log_prob(found), self.calibration)

    def _with_tags(self, of: Bare, found: Hypothesis, number: int) -> Hypothesis:
        """A translation with what was taken out of its line; says where the place of any of it is a guess."""
        text, guessed = restored(of, found.text, found.alignment)
        if guessed:
            _log.warning("line %d: the place of %s is a guess", number, one_line(" ".join(guessed), 80))
        return replace(found, text=text, alignment=[])

    def _sentence(self, number: int, line: str, src_ids: list[int], prefix: str) -> Sentence:
        """What is asked for of a line. Raises InputError where its prefix and its terms leave no room."""
        encode, longest = self.tokenizer.encode_target, self.max_length
        begin = encode(prefix) if prefix else []
        phrases = tuple(tuple(encode(words)) for words in self.glossary.find(line)) if self.glossary else ()
        needed = len(begin) + sum(map(len, phrases))
        if longest is not None and needed >= longest:
            what = f"prefix {number} has"
            if phrases:
                what = f"{'prefix and terms' if begin else 'terms'} of line {number} have"
            raise InputError(f"{what} {needed} pieces, but this model holds at most {longest - 1}")
        return Sentence(number, src_ids, max(self.limit(len(src_ids)), needed + 1), begin, phrases)

    def _own_limit(self, src_pieces: int) -> int:
        """Most tokens a translation of so many source pieces may have, whatever the model can hold."""
        return max(1, int(self.search.max_length_ratio * src_pieces) + self.search.max_length_extra)

    def limit(self, src_pieces: int) -> int:
        """Most tokens a translation of so many source pieces may have, end counted, where no prefix is longer."""
        own, longest = self._own_limit(src_pieces), self.max_length
        return own if longest is None else min(own, longest)

    def _warn_if_closed(self, sentence: Sentence, best: Finished) -> None:
        """Say that a translation was closed because the model can hold no more. Its own limit only ends repetition."""
        limit = sentence.limit
        closed = limit == self.max_length and len(best.tokens) + 1 == limit
        if closed and limit < self._own_limit(len(sentence.src_ids)):
            _log.warning(
                "line %d: its translation was closed at %d pieces, the most this model can hold", sentence.number, limit
            )


def require_readable(line: str, where: str) -> None:
    """Refuse a line of too many characters by an InputError that says where it is."""
    if len(line) > LONGEST_LINE:
        raise InputError(f"{where} has {len(line):,} characters; at most {LONGEST_LINE:,} are read")
