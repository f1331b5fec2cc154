"""Byte-pair encoding of Moses tokens, as older models of OPUS-MT and some packages for Argos Translate have it.

sacremoses normalizes a line and splits it into tokens. In each token, the merges of subword-nmt join characters to
pieces, the first merge of the file first (Sennrich et al. 2016). A piece that its token continues after ends in "@@".
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Any

from relattn_mt.support.errors import one_line, require, require_installed
from relattn_mt.tokens.tokenizer import SPACE_MARK

RULES = "argos", "opus-mt"  # who prepares text
_END = "</w>"
_CONTINUED = "@@"


class BpeModel:
    """Codes of subword-nmt, with the methods of a SentencePiece model that an imported tokenizer calls.

    Args:
        codes: Content of the file.
        rules: "argos" prepares text as Argos Translate does. "opus-mt" does as OPUS-MT's scripts: it also replaces
            punctuation of Unicode and control characters, and splits words at hyphens.

    Attributes:
        pieces: Pieces that the merges make.

    Raises:
        InputError: The codes are damaged, or `rules` is unknown.
        UnicodeDecodeError: The codes are not UTF-8.
    """

    _moses: tuple[Any, Any, Any]

    def __init__(self, codes: bytes, rules: str) -> None:
        require(rules in RULES, f"bpe must be {' or '.join(RULES)}, got {one_line(rules, 40)}")
        self._is_opus = rules == "opus-mt"
        *lines, rest = codes.decode().split("\n")
        require(lines and not rest, f"line {len(lines) + 1} must end with a line break: the file is cut off")
        version = re.fullmatch(r"(?:#version: 0\.([12])(?:\.0+)*|(?!#).*)\s*", lines[0])
        require(version is not None, f"line 1 must be #version: 0.1 or 0.2, got {one_line(repr(lines[0]), 40)}")
        self._marks_last = version is not None and version[1] == "2"  # else the end of a token is a separate symbol
        self._ranks: dict[tuple[str, str], int] = {}
        for number, line in enumerate(lines, start=1):
            if number == 1 and line.startswith("#"):
                continue
            pair = line.strip("\r ").split(" ")
            require(len(pair) == 2, f"line {number} must have two pieces, got {one_line(repr(line), 40)}")
            self._ranks.setdefault((pair[0], pair[1]), len(self._ranks))
        merged = ["".join(pair) for pair in self._ranks]
        self.pieces = [x.removesuffix(_END) if x.endswith(_END) else x + _CONTINUED for x in merged]

    def with_language(self, code: str) -> BpeModel:
        """Return a model that encodes text in a language. Its tokens are as in English if sacremoses has no rules."""
        require_installed("bpe", "sacremoses")
        from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer

        other = copy(self)
        language = re.split("[-_]", code.lower())[0]
        normalizer = MosesPunctNormalizer(language, perl_parity=self._is_opus)
        other._moses = normalizer, MosesTokenizer(language), MosesDetokenizer(language)
        return other

    def encode(self, text: str, out_type: type = str) -> list[str]:
        """Return the pieces of a line."""
        normalizer, tokenizer, _ = self._moses
        if self._is_opus:
            text = normalizer.replace_unicode_punct(text)
            text = "".join(" " if unicodedata.category(each)[0] == "C" else each for each in text)
        tokens = tokenizer.tokenize(normalizer.normalize(text), aggressive_dash_splits=self._is_opus)
        return [piece for token in tokens for piece in self.split(token)]

    def split(self, token: str) -> list[str]:
        """Return the pieces of a token."""
        parts = [*token[:-1], token[-1] + _END] if self._marks_last else [*token, _END]
        while len(parts) > 1:
            best = min(pairwise(parts), key=lambda pair: self._ranks.get(pair, math.inf))
            if best not in self._ranks:
                break
            merged = []
            at = 0
            while at < len(parts):
                width = 2 if tuple(parts[at : at + 2]) == best else 1
                merged.append("".join(parts[at : at + width]))
                at += width
            parts = merged
        parts = [*parts[:-1], parts[-1].removesuffix(_END)]
        *first, last = [part for part in parts if part]
        return [*(part + _CONTINUED for part in first), last]

    def decode_pieces(self, pieces: Sequence[str]) -> str:
        """Return the text of pieces."""
        tokens = re.sub(f"{_CONTINUED}( |$)", "", " ".join(pieces)).split(" ")
        try:
            return str(self._moses[2].detokenize(tokens))
        except TypeError:  # sacremoses 0.2 fails in Czech at a letter with an apostrophe before "- li"
            return " ".join(tokens)


def piece_text(piece: str) -> str:
    """Return the text of a piece, with a mark after the last one of a token."""
    return piece.removesuffix(_CONTINUED) if piece.endswith(_CONTINUED) else piece + SPACE_MARK
