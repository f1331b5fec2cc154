"""The built-in corpus: real strings in many locales, and splits without common values."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relattn_mt.support.errors import InputError

from research.corpus import (
    ITEM_SEPARATOR,
    KINDS,
    LARGEST_COUNT,
    TRAIN_PIECES,
    builtin,
    common_subsequence,
    draw_items,
    estimate_pieces,
    find_locale,
    item_accuracy,
    split_of,
    write,
    write_files,
)

LINES = {"train": 1000, "valid": 150, "test": 150, "long": 40}
DAY = 365 * 149 + 37 + 107  # leap days from 1900 to 2048, then the 107th day of 2049


@pytest.fixture(scope="module")
def items():
    return {name: draw_items(name, src_lang="en", tgt_lang="de", lines=n, seed=0) for name, n in LINES.items()}


@pytest.mark.parametrize(
    ("kind", "value", "carrier", "style", "en", "de"),
    [
        ("date", DAY, "", "long", "April 17, 2049", "17. April 2049"),
        ("date", DAY, "", "full", "Saturday, April 17, 2049", "Samstag, 17. April 2049"),
        ("date", 1, "", "medium", "Jan 1, 1900", "01.01.1900"),
        ("month", 2400, "", "yMMMM", "December 2099", "Dezember 2099"),
        ("day", 60, "", "MMMMd", "February 29", "29. Februar"),
        ("time", 14 * 60 + 6, "", "short", "2:05 PM", "14:05"),
        ("clock", 1, "", "medium", "12:00:00 AM", "00:00:00"),
        ("span", 5, "hour", "ago", "5 hours ago", "vor 5 Stunden"),
        ("span", 1, "month", "ahead", "in 1 month", "in 1 Monat"),
        ("measure", 125, "temperature-celsius", "long", "12.5 degrees Celsius", "12,5 Grad Celsius"),
        ("measure", 1000, "length-kilometer", "short", "100 km", "100 km"),
        ("money", 123456, "USD", "name", "1,234.56 US dollars", "1.234,56 US-Dollar"),
        ("money", 123456, "EUR", "standard", "€1,234.56", "1.234,56 €"),
        ("percent", 125, "", "", "12.5%", "12,5 %"),
        ("decimal", 123456, "", "", "12,345.6", "12.345,6"),
        ("number", 34, "", "cardinal", "thirty-four", "vierunddreißig"),
        ("number", 342, "", "ordinal_num", "342nd", "342."),
        ("year", 1984 - 1100, "", "year", "nineteen eighty-four", "neunzehnhundertvierundachtzig"),
    ],
)
def test_the_strings_are_those_of_the_two_languages(kind, value, carrier, style, en, de):
    """Spot checks against real English and German, not against the output of this code."""
    assert [write(kind, value, carrier, style, find_locale(code)) for code in ("en", "de")] == [en, de]


def test_lines_have_the_items_and_the_lengths_of_their_split(items):
    targets: dict[str, set[str]] = {}
    for split, lines in items.items():
        assert {item.kind for line in lines for item in line} == {kind.name for kind in KINDS}
        pairs = []
        for line in lines:
            assert len({item.src for item in line}) == len(line) in (range(6, 13) if split == "long" else range(1, 5))
            assert all(split_of(item.kind, item.value) == split for item in line)
            pairs.append(tuple(ITEM_SEPARATOR.join(getattr(item, side) for item in line) for side in ("src", "tgt")))
            lengths = [estimate_pieces(side) for side in pairs[-1]]
            assert min(lengths) >= 2 * TRAIN_PIECES if split == "long" else max(lengths) <= TRAIN_PIECES
            for item in line:
                targets.setdefault(item.src, set()).add(item.tgt)
        assert builtin(split, lines=LINES[split]) == pairs
    assert all(len(tgt) == 1 for tgt in targets.values())
    in_may = [tgt for src, (tgt,) in targets.items() if src.startswith("May ") and "," in src]
    assert in_may
    assert all("Mai" in tgt for tgt in in_may)  # in English, long and medium are the same: long is used
    german = " ".join(item.tgt for line in items["train"] for item in line)
    carriers = "Montag", "September", "Kilogramm", "US-Dollar", "Schweizer Franken", "CHF", "vor", "Grad Celsius", "kg"
    assert [carrier for carrier in carriers if carrier not in german] == []


def test_the_values_of_each_kind_reach_every_split():
    for kind in KINDS:
        for carrier in kind.carriers:
            most = min(LARGEST_COUNT.get(carrier, kind.size), 2000)
            assert "train" in {split_of(kind.name, value) for value in range(1, most + 1)}, (kind.name, carrier)
        assert {split_of(kind.name, value) for value in range(1, min(kind.size, 2000) + 1)} == set(LINES)
    assert [split_of("decimal", value) for value in range(10_000)].count("train") == pytest.approx(7600, abs=200)


def test_lines_follow_from_the_seed_and_the_languages():
    """More lines begin with the same. A form that a language lacks, such as Czech ordinal numbers, is left out."""
    some = builtin("test", lines=20)
    assert builtin("test", lines=50)[:20] == some
    assert builtin("test", lines=20, seed=1) != some
    assert builtin("train", lines=0) == []
    lines = draw_items("train", src_lang="en", tgt_lang="cs", lines=250, seed=0)
    texts = [item.src for line in lines for item in line if item.kind == "number"]
    assert texts
    assert not any(text.endswith(("th", "second", "third", "first")) for text in texts)


def test_files_that_exist_are_kept(tmp_path):
    write_files(tmp_path, tgt_lang="pt_BR", lines={"test": 3, "long": 1})
    assert {path.name for path in tmp_path.iterdir()} == {"test.en", "test.pt_BR", "long.en", "long.pt_BR"}
    sides = [(tmp_path / f"test.{language}").read_text("utf-8").splitlines() for language in ("en", "pt_BR")]
    assert list(zip(*sides, strict=True)) == builtin("test", tgt_lang="pt_BR", lines=3)
    write_files(tmp_path, tgt_lang="pt_BR", lines={"test": 5})
    assert (tmp_path / "test.en").read_text("utf-8").splitlines() == sides[0]
    with pytest.raises(InputError, match="lines of valid must be positive, got 0"):
        write_files(tmp_path, lines={"valid": 0})


@pytest.mark.parametrize(
    ("hypotheses", "references", "accuracy"),
    [
        (["acd", "e", "fxg"], ["abcd", "e", "fgh"], (6 / 8, 1 / 3)),
        (["ba"], ["ab"], (0.5, 0.0)),
        (["aabb"], ["ab"], (1.0, 0.0)),
        (["abc"], ["ab"], (1.0, 0.0)),
        (["ab"], ["ab"], (1.0, 1.0)),
        ([""], ["ab"], (0.0, 0.0)),
    ],
)
def test_accuracy_of_items(hypotheses, references, accuracy):
    """A letter is an item."""
    lines = ([ITEM_SEPARATOR.join(line) for line in side] for side in (hypotheses, references))
    assert item_accuracy(*lines) == accuracy


WORDS = st.text("abc", max_size=7)


@given(WORDS, WORDS)
def test_common_subsequence_matches_brute_force(a, b):
    subsequences = {each for n in range(len(a) + 1) for each in combinations(a, n)}
    expected = max(len(each) for n in range(len(b) + 1) for each in combinations(b, n) if each in subsequences)
    assert common_subsequence(a, b) == expected
