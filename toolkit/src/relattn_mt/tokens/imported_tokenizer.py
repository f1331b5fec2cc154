"""Tokenizer of an imported model: a SentencePiece model, or codes of subword-nmt, and a vocabulary for each side.

    tokenizer.model          SentencePiece model or codes of the source
    tokenizer.target.model   those of the target, which may be the same
    vocabulary.json          pieces of each side by id, and which of them are special tokens

Another toolkit trained the model. Its SentencePiece models may normalize text, and their ids differ from those of the
vocabularies, which the weights belong to. A piece that is not in a vocabulary becomes the unknown piece.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from relattn_mt.support.errors import InputError, naming, one_line, reading, require, require_known
from relattn_mt.support.files import read_bytes
from relattn_mt.support.types import IdPair, SentencePair
from relattn_mt.tokens.bpe import BpeModel, piece_text
from relattn_mt.tokens.tokenizer import (
    SPACE_MARK,
    TOKENIZER,
    SpecialTokens,
    Tokenizer,
    decode_pieces,
    normalized,
    piece_texts,
    pieces_of,
    processor,
    text_ids,
)

TGT_TOKENIZER = "tokenizer.target.model"
VOCABULARY = "vocabulary.json"
_FILES = Path(TOKENIZER), Path(TGT_TOKENIZER)
MIN_KNOWN_FRACTION = 0.5  # fraction of a SentencePiece model's pieces that its vocabulary must have
_PADS = ("<blank>", "<pad>")  # names of the padding token in other toolkits


@dataclass(frozen=True)
class Vocabulary:
    """Pieces of a model and its special tokens.

    Attributes:
        source: Source pieces by id.
        target: Target pieces by id.
        start: First token that the decoder reads.
        end: Last token that the decoder generates.
        unknown: Token for pieces that are not in a vocabulary.
        source_begin: Tokens before each source sentence.
        source_end: Tokens after each source sentence.
        target_begin: Tokens that the decoder reads after `start`. They are given, not generated.
        languages: Token of each language by its code, in a model of several directions. If `target_begin` has one,
            those around the source are of the source's language; else they are of the target's.
        prompts: Pieces before each source sentence by the pair of languages, "en de", separated by spaces; in T5.
        bpe: Who prepares text for codes of subword-nmt, as in `BpeModel`; empty for SentencePiece models.
    """

    source: list[str]
    target: list[str]
    start: str
    end: str
    unknown: str
    source_begin: list[str] = field(default_factory=list)
    source_end: list[str] = field(default_factory=list)
    target_begin: list[str] = field(default_factory=list)
    languages: dict[str, str] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    bpe: str = ""

    def __post_init__(self) -> None:
        for name, annotation in get_type_hints(Vocabulary).items():
            value = getattr(self, name)
            strings = [value]
            if isinstance(value, dict):
                strings = [*value, *value.values()]
            elif isinstance(value, list):
                strings = value
            valid = type(value) is (get_origin(annotation) or annotation) and {*map(type, strings)} <= {str}
            require(valid, f"a vocabulary's {name} must be {_KINDS[annotation]}")
        _require_pieces("source", self.source, [self.unknown, *self.source_begin, *self.source_end])
        _require_pieces("target", self.target, [self.unknown, self.start, self.end, *self.target_begin])

    @property
    def reads_source_language(self) -> bool:
        """Whether the tokens around a source are of its language, and not of the target's."""
        return not set(self.languages.values()).isdisjoint(self.target_begin)

    def with_languages(self, src_lang: str, tgt_lang: str) -> Vocabulary:
        """Return the vocabulary with the tokens of other languages around the source and before the target.

        `src_lang` may be any code if the model reads no token of it.

        Raises:
            InputError: The model has no such language.
        """
        other = copy(self)  # `replace` would check the vocabularies again, which takes long
        if self.prompts:
            vars(other)["source_begin"] = self.prompts.get(f"{src_lang} {tgt_lang}", "").split()
        elif self.languages:
            around = tgt_lang
            if self.reads_source_language:
                around = src_lang
                require_known("src_lang", src_lang, self.languages)
            require_known("tgt_lang", tgt_lang, self.languages)
            tokens = self.languages.values()
            for name, code in (("source_begin", around), ("source_end", around), ("target_begin", tgt_lang)):
                pieces = getattr(self, name)
                vars(other)[name] = [self.languages[code] if piece in tokens else piece for piece in pieces]
        return other


