"""Training text of everyday-en-de: names, slots and numbers agree on both sides."""

import re
from datetime import datetime
from pathlib import Path
from random import Random

import pytest

from research.everyday import PAIRS, RECIPES, Maker, nearness, shared_names, without_other_translations, write_text

TEXT = [
    ("Tom lives in Boston.", "Tom wohnt in Boston."),
    ("I met Tom and Mary.", "Ich habe Tom und Mary getroffen."),
    ("We know Tom's house in Boston.", "Wir kennen Toms Haus in Boston."),
    ("Ask Mr. Jackson.", "Frag Herrn Jackson."),
    ("Call Mr. Jackson or Mary!", "Ruf Herrn Jackson oder Mary an!"),
    ("The hand is cold. Give me a hand, Hand!", "Die Hand ist kalt. Hilf mir, Hand!"),
]
NAMES = {"Tom", "Mary", "Boston", "Jackson"}


@pytest.fixture
def maker():
    return Maker(Random(1))


def test_names_are_words_that_are_never_small_and_the_same_in_german():
    assert shared_names(TEXT) == NAMES


@pytest.mark.parametrize("pair", TEXT[:5])
def test_replaced_names_are_the_same_on_both_sides(maker, pair):
    replaced = [maker.replace_names(pair, NAMES) for _ in range(200)]
    made = [new for new in replaced if new is not None]
    assert len(made) > 100
    for english, german in made:
        for old in NAMES:
            count = len(re.findall(old, pair[0]))
            assert count == len(re.findall(old, pair[1]))
        frame = re.split("|".join(NAMES), pair[0])
        names = re.fullmatch("(.+)".join(map(re.escape, frame)), english)
        assert names
        assert not NAMES & set(re.findall(r"\w+", english))
        for name in names.groups():
            assert re.search(rf"(?<!\w){re.escape(name)}s?(?!\w)", german)


def test_a_pair_whose_sides_have_different_names_is_left_out(maker):
    assert maker.replace_names(("Tom saw Mary.", "Tom hat sie gesehen."), NAMES) is None
    assert maker.replace_names(("He saw her.", "Er hat sie gesehen."), NAMES) is None


def test_sentences_have_no_open_slot_and_the_same_digits(maker):
    for _ in range(3000):
        english, german = maker.sentence()
        assert not re.search(r"[{}\t]", english + german)
        assert re.findall(r"\d+", english) == re.findall(r"\d+", german) or "half past" in english


def test_dates_times_and_negative_numbers_are_the_same_on_both_sides(maker):
    dates = times = negative = 0
    for _ in range(3000):
        english, german = maker.figures()
        assert not re.search(r"[{}\t]", english + german)
        found = re.findall(r"[A-Z][a-z]{2} \d+, \d{4}|\d+ [A-Z][a-z]{2} \d{4}", english)
        formats = ["%b %d, %Y" if "," in date else "%d %b %Y" for date in found]
        days = [datetime.strptime(date, form) for date, form in zip(found, formats, strict=True)]
        assert days == [datetime.strptime(date, "%d.%m.%Y") for date in re.findall(r"\d+\.\d+\.\d{4}", german)]
        halves = re.findall(r"\d+:\d\d [AP]M", english)
        if halves:
            clock = [datetime.strptime(time, "%I:%M %p") for time in halves]
            assert clock == [datetime.strptime(time, "%H:%M") for time in re.findall(r"\d+:\d\d", german)]
        numbers = [re.findall(r"(?<![\dM])-\d+(?:[.,]\d)?", side) for side in (english, german)]
        assert numbers[0] == [number.replace(",", ".") for number in numbers[1]]
        dates += len(days)
        times += len(halves)
        negative += len(numbers[0])
    assert dates > 500
    assert times > 200
    assert negative > 200


def test_enclosed_sentences_are_pairs_with_the_same_kinds_of_marks(maker):
    pairs = [*TEXT, ("Stop.", "Halt."), ("Go!", "Geh!")]
    for _ in range(1000):
        english, german = maker.enclosed(pairs)
        for marks in ("()", "[]", "/"):
            assert sum(map(english.count, marks)) == sum(map(german.count, marks))
        assert any(german_side.rstrip(".!?") in german for _, german_side in pairs)
        assert sum(map(english.count, '"“”—–')) >= sum(map(german.count, "–"))


