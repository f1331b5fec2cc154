"""Word pieces: one SentencePiece unigram model shared by source and target, raw text in and raw text out.

Nothing is normalised or lost: a character outside the vocabulary is spelt as its UTF-8 bytes, every space is kept and
every digit is a piece of its own, so decode(encode(x)) == x for any text of one line. The model is trained and held
in memory; its bytes are what a bundle stores.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import sentencepiece

from relattn.translation.errors import InputError, reading
from relattn.translation.processor import cores

# SentencePiece writes a space as U+2581, so that character itself would come back as a space. It goes in as a
# noncharacter no text holds, which comes out as bytes, and those bytes are then put right.
SPACE_MARK, _STAND_IN = "\u2581", "\U0010ffff"
_LONGEST_LINE = 1 << 30  # bytes, the most SentencePiece takes: it would leave out lines of more than 4,192
LONGEST_PIECE = 16  # characters of a piece that is learned, at most
BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # a piece that spells one byte of a character
TOKENIZER = "tokenizer.model"  # the file it is kept in
_TRAINING_THREADS = 16  # fixed: the sums of its training, hence the vocabulary, depend on it


class SpecialTokens(NamedTuple):
    """Tokens that are no text, by their ids: what a model reads around sentences, and what it never writes.

    Attributes:
        pad: fills up rows, where no model looks.
        bos: what the decoder reads before a target.
        eos: what it writes after one.
        banned: what it never writes.
        src_begin: before each source.
        src_end: after each source.
    """

    pad: int = 0
    bos: int = 1
    eos: int = 2
    banned: tuple[int, ...] = (0, 1)
    src_begin: tuple[int, ...] = ()
    src_end: tuple[int, ...] = (2,)

    @property
    def per_source(self) -> int:
        """How many a source has."""
        return len(self.src_begin) + len(self.src_end)


class Tokenizer:
    """A SentencePiece model whose first four ids are padding, begin, end and unknown.

    Args:
        model_bytes: a serialised SentencePiece model.

    Raises:
        InputError: these bytes are not such a model.
    """

    special = SpecialTokens()
    pad_id, bos_id, eos_id, unk_id = special.pad, special.bos, special.eos, 3

    def __init__(self, model_bytes: bytes) -> None:
        self.model_bytes = model_bytes
        self._model = sentencepiece.SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(model_bytes)
            self._longest_piece = self._check()
        except InputError:
            raise
        except Exception as error:
            raise InputError("not a SentencePiece model, or a damaged one") from error
        self._mark_bytes = self._byte_ids(SPACE_MARK)
        self._stand_in_bytes = self._byte_ids(_STAND_IN)

    def _check(self) -> int:
        """The characters of the longest piece. Raises where a piece, or what all spell together, is not as trained."""
        model = self._model
        ids = (model.pad_id(), model.bos_id(), model.eos_id(), model.unk_id())
        if ids != (self.pad_id, self.bos_id, self.eos_id, self.unk_id):
            raise InputError(f"a SentencePiece model must have pad, bos, eos, unk at 0, 1, 2, 3, got {ids}")
        pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
        spelt = "".join(pieces).replace(SPACE_MARK, " ")
        probe = f"  {spelt}  {spelt[::-1]} {bytes(range(128)).decode()}{_STAND_IN} "
        if model.decode(model.encode(probe)) != probe:
            raise InputError("not a SentencePiece model as this toolkit trains them, or a damaged one")
        return max(map(len, pieces))

    @classmethod
    def train(cls, lines: Iterable[str], vocab_size: int, *, seed: int, sampled: int | None = None) -> Tokenizer:
        """Learn a vocabulary of at most vocab_size pieces from lines of both sides; a small text has fewer to give.

        Of more than `sampled` lines it is learned from so many, drawn at random.

        Raises:
            InputError: there is no text, or its characters alone need more than vocab_size.
        """
        written = io.BytesIO()
        source = _Remembering(lines)
        sentencepiece.set_random_generator_seed(seed % 2**32)
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(source),
                model_writer=written,
                vocab_size=vocab_size,
                hard_vocab_limit=False,
                model_type="unigram",
                max_sentencepiece_length=LONGEST_PIECE,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                split_digits=True,
                byte_fallback=True,
                character_coverage=0.9999,
                input_sentence_size=sampled or 0,  # all
                max_sentence_length=_LONGEST_LINE,
                shuffle_input_sentence=True,
                num_threads=_TRAINING_THREADS,
                pad_id=cls.pad_id,
                bos_id=cls.bos_id,
                eos_id=cls.eos_id,
                unk_id=cls.unk_id,
                minloglevel=2,
            )
        except RuntimeError as error:
            if source.error is not None:
                raise source.error from None
            raise InputError(_explain(str(error), vocab_size)) from error
        return cls(written.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a model from a file. Raises InputError when it is missing, unreadable or damaged."""
        with reading(path, "cannot be read"):
            model_bytes = Path(path).read_bytes()
        try:
            return cls(model_bytes)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    @property
    def vocab_size(self) -> int:
        """Pieces, the four special ones counted."""
        return self._model.get_piece_size()

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """Pieces of source and target, the special ones counted."""
        return self.vocab_size, self.vocab_size

    @cached_property
    def vocabularies(self) -> tuple[list[str], list[str]]:
        """Every piece as SentencePiece writes it, by its id, of the source and of the target."""
        pieces = [self._model.id_to_piece(i) for i in range(self.vocab_size)]
        return pieces, pieces

    @property
    def unknown_piece(self) -> str:
        """What stands for a piece that the vocabulary has not."""
        return self._model.id_to_piece(self.unk_id)

    @property
    def files(self) -> dict[str, bytes]:
        """What it is kept as: names of files and what they hold."""
        return {TOKENIZER: self.model_bytes}

    def frequencies(self) -> dict[str, float]:
        """The pieces that are text, and what share of all pieces each is taken for."""
        text = [i for i in range(self.unk_id + 1, self.vocab_size) if not self._model.is_byte(i)]
        return {self._model.id_to_piece(i): math.exp(self._model.get_score(i)) for i in text}

    @property
    def digest(self) -> str:
        """SHA-256 of the model, by which a run's data and a bundle's weights know it."""
        return hashlib.sha256(self.model_bytes).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The ids of one line of the source, without begin or end."""
        if SPACE_MARK not in text:
            return self._model.encode(text)
        ids = self._model.encode(text.replace(SPACE_MARK, _STAND_IN))
        return _replace_run(ids, self._stand_in_bytes, self._mark_bytes)

    def encode_target(self, text: str) -> list[int]:
        """The ids of one line of the target, without begin or end."""
        return self.encode(text)

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[list[int], list[int]]]:
        """The ids of both sides of many pairs, by all of the processor's cores."""
        sides = [self._model.encode(list(side), num_threads=cores()) for side in zip(*pairs, strict=True)]
        for pair, *ids in zip(pairs, *sides, strict=True):
            src, tgt = (self.encode(text) if SPACE_MARK in text else of for text, of in zip(pair, ids, strict=True))
            yield src, tgt

    def may_fit(self, text: str, most: int) -> bool:
        """Whether text may have at most so many pieces, told from its length and without encoding it.

        It may have more all the same; false says that it has, for no piece is longer than the vocabulary's longest.
        """
        return len(text) <= most * self._longest_piece

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; special ids are dropped, and a line break a model spelt in bytes becomes a space."""
        text = self._model.decode([i for i in ids if i > self.unk_id])
        return text.replace("\n", " ")

    def _byte_ids(self, character: str) -> list[int]:
        return [self._model.piece_to_id(f"<0x{byte:02X}>") for byte in character.encode()]


class _Remembering:
    """Lines for SentencePiece, which reports whatever went wrong in reading them as an error of its own."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = lines
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[str]:
        try:
            yield from self.lines
        except BaseException as error:
            self.error = error
            raise


def _replace_run(ids: list[int], old: list[int], new: list[int]) -> list[int]:
    """ids with every run equal to old replaced by new."""
    out: list[int] = []
    at = 0
    while at < len(ids):
        if ids[at : at + len(old)] == old:
            out += new
            at += len(old)
        else:
            out.append(ids[at])
            at += 1
    return out


def _explain(message: str, vocab_size: int) -> str:
    """What SentencePiece's complaint means for the one who chose vocab_size."""
    if found := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return f"vocab_size {vocab_size} is too small for this text: its characters alone need {found[1]} pieces"
    if "sentences_.empty()" in message:
        return "there is no text to learn word pieces from"
    return f"SentencePiece could not be trained: {' '.join(message.split())}"


def word_indices(pieces: Sequence[str]) -> list[int | None]:
    """The word that each piece belongs to, counted from 0; None of a piece of spaces alone."""
    found: list[int | None] = []
    word, inside = -1, False
    for piece in pieces:
        belongs = None
        for character in "x" if BYTE.fullmatch(piece) else piece:
            if character == SPACE_MARK:
                inside = False
                continue
            word, inside = word + (not inside), True
            belongs = word
        found.append(belongs)
    return found
