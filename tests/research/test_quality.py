"""Measures of a model's names, numbers and language, on translators whose results are known."""

import re

import pytest

from research.quality import measure

ENGLISH = ["Tom is here today.", "We saw Tom there.", "I have no time.", "Yes."]
GERMAN = ["Tom ist heute hier.", "Wir haben Tom dort gesehen.", "Ich habe keine Zeit.", "Ja."]


class Fake:
    def __init__(self, change):
        self.translate = lambda lines: [change(line) for line in lines]


@pytest.mark.parametrize(
    ("change", "kept", "changed", "names", "numbers"),
    [
        (lambda line: line, "3 of 3", "0 of 3", "2 of 2", r"(?!200)\d+ of 200"),
        (lambda line: line + "!", "0 of 3", "3 of 3", "2 of 2", r"(?!200)\d+ of 200"),
        (lambda line: "", "0 of 3", "3 of 3", "0 of 2", "0 of 200"),
    ],
)
def test_measures_of_translators_that_copy_add_and_lose(
    tmp_path, monkeypatch, capsys, change, kept, changed, names, numbers
):
    monkeypatch.setattr("research.quality.load", lambda *_args, **_languages: Fake(change))
    paths = tmp_path / "valid.en", tmp_path / "valid.de"
    for path, lines in zip(paths, (ENGLISH, GERMAN), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    measure("model", *paths, show=0)
    rows = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    for language in ("en", "de"):
        assert rows[f"{language} to {language}, unchanged"] == kept
    for direction in ("en-de", "de-en"):
        assert rows[f"{direction} changed"] == changed
        assert rows[f"{direction} names"] == names
        assert re.fullmatch(numbers, rows[f"{direction} numbers"])
        assert rows[f"{direction} set phrases as written"].endswith(" of 300")
        right = int(rows[f"{direction} words as written"].removesuffix(" of 300"))
        assert right < 20  # few words are the same in both languages


def test_translations_of_the_file_are_right_whichever_it_has(tmp_path, monkeypatch, capsys):
    pairs = [("tree", "Baum"), ("hello", "hallo"), ("hello", "guten Tag"), ("bank", "Bank"), ("bench", "Bank")]
    known = {"tree": "Baum", "hello": "guten Tag", "bank": "Bank", "bench": "Pfand", "Baum": "tree", "Bank": "bench"}
    monkeypatch.setattr("research.quality.load", lambda *_args, **_languages: Fake(lambda line: known.get(line, "?")))
    monkeypatch.setattr("research.quality.written_pairs", lambda _name: pairs)
    paths = tmp_path / "valid.en", tmp_path / "valid.de"
    for path, lines in zip(paths, (ENGLISH, GERMAN), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    measure("model", *paths, show=0)
    rows = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert rows["en-de words as written"] == "4 of 5"
    assert rows["de-en words as written"] == "3 of 5"
    assert "typed on a phone, en-de" in rows
