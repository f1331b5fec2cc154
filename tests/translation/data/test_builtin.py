import os
import subprocess
import sys
from statistics import median

import pytest

from relattn.translation.data.builtin import (
    ITEM_SEPARATOR,
    KINDS,
    LARGEST_COUNT,
    TRAIN_PIECES,
    builtin,
    draw_items,
    estimate_pieces,
    find_locale,
    split_of,
    write,
)
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.errors import InputError

SPLITS = ("train", "valid", "test", "long")
LINES = {"train": 3000, "valid": 500, "test": 500, "long": 200}


@pytest.fixture(scope="module")
def items():
    return {
        split: draw_items(split, src_lang="en", tgt_lang="de", lines=lines, seed=0) for split, lines in LINES.items()
    }


def test_the_strings_are_those_of_the_two_languages():
    """Spot checks against real English and German, not against the output of this code."""
    en, de = find_locale("en"), find_locale("de")

    def both(name, value, carrier, style):
        return tuple(write(name, value, carrier, style, locale) for locale in (en, de))

    day = 365 * 149 + 37 + 107  # leap days from 1900 to 2048, then the 107th day of 2049
    assert both("date", day, "", "long") == ("April 17, 2049", "17. April 2049")
    assert both("date", day, "", "full") == ("Saturday, April 17, 2049", "Samstag, 17. April 2049")
    assert both("date", 1, "", "medium") == ("Jan 1, 1900", "01.01.1900")
    assert both("month", 2400, "", "yMMMM") == ("December 2099", "Dezember 2099")
    assert both("day", 60, "", "MMMMd") == ("February 29", "29. Februar")
    assert both("time", 14 * 60 + 6, "", "short") == ("2:05 PM", "14:05")
    assert both("clock", 1, "", "medium") == ("12:00:00 AM", "00:00:00")
    assert both("span", 5, "hour", "ago") == ("5 hours ago", "vor 5 Stunden")
    assert both("span", 1, "month", "ahead") == ("in 1 month", "in 1 Monat")
    assert both("measure", 125, "temperature-celsius", "long") == ("12.5 degrees Celsius", "12,5 Grad Celsius")
    assert both("measure", 1000, "length-kilometer", "short") == ("100 km", "100 km")
    assert both("money", 123456, "USD", "name") == ("1,234.56 US dollars", "1.234,56 US-Dollar")
    assert both("money", 123456, "EUR", "standard") == ("€1,234.56", "1.234,56 €")
    assert both("percent", 125, "", "") == ("12.5%", "12,5 %")
    assert both("decimal", 123456, "", "") == ("12,345.6", "12.345,6")
    assert both("number", 34, "", "cardinal") == ("thirty-four", "vierunddreißig")
    assert both("number", 342, "", "ordinal_num") == ("342nd", "342.")
    assert both("year", 1984 - 1100, "", "year") == ("nineteen eighty-four", "neunzehnhundertvierundachtzig")


@pytest.mark.whole
def test_no_two_splits_share_a_value(items):
    values = {split: {(item.kind, item.value) for line in lines for item in line} for split, lines in items.items()}
    texts = {split: {item.src for line in lines for item in line} for split, lines in items.items()}
    for a, b in [(a, b) for a in SPLITS for b in SPLITS if a < b]:
        assert not values[a] & values[b]
        assert not texts[a] & texts[b]


def test_every_kind_is_in_every_split_and_every_carrier_and_style_in_training(items):
    for lines in items.values():
        assert {item.kind for line in lines for item in line} == {kind.name for kind in KINDS}
    german = " ".join(item.tgt for line in items["train"] for item in line)
    carriers = (
        "Montag",
        "September",
        "Kilogramm",
        "US-Dollar",
        "Schweizer Franken",
        "CHF",
        "vor",
        "Grad Celsius",
        "kg",
    )
    for carrier in carriers:
        assert carrier in german


def test_the_values_of_each_kind_reach_every_split():
    for kind in KINDS:
        for carrier in kind.carriers:
            most = min(LARGEST_COUNT.get(carrier, kind.size), 2000)
            splits = {split_of(kind.name, value) for value in range(1, most + 1)}
            assert "train" in splits, (kind.name, carrier)
        assert {split_of(kind.name, value) for value in range(1, min(kind.size, 2000) + 1)} == set(SPLITS)
    shares = [split_of("decimal", value) for value in range(10_000)]
    assert shares.count("train") == pytest.approx(7600, abs=200)


@pytest.mark.whole
def test_lines_have_the_items_and_the_lengths_of_their_split(items):
    for split, lines in items.items():
        fewest, most = (6, 12) if split == "long" else (1, 4)
        for line in lines:
            assert fewest <= len(line) <= most
            assert len({item.src for item in line}) == len(line)
    pairs = {split: builtin(split, lines=lines) for split, lines in LINES.items()}
    for split, lines in items.items():
        joined = [
            tuple(ITEM_SEPARATOR.join(getattr(i, side) for i in line) for side in ("src", "tgt")) for line in lines
        ]
        assert pairs[split] == joined
        for pair in joined:
            assert [len(side.split(ITEM_SEPARATOR)) for side in pair] == [len(pair[0].split(ITEM_SEPARATOR))] * 2
    longest = max(estimate_pieces(side) for split in SPLITS[:3] for pair in pairs[split] for side in pair)
    assert longest <= TRAIN_PIECES
    assert min(estimate_pieces(side) for pair in pairs["long"] for side in pair) >= 2 * longest


