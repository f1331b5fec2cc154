"""The commands distill and backtranslate, compared with translating line by line."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relattn.translation import load, synthesis
from relattn.translation.commands import main as cli
from relattn.translation.config import dump
from relattn.translation.corpus import pipeline
from relattn.translation.data.mixture import read_corpus_list
from relattn.translation.search.types import SamplingOptions
from relattn.translation.translate.options import TranslateOptions
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


@pytest.mark.parametrize("sampling", [False, True])
def test_distilled_corpus_is_that_of_single_lines(relattn, model, mono, tmp_path, sampling):
    """With n-best lists, or drawn translations, which depend on the seed and the line only."""
    flags = ("--sampling", "--seed", 5) if sampling else ()
    draws = {"sampling": SamplingOptions(seed=5)} if sampling else {}
    out = tmp_path / "out"
    result = relattn("distill", model, "--data", mono, "--out", out, "--n_best", 2, *flags, *ALL)
    assert result.code == 0, result.err
    expected = by_line(load(model), n_best=2, **draws)
    assert corpus(out) == kept(expected)
    assert result.out.split()[:2] == ["read", f"{2 * len(LINES)}"]
    card = (out / "README.md").read_text()
    assert synthesis.weights_digest(model) in card
    assert "The target side is synthetic" in card
    assert "| long | 2 |" in card  # not translated


def test_pairs_below_the_score_are_dropped(relattn, model, mono, tmp_path):
    expected = by_line(load(model))
    scores = sorted(score for (line, _, score), *_ in expected if line)
    least = (scores[9] + scores[10]) / 2
    rules = [*ALL[:4], "--max_words", 20, "--min_score", least]
    assert relattn("distill", model, "--data", mono, "--out", tmp_path / "out", *rules).code == 0
    assert corpus(tmp_path / "out") == kept(expected, least)
    assert "| score | " in (tmp_path / "out" / "README.md").read_text()


def test_back_translation_tags_sources_and_lists_a_mixture(relattn, model, mono, text, tmp_path):
    """The model translates from en to de, so it makes sources for de to en."""
    out = tmp_path / "out"
    parallel = ("--parallel", text["train_tgt"], text["train_src"], "--weight", 3)
    assert relattn("backtranslate", model, "--data", mono, "--out", out, *parallel, *ALL).code == 0
    expected = kept(
        [[(line, text and f"⇄ {text}", score) for line, text, score in each] for each in by_line(load(model))]
    )
    assert corpus(out, "de", "en") == [(text, line) for line, text in expected]
    listed = read_corpus_list(str(out / "corpora.tsv"))
    assert [(Path(src).resolve(), Path(tgt).resolve(), weight) for src, tgt, weight, _ in listed] == [
        (Path(text["train_tgt"]), Path(text["train_src"]), 3.0),
        (out / "train.de.gz", out / "train.en.gz", 1.0),
    ]


@pytest.mark.parametrize("flags", [("--n_best", 2), ("--sampling",)])
def test_interrupted_commands_continue_to_the_same_bytes(relattn, model, mono, tmp_path, monkeypatch, flags):
    command = ("distill", model, "--data", mono, *flags, *ALL, "--out")
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
    assert (again.code, len(parts), again.err) == (0, 9, "")


@pytest.fixture
def student(tmp_path: Path, make_recipe: Callable[..., Any]) -> Callable[..., Path]:
    """student(**data): file of a recipe that trains on tmp_path/out."""

    def write(*, run: str = "student", model: dict | None = None, train: dict | None = None, **data: Any) -> Path:
        out = tmp_path / "out"
        own = {"train_src": str(out / "train.en.gz"), "train_tgt": str(out / "train.de.gz"), **data}
        if "train_list" in data:
            own |= {"train_src": "", "train_tgt": ""}
        recipe = make_recipe(tmp_path / run, data=own, model=model, train={"steps": 4, **(train or {})})
        (tmp_path / "student.yaml").write_text(dump(recipe))
        return tmp_path / "student.yaml"

    return write


def test_a_student_is_trained_and_continued(relattn, model, mono, student, tmp_path):
    command = ("distill", model, "--data", mono, "--out", tmp_path / "out", "--student", student(), *ALL)
    first = relattn(*command)
    assert first.code == 0, first.err
    assert first.out.splitlines()[-1] == str(tmp_path / "student" / "bundle")
    weights = (tmp_path / "student" / "bundle" / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "student" / "bundle")
    (tmp_path / "student" / "checkpoints" / "step-00000004.ckpt").unlink()
    assert relattn(*command).code == 0
    assert (tmp_path / "student" / "bundle" / "model.safetensors").read_bytes() == weights
    assert load(tmp_path / "student" / "bundle").translate(["one cat"])


@pytest.mark.parametrize("output", [None, "/dev/full", "pipe"])
def test_student_is_trained_even_if_nothing_can_be_printed(model, mono, student, tmp_path, monkeypatch, capsys, output):
    if output == "pipe":
        reader, output = os.pipe()
        os.close(reader)
    command = ("distill", model, "--data", mono, "--out", tmp_path / "out", "--student", student(), *ALL)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", output if output is None else open(output, "w"))  # noqa: SIM115
        assert cli.main([str(word) for word in command]) == 1
        if output is not None:
            sys.stdout.close()
    assert "standard output" in capsys.readouterr().err.splitlines()[-1]
    assert load(tmp_path / "student" / "bundle").translate(["one cat"])


FAULTS = {
    "other languages": "languages must be en to de, as those of the model, got fr to de",
    "other text": "train.en.gz and ",
    "large student": "student: the disk must have ",
    "shrunken": "at least half of the pairs must be left to train a student, got ",
    "changed text": "was prepared from other text or by other rules: pairs: 28 → 27",
    "another model": "was prepared from other text or by other rules: teacher: ",
    "another seed": "translation.seed: 1 → 2",
    "beam": "n_best must be at most the beam size 2, got 3",
    "one parallel file": "--parallel must be a source file and a target file, got 1 files",
    "tag": "tag must be one word, got 'a b'",
}


STUDENTS = {  # recipes that training would refuse
    "no validation text": ({"valid_src": "nowhere"}, "nowhere: no such file"),
    "shorter validation text": ({"valid_src": "mono"}, "must have the same number of lines"),
    "no initial bundle": ({"train": {"init_from": "nowhere"}}, "nowhere"),
    "initial bundle of another size": (
        {"train": {"init_from": "model"}, "model": {"dim": 24}},
        "model must be the rec",
    ),
    "no GPU": ({"train": {"accelerator": "gpu"}}, "devices must be at most the number of GPUs, 0, got 1"),
    "full disk": ({"train": {"keep": 10**9}}, "student: the disk must have "),
    "other files": ({"run": "text"}, "text: out must be an empty directory"),
    "another run": ({"run": "finished"}, "these settings must be as when the run started: data.max_tokens"),
    "the corpus": ({"run": "out"}, "out must not contain the corpus"),
    "around the corpus": ({"run": ""}, "out must not contain the corpus"),
    "no list of real pairs": ({"train_list": "out/corpora.tsv"}, "corpora.tsv: no such file"),
    "missing file in the list": ({"train_list": "list"}, "nowhere.de: no such file"),
}


@pytest.mark.parametrize("fault", STUDENTS)
def test_recipe_of_a_student_is_checked_before_translating(
    relattn, model, mono, student, finished, tmp_path, monkeypatch, fault
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mono").write_text("\n".join(LINES))
    (tmp_path / "list").write_text("out/train.en.gz\tout/train.de.gz\nmono\tnowhere.de\n")
    (tmp_path / "model").symlink_to(model)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "thesis").touch()
    shutil.copytree(finished.out, tmp_path / "finished")
    changes, fact = STUDENTS[fault]
    if fault == "another run":
        changes = {**changes, "max_tokens": 64, "train_src": "out/train.en.gz", "train_tgt": "out/train.de.gz"}
    command = ("distill", model, "--data", mono, "--out", "out", "--student", student(**changes), *ALL)
    before = {path: path.is_dir() or path.read_bytes() for path in tmp_path.rglob("*")}
    assert_refused(relattn(*command), fact)
    assert {path: path.is_dir() or path.read_bytes() for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("name", "fact"), [("shorter", "same number of lines"), ("no", "no such file"), ("a\tb", "tabs")]
)
def test_real_pairs_are_checked_before_translating(relattn, model, mono, text, tmp_path, name, fact):
    (tmp_path / "shorter").write_text("one\n")
    (tmp_path / "a\tb").write_bytes(Path(text["train_tgt"]).read_bytes())
    parallel = ("--parallel", text["train_src"], tmp_path / name)
    assert_refused(relattn("backtranslate", model, "--data", mono, "--out", tmp_path / "out", *parallel, *ALL), fact)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_input_is_one_line(relattn, model, another, mono, student, tmp_path, monkeypatch, fault):
    out, flags, command = tmp_path / "out", [*ALL], "distill"
    monkeypatch.setattr(synthesis, "train", None)
    if fault in ("changed text", "another model", "another seed"):
        flags += ["--sampling"]
        assert relattn("distill", model, "--data", mono, "--out", out, *flags).code == 0
    match fault:
        case "other languages":
            flags += ["--student", student(src_lang="fr")]
        case "other text":
            flags += ["--student", student(train_src=str(mono))]
        case "large student":
            flags += ["--student", student(model={"dim": 65536, "heads": 1, "feed_forward_dim": 1048576})]
        case "shrunken":
            flags[-1:] = [5, "--student", student(), "--keep_duplicates", "true"]
        case "changed text":
            mono.write_bytes(gzip.compress("".join(f"{line}\n" for line in LINES[1:]).encode()))
        case "another model":
            model = another
        case "another seed":
            flags += ["--seed", 2]
        case "beam":
            flags += ["--n_best", 3]
        case "one parallel file":
            command, flags = "backtranslate", [*flags, "--parallel", mono]
        case "tag":
            command, flags = "backtranslate", [*flags, "--tag", "a b"]
    before = content(out) if out.exists() else {}
    result = relattn(command, model, "--data", mono, "--out", out, *flags)
    if fault == "shrunken":  # after lines that say what is done
        assert result.code == 2
        assert FAULTS[fault] in result.err.splitlines()[-1]
        return
    assert_refused(result, FAULTS[fault])
    assert (content(out) if out.exists() else {}) == before
