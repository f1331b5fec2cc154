"""Texts split into sentences and joined again."""

import re
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from relattn_mt.text import sentences
from relattn_mt.text.marked import Marked
from relattn_mt.text.sentences import LONGEST, SplitText

from tests.support.marked import MARK, items_of, marked, notation


class Sentences:
    """Sentences of a text in the notation of marks."""

    def __init__(self, parts: SplitText) -> None:
        self.sentences, self._parts = [written(sentence) for sentence in parts.sentences], parts

    def join(self, translations: Sequence[str]) -> str:
        return written(self._parts.join([marked(each) for each in translations]))


def written(text: Marked) -> str:
    """Return the notation of a text with the numbers of its items."""
    items = items_of(text)
    return MARK.sub(lambda m: f"<{m[1]}m{items[int(m[2])]}{m[3]}>", notation(text))


def split(text: str, language: str, separator: str = "") -> Sentences:
    return Sentences(sentences.split(marked(text), language, separator))


PIECES = [*'aB.!?\n \t"„。؟\x85\u2028\u3000\ufeff\0\u200d😀é', ". ", "\r\n", "Dr. ", "z.B. ", "I\u2009. "]
PIECES += ["שלום", "مرحبا", " | ", "·", "</m0> • <m2>", "</m0> \t• <m2>", "- "]
TAGS = ["<m0>", "</m0>", "<m1/>", "<m2>", "</m2>"]
LANGUAGES = ["en", "de", "ja", "zh", "ar", "he", "hi", "xx", "pt-BR", "", "el"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES + TAGS), max_size=40).map("".join), st.sampled_from(LANGUAGES))
def test_unchanged_sentences_give_the_same_text(text: str, language: str) -> None:
    parts = split(text, language)
    assert parts.join(parts.sentences) == text
    assert all(sentence and sentence == sentence.strip() for sentence in parts.sentences)
    assert "\n" not in "".join(parts.sentences)


def test_signs_between_links_separate_texts() -> None:
    parts = split("<m0>Read the book</m0> | <m1>Go home</m1>\u00a0• <m2>Stop</m2>·<m3>Go</m3>", "en")
    assert parts.sentences == ["<m0>Read the book</m0>", "<m1>Go home</m1>", "<m2>Stop</m2>", "<m3>Go</m3>"]
    translations = ["<m0>A</m0>", "<m1>B</m1>", "<m2>C</m2>", "<m3>D</m3>"]
    assert parts.join(translations) == "<m0>A</m0> | <m1>B</m1>\u00a0• <m2>C</m2>·<m3>D</m3>"
    around = split("<m0>See <m1>a</m1> | <m2>b</m2> now</m0>", "en")
    assert around.sentences == ["<m0>See <m1>a</m1></m0>", "<m0><m2>b</m2> now</m0>"]
    assert around.join(["<m0><m1>A</m1> X</m0>", "<m0>Y <m2>B</m2></m0>"]) == "<m0><m1>A</m1> X | Y <m2>B</m2></m0>"
    assert around.join(around.sentences) == "<m0>See <m1>a</m1> | <m2>b</m2> now</m0>"
    for text in ("<m0>a</m0> | b", "a | b", "<m0>a</m0> - <m1>b</m1>", "<m0>a | b</m0>"):
        assert split(text, "en").sentences == [text]


def test_sentences_and_white_space() -> None:
    parts = split("  Hello there. Dr. Smith came.\n\n  Two\tthree! ", "en")
    assert parts.sentences == ["Hello there.", "Dr. Smith came.", "Two", "three!"]
    assert parts.join(["A.", "B.", "C", "D!"]) == "  A. B.\n\n  C\tD! "
    parts = split("\u200b\nOne.\n \u00ad\ufeff \nTwo.", "en")
    assert parts.sentences == ["One.", "Two."]
    assert parts.join(["A.", "B."]) == "\u200b\nA.\n \u00ad\ufeff \nB."
    parts = split("一。二。", "zh", separator=" ")
    assert parts.join(["One.", "Two."]) == "One. Two."


