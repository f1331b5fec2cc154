"""Text with tags that are not translated, which a translator moves along with the words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate

from relattn.translation.data.text_files import has_text
from relattn.translation.errors import require
from relattn.translation.translate.tags import LINE_BREAK

INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # not allowed in XML
_NAME = re.compile(r"<(/?)([A-Za-z][\w:-]*)")
MAX_PREFIX = 20  # characters in the names of placeholders


class TaggedText:
    """Tokens of a text: pieces of text, and tags.

    Tags before the first word, after the last word or around all words stay there. With `keep_tags`, the others become
    placeholder tags in one text: `<m0>` and `</m0>` for a pair, `<m1/>` for a single tag or a pair without text.
    `breaks` divide it. Without `keep_tags`, each piece of text is a text.

    Args:
        tokens: text of each token; None for a tag.
        partners: indices of the tags of each pair, in both directions. Pairs are nested.
        prefix: beginning of the names of placeholders, as `unused_prefix` returns it.
        keep_tags: whether to make one text with placeholders.
        breaks: indices of single tags across which no text moves.

    Attributes:
        texts: texts to translate.
    """

    def __init__(
        self,
        tokens: Sequence[str | None],
        partners: Mapping[int, int],
        prefix: str,
        *,
        keep_tags: bool,
        breaks: Collection[int] = (),
    ) -> None:
        words = [text is not None and has_text(text) for text in tokens]
        counts = [0, *accumulate(words)]  # of tokens with words before each token
        pieces: list[tuple[int, int]] = []  # ranges of tokens; a pair without words is one piece
        while (start := pieces[-1][1] if pieces else 0) < len(tokens):
            end = max(partners.get(start, start), start) + 1
            pieces.append((start, end if counts[end] == counts[start] else start + 1))
        first, last = 0, len(pieces)

        def stays(piece: tuple[int, int]) -> bool:
            start, end = piece
            return not words[start] and (end > start + 1 or start not in partners)

        while first < last:
            if stays(pieces[first]):
                first += 1
            elif stays(pieces[last - 1]):
                last -= 1
            elif partners.get(pieces[first][0]) == pieces[last - 1][0]:
                first, last = first + 1, last - 1
            else:
                break
        inner = pieces[first:last]
        self._begin, self._end = (inner[0][0], inner[-1][1]) if inner else (len(tokens), len(tokens))
        self._keep_tags, self._placeholder = keep_tags, re.compile(rf"(</?{prefix}\d+/?>)")
        self._tags: dict[str, tuple[int, int]] = {}  # range of tokens of each placeholder
        self._places = [start for start, _ in inner if words[start]]
        if not keep_tags:
            self.texts = [str(tokens[i]) for i in self._places]
            return
        self.texts = []
        self._breaks: list[str] = []  # placeholders between the texts
        names: dict[int, str] = {}  # of opening tags, by token
        parts: list[str] = []
        count = 0
        for start, end in inner:
            part = tokens[start]
            if part is None:
                partner = partners.get(start) if end == start + 1 else None
                if partner is not None and partner < start:
                    part = f"</{names[partner]}>"
                else:
                    names[start] = f"{prefix}{count}"
                    part = f"<{names[start]}{'/' * (partner is None)}>"
                    count += 1
                self._tags[part] = (start, end)
                if start in breaks:
                    self._breaks.append(part)
                    self.texts.append("".join(parts))
                    parts = []
                    continue
            parts.append(part)
        if inner:
            self.texts.append("".join(parts))

    def fill(self, translations: Iterator[str], sources: Sequence[str], escape: Callable[[str], str]) -> str:
        """Return the source of the text with the next translations in the places of its texts.

        A text that its translation does not change keeps its source.

        Args:
            translations: iterator over translations, of which as many are taken as there are texts.
            sources: source of each token.
            escape: function that returns the source of a translation.
        """
        filled = list(sources)
        if self._keep_tags and self.texts:
            texts = [next(translations) for _ in self.texts]
            if texts != self.texts:
                joined = "".join(map("".join, zip(texts, [*self._breaks, ""], strict=True)))
                filled[self._begin : self._end] = [self._with_tags(joined, sources, escape)]
        elif not self._keep_tags:
            for i, text in zip(self._places, self.texts, strict=True):
                translation = next(translations)
                if translation != text:
                    filled[i] = escape(translation)
        return "".join(filled)

    def _with_tags(self, translation: str, sources: Sequence[str], escape: Callable[[str], str]) -> str:
        """Return the source of a translation with placeholders. Pairs are balanced; any other tag in it is text."""
        opened: list[str] = []
        parts = []
        for part in self._placeholder.split(translation):
            if part not in self._tags:
                parts.append(escape(part))
                continue
            name = part.strip("</>")
            closing = [name] if part.endswith("/>") else []
            if part.startswith("</"):
                if name not in opened:
                    continue
                closing = opened[opened.index(name) :][::-1]
                del opened[opened.index(name) :]
                parts += ["".join(sources[slice(*self._tags[f"</{each}>"])]) for each in closing]
                continue
            if not closing:
                opened.append(name)
            parts.append("".join(sources[slice(*self._tags[part])]))
        parts += ["".join(sources[slice(*self._tags[f"</{each}>"])]) for each in reversed(opened)]
        return "".join(parts)


class Message:
    """String of a program or a cell whose placeholders, such as `%s` and `<b>`, are tags.

    Args:
        text: the string.
        pattern: placeholders. Its groups must not capture.
        keep_tags: as in `TaggedText`.

    Attributes:
        texts: texts to translate; none if the string has no words.
    """

    def __init__(self, text: str, pattern: re.Pattern[str], *, keep_tags: bool) -> None:
        self._sources = re.split(f"({pattern.pattern})", text)  # placeholders at odd indices
        tokens = [None if i % 2 else each for i, each in enumerate(self._sources)]
        names = [(i, _NAME.match(each)) for i, each in enumerate(self._sources) if i % 2]
        pairs = pair_tags([(i, name[2], bool(name[1])) for i, name in names if name])
        breaks = {i for i in range(1, len(tokens), 2) if LINE_BREAK.fullmatch(self._sources[i])}
        self._text = TaggedText(tokens, pairs, unused_prefix(text), keep_tags=keep_tags, breaks=breaks)
        self.texts = self._text.texts

    def fill(self, translations: Iterator[str]) -> str:
        """Return the string with the next translations in the places of its texts."""
        return self._text.fill(translations, self._sources, lambda text: text)


def pair_tags(tags: Sequence[tuple[int, str, bool]]) -> dict[int, int]:
    """Return the pairs of tags, in both directions.

    Args:
        tags: number, name and whether it is a closing tag, of each tag that may belong to a pair.
    """
    partners: dict[int, int] = {}
    opened: list[tuple[str, int]] = []
    counts: Counter[str] = Counter()
    for number, name, is_closing in tags:
        if not is_closing:
            opened.append((name, number))
            counts[name] += 1
        elif counts[name]:
            other = ""
            while other != name:
                other, start = opened.pop()
                counts[other] -= 1
            partners |= {start: number, number: start}
    return partners


def unused_prefix(text: str) -> str:
    """Return a prefix for names of placeholders with which no tag of a text begins. Raises InputError."""
    longest = max(map(len, re.findall(r"(?:[</]|lt;)(m+)", text)), default=0)
    require(longest < MAX_PREFIX, f"the text must have no tags that begin with {MAX_PREFIX} times the letter m")
    return "m" * (longest + 1)
