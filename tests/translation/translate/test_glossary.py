"""Glossaries: what is read, what is found in a line, and what is refused."""

from __future__ import annotations

import pytest

from relattn.translation.errors import InputError
from relattn.translation.translate.glossary import Glossary, continue_words


@pytest.fixture
def written(tmp_path):
    """written(text): the path of a file that holds it."""

    def write(text: str) -> str:
        (tmp_path / "terms.tsv").write_text(text, encoding="utf-8")
        return str(tmp_path / "terms.tsv")

    return write


def test_terms_are_found_as_whole_words_longest_first(written):
    glossary = Glossary.read(written("dog\tHund\nhot dog\tHotdog\n\nC++\tC++\n(x)\tx \ndog\tHund\nhot\theiß\n"))
    assert glossary.find("A hot dog, a dog and two dogs.") == ["Hotdog", "Hund"]
    assert glossary.find("a hot hot dog") == ["heiß", "Hotdog"]
    assert glossary.find("dog dog Dog hotdog") == ["Hund", "Hund"]
    assert glossary.find("C++ and (x)") == ["C++", "x"]
    assert glossary.find("") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dog\tHund\ncat\t \n", "line 2 has no translation"),
        ("\n\tHund\n", "line 2 has no term"),
        ("dog Hund\n", "line 1 must have two columns, got 1"),
        ("a\tb\tc\n", "line 1 must have two columns, got 3"),
        ("dog\tHund\ncat\tKatze\ndog\tKöter\n", "lines 1 and 3 have two translations of 'dog'"),
    ],
)
def test_glossaries_that_will_not_do(written, text, message):
    path = written(text)
    with pytest.raises(InputError) as refused:
        Glossary.read(path)
    assert str(refused.value) == f"{path}: {message}"


def test_an_empty_glossary_finds_nothing():
    assert Glossary([]).find("dog") == []


def test_pieces_within_words():
    pieces = ["▁Hund", "e", "5", ".", "▁", "<0xE2>", "<unk>", "犬", "ü", "-", ""]
    assert [piece for piece, within in zip(pieces, continue_words(pieces), strict=True) if within] == [
        "e", "5", "<0xE2>", "ü",
    ]  # fmt: skip