@pytest.mark.parametrize(
    "mark", ["- ", "* ", "• ", "– ", "  — ", "12) ", "B) ", "> ", "> > - ", "- - ", "- [ ] ", "-\u00a0"]
)
def test_mark_of_a_list_item_is_no_part_of_a_sentence(mark: str) -> None:
    parts = split(f"{mark}My cat.\n\n{mark}My dog", "en")
    assert parts.sentences == ["My cat.", "My dog"]
    assert parts.join(["A", "B"]) == f"{mark}A\n\n{mark}B"


def test_tags_stand_after_the_mark_of_a_list_item() -> None:
    parts = split("- My <m0>cat</m0>\n- <m1>My</m1> dog\n<m2>- My</m2> bird\n-<m3/> x", "en")
    assert parts.sentences == ["My <m0>cat</m0>", "<m1>My</m1> dog", "<m2>- My</m2> bird", "-<m3/> x"]
    assert parts.join(parts.sentences) == "- My <m0>cat</m0>\n- <m1>My</m1> dog\n<m2>- My</m2> bird\n-<m3/> x"


@pytest.mark.parametrize(
    "text", ["-5 degrees", "A. Smith", "1. Mai", "*bold* text", "See - there", "i.e. this", "z. B. Äpfel", "s. Seite 5"]
)
def test_other_signs_are_part_of_a_sentence(text: str) -> None:
    assert split(text, "de").sentences == [text]


@pytest.mark.parametrize(
    ("text", "sentences", "translations", "joined"),
    [
        ("It is <m0>good. </m0>Go.", ["It is <m0>good. </m0>", "Go."], ["<m0>A</m0>", "B"], "<m0>A</m0> B"),
        ("Good.<m0> Go.</m0>", ["Good.", "<m0> Go.</m0>"], ["A", "<m0>B</m0>"], "A <m0>B</m0>"),
        (
            "Good.<m0> <m1>Go</m1></m0>",
            ["Good.", "<m0> <m1>Go</m1></m0>"],
            ["A", "<m0><m1>B</m1></m0>"],
            "A <m0><m1>B</m1></m0>",
        ),
        ("<m0>Oh. </m0>", ["<m0>Oh. </m0>"], ["<m0>A</m0>"], "<m0>A</m0> "),
    ],
)
def test_white_space_between_a_tag_and_a_sentence_is_kept(
    text: str, sentences: list[str], translations: list[str], joined: str
) -> None:
    parts = split(text, "en")
    assert parts.sentences == sentences
    assert parts.join(translations) == joined
    assert parts.join(sentences) == text


def test_tags_do_not_change_the_sentences() -> None:
    parts = split("First <m0>one. <m1>Two</m1></m0>. <m2>Third.</m2> Fourth<m3/>. Fifth<m4/>", "en")
    expected = ["First <m0>one.</m0>", "<m0><m1>Two</m1></m0>.", "<m2>Third.</m2>", "Fourth<m3/>.", "Fifth<m4/>"]
    assert parts.sentences == expected
    assert parts.join(["<m0>B.</m0>", "2 <m0><m1>x</m1></m0>", *expected[2:4], ""]).startswith(
        "<m0>B.</m0> 2 <m0><m1>x"
    )
    nested = "<m0><m1>One. Two.</m1> Three. <m2>Four. Five.</m2></m0>"
    parts = split(nested, "en")
    assert len(parts.sentences) == 5
    assert parts.join(parts.sentences) == nested
    parts = split("</m0>One<m0>. <m1>Two. Three", "en")  # no pairs
    assert parts.sentences == ["</m0>One<m0>.", "<m1>Two.", "Three"]
    text = "".join(f"<m{i}>abc</m{i}>{'. ' * (i % 9 == 0)}" for i in range(LONGEST))
    parts = split(text, "en")
    assert parts.join(parts.sentences) == text
    plain = split(re.sub("<[^<>]*>", "", text), "en").sentences
    assert [re.sub("<[^<>]*>", "", sentence) for sentence in parts.sentences] == plain


@pytest.mark.parametrize("text", ["ab " * LONGEST, "x" * (3 * LONGEST + 1)])
def test_long_sentence_is_cut_at_a_space_if_possible(text: str) -> None:
    parts = split(text, "en")
    assert parts.join(parts.sentences) == text
    assert max(map(len, parts.sentences)) <= LONGEST
    assert " " not in text or {word for sentence in parts.sentences for word in sentence.split()} == {"ab"}