_KINDS: dict[Any, str] = {str: "a string", list[str]: "a list of strings", dict[str, str]: "strings by name"}


def _require_pieces(side: str, pieces: list[str], special: list[str]) -> None:
    """Raise an InputError if a vocabulary has a piece twice, or not all special tokens."""
    known = {*pieces}
    if len(known) < len(pieces):
        ((repeated, _),) = Counter(pieces).most_common(1)
        raise InputError(f"the {side} vocabulary must have {one_line(repeated, 40)!r} only once")
    if missing := [piece for piece in special if piece not in known]:
        raise InputError(f"the {side} vocabulary must have {one_line(missing[0], 40)!r}")


class ImportedTokenizer:
    """SentencePiece models and vocabularies of a model that another toolkit trained.

    Args:
        src_model: Serialized SentencePiece model of the source, or its codes.
        tgt_model: The same of the target.
        vocabulary: Vocabularies and special tokens.
        paths: Files of both in messages.
        is_checked: Whether it was checked before that the models belong to the vocabularies, which takes long.

    Attributes:
        special: Ids of the special tokens.
        languages: Token of each language by its code, in a model of several pairs of languages.
        models: SentencePiece models or codes of both sides.
        vocabularies: Pieces of the source and of the target by id, special tokens included.
        vocab_sizes: Number of pieces of the source and of the target.
        unknown_piece: Piece that stands for unknown pieces.
        not_text: Ids of the target pieces that are not text.
        controls: Characters of the names of special tokens and languages, which a text with such a name is encoded as.
        longest_piece: Maximum characters of a piece; infinite, because normalization may shorten a text.

    Raises:
        InputError: A model is damaged or belongs to another vocabulary.
    """

    longest_piece = math.inf

    def __init__(
        self,
        src_model: bytes,
        tgt_model: bytes,
        vocabulary: Vocabulary,
        paths: Sequence[Path] = _FILES,
        is_checked: bool = False,
    ) -> None:
        self.vocabulary = vocabulary
        self.vocabularies = vocabulary.source, vocabulary.target
        self.vocab_sizes = len(vocabulary.source), len(vocabulary.target)
        self.unknown_piece = vocabulary.unknown
        self._contents = src_model, tgt_model
        src_ids = _ids(vocabulary.source)
        tgt_ids = src_ids if vocabulary.target is vocabulary.source else _ids(vocabulary.target)
        self._ids = src_ids, tgt_ids
        source = _load_model(paths[0], src_model, vocabulary.bpe)
        target = source if tgt_model == src_model else _load_model(paths[1], tgt_model, vocabulary.bpe)
        self.models = source, target
        if not is_checked:
            _require_known(paths[0], "source", source, src_ids)
            _require_known(paths[1], "target", target, tgt_ids)
        self.special = self._special_tokens()
        languages = vocabulary.languages.values()
        ids_of_languages = (tgt_ids[piece] for piece in languages if piece in tgt_ids)
        self.not_text = {*self.special.banned, self.special.eos, tgt_ids[vocabulary.unknown], *ids_of_languages}
        names = {*languages, *(vocabulary.target[i] for i in self.not_text)}
        self.controls = {name: list(name) for name in names}
        self._texts = cache(self._make_texts)  # when they are needed, once for all copies

    def _make_texts(self) -> list[bytes]:
        target = self.vocabulary.target
        model = self.models[1]
        if self.vocabulary.bpe:
            texts = {piece: piece_text(piece).replace(SPACE_MARK, " ").encode() for piece in target}
        else:
            texts = dict(zip(pieces_of(model), piece_texts(model), strict=True))
        return [b"" if i in self.not_text else texts.get(piece, b"") for i, piece in enumerate(target)]

    @property
    def target_texts(self) -> list[bytes]:
        """UTF-8 text of each target piece by id, with spaces for marks; special tokens have none."""
        return self._texts()

    def _special_tokens(self) -> SpecialTokens:
        """Return the ids of the special tokens of the vocabulary."""
        vocabulary = self.vocabulary
        src_ids, tgt_ids = self._ids
        pads = [tgt_ids[name] for name in _PADS if name in tgt_ids]
        bos = tgt_ids[vocabulary.start]
        eos = tgt_ids[vocabulary.end]
        return SpecialTokens(
            bos=bos,
            eos=eos,
            banned=tuple(sorted({*pads, bos} - {eos})),
            src_begin=tuple(src_ids[piece] for piece in vocabulary.source_begin),
            src_end=tuple(src_ids[piece] for piece in vocabulary.source_end),
            tgt_begin=tuple(tgt_ids[piece] for piece in vocabulary.target_begin),
        )

    @property
    def languages(self) -> dict[str, str]:
        return self.vocabulary.languages

    @cached_property
    def files(self) -> dict[str, bytes]:
        """Content of the tokenizer's files by name."""
        content = json.dumps(vars(self.vocabulary), ensure_ascii=False, indent=1).encode() + b"\n"
        return {**dict(zip((TOKENIZER, TGT_TOKENIZER), self._contents, strict=True)), VOCABULARY: content}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the files, which identifies the tokenizer of encoded text and of weights."""
        return _digest(self.files.values())

    @classmethod
    def load(cls, directory: Path, checked_digest: str = "") -> ImportedTokenizer:
        """Read a tokenizer, which is not checked completely if its digest is that of one that was checked before.

        Raises:
            InputError: A file is missing, damaged or does not belong to the others.
        """
        paths = [directory / name for name in (TOKENIZER, TGT_TOKENIZER, VOCABULARY)]
        contents = [*map(read_bytes, paths)]
        with reading(paths[2], "not JSON"):
            fields = json.loads(contents[2])
            if fields.get("source") == fields.get("target"):
                fields["target"] = fields.get("source")  # one list takes half the memory
        try:
            vocabulary = Vocabulary(**fields)
        except (InputError, TypeError) as error:
            raise InputError(f"{paths[2]}: {one_line(error)}") from error
        digest = _digest(contents)
        tokenizer = cls(contents[0], contents[1], vocabulary, paths[:2], digest == checked_digest)
        tokenizer.digest = digest
        return tokenizer

    def with_languages(self, src_lang: str, tgt_lang: str) -> ImportedTokenizer:
        """Return a tokenizer for another direction of the same model. Raises InputError as `Vocabulary` does."""
        if not (self.languages or self.vocabulary.prompts):
            return self
        other = copy(self)
        other.vocabulary = self.vocabulary.with_languages(src_lang, tgt_lang)
        other.special = other._special_tokens()
        if self.vocabulary.bpe:
            other.models = self.models[0].with_language(src_lang), self.models[1].with_language(tgt_lang)
        for name in ("files", "digest"):
            other.__dict__.pop(name, None)
        return other

    def frequencies(self) -> dict[str, float]:
        """Return the source pieces that are text, all with the same weight."""
        known = sorted(_text_pieces(self.models[0]) & self._ids[0].keys())
        return dict.fromkeys(map(piece_text, known) if self.vocabulary.bpe else known, 1.0)

    def normalize(self, text: str) -> str:
        """Return a source line as the model reads it."""
        return text if self.vocabulary.bpe else normalized(self.models[0], text)  # codes are applied to raw text

    def encode(self, text: str) -> list[int]:
        """Return the piece ids of a source line, without special tokens."""
        return self._encoded(text, 0)

    def encode_target(self, text: str) -> list[int]:
        """Return the piece ids of a target line, without special tokens."""
        return self._encoded(text, 1)

    def _encoded(self, text: str, side: int) -> list[int]:
        ids = self._ids[side]
        unknown = ids[self.unknown_piece]
        pieces = self.models[side].encode(text, out_type=str)
        return [ids.get(part, unknown) for piece in pieces for part in self.controls.get(piece, [piece])]

    def encode_pairs(self, pairs: Sequence[SentencePair]) -> Iterator[IdPair]:
        """Yield the piece ids of both sides of sentence pairs."""
        return ((self.encode(src), self.encode_target(tgt)) for src, tgt in pairs)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of target ids, as `decode_pieces`. Special tokens are left out."""
        return self._decoded(ids, 1, self.not_text)

    def decode_source(self, ids: Iterable[int]) -> str:
        """Return the text of source ids, without unknown pieces."""
        return self._decoded(ids, 0, {self._ids[0][self.unknown_piece]})

    def _decoded(self, ids: Iterable[int], side: int, left_out: set[int]) -> str:
        pieces = [self.vocabularies[side][i] for i in ids if i not in left_out]
        return decode_pieces(self.models[side], pieces)


