"""Tokenizer: one SentencePiece unigram model for source and target, from raw text to piece ids and back.

Characters outside the vocabulary are spelled as UTF-8 bytes, and every digit is a piece. So decode(encode(x)) is
normalize(x) for any text of one line, and x itself if the rule is "identity" (`normalization.py`). Models are trained
and held in memory; their bytes are what a run and a bundle store.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import cache, partial
from itertools import groupby, takewhile
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import sentencepiece

from relattn_mt.support.errors import InputError, naming, require, require_known
from relattn_mt.support.files import read_bytes
from relattn_mt.support.processor import cores
from relattn_mt.support.types import AnyPath, IdPair, Ids, SentencePair

if TYPE_CHECKING:
    from relattn_mt.config import Normalization

# SentencePiece writes a space as U+2581, so it would decode a real U+2581 as a space. That character is encoded as a
# noncharacter instead, which becomes four byte pieces, and these are then replaced by the bytes of U+2581.
SPACE_MARK = "\u2581"
_STAND_IN = "\U0010ffff"
_LONGEST_LINE = 1 << 30  # bytes, SentencePiece's maximum; by default it would skip lines of more than 4,192 bytes
LONGEST_PIECE = 16  # maximum characters of a learned piece
BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # a piece that is one byte of a character
_REPLACEMENT = "\ufffd"  # SentencePiece's text of bytes that form no character
_SPACE_BYTES = ("<0x0A>", "<0x20>")
TOKENIZER = "tokenizer.model"  # file name
_LANGUAGE = re.compile(r">>(.+)<<")  # token of a language
_UNKNOWN = 3  # id, follows the special tokens
_TRAINING_THREADS = 16  # fixed, because the vocabulary depends on it


class SpecialTokens(NamedTuple):
    """Ids of the tokens that are not text.

    Attributes:
        bos: First token that the decoder reads.
        eos: Last token that the decoder generates.
        banned: Tokens that the decoder must not generate.
        src_begin: Tokens before each source sentence.
        src_end: Tokens after each source sentence.
        tgt_begin: Tokens that the decoder reads after `bos`, before each translation; they are not generated.
    """

    bos: int = 1
    eos: int = 2
    banned: Ids = (0, 1)
    src_begin: Ids = ()
    src_end: Ids = (2,)
    tgt_begin: Ids = ()

    @property
    def per_source(self) -> int:
        """Number of special tokens per source sentence."""
        return len(self.src_begin) + len(self.src_end)

    @property
    def per_target(self) -> int:
        """Number of special tokens per target sentence that the decoder reads."""
        return 1 + len(self.tgt_begin)


class Tokenizer:
    """A SentencePiece model whose first four ids are padding, begin, end and unknown.

    Args:
        model_bytes: Serialized SentencePiece model.
        checked_digest: SHA-256 of a model that was checked before. It is not checked again, which takes long.

    Attributes:
        special: Ids of the special tokens.
        languages: Token of each language by its code, in a model of several pairs of languages.
        vocab_size: Number of pieces.
        vocab_sizes: Number of pieces of the source and of the target.
        unknown_piece: Piece that stands for unknown pieces.
        files: Content of the tokenizer's files by name.
        digest: SHA-256 of the model, which identifies the tokenizer of encoded text and of weights.

    Raises:
        InputError: The bytes are not such a model.
    """

    special = SpecialTokens()

    def __init__(self, model_bytes: bytes, checked_digest: str = "") -> None:
        self.digest = hashlib.sha256(model_bytes).hexdigest()
        self._model = processor(model_bytes)
        size = self._model.get_piece_size()
        if self.digest != checked_digest:
            self._check()
        controls = takewhile(self._model.is_control, range(_UNKNOWN + 1, size))
        tokens = map(self._model.id_to_piece, controls)
        self.languages = {match[1]: match[0] for match in map(_LANGUAGE.fullmatch, tokens) if match}
        self.vocab_size = size
        self.vocab_sizes = size, size
        self.unknown_piece = self._model.id_to_piece(_UNKNOWN)
        self.files = {TOKENIZER: model_bytes}
        self._pieces = cache(partial(pieces_of, self._model))  # made when they are needed, once for all copies
        self._texts = cache(partial(piece_texts, self._model))

    def _check(self) -> None:
        """Raise an InputError unless the model is as this toolkit trains them."""
        model = self._model
        ids = model.pad_id(), model.bos_id(), model.eos_id(), model.unk_id()
        require(ids == (0, 1, 2, 3), f"a SentencePiece model must have pad, bos, eos, unk at 0, 1, 2, 3, got {ids}")
        spelled = "".join(pieces_of(model)).replace(SPACE_MARK, " ")
        probe = f"  {spelled}  {spelled[::-1]} {bytes(range(128)).decode()}{_STAND_IN} "
        is_restored = model.decode(model.encode(probe)) == normalized(model, probe)
        require(is_restored, "not a SentencePiece model as this toolkit trains them, or a damaged one")

    @property
    def vocabularies(self) -> tuple[list[str], list[str]]:
        """Pieces of the source and of the target by id, special tokens included."""
        return self._pieces(), self._pieces()

    @property
    def longest_piece(self) -> int:
        """Maximum characters of a piece."""
        return max(map(len, self.vocabularies[0]))

    @property
    def target_texts(self) -> list[bytes]:
        """UTF-8 text of each target piece by id, with spaces for marks; special tokens have none."""
        return self._texts()

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        vocab_size: int,
        *,
        seed: int,
        max_lines: int = 500_000,
        normalization: Normalization = "nfc",
        languages: Iterable[str] = (),
    ) -> Tokenizer:
        """Learn a vocabulary of at most vocab_size pieces from `max_lines` random lines. A small text gives fewer.

        Each of `languages` gets a token, which no text is encoded with.

        Raises:
            InputError: The text is empty, or has more distinct characters than vocab_size allows.
        """
        from relattn_mt.tokens.normalization import trainer_options

        model = io.BytesIO()
        # read before training, because SentencePiece hides errors in reading
        sample = _sample(lines, max_lines, Random(seed))
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sample),
                model_writer=model,
                vocab_size=vocab_size,
                hard_vocab_limit=False,
                model_type="unigram",
                max_sentencepiece_length=LONGEST_PIECE,
                **trainer_options(normalization),
                split_digits=True,
                byte_fallback=True,
                character_coverage=0.9999,
                input_sentence_size=max_lines,  # no effect after `_sample`, but the model records it
                max_sentence_length=_LONGEST_LINE,
                shuffle_input_sentence=True,
                num_threads=_TRAINING_THREADS,
                control_symbols=[f">>{language}<<" for language in languages],
                pad_id=0,
                bos_id=cls.special.bos,
                eos_id=cls.special.eos,
                unk_id=_UNKNOWN,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise InputError(_explain(str(error), vocab_size)) from error
        return cls(model.getvalue())

    @classmethod
    def load(cls, path: AnyPath, checked_digest: str = "") -> Tokenizer:
        """Read a model from a file. Raise InputError if it is missing, unreadable or damaged."""
        content = read_bytes(path)
        with naming(path):
            return cls(content, checked_digest)

    def with_languages(self, src_lang: str, tgt_lang: str) -> Tokenizer:
        """Return a tokenizer whose sources begin with the token of the target language.

        Raises:
            InputError: There are tokens of languages, but none of this one.
        """
        if not self.languages:
            return self
        require_known("tgt_lang", tgt_lang, self.languages)
        tokenizer = copy(self)
        token = self._model.piece_to_id(self.languages[tgt_lang])
        tokenizer.special = SpecialTokens(src_begin=(token,))
        return tokenizer

    def frequencies(self) -> dict[str, float]:
        """Return the pieces that are text, each with its probability."""
        return {self.vocabularies[0][i]: math.exp(self._model.get_score(i)) for i in text_ids(self._model)}

    def normalize(self, text: str) -> str:
        """Return a line as the model reads it."""
        if SPACE_MARK not in text:
            return normalized(self._model, text)
        return normalized(self._model, text.replace(SPACE_MARK, _STAND_IN)).replace(_STAND_IN, SPACE_MARK)

    def encode(self, text: str) -> list[int]:
        """Return the piece ids of a source line, without special tokens."""
        if SPACE_MARK not in text:
            return self._model.encode(text)
        ids = self._model.encode(text.replace(SPACE_MARK, _STAND_IN))
        stand_in = self._as_characters(_STAND_IN)
        mark = self._as_characters(SPACE_MARK)
        return [ord(character) for character in "".join(map(chr, ids)).replace(stand_in, mark)]

    def _as_characters(self, character: str) -> str:
        """Return the ids of a character's byte pieces as characters with these code points, for `str.replace`."""
        return "".join(chr(self._model.piece_to_id(f"<0x{byte:02X}>")) for byte in character.encode())

    def encode_target(self, text: str) -> list[int]:
        """Return the piece ids of a target line, without special tokens."""
        return self.encode(text)

    def encode_pairs(self, pairs: Sequence[SentencePair]) -> Iterator[IdPair]:
        """Yield the piece ids of both sides of sentence pairs. All processor cores are used."""
        sides = []
        for side in zip(*pairs, strict=True):
            encoded = self._model.encode(list(side), num_threads=cores())
            for number, text in enumerate(side):
                if SPACE_MARK in text:
                    encoded[number] = self.encode(text)
            sides.append(encoded)
        yield from zip(*sides, strict=True)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of piece ids, as `decode_pieces`. Special tokens are left out."""
        return decode_pieces(self._model, [self._model.id_to_piece(i) for i in ids if i > _UNKNOWN])

    def decode_source(self, ids: Iterable[int]) -> str:
        """Return the text of source ids, as `decode`."""
        return self.decode(ids)


def decode_pieces(model: sentencepiece.SentencePieceProcessor, pieces: Sequence[str]) -> str:
    """Return the text of pieces. Bytes that form no character are left out, and a generated line break is a space."""
    text: str = model.decode_pieces(pieces)
    if _REPLACEMENT in text:
        broken = _broken_bytes(pieces)
        text = model.decode_pieces([piece for piece, is_broken in zip(pieces, broken, strict=True) if not is_broken])
    return text.replace("\n", " ")


def _broken_bytes(pieces: Sequence[str]) -> list[bool]:
    """Return whether each piece is a byte that is not part of a valid character of UTF-8."""
    broken: list[bool] = []
    for is_byte, group in groupby(pieces, key=lambda piece: BYTE.fullmatch(piece) is not None):
        run = [*group]
        if not is_byte:
            broken += [False] * len(run)
            continue
        content = bytes(int(piece[3:5], 16) for piece in run)
        for character in content.decode("utf-8", "surrogateescape"):
            is_broken = "\udc80" <= character <= "\udcff"
            broken += [is_broken] * (1 if is_broken else len(character.encode()))
    return broken


def processor(content: bytes) -> sentencepiece.SentencePieceProcessor:
    """Return a SentencePiece model. Raise InputError if the bytes are not one."""
    model = sentencepiece.SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(content)
    except Exception as error:
        raise InputError("not a SentencePiece model, or a damaged one") from error
    return model


def pieces_of(model: sentencepiece.SentencePieceProcessor) -> list[str]:
    """Return the pieces of a SentencePiece model by id. Raise InputError if one is not text."""
    try:
        return list(map(model.id_to_piece, range(model.get_piece_size())))
    except Exception as error:
        raise InputError("not a SentencePiece model, or a damaged one") from error


def normalized(model: sentencepiece.SentencePieceProcessor, text: str) -> str:
    """Return a text as a model reads it, without the space that it puts before the first word."""
    return model.normalize(text).replace(SPACE_MARK, " ").removeprefix(" ")


def piece_texts(model: sentencepiece.SentencePieceProcessor) -> list[bytes]:
    """Return the UTF-8 text of each piece that is text or a byte, by id, with spaces instead of marks, and else b"".

    A byte that is also the text of another piece is left out, because no text is encoded with it.
    """
    pieces = pieces_of(model)
    texts = [b""] * len(pieces)
    for i in text_ids(model):
        texts[i] = pieces[i].replace(SPACE_MARK, " ").encode()
    spelled = set(texts)
    for i in filter(model.is_byte, range(len(pieces))):
        byte = bytes([int(pieces[i][3:5], 16)])
        texts[i] = b"" if byte in spelled else byte
    return texts


def text_ids(model: sentencepiece.SentencePieceProcessor) -> list[int]:
    """Return the ids of the pieces that are text: neither control tokens nor unknown nor bytes."""
    ids = range(model.get_piece_size())
    return [i for i in ids if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i))]


def _sample(lines: Iterable[str], count: int, random: Random) -> list[str]:
    """Return at most `count` lines, drawn so that all are equally likely (reservoir sampling).

    SentencePiece can draw lines too, but with a random seed that is another one in each process.
    """
    sample = []
    for number, line in enumerate(lines):
        if number < count:
            sample.append(line)
        elif (index := int(random.random() * (number + 1))) < count:  # faster than randrange
            sample[index] = line
    return sample


def _explain(message: str, vocab_size: int) -> str:
    """Return what an error message of SentencePiece's training means."""
    if required := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return f"vocab_size must be at least {required[1]} for the characters of this text, got {vocab_size}"
    if "sentences_.empty()" in message:
        return "there is no text to train a tokenizer on"
    return f"SentencePiece could not be trained: {' '.join(message.split())}"


def word_indices(pieces: Sequence[str]) -> list[int | None]:
    """Return the index of the word that each piece belongs to; None for one without text."""
    indices = []
    word = -1
    inside = False
    for piece, is_broken in zip(pieces, _broken_bytes(pieces), strict=True):
        index = None
        if is_broken:
            piece = ""
        elif BYTE.fullmatch(piece):
            piece = SPACE_MARK if piece in _SPACE_BYTES else "x"
        for character in piece:
            if character == SPACE_MARK:
                inside = False
                continue
            word += not inside
            inside = True
            index = word
        indices.append(index)
    return indices