@pytest.mark.parametrize("column", [0, 1])
def test_typed_text_differs_from_its_pair_in_case_marks_and_umlauts_alone(maker, column):
    pairs = [*TEXT, ("Don't worry, it's 2.5 miles over there.", "Keine Sorge, es sind 2,5 Meilen da drüben, Süße!")]
    sources = []
    for pair in pairs * 50:
        typed = maker.typed(pair, column)
        for side, original in zip(typed, pair, strict=True):
            assert _letters(side) == _letters(original)
        end = pair[1 - column][-1:] if typed[column].endswith((".", "!", "?")) else ""
        expected = pair[1 - column].rstrip(".!?") + end
        assert typed[1 - column] in ((expected.upper(),) if typed[column].isupper() else (expected, expected.upper()))
        sources.append(typed[column])
    for form in (
        ("DON'T WORRY, IT'S", "dont worry its 2.5")
        if column == 0
        else ("DRUEBEN, SUESSE", "drueben suesse", "2,5 meilen da drüben süße")
    ):
        assert any(form in source for source in sources), form


def _letters(text: str) -> str:
    for umlaut, letters in (("Ä", "AE"), ("Ö", "OE"), ("Ü", "UE")):
        text = text.upper().replace(umlaut, letters)
    return re.sub(r"\W", "", text)


def test_no_line_is_held_out_and_files_are_parallel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    few = {**dict.fromkeys(PAIRS, 50), "sentences": 500, "copies": 3, "typed": 1000}
    monkeypatch.setattr("research.everyday.PAIRS", few)
    held_out = Maker(Random(1)).sentence()
    (tmp_path / "held").mkdir()
    for name in ("lists", "patterns", "figures", "phrases"):
        (tmp_path / "held" / f"everyday-{name}.tsv").write_bytes((RECIPES / f"everyday-{name}.tsv").read_bytes())
    (tmp_path / "held" / "everyday-patterns.tsv").write_text("Hello.\tHallo.\nThank you, {person}!\tDanke, {person}!\n")
    lines = ["language\ttopic\tphrase"]
    lines += [f"en\tx\t{phrase}" for phrase in ("Hello.", "Nobody asks so.", held_out[0])]
    lines += [f"de\tx\t{phrase}" for phrase in ("Und für dich?", held_out[1])]
    (tmp_path / "held" / "everyday-held-out.tsv").write_text("\n".join(lines))
    (tmp_path / "held" / "everyday-words.tsv").write_text("tree\tBaum\n")
    questions = "".join(f"B {number}\tUnd für dich?\n" for number in range(40))
    (tmp_path / "held" / "everyday-written.tsv").write_text(f"Nobody asks so.\tA\n{questions}Good.\tGut.\n")
    monkeypatch.setattr("research.everyday.RECIPES", tmp_path / "held")
    for column, language in enumerate(("en", "de")):
        text = [*TEXT, ("Nobody asks so!", "Das fragt niemand.")]
        (tmp_path / f"train.{language}").write_text("".join(f"{pair[column]}\n" for pair in text))
    counts = write_text(tmp_path)
    assert counts["sentences"] > 100
    assert counts["written"] == 1
    for name, count in counts.items():
        lines = [(tmp_path / f"{name}.{language}").read_text().splitlines() for language in ("en", "de")]
        assert len(lines[0]) == len(lines[1]) == count
        assert not {"Hello.", "Hallo.", *held_out} & {*lines[0], *lines[1]}
    written = [path for path in tmp_path.glob("*.??") if path.stem != "train"]
    assert len(written) == 2 * (len(counts) + 2)  # with copied and copy
    for path in written:
        letters = _letters(path.read_text())
        assert "NOBODYASKSSO" not in letters
        assert "UNDFUERDICH" not in letters


def test_a_set_phrase_is_taught_with_its_own_translations_alone():
    phrases = [("Cheers!", "Prost!"), ("Cheers!", "Zum Wohl!")]
    others = [("Cheers!", "Danke!"), ("Cheers.", "Prost."), ("Bottoms up!", "Prost!")]
    assert without_other_translations([*phrases, *others], phrases) == [*phrases, ("Cheers.", "Prost.")]


def test_nearness_is_one_for_a_reference_and_falls_with_other_words():
    references = ["Das ist ein Haus.", "Das ist ein Gebäude."]
    assert nearness("Das ist ein Gebäude.", references) == 1
    assert 0.5 < nearness("Das ist ein Hund.", references) < 1
    assert nearness("Nein!", references) == 0
