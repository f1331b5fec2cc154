"""Glossaries: reading them, and finding their terms in a line."""

from pathlib import Path

import pytest
from relattn_mt.support.errors import InputError
from relattn_mt.translate.glossary import Glossary, continue_words

from tests.support.marked import marked, notation


def read(path: Path, text: str) -> Glossary:
    (path / "terms.tsv").write_text(text, encoding="utf-8")
    return Glossary.read(path / "terms.tsv")


def test_terms_match_whole_words_longest_first(tmp_path):
    glossary = read(tmp_path, "dog\tHund\nhot dog\tHotdog\n\nC++\tC++\n(x)\tx \ndog\tHund\nhot\theiß\n")
    assert glossary.find("A hot dog, a dog and two dogs.") == ["Hotdog", "Hund"]
    assert glossary.find("a hot hot dog") == ["heiß", "Hotdog"]
    assert glossary.find("dog dog Dog hotdog") == ["Hund", "Hund"]
    assert glossary.find("C++ and (x)") == ["C++", "x"]
    assert glossary.find("") == Glossary([]).find("dog") == []


def test_spellings_in_unicode_do_not_matter(tmp_path):
    glossary = read(tmp_path, "cafe\u0301\tLokal\nNew\u00a0York\tNeuyork\ncafe\tKaffee\n")
    found = glossary.find("A caf\u00e9, a cafe\u0301, a cafe in New  York.")
    assert found == ["Lokal", "Lokal", "Kaffee", "Neuyork"]
    glossary = read(tmp_path, "Mother's Day\tMamatag\nCEO’s\tChefs\ne-mail\tMail\n")
    assert glossary.find("Mother’s Day") == glossary.find("Mother´s Day") == ["Mamatag"]
    assert glossary.find("the CEO's e\u2011mail") == ["Chefs", "Mail"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Save", "Sichern"),
        (" Save: ", " Sichern: "),
        ("„Save“", "„Sichern“"),
        ("<m0>Save</m0>!", "<m0>Sichern</m0>!"),
        ("S<m0>av</m0>e", "Sichern<m0></m0>"),
        ("C++", "Ceh"),
        ("(C++)", None),
        ("Save as", None),
        ("Save 5", None),
        ("save", None),
        ("{Save}", None),
        ("@Save", None),
        ("...", None),
        ("", None),
    ],
)
def test_a_text_that_is_a_term(text, expected):
    glossary = Glossary([(1, "Save", "Sichern"), (2, "C++", "Ceh")])
    whole = glossary.translate_whole(marked(text))
    assert (None if whole is None else notation(whole)) == expected


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("dog\tHund\ncat\t \n", ["line 2", "no translation"]),
        ("\n\tHund\n", ["line 2", "no term"]),
        ("dog Hund\n", ["line 1", "two columns", "got 1"]),
        ("a\tb\tc\n", ["line 1", "two columns", "got 3"]),
        ("dog\tHund\ncat\tKatze\ndog\tKöter\n", ["lines 1 and 3", "'dog'"]),
    ],
)
def test_glossaries_that_are_refused(tmp_path, text, facts):
    with pytest.raises(InputError) as refused:
        read(tmp_path, text)
    assert all(fact in str(refused.value) for fact in [str(tmp_path / "terms.tsv"), *facts])


def test_pieces_that_continue_words():
    pieces = ["▁Hund", "e", "5", ".", "▁", "<0xE2>", "<unk>", "犬", "ü", "-", ""]
    assert [piece for piece, within in zip(pieces, continue_words(pieces), strict=True) if within] == [
        "e", "5", "<0xE2>", "ü",
    ]  # fmt: skip
