"""Prefixes: text that a translation begins with, and the tokens that spell it.

The pieces of a text depend on what follows it: those of a prefix that ends within a word are not the first pieces of a
translation that begins with it. So only the words before the last one are encoded. The search chooses the tokens of the
last word, or of the space after it, among all that agree with its characters, and the last token may continue after
them. Of a long word, and where words are not separated by spaces, these are the last 200 bytes at most.

Characters that the tokenizer normalizes or does not know are searched as it encodes them, and the translation has them
as they were given.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from relattn_mt.search.types import Request, Spelling
from relattn_mt.tokens.imported_tokenizer import AnyTokenizer

_MOST_SPELLED = 200  # bytes; time and memory grow with the length that is spelled


class Prefixes:
    """The prefixes that a tokenizer can spell.

    Args:
        tokenizer: Tokenizer of the translations.
    """

    def __init__(self, tokenizer: AnyTokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts = tokenizer.target_texts
        self._lengths = np.array([len(text) for text in self._texts])
        self._order = np.argsort(np.array(self._texts, dtype=object), kind="stable")
        self._sorted = [self._texts[i] for i in self._order.tolist()]

    def encode(self, prefix: str) -> tuple[list[int], Spelling | None]:
        """Return the tokens that a translation begins with, and the rest of the prefix, which is to be spelled."""
        ids = self._tokenizer.encode_target(prefix)
        texts = [self._texts[i] for i in ids]
        ends_with_space = prefix[-1:].isspace()
        if texts and not ends_with_space:
            texts[-1] = texts[-1].rstrip(b" ")  # some tokenizers mark the ends of words
        begin = 0
        for at, i in enumerate(ids):
            if texts[at].startswith(b" "):
                begin = at
            elif not self._texts[i]:  # unknown
                begin = at + 1
        if ends_with_space and not b"".join(texts).decode(errors="replace")[-1:].isspace():
            # some tokenizers remove spaces at the end
            begin = len(ids)
            texts = [*texts, b" "]
        lengths = np.cumsum([0, *map(len, texts)])
        begin = max(begin, int(np.searchsorted(lengths, lengths[-1] - _MOST_SPELLED)))
        text = b"".join(texts[begin:])
        spelling = self._spelling(text)
        if np.isinf(spelling.needed[-1]):
            return ids, None
        return ids[:begin], spelling if text else None

    def _spelling(self, text: bytes) -> Spelling:
        """Return the ways to spell a text."""
        tokens = [self._order[:0]]
        needed = np.zeros(1 + len(text))
        longest = int(self._lengths.max())
        for left in range(1, len(text) + 1):
            rest = text[-left:]
            following = [self._order[bisect_left(self._sorted, rest) : bisect_left(self._sorted, rest + b"\xff")]]
            for length in range(1, min(left, longest + 1)):
                part = rest[:length]
                following.append(self._order[bisect_left(self._sorted, part) : bisect_right(self._sorted, part)])
            tokens.append(np.concatenate(following))
            after = needed[np.maximum(left - self._lengths[tokens[-1]], 0)]
            needed[left] = 1 + after.min(initial=np.inf)
        return Spelling(tokens, needed, self._lengths)

    def complete(self, prefix: str, request: Request, tokens: list[int]) -> str:
        """Return the text of a translation of a request that begins with a prefix, for its tokens after `tgt_begin`."""
        end = len(request.prefix) - len(self._tokenizer.special.tgt_begin)
        left = request.spelling.size if request.spelling else 0
        while left > 0:
            left -= len(self._texts[tokens[end]])
            end += 1
        beginning = self._tokenizer.decode(tokens[:end])
        text = self._tokenizer.decode(tokens)
        continuation = self._texts[tokens[end - 1]][left:].decode() if left < 0 else ""
        return prefix + continuation + text[len(beginning) :]