@pytest.mark.parametrize("literal", ["https://example.org/" + "house-" * 100, "$house" * 160])
def test_long_literal_is_not_cut_if_it_is_kept(literal: str) -> None:
    text = Marked(f"Please see {literal}: it is here.")
    parts = sentences.split(text, "en", is_kept=True)
    assert parts.join(parts.sentences) == text
    assert sum(literal in sentence.text for sentence in parts.sentences) == 1
    cut = sentences.split(text, "en").sentences  # the model would read it
    assert not any(literal in sentence.text for sentence in cut)


def test_characters_and_short_words_of_many_pieces_count_more() -> None:
    known = frozenset("ab ")
    for text, longest in (
        ("abba " * 500, LONGEST),
        ("a " * 500, 222),
        ("\u5b57" * 500, 36),
        ("\u5b57 b" * 300, 3 * 28),
    ):
        parts = sentences.split(Marked(text), "en", known=known)
        assert parts.join(parts.sentences) == Marked(text)
        assert longest // 2 < max(len(sentence.text) for sentence in parts.sentences) <= longest


@pytest.mark.parametrize("character", ["a", "\u5b57"])
def test_time_is_linear_in_the_length_of_a_sentence(character: str) -> None:
    def seconds(length: int) -> float:
        start = time.process_time()
        sentences.split(Marked(length * character), "en", known=frozenset("a"))
        return time.process_time() - start

    short = min(seconds(10_000) for _ in range(3))
    assert seconds(80_000) < 24 * short


def test_line_that_sentencex_cannot_split_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    def fail(error: type[BaseException]) -> None:
        raise error

    monkeypatch.setattr(sentences.sentencex, "segment", lambda *_: fail(PanicException))
    assert split("One. Two.\nThree.", "en").sentences == ["One. Two.", "Three."]
    monkeypatch.setattr(sentences.sentencex, "segment", lambda *_: fail(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        split("One. Two.", "en")


WORDS = [
    "https://example.org/search?Query=One", "ASP.NET", "image.PNG", "www.Example.Org", "Foo.Bar()", "a.B!c?D",
    "node.Js:A.B!C", "one.Two", "me.Too@Example.Org", "C:\\A.B\\C?D", "1.A.2.B", "Yes!No", "v1.Beta.2", "x…Y",
    "{a.B}", "%A.B%", "[A.B](C.D)", "A.B.C.", "file.Txt,", "(e.Org)",
]  # fmt: skip


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("word", [*WORDS, "A.b?C!" * LONGEST])
def test_nothing_is_inserted_into_a_word(word: str, language: str) -> None:
    for text in (word, f"See {word} now. {word}", f"<m0>{word}</m0> and<m1/>{word}"):
        parts = split(text, language, separator=" ")
        assert parts.join(parts.sentences) == text
        assert len(word) > LONGEST or any(word in sentence for sentence in parts.sentences)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "J. R. R. Tolkien met Dr. A. Smith, Inc., at 5 p.m. in the U.S. Army, approx. 5 km away, cf. Sec. 3."),
        ("de", "Am 3. Oktober kam z. B. Dr. Müller, d. h. u. a. inkl. MwSt. am 24. Dez. zum 1. FC Köln."),
        ("en", "See Vol. 2, Eq. 4 and Fig. 3, incl. VAT, for max. 5 people on Mon. 5 May, tel. 555."),
        ("de", "Die Fa. Müller, Dipl.-Ing. Meier, geb. Kunz, liefert zzgl. Versand am Mo. 5. Mai, max. 5 Stück."),
        ("fr", "M. Dupont, Mme. Durand et J.-P. Sartre, p. ex. av. J.-C. sont là."),
        ("es", "El Sr. García y la Sra. Pérez viven en EE. UU. desde 1990."),
        ("pl", "To jest 3. Maja i J. Kowalski."),
    ],
)
def test_abbreviations_do_not_end_a_sentence(language: str, text: str) -> None:
    assert split(text, language).sentences == [text]
    assert split(f"{text} {text}", language).sentences == [text, text]


def test_words_that_may_be_abbreviations_end_a_sentence() -> None:
    assert split("We ran to the max. Then we slept. He likes Ed. She left.", "en").sentences == [
        "We ran to the max.",
        "Then we slept.",
        "He likes Ed.",
        "She left.",
    ]
