"""Texts split into sentences and joined again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relattn.translation.serve.text import sentences
from relattn.translation.serve.text.sentences import LONGEST, split

PIECES = [
    *'aB.!?\n \t"„。؟\x85\u2028\u3000\ufeff\0\u200d😀é',
    ". ",
    "\r\n",
    "Dr. ",
    "z.B. ",
    "שלום",
    "مرحبا",
    "I\u2009. ",
]
TAGS = ["<m0>", "</m0>", "<m1/>", "<m2>", "</m2>"]
LANGUAGES = ["en", "de", "ja", "zh", "ar", "he", "hi", "xx", "pt-BR", "", "el"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES + TAGS), max_size=40).map("".join), st.sampled_from(LANGUAGES), st.booleans())
def test_unchanged_sentences_give_the_same_text(text: str, language: str, keep_tags: bool) -> None:
    parts = split(text, language, keep_tags=keep_tags)
    assert parts.join(parts.sentences) == text
    assert all(sentence and sentence == sentence.strip() for sentence in parts.sentences)
    assert "\n" not in "".join(parts.sentences)


def test_sentences_and_white_space() -> None:
    parts = split("  Hello there. Dr. Smith came.\n\n  Two\tthree! ", "en")
    assert parts.sentences == ["Hello there.", "Dr. Smith came.", "Two\tthree!"]
    assert parts.join(["A.", "B.", "C!"]) == "  A. B.\n\n  C! "
    parts = split("一。二。", "zh", separator=" ")
    assert parts.join(["One.", "Two."]) == "One. Two."


def test_element_is_never_split() -> None:
    parts = split("First <m0>one. Two</m0>. <m1>Third.</m1> Fourth<m2/>. Fifth", "en", keep_tags=True)
    assert parts.sentences == ["First <m0>one. Two</m0>.", "<m1>Third.</m1>", "Fourth<m2/>.", "Fifth"]


@pytest.mark.parametrize("text", ["ab " * LONGEST, "x" * (3 * LONGEST + 1)])
def test_long_sentence_is_cut_at_a_space_if_possible(text: str) -> None:
    parts = split(text, "en")
    assert parts.join(parts.sentences) == text
    assert max(map(len, parts.sentences)) <= LONGEST
    assert " " not in text or {word for sentence in parts.sentences for word in sentence.split()} == {"ab"}


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
