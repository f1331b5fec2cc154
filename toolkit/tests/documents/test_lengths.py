"""Documents of all kinds with a translator that changes the lengths of words: only the words differ in the result."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from relattn_mt.config import SearchConfig
from relattn_mt.documents.read import FORMATS, read_document
from relattn_mt.translate.documents import translate_document
from relattn_mt.translate.options import DEFAULTS
from relattn_mt.translate.translator import Translator

from tests.support.document_files import Maker, members_of, shown
from tests.support.engines import Links, TextEngine
from tests.support.marked import Characters

Change = Callable[[str], str]


def of_words(change: Change) -> Change:
    """Return a function of a text that changes each of its words, and no signs and numbers."""
    return lambda text: re.sub(r"[^\W\d_]+", lambda word: change(word[0]), text)


CHANGES = {
    "longer": of_words(lambda word: f"{word}ington"),
    "capitals": str.upper,
    "shorter": of_words(lambda word: word[0]),
    "around": of_words(lambda word: f"x{word}x"),  # the source is found in its translation
    "two words": of_words(lambda word: f"{word} {word}"),
    "Cyrillic": of_words(lambda word: "".join(chr(0x430 + ord(letter) % 32) for letter in word)),
}
SEEDS = range(12)


def seeds_of(change: str) -> range:
    """Return the seeds of the files with a change. No two changes have a file in common."""
    first = 6 * list(CHANGES).index(change)
    return range(first, first + 6)


def in_order(change: Change) -> Callable[[str, str], Links]:
    """Return a function that links each word to what a change makes of it, if it changes one word at a time."""

    def links(source: str, target: str) -> Links:
        counts = [len(change(word).split()) for word in source.split()]
        sources = [i for i, count in enumerate(counts) for _ in range(count)]
        return [(word, place) for place, word in enumerate(sources)]

    return links


def translated(change: Change, kind: str, content: bytes, links: Callable[[str, str], Links] | None = None) -> bytes:
    """Return the translation of a file by a function of its texts."""
    tokenizer: Any = Characters()
    engine = TextEngine(tokenizer, change, links or in_order(change))
    translator = Translator(engine, tokenizer, SearchConfig(beam_size=1))  # type: ignore[arg-type]
    return translate_document(translator, f"a{kind}", content, DEFAULTS).content


def readable(content: bytes) -> Any:
    """Return the members of an archive, with the words of Office and their formats; any other content as it is."""
    return {name: shown(member) for name, member in members_of(content).items()} if content[:2] == b"PK" else content


def words_of(content: bytes) -> dict[str, Counter[str]]:
    """Return how often each word is in a file, or in each member of an archive."""
    if content[:2] == b"PK":
        texts = {name: re.sub("<[^>]*>", " ", member.decode()) for name, member in members_of(content).items()}
    else:
        texts = {"": content.decode("utf-16" if content[:1] == b"\xff" else "utf-8")}
    return {name: Counter(re.findall(r"\w+", re.sub(r"\\[nt]", " ", text))) for name, text in texts.items()}


STREAMS = (".txt", ".srt", ".vtt")  # kinds whose lines are broken anew
ONE_OF_EACH = [kind for kind in FORMATS if kind not in (".htm", ".mdx", ".markdown", ".arb", ".pot", ".xliff")]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", [kind for kind in ONE_OF_EACH if kind not in STREAMS])
def test_words_of_other_lengths_change_and_nothing_else(kind: str, change: str) -> None:
    for seed in seeds_of(change):
        content = Maker(seed, is_exact=True).file(kind)
        wanted = Maker(seed, CHANGES[change], is_exact=True).file(kind, is_filled=True)
        got = translated(CHANGES[change], kind, content)
        assert readable(got) == readable(wanted), (seed, content)


@pytest.mark.parametrize("change", CHANGES)
def test_paragraphs_are_broken_anew_for_words_of_other_lengths(change: str) -> None:
    for seed in seeds_of(change):
        content = Maker(seed, is_exact=True).file(".txt")
        wanted = Maker(seed, CHANGES[change], is_exact=True).file(".txt")
        got = translated(CHANGES[change], ".txt", content)
        before, after, new = (file.decode().split("\n\n") for file in (content, got, wanted))
        assert [block.replace("> ", "").split() for block in after] == [
            block.replace("> ", "").split() for block in new
        ]
        for block, source in zip(after, before, strict=True):
            lines = block.split("\n")
            width = max(map(len, source.split("\n")))
            if "\n" in source and "\t" not in source:
                assert width < 40 or max(map(len, lines)) <= width
            assert {line.count("> ") for line in lines} == {source.partition("\n")[0].count("> ")}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", [".srt", ".vtt"])
def test_subtitles_keep_their_times_with_words_of_other_lengths(kind: str, change: str) -> None:
    """All words are there, in order. A sentence over several subtitles is divided in proportion to their lengths."""
    time = re.compile(r"(?:\d+\n)?.*-->.*\n")
    for seed in seeds_of(change):
        content = Maker(seed, is_exact=True).file(kind)
        wanted = Maker(seed, CHANGES[change], is_exact=True).file(kind)
        got = translated(CHANGES[change], kind, content)
        after, new = (file.decode().replace("\r\n", "\n") for file in (got, wanted))
        assert time.findall(after) == time.findall(new)
        assert time.sub("", after).split() == time.sub("", new).split()
        assert all(map(str.strip, time.split(after)[1:])), after  # no subtitle has lost its words


def test_long_translations_of_a_sentence_in_several_subtitles_get_more_lines() -> None:
    lines = ["I have never seen such a large house", "and the trees around it were large too"]
    times = ["00:00:01,000 --> 00:00:03,000", "00:00:03,100 --> 00:00:05,000"]
    content = "".join(f"{i}\n{time}\n{line}\n\n" for i, (time, line) in enumerate(zip(times, lines, strict=True), 1))
    got = translated(CHANGES["two words"], ".srt", content.encode()).decode()
    first, second = (block.split("\n")[2:] for block in got.strip().split("\n\n"))
    assert " ".join(first + second) == CHANGES["two words"](" ".join(lines))
    assert (len(first), len(second)) == (2, 2)
    assert max(map(len, first + second)) <= 42


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_words_in_another_order_are_all_there(kind: str) -> None:
    def reverse(text: str) -> str:
        return " ".join(text.split()[::-1])

    def links(source: str, target: str) -> Links:
        count = len(source.split())
        return [(i, count - 1 - i) for i in range(count)]

    for seed in SEEDS:
        content = Maker(seed, is_exact=True).file(kind)
        wanted = Maker(seed, is_exact=True).file(kind, is_filled=True)
        got = translated(reverse, kind, content, links)
        assert words_of(got) == words_of(wanted), (seed, content)


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_empty_translations_leave_a_file_of_its_kind(kind: str) -> None:
    for seed in SEEDS:
        content = Maker(seed, is_exact=True).file(kind)
        got = translated(lambda text: "", kind, content)
        read_document(f"a{kind}", got, 1_000_000)
        wanted = Maker(seed, is_exact=True).file(kind, is_filled=True)
        before, after = words_of(wanted), words_of(got)
        assert {name: count["no"] for name, count in after.items()} == {name: n["no"] for name, n in before.items()}


@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        (".json", '["{x}: one two"]', '["{x}: two one"]'),
        (".json", '["%s {y}, one two!"]', '["%s {y}, two! one"]'),
        (".json", '["<b>x</b>: one two"]', '["two one <b>x</b>:"]'),
        (".po", 'msgid "%d: one two"\nmsgstr ""\n', '#, fuzzy\nmsgid "%d: one two"\nmsgstr "%d: two one"\n'),
        (
            ".po",
            'msgid "One file"\nmsgid_plural "%d big files"\nmsgstr[0] ""\nmsgstr[1] ""\n',
            '#, fuzzy\nmsgid "One file"\nmsgid_plural "%d big files"\nmsgstr[0] "file One"\nmsgstr[1] "%d files big"\n',
        ),
        (".html", "<p title='a b'>one <br>two three</p>", '<p title="b a">one <br>three two</p>'),
    ],
)
def test_what_begins_a_string_stays_at_its_beginning(kind: str, content: str, expected: str) -> None:
    def reverse(text: str) -> str:
        return " ".join(text.split()[::-1])

    def links(source: str, target: str) -> Links:
        count = len(source.split())
        return [(i, count - 1 - i) for i in range(count)]

    assert translated(reverse, kind, content.encode(), links).decode() == expected
