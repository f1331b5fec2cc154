"""Texts cut into sentences and put together again."""

import random

import pytest

from relattn.translation.serve.text import sentences
from relattn.translation.serve.text.sentences import LONGEST, split

PIECES = [
    *(
        "a",
        "B",
        ". ",
        "! ",
        "?",
        "\n",
        " ",
        "\t",
        "\r\n",
        "\u3000",
        "。",
        "\x85",
        "\u2028",
        "é",
        "\ufeff",
        "Dr. ",
        "z.B. ",
    ),
    *(
        "\x00",
        "\u200d",
        "😀",
        "שלום",
        "مرحبا",
        "؟",
        "<m0>",
        "</m0>",
        "<m1/>",
        "<m2>",
        "</m2>",
        '"',
        "„",
        "2.5",
        "I\u2009. ",
    ),
]
LANGUAGES = ["en", "de", "ja", "zh", "ar", "he", "hi", "xx", "pt-BR", "", "el"]


@pytest.mark.parametrize("keep_tags", [False, True])
def test_a_text_whose_sentences_are_left_alone_is_the_same(keep_tags: bool) -> None:
    draw = random.Random(1)
    for _ in range(2000):
        text = "".join(draw.choice(PIECES) for _ in range(draw.randint(0, 40)))
        found = split(text, draw.choice(LANGUAGES), keep_tags=keep_tags)
        assert found.join(found.sentences) == text
        assert all(sentence and sentence == sentence.strip() for sentence in found.sentences)
        assert "\n" not in "".join(found.sentences)


def test_sentences_and_white_space() -> None:
    found = split("  Hello there. Dr. Smith came.\n\n  Two\tthree! ", "en")
    assert found.sentences == ["Hello there.", "Dr. Smith came.", "Two\tthree!"]
    assert found.between == ["  ", " ", "\n\n  ", " "]
    assert found.join(["A.", "B.", "C!"]) == "  A. B.\n\n  C! "


def test_no_sentence_ends_within_a_pair_of_marks() -> None:
    found = split("First <m0>one. Two</m0>. <m1>Third.</m1> Fourth<m2/>. Fifth", "en", keep_tags=True)
    assert found.sentences == ["First <m0>one. Two</m0>.", "<m1>Third.</m1>", "Fourth<m2/>.", "Fifth"]


def test_sentences_without_a_space_between_them_are_put_apart_where_that_is_asked_for() -> None:
    found = split("一。二。", "zh", separator=" ")
    assert found.sentences == ["一。", "二。"]
    assert found.join(["One.", "Two."]) == "One. Two."


def test_what_is_too_long_is_cut_at_a_space_or_anywhere() -> None:
    for text in ("ab " * LONGEST, "x" * (3 * LONGEST + 1)):
        found = split(text, "en")
        assert found.join(found.sentences) == text
        assert max(map(len, found.sentences)) <= LONGEST
    assert all(
        set(word) == {"a", "b"} for sentence in split("ab " * LONGEST, "en").sentences for word in sentence.split()
    )


def test_a_line_that_sentencex_fails_on_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    def fail(language: str, text: str) -> list[str]:
        raise PanicException

    monkeypatch.setattr(sentences.sentencex, "segment", fail)
    assert split("One. Two.\nThree.", "en").sentences == ["One. Two.", "Three."]
