"""Augmentation: capital letters, typing errors, missing punctuation, joined lines, copied text, shorter pieces.

A perturbation changes a sentence pair so that its target is still a translation of its source. In training, each has a
share of the pairs of an epoch, drawn again for every epoch. What happens to a pair is a pure function of (seed, epoch,
row), so an epoch can be planned again at any time.

Training text is stored as pieces. Pieces are decoded, the text is changed, and encoded again.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from random import Random

import numpy as np

from relattn_mt.config import AugmentConfig
from relattn_mt.data import copied_text
from relattn_mt.data.storage import EncodedPairs, Sides
from relattn_mt.support.errors import require
from relattn_mt.support.types import SentencePair
from relattn_mt.tokens.imported_tokenizer import AnyTokenizer

Pieces = Sequence[int] | np.ndarray
MOST_JOINED = 4  # lines that become one
_WORDS_PER_TYPO = 10
_SPLIT = 0.1  # probability, as in BPE-dropout (Provilkov et al. 2020)
_CHUNK = 5000  # pairs that are encoded at once

_LETTERS = re.compile(r"[^\W\d_]{3,}")  # a word in which a typing error can be
_FIRST_LETTER = re.compile(r"(?<!\S)([^\w\s]*)([^\W\d_])")
_FINAL = re.compile(r"[\s.!?…,;:。！？；：،؟؛۔।]+$")


def upper_case(pair: SentencePair, random: Random) -> SentencePair:
    """Return both sides in upper case."""
    return pair[0].upper(), pair[1].upper()


def title_case(pair: SentencePair, random: Random) -> SentencePair:
    """Return both sides with a capital at the beginning of each word."""
    src, tgt = (_FIRST_LETTER.sub(lambda match: match[1] + match[2].upper(), side) for side in pair)
    return src, tgt


def drop_punctuation(pair: SentencePair, random: Random) -> SentencePair:
    """Return both sides without the punctuation marks at their ends. A side that has nothing else is kept."""
    src, tgt = (_FINAL.sub("", side) or side for side in pair)
    return src, tgt


def typos(pair: SentencePair, random: Random) -> SentencePair:
    """Return the pair with typing errors in its source: in one of ten words, and in at least one.

    Two letters change places, one is missing, is typed twice or is another letter of the line. Words of one or two
    letters and numbers have none.
    """
    src = pair[0]
    words = list(_LETTERS.finditer(src))
    letters = "".join(word[0] for word in words)
    count = min(len(words), -(-len(src.split()) // _WORDS_PER_TYPO))
    for word in sorted(random.sample(words, count), key=lambda match: -match.start()):  # from the end, to keep places
        i = word.start() + random.randrange(1, len(word[0]) - 1)  # the first letter is rarely wrong
        letter = src[i]
        following = src[i + 1]
        another = random.choice(letters)
        changed = random.choice((following + letter, following, letter * 2 + following, another + following))
        src = src[:i] + changed + src[i + 2 :]
    return src, pair[1]


PERTURBATIONS: dict[str, Callable[[SentencePair, Random], SentencePair]] = {  # in this order, after join_lines
    "drop_punctuation": drop_punctuation,
    "typos": typos,
    "title_case": title_case,
    "upper_case": upper_case,
    "copy": copied_text.insert,
}
JOIN_LINES = "join_lines"
SPLIT_PIECES = "split_pieces"
NAMES = (JOIN_LINES, *PERTURBATIONS, SPLIT_PIECES)

Halves = dict[int, list[tuple[int, int]]]


def perturb(names: Sequence[str], pairs: Sequence[SentencePair], *key: int) -> SentencePair:
    """Return the first of `pairs` with some perturbations, which never leave a side without text.

    Args:
        names: Names of the perturbations.
        pairs: The pair, and those that follow it, of which some may be joined with it.
        key: Numbers that decide on everything random, such as the seed, the epoch and the row.
    """
    random = Random(repr(key))
    pair = pairs[0]
    if JOIN_LINES in names:
        src, tgt = zip(*pairs[: random.randint(2, MOST_JOINED)], strict=True)
        pair = " ".join(src), " ".join(tgt)
    for name, change in PERTURBATIONS.items():
        if name in names:
            pair = change(pair, random)
    return pair


@lru_cache(1)
def halves(tokenizer: AnyTokenizer) -> Halves:
    """Return each way to split a source piece into two other pieces of the same text, by ids."""
    ids = {piece: i for i, piece in enumerate(tokenizer.vocabularies[0])}
    found = Halves()
    for piece, i in ids.items():
        parts = [(piece[:end], piece[end:]) for end in range(1, len(piece))]
        pairs = [(ids[first], ids[second]) for first, second in parts if first in ids and second in ids]
        found[i] = [pair for pair in pairs if tokenizer.decode_source(pair) == tokenizer.decode_source([i])]
    require(any(found.values()), "data.augment.split_pieces requires pieces that consist of two others, got none")
    return found


def split_pieces(pieces: Iterable[int], ways: Halves, random: Random) -> list[int]:
    """Return pieces of the same text, of which one in ten is split, and its parts again with the same probability."""
    split = []
    waiting = list(pieces)[::-1]
    while waiting:
        piece = waiting.pop()
        options = ways.get(piece)
        if options and random.random() < _SPLIT:
            waiting.extend(reversed(random.choice(options)))
        else:
            split.append(piece)
    return split


def sample_perturbed(
    pairs: Iterable[SentencePair], shares: Sequence[AugmentConfig], seed: int
) -> Iterator[SentencePair]:
    """Yield all pairs, some of them changed as in an epoch, to train a tokenizer. The largest share counts."""
    largest = {
        name: max(getattr(config, name) for config in shares)
        for name in PERTURBATIONS
        if name != "copy"  # its random characters need no tokens of their own
    }
    if not any(largest.values()):
        yield from pairs
        return
    for row, pair in enumerate(pairs):
        random = Random(repr((seed, "vocabulary", row)))
        names = [name for name, share in largest.items() if random.random() < share]
        yield perturb(names, [pair], seed, row) if names else pair


@dataclass(eq=False)
class AugmentedPairs:
    """Pairs of one epoch. A changed row is encoded when it is read, so an epoch needs nine bytes per row.

    Attributes:
        shares: Share of the pairs of an epoch for each change, between 0 and 1.
        tokenizer: Tokenizer of the text.
        sizes: Number of pairs of each corpus. Only lines of the same corpus are joined.
        max_length: Maximum number of pieces per side; a longer pair is not changed.
        seed: Random seed.
        given: Number of tokens before the text of each encoded source, which are kept.
        pairs: Pairs without changes.
        epoch: Number of the epoch.
        chosen: Rows that the epoch has, by default all. Only their lengths are right.
        changes: (rows,) bit i is set if a row has the change NAMES[i].
    """

    shares: AugmentConfig
    tokenizer: AnyTokenizer
    sizes: tuple[int, ...]
    max_length: int
    seed: int
    given: int
    pairs: EncodedPairs
    epoch: int
    chosen: np.ndarray | None

    def __post_init__(self) -> None:
        self.changes = self._draw()
        self._ends = list(accumulate(self.sizes))
        self._lengths = self.pairs.lengths()
        changed = np.flatnonzero(self.changes)
        rows = changed if self.chosen is None else np.intersect1d(changed, self.chosen)
        for start in range(0, len(rows), _CHUNK):
            self._measure(rows[start : start + _CHUNK].tolist())

    def _draw(self) -> np.ndarray:
        """Return the changes of each row."""
        changes = np.zeros(len(self.pairs.src), dtype=np.uint8)
        for bit, name in enumerate(NAMES):
            share = getattr(self.shares, name)
            if share > 0:
                random = np.random.default_rng([self.seed, self.epoch, 2, bit])
                drawn = random.random(len(changes), dtype=np.float32)
                changes |= (drawn < share).astype(np.uint8) << bit
        return changes

    def _measure(self, rows: list[int]) -> None:
        """Record the lengths of changed rows. A row that became too long, or empty, is not changed."""
        texts = [self._text(row) for row in rows]
        encoded = self.tokenizer.encode_pairs(texts)  # by all processor cores
        for row, (src, tgt) in zip(rows, encoded, strict=True):
            lengths = len(self._split(row, src)), len(tgt)
            if min(lengths) > 0 and max(lengths) <= self.max_length:
                self._lengths[0][row] = self.given + lengths[0]
                self._lengths[1][row] = lengths[1]
            else:
                self.changes[row] = 0

    def lengths(self) -> Sides:
        """Return (rows,) the number of pieces of each source and of each target, int32."""
        return self._lengths

    def row(self, row: int) -> tuple[Pieces, Pieces]:
        """Return the pieces of the source and of the target of a row."""
        if not self.changes[row]:
            return self.pairs.row(row)
        src, tgt = self._text(row)
        given = self.pairs.src[row][: self.given].tolist()
        return [*given, *self._split(row, self.tokenizer.encode(src))], self.tokenizer.encode_target(tgt)

    def _names(self, row: int) -> list[str]:
        """Return the names of the changes of a row."""
        changes = int(self.changes[row])
        return [name for bit, name in enumerate(NAMES) if changes >> bit & 1]

    def _split(self, row: int, src: Pieces) -> Pieces:
        """Return the source pieces of a row, split if this is one of its changes."""
        if SPLIT_PIECES not in self._names(row):
            return src
        random = Random(repr((self.seed, self.epoch, SPLIT_PIECES, row)))
        return split_pieces(src, halves(self.tokenizer), random)

    def _text(self, row: int) -> SentencePair:
        """Return the changed text of a row."""
        names = self._names(row)
        end = row + 1
        if JOIN_LINES in names:
            end_of_corpus = self._ends[bisect_right(self._ends, row)]
            end = min(end_of_corpus, row + MOST_JOINED)
        texts = []
        for src, tgt in map(self.pairs.row, range(row, end)):
            texts.append((self.tokenizer.decode_source(src.tolist()), self.tokenizer.decode(tgt.tolist())))
        return perturb(names, texts, self.seed, self.epoch, row)