@pytest.mark.whole
def test_training_lines_reach_past_the_clip_and_long_lines_past_training():
    pairs = {split: builtin(split, lines=lines) for split, lines in LINES.items()}
    tokenizer = Tokenizer.train((side for pair in pairs["train"] for side in pair), 1000, seed=1)
    pieces = {split: [[len(tokenizer.encode(side)) for side in pair] for pair in pairs[split]] for split in SPLITS}
    longest = max(max(pair) for pair in pieces["train"])
    clip = 8
    assert median(max(pair) for pair in pieces["train"]) >= 3 * clip
    assert min(min(pair) for pair in pieces["long"]) > longest
    assert median(max(pair) for pair in pieces["long"]) >= 2 * longest


def test_the_source_decides_the_target(items):
    said: dict[str, set[str]] = {}
    for line in (line for lines in items.values() for line in lines):
        for item in line:
            said.setdefault(item.src, set()).add(item.tgt)
    assert all(len(targets) == 1 for targets in said.values())
    in_may = [(src, *targets) for src, targets in said.items() if src.startswith("May ") and "," in src]
    assert len(in_may) > 20
    assert all("Mai" in tgt for _, tgt in in_may)  # in English, long and medium are the same: long is used


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("src_lang", "tgt_lang", "missing"),
    [
        ("en", "fr", set()),
        ("fr", "ja", set()),
        ("pt-BR", "ru", set()),
        ("en_GB", "nb", set()),
        ("cs", "sv", {"year"}),
        ("vi", "ca", {"year"}),
        ("ar", "ko", set()),
    ],
)
def test_any_pair_of_locales(src_lang, tgt_lang, missing):
    lines = draw_items("train", src_lang=src_lang, tgt_lang=tgt_lang, lines=400, seed=0)
    assert {kind.name for kind in KINDS} - {item.kind for line in lines for item in line} == missing
    for item in (item for line in lines for item in line):
        for text in (item.src, item.tgt):
            assert text == text.strip()
            assert ";" not in text
            assert not {"\n", "\u00a0", "\u202f", "\u2009", "\u2007"} & set(text)
            assert not any(unit in text for unit in ("length-", "duration-", "mass-"))
    assert builtin("long", src_lang=src_lang, tgt_lang=tgt_lang, lines=5)


def test_no_kind_of_space_but_the_plain_one(items):
    text = "".join(item.src + item.tgt for lines in items.values() for line in lines for item in line)
    assert {character for character in text if character.isspace()} == {" "}


def test_a_language_without_a_form_leaves_it_out():
    texts = {
        item.src
        for line in draw_items("train", src_lang="en", tgt_lang="cs", lines=1000, seed=0)
        for item in line
        if item.kind == "number"
    }
    assert texts
    assert not any(text.endswith(("th", "second", "third", "first")) for text in texts)


def test_more_lines_begin_with_the_same_and_other_seeds_differ():
    some = builtin("test", lines=20)
    assert builtin("test", lines=50)[:20] == some
    assert builtin("test", lines=20, seed=1) != some
    assert builtin("test", lines=20, tgt_lang="de_DE") != []
    assert builtin("train", lines=0) == []


@pytest.mark.whole
def test_another_process_with_other_hashes_and_another_clock_makes_the_same_corpus():
    script = (
        "from relattn.translation.data.builtin import builtin;"
        "print(repr([builtin(split, lines=30, seed=4) for split in ('train', 'long')]).encode())"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "TZ": zone, "LC_ALL": "C", "LANG": "C"},
            capture_output=True,
            check=True,
        ).stdout.strip()
        for hash_seed, zone in (("1", "UTC"), ("2", "America/New_York"))
    }
    here = repr([builtin(split, lines=30, seed=4) for split in ("train", "long")]).encode()
    assert made == {repr(here).encode()}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("xx", "does not support 'xx': Babel has no such locale"),
        ("", "does not support '': Babel has no such locale"),
        ("not a locale", "does not support 'not a locale': Babel has no such locale"),
        ("zh", "does not support 'zh': num2words has no language 'zh'"),
        ("tet", "does not support 'tet': Babel has no such locale"),
    ],
)
def test_a_locale_that_a_library_lacks_is_refused_by_name(code, message):
    for langs in ({"src_lang": code}, {"tgt_lang": code}):
        with pytest.raises(InputError, match=message):
            builtin("train", lines=1, **langs)


def test_an_unknown_split_is_refused_by_name():
    with pytest.raises(
        InputError, match="unknown split of the built-in corpus 'dev'; choose from train, valid, test, long"
    ):
        builtin("dev", lines=1)
