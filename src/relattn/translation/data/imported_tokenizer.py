"""The tokenizer of an imported model: SentencePiece on each side, and vocabularies of an order of their own.

    tokenizer.model          the SentencePiece model of the source
    tokenizer.target.model   that of the target, which may be the same
    vocabulary.json          the pieces of each side by their numbers, and which of them mark beginnings and ends

Another toolkit trained the model. A SentencePiece model of that kind may normalise text, and has numbers of its own for
its pieces, which the model never saw. A piece that a vocabulary has not is its unknown one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import get_type_hints

import sentencepiece

from relattn.translation.data.tokenizer import TOKENIZER, SpecialTokens, Tokenizer
from relattn.translation.errors import InputError, one_line, reading

TGT_TOKENIZER, VOCABULARY = "tokenizer.target.model", "vocabulary.json"
LEAST_KNOWN = 0.5  # of the pieces of a SentencePiece model that are in the vocabulary it belongs to
_PADS = ("<blank>", "<pad>")  # what other toolkits call it


@dataclass(frozen=True)
class Vocabulary:
    """The pieces of a model, and which of them are marks.

    Attributes:
        source: pieces of the source, by their numbers.
        target: those of the target.
        start: what the decoder reads before a target.
        end: what it writes after one.
        unknown: stands for pieces that are none of these.
        source_begin: read before each source; nothing by default.
        source_end: read after each source; nothing by default.
    """

    source: list[str]
    target: list[str]
    start: str
    end: str
    unknown: str
    source_begin: list[str] = field(default_factory=list)
    source_end: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(Vocabulary).items():
            value = getattr(self, name)
            of_text = all(isinstance(piece, str) for piece in value) if isinstance(value, list) else False
            if not (isinstance(value, str) if kind is str else of_text):
                raise InputError(f"a vocabulary's {name} is {'one piece' if kind is str else 'a list of pieces'}")
        for side, pieces, marks in (
            ("source", self.source, [self.unknown, *self.source_begin, *self.source_end]),
            ("target", self.target, [self.unknown, self.start, self.end]),
        ):
            if len(set(pieces)) < len(pieces):
                twice = next(piece for i, piece in enumerate(pieces) if piece in pieces[:i])
                raise InputError(f"the vocabulary of the {side} has {one_line(twice, 40)!r} twice")
            for mark in marks:
                if mark not in pieces:
                    raise InputError(f"the vocabulary of the {side} has no {one_line(mark, 40)!r}")


class ImportedTokenizer:
    """Two SentencePiece models and the vocabularies of a model trained elsewhere.

    Args:
        src_model: the SentencePiece model of the source, serialised.
        tgt_model: that of the target.
        vocabulary: of the model.

    Raises:
        InputError: these are no SentencePiece models, or belong to other vocabularies.
    """

    def __init__(self, src_model: bytes, tgt_model: bytes, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.files = {
            TOKENIZER: src_model,
            TGT_TOKENIZER: tgt_model,
            VOCABULARY: json.dumps(asdict(vocabulary), ensure_ascii=False, indent=1).encode() + b"\n",
        }
        self._src_model, self._tgt_model = _sentencepiece(src_model), _sentencepiece(tgt_model)
        self._src_ids, self._tgt_ids = (
            {piece: i for i, piece in enumerate(pieces)} for pieces in (vocabulary.source, vocabulary.target)
        )
        _require_own(self._src_model, self._src_ids, "source")
        _require_own(self._tgt_model, self._tgt_ids, "target")
        pads = [self._tgt_ids[name] for name in _PADS if name in self._tgt_ids]
        self.unknown = self._src_ids[vocabulary.unknown], self._tgt_ids[vocabulary.unknown]
        bos, eos = self._tgt_ids[vocabulary.start], self._tgt_ids[vocabulary.end]
        self.special = SpecialTokens(
            bos=bos,
            eos=eos,
            banned=tuple(sorted({*pads, bos} - {eos})),
            src_begin=tuple(self._src_ids[mark] for mark in vocabulary.source_begin),
            src_end=tuple(self._src_ids[mark] for mark in vocabulary.source_end),
        )

    @classmethod
    def load(cls, directory: Path) -> ImportedTokenizer:
        """Read the files in a directory. Raises InputError where one is missing, damaged or not of the others."""
        with reading(directory / TOKENIZER, "cannot be read"):
            src_model = (directory / TOKENIZER).read_bytes()
        with reading(directory / TGT_TOKENIZER, "cannot be read"):
            tgt_model = (directory / TGT_TOKENIZER).read_bytes()
        with reading(directory / VOCABULARY, "not JSON"):
            content = json.loads((directory / VOCABULARY).read_bytes())
        if not (isinstance(content, dict) and content.keys() == get_type_hints(Vocabulary).keys()):
            raise InputError(f"{directory / VOCABULARY}: not a vocabulary as this version writes it")
        try:
            return cls(src_model, tgt_model, Vocabulary(**content))
        except InputError as error:
            raise InputError(f"{directory}: {error}") from error

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """Pieces of source and target, the special ones counted."""
        return len(self.vocabulary.source), len(self.vocabulary.target)

    @property
    def vocabularies(self) -> tuple[list[str], list[str]]:
        """The pieces of source and target, by their numbers."""
        return self.vocabulary.source, self.vocabulary.target

    @property
    def unknown_piece(self) -> str:
        """What stands for a piece that a vocabulary has not."""
        return self.vocabulary.unknown

    @property
    def digest(self) -> str:
        """SHA-256 of its files, by which a run's data and a bundle's weights know it."""
        whole = hashlib.sha256()
        for content in self.files.values():
            whole.update(hashlib.sha256(content).digest())
        return whole.hexdigest()

    def frequencies(self) -> dict[str, float]:
        """The source's pieces that its SentencePiece model writes, all as often."""
        return dict.fromkeys(sorted(_text_pieces(self._src_model) & self._src_ids.keys()), 1.0)

    def encode(self, text: str) -> list[int]:
        """The ids of one line of the source, without begin or end."""
        pieces = self._src_model.encode(text, out_type=str)
        return [self._src_ids.get(piece, self.unknown[0]) for piece in pieces]

    def encode_target(self, text: str) -> list[int]:
        """The ids of one line of the target, without begin or end."""
        pieces = self._tgt_model.encode(text, out_type=str)
        return [self._tgt_ids.get(piece, self.unknown[1]) for piece in pieces]

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[list[int], list[int]]]:
        """The ids of both sides of many pairs."""
        return ((self.encode(src), self.encode_target(tgt)) for src, tgt in pairs)

    def may_fit(self, text: str, most: int) -> bool:
        """Whether text may have at most so many pieces: any may, for it may become shorter when it is normalised."""
        return True

    def decode(self, ids: Iterable[int]) -> str:
        """The text of target ids; marks and unknown pieces are dropped, and a line break becomes a space."""
        no_text = {*self.special.banned, self.special.eos, self.unknown[1]}
        pieces = [self.vocabulary.target[i] for i in ids if i not in no_text]
        return self._tgt_model.decode_pieces(pieces).replace("\n", " ")


