"""Splitting of a text into sentences, and joining of their translations.

A sentence ends at the end of a line, or where sentencex (from Wikimedia) finds its end within a line: before white
space, or after a mark of a script that is written without spaces. White space is kept as it was, and so is a text
without words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sentencex

from relattn.translation.data.text_files import has_text

LONGEST = 1000  # characters per sentence; longer ones are cut, at a space if possible
_MARKS = "。．｡！？"  # that end a sentence without white space after it
_CLOSING = "」』”’）】》〉〕］\"')"  # after such a mark
# What sentencex takes for an end: initials, French titles and other abbreviations; in some languages, ordinals.
_ABBREVIATIONS = "M|MM|Mme|Mmes|Mlle|Mlles|Mgr|Me|Approx|approx|Bzw|bzw|Evtl|evtl|Inkl|inkl|Exkl|exkl|Cf|cf"
_ABBREVIATION = re.compile(rf"(?:^|[\s\"'(«„“‘-])(?:[^\W\d_]|{_ABBREVIATIONS})\.$")
_ORDINAL = re.compile(r"(?:^|\s)\d{1,2}\.$")
_WITH_ORDINALS = re.compile("(bs|cs|da|de|et|fi|fo|hr|hu|is|lv|nb|nn|no|pl|sk|sl|sr)\\b")
_LINE_ENDS = re.compile(r"([\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+)")
_SPACE = re.compile(r"\s")
PLACEHOLDER = re.compile(r"(?P<single><m+\d+/>)|(?P<close></m+\d+>)|(?P<open><m+\d+>)")  # tag of `Markup`


_BOUNDARY = re.compile(r"((?:</m+\d+>)+)(\s*)((?:<m+\d+>)+)")


@dataclass(frozen=True)
class SplitText:
    """Sentences of a text, and the white space before the first, between them and after the last.

    Attributes:
        sentences: the sentences.
        between: the white space, with a separator between sentences of a script without spaces.
        original: the white space without separators.
        divided: names of the placeholder tags of elements with several sentences, which have a pair of tags in each.
    """

    sentences: list[str]
    between: list[str]
    original: list[str]
    divided: frozenset[str] = frozenset()

    def join(self, translations: Sequence[str]) -> str:
        """Return the text with its sentences replaced by their translations. If none changes, it is the same text."""
        before, *after = self.original if list(translations) == self.sentences else self.between
        text = before + "".join(sentence + space for sentence, space in zip(translations, after, strict=True))
        return _BOUNDARY.sub(self._join_elements, text) if self.divided else text

    def _join_elements(self, boundary: re.Match[str]) -> str:
        """Return the tags and white space at the end of a sentence without those that divide an element."""
        closing, opening = (re.findall(r"m+\d+", boundary[group]) for group in (1, 3))
        count = 0
        for closed, opened in zip(reversed(closing), opening, strict=False):
            if closed != opened or closed not in self.divided:
                break
            count += 1
        closing_tags = "".join(f"</{name}>" for name in closing[: len(closing) - count])
        return closing_tags + boundary[2] + "".join(f"<{name}>" for name in opening[count:])


def split(text: str, language: str, *, keep_tags: bool = False, separator: str = "") -> SplitText:
    """Split a text into sentences.

    Args:
        text: any text.
        language: code of its language. The rules for English are used for languages that sentencex does not know.
        keep_tags: whether the text has placeholder tags of `Markup`. They do not change where it is split.
        separator: white space to insert between sentences of a script without spaces.
    """
    sentences: list[str] = []
    between = [""]
    ends: list[bool] = []  # whether each sentence ends there, and is not cut
    paired = _paired_names(text) if keep_tags else set()
    opened: list[str] = []  # names of the elements that began in an earlier sentence
    divided: set[str] = set()
    for number, line in enumerate(_LINE_ENDS.split(text)):
        for part in [line] if number % 2 else _sentence_parts(line, language, keep_tags):
            sentence = part.strip() if has_text(part) else ""
            before, _, after = part.partition(sentence) if sentence else (part, "", "")
            between[-1] += before
            if sentence:
                begin = "".join(f"<{name}>" for name in opened)
                for tag in PLACEHOLDER.finditer(sentence) if paired else ():
                    name = tag[0].strip("</>")
                    if name in paired and tag.lastgroup == "open":
                        opened.append(name)
                    elif name in paired:
                        opened.remove(name)
                divided.update(opened)
                end = "".join(f"</{name}>" for name in reversed(opened))
                sentences.append(begin + sentence + end)
                ends.append(sentence.rstrip(_CLOSING).endswith(tuple(_MARKS)))
                between.append(after)
    inner = (space or (separator if is_end else "") for space, is_end in zip(between[1:-1], ends, strict=False))
    spaces = [between[0], *inner, *between[1:][-1:]]
    return SplitText(sentences, spaces, between, frozenset(divided))


def split_all(texts: Sequence[str], language: str, keep_tags: bool, separator: str) -> list[SplitText]:
    """Split several texts. The arguments are those of `split`."""
    return [split(text, language, keep_tags=keep_tags, separator=separator) for text in texts]


def _paired_names(text: str) -> set[str]:
    """Return the names of the placeholder tags that are opened once and then closed once."""
    tags: dict[str, list[str | None]] = {}
    for tag in PLACEHOLDER.finditer(text):
        tags.setdefault(tag[0].strip("</>"), []).append(tag.lastgroup)
    return {name for name, groups in tags.items() if groups == ["open", "close"]}


def _sentence_parts(line: str, language: str, keep_tags: bool) -> Iterator[str]:
    """Yield the sentences of a line with the white space after them, in parts of at most LONGEST characters of text."""
    tags = list(PLACEHOLDER.finditer(line))[::-1] if keep_tags else []
    begin = end = 0
    for length in list(_lengths(PLACEHOLDER.sub("", line) if keep_tags else line, language))[:-1]:
        end += length
        while tags and (tags[-1].start() < end or (tags[-1].start() == end and tags[-1]["close"])):
            end += len(tags.pop()[0])  # a closing tag at the end belongs to this sentence
        yield line[begin:end]
        begin = end
    yield line[begin:]


def _lengths(line: str, language: str) -> Iterator[int]:
    """Yield the lengths of the parts of a line, in characters."""
    begin = 0
    for length in _sentence_lengths(line, language):
        end = begin + length
        while end - begin > LONGEST:
            space = line.rfind(" ", begin + 1, begin + LONGEST)
            cut = begin + LONGEST if space < 0 else space + 1
            yield cut - begin
            begin = cut
        yield end - begin
        begin = end


def _sentence_lengths(line: str, language: str) -> list[int]:
    """Return the lengths of the sentences of a line, in characters; the line is one sentence if sentencex fails."""
    plain = _SPACE.sub(" ", line)  # white space of several bytes makes sentencex panic in Rust
    try:
        found = [len(sentence) for sentence in sentencex.segment(language, plain)]
    except BaseException as error:  # a panic raises no Exception
        if type(error).__name__ != "PanicException":
            raise
        return [len(line)]
    lengths, begin, end = [], 0, 0
    has_ordinals = _WITH_ORDINALS.match(language) is not None
    for length in found:
        end += length
        if end == len(plain) or _ends(plain[begin:end], has_ordinals=has_ordinals):
            lengths.append(end - begin)
            begin = end
    return lengths


def _ends(sentence: str, *, has_ordinals: bool) -> bool:
    """Return whether a sentence that sentencex found ends there, and not within a word or after an abbreviation."""
    text = sentence.rstrip()
    if len(text) == len(sentence):
        return text.rstrip(_CLOSING).endswith(tuple(_MARKS))
    return not _ABBREVIATION.search(text[-20:]) and not (has_ordinals and _ORDINAL.search(text[-20:]))
