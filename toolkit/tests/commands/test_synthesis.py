"""The commands distill and backtranslate, compared with translating line by line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from relattn_mt import load, synthesis
from relattn_mt.corpus import pipeline
from relattn_mt.translate.options import TranslateOptions

from tests.support.commands import assert_refused

LINES = [f"{'two cat ' * (1 + i % 3)}sat on {word}" for i in range(6) for word in ("mat", "one", "und", "two")]
LINES[3:3] = ["", "  one   cat ", "word " * 30, "one cat sat"]
ALL = ("--min_script", "null", "--max_ratio", "null", "--min_score", "null", "--max_words", 20)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthesis, "PART", 5)


@pytest.fixture
def mono(tmp_path: Path) -> Path:
    """File of lines to translate; one is blank, one is long, and some occur twice."""
    path = tmp_path / "mono.en.gz"
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in LINES).encode()))
    return path


def corpus(out: Path, src_lang: str = "en", tgt_lang: str = "de") -> list[tuple[str, str]]:
    sides = [gzip.decompress((out / f"train.{lang}.gz").read_bytes()).decode() for lang in (src_lang, tgt_lang)]
    return list(zip(*(side.splitlines() for side in sides), strict=True))


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def by_line(translator: Any, **options: Any) -> list[list[tuple[str, str, float]]]:
    """Translate each line alone, and return (line, translation, mean log-probability) of all of its translations."""
    pairs = []
    for number, line in enumerate(LINES, start=1):
        line = " ".join(line.split())
        (results,) = translator.stream([[line]], TranslateOptions(**options), first_line=number)
        pairs.append([(line, " ".join(each.text.split()), each.mean_log_prob) for each in results])
    return pairs


def kept(pairs: list[list[tuple[str, str, float]]], least: float = -1e9) -> list[tuple[str, str]]:
    """Drop pairs that are empty, long, below `least`, repeated, or have control characters or damaged ones."""
    unique = {
        (line, text): None
        for each in pairs
        for line, text, score in each
        if line and text and not any(character < " " or character == "\ufffd" for character in text)
        if max(len(line.split()), len(text.split())) <= 20 and score >= least
    }
    return list(unique)


def test_distilled_corpus_is_that_of_single_lines(relattn, model, mono, tmp_path):
    """With n-best lists."""
    out = tmp_path / "out"
    result = relattn("distill", model, "--data", mono, "--out", out, "--n_best", 2, *ALL)
    assert result.code == 0, result.err
    expected = by_line(load(model), n_best=2)
    assert corpus(out) == kept(expected)
    assert result.out.split()[:2] == ["read", f"{2 * len(LINES)}"]
    record = json.loads((out / "prepared.json").read_text())
    assert record["settings"]["teacher"] == synthesis.weights_digest(model)
    assert record["settings"]["synthetic"] == "target"
    assert record["stats"]["dropped"]["long"] == 2  # not translated


def test_pairs_below_the_score_are_dropped(relattn, model, mono, tmp_path):
    expected = by_line(load(model))
    scores = sorted(score for (line, _, score), *_ in expected if line)
    least = (scores[9] + scores[10]) / 2
    rules = [*ALL[:4], "--max_words", 20, "--min_score", least]
    assert relattn("distill", model, "--data", mono, "--out", tmp_path / "out", *rules).code == 0
    assert corpus(tmp_path / "out") == kept(expected, least)
    assert json.loads((tmp_path / "out" / "prepared.json").read_text())["stats"]["dropped"]["score"] > 0


def test_back_translation_tags_sources(relattn, model, mono, tmp_path):
    """The model translates from en to de, so it makes sources for de to en."""
    out = tmp_path / "out"
    assert relattn("backtranslate", model, "--data", mono, "--out", out, *ALL).code == 0
    expected = kept(
        [[(line, text and f"⇄ {text}", score) for line, text, score in each] for each in by_line(load(model))]
    )
    assert corpus(out, "de", "en") == [(text, line) for line, text in expected]


def test_interrupted_commands_continue_to_the_same_bytes(relattn, model, mono, tmp_path, monkeypatch):
    command = ("distill", model, "--data", mono, "--n_best", 2, *ALL, "--out")
    assert relattn(*command, tmp_path / "whole").code == 0
    write, parts = pipeline._write_part, []

    def stop(path: Path, chunks: Any, seen: Any) -> Any:
        parts.append(path.name)
        if len(parts) in (1, 3, 6):
            next(iter(chunks))
            raise KeyboardInterrupt
        return write(path, chunks, seen)

    monkeypatch.setattr(pipeline, "_write_part", stop)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            relattn(*command, tmp_path / "out")
    assert relattn(*command, tmp_path / "out", "--threads", 1).code == 0
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert parts == [f"part-{number:05}" for number in (0, 0, 1, 1, 2, 3, 3, 4, 5)]
    again = relattn(*command, tmp_path / "out")
    assert (again.code, len(parts)) == (0, 9)
    assert "was prepared before" in again.err


@pytest.mark.parametrize(
    ("command", "flags", "fact"),
    [
        ("distill", ["--n_best", 3], "n_best must be at most the beam size 2, got 3"),
        ("backtranslate", ["--tag", "a b"], "tag must be one word, got 'a b'"),
    ],
)
def test_bad_options_are_refused_before_translating(relattn, model, mono, tmp_path, command, flags, fact):
    assert_refused(relattn(command, model, "--data", mono, "--out", tmp_path / "out", *ALL, *flags), fact)
    assert not (tmp_path / "out").exists()


FAULTS = {
    "changed text": "was prepared from other text or by other rules: pairs: 28 → 27",
    "another model": "was prepared from other text or by other rules: teacher: ",
    "another search": "translation.alpha: ",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_another_corpus_is_not_continued(relattn, model, another, mono, tmp_path, fault):
    rest = ["--data", mono, "--out", tmp_path / "out", *ALL]
    assert relattn("distill", model, *rest).code == 0
    before = content(tmp_path / "out")
    if fault == "changed text":
        mono.write_bytes(gzip.compress("".join(f"{line}\n" for line in LINES[1:]).encode()))
    flags = ["--alpha", 2.5] if fault == "another search" else []
    result = relattn("distill", another if fault == "another model" else model, *rest, *flags)
    assert_refused(result, FAULTS[fault])
    assert content(tmp_path / "out") == before