AnyTokenizer = Tokenizer | ImportedTokenizer


def tokenizer_in(directory: Path) -> AnyTokenizer:
    """The tokenizer whose files lie in a directory: imported, where there is a vocabulary.json. Raises InputError."""
    if (directory / VOCABULARY).exists():
        return ImportedTokenizer.load(directory)
    return Tokenizer.load(directory / TOKENIZER)


def _sentencepiece(content: bytes) -> sentencepiece.SentencePieceProcessor:
    model = sentencepiece.SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(content)
    except Exception as error:
        raise InputError("not a SentencePiece model, or a damaged one") from error
    return model


def _text_pieces(model: sentencepiece.SentencePieceProcessor) -> set[str]:
    ids = range(model.get_piece_size())
    return {model.id_to_piece(i) for i in ids if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i))}


def _require_own(model: sentencepiece.SentencePieceProcessor, ids: dict[str, int], side: str) -> None:
    """Refuse a SentencePiece model that writes other pieces than a vocabulary has."""
    pieces = _text_pieces(model)
    known = len(pieces & ids.keys())
    if known < LEAST_KNOWN * len(pieces):
        joined = " (which marks joined pieces by ￭, as SentencePiece does not)" if any("￭" in p for p in ids) else ""
        raise InputError(
            f"the SentencePiece model is not the {side}'s: {known:,} of its {len(pieces):,} pieces are in the "
            f"vocabulary{joined}"
        )