AnyTokenizer = Tokenizer | ImportedTokenizer


def marked_pieces(tokenizer: AnyTokenizer, side: int, ids: Iterable[int]) -> list[str]:
    """Return the pieces of a source (side 0) or a target (1), with a mark where a word begins, for `word_indices`."""
    pieces = [tokenizer.vocabularies[side][i] for i in ids]
    if not (isinstance(tokenizer, ImportedTokenizer) and tokenizer.vocabulary.bpe):
        return pieces
    marked = []
    words = 0
    for end, piece in enumerate(pieces, start=1):
        before = words
        words = len(tokenizer.models[side].decode_pieces(pieces[:end]).split())
        marked.append(f"{SPACE_MARK}{piece}" if words > before else piece)
    return marked


def tokenizer_in(directory: Path) -> AnyTokenizer:
    """Read the tokenizer in a directory, which is imported if there is a vocabulary.json. Raise InputError."""
    if (directory / VOCABULARY).exists():
        return ImportedTokenizer.load(directory)
    return Tokenizer.load(directory / TOKENIZER)


def _ids(pieces: list[str]) -> dict[str, int]:
    return {piece: i for i, piece in enumerate(pieces)}


def _digest(contents: Iterable[bytes]) -> str:
    digests = [hashlib.sha256(content).digest() for content in contents]
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _load_model(path: Path, content: bytes, bpe: str) -> Any:
    """Return the SentencePiece model of a side, or its codes. Raises InputError."""
    try:
        return BpeModel(content, bpe).with_language("en") if bpe else processor(content)
    except (InputError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {one_line(error)}") from error


def _text_pieces(model: Any) -> set[str]:
    """Return the pieces of a SentencePiece model, or of codes, that are text."""
    if isinstance(model, BpeModel):
        return {*model.pieces}
    pieces = pieces_of(model)
    return {pieces[i] for i in text_ids(model)}


def _require_known(path: Path, side: str, model: Any, ids: dict[str, int]) -> None:
    """Raise an InputError if most pieces of a side's model are not in its vocabulary."""
    with naming(path):
        text = _text_pieces(model)
    is_bpe = isinstance(model, BpeModel)
    needed = min(len(text), len(ids)) if is_bpe else len(text)  # codes may be of both sides, and so may a vocabulary
    known = len(text & ids.keys())
    if known < MIN_KNOWN_FRACTION * needed:
        joined = " (which marks joined pieces with ￭, unlike SentencePiece)" if any("￭" in p for p in ids) else ""
        what = f"the {'set of codes' if is_bpe else 'SentencePiece model'} is not the {side}'s"
        raise InputError(f"{path}: {what}: {known:,} of its {len(text):,} pieces are in the vocabulary{joined}")
