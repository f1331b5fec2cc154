"""`relattn reproduce`: the models of its tables, training without losing or repeating work, and its pages."""

from __future__ import annotations

import csv
import json
import logging
import lzma
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from filelock import FileLock

from relattn.translation.commands import main as cli
from relattn.translation.data.text_files import read_parallel
from relattn.translation.errors import InputError, Interrupted
from relattn.translation.evaluation import paired_bootstrap
from relattn.translation.experiments import report, reproduce, rows
from relattn.translation.experiments.tables import SCALES, TABLES, Entry, Scale, Table, joined
from tests.support.commands import Result, assert_refused

ENTRIES = (Entry("both", "relative", paper=25.8), Entry("keys", "relative", {"relative_tables": "keys"}))


def test_equal_models_have_equal_names_in_all_tables():
    """So that one is trained for all tables."""
    names = {name: {entry.label: entry.name for entry in table.entries} for name, table in TABLES.items()}
    assert names["clip"]["k = 16"] == names["tables"]["aK and aV"] == names["positions"]["relative"] == "relative"
    assert names["clip"]["k = 4"] == "relative-clip=4"
    for scale in SCALES.values():
        models = {}
        for table in TABLES.values():
            for entry in table.entries:
                model = entry.model(scale.recipe.model)
                assert models.setdefault(entry.name, model) == model
    wmt14 = SCALES["wmt14"].recipe.model
    assert ENTRIES[1].model(wmt14) == replace(wmt14, relative_tables="keys")  # tables per head stay


def test_lines_are_joined():
    pairs = [(f"s{i}", f"t{i}") for i in range(6)]
    assert joined(pairs, 2) == [("s0 s1", "t0 t1"), ("s2 s3", "t2 t3"), ("s4 s5", "t4 t5")]
    assert joined(pairs, 4) == [("s0 s1 s2 s3", "t0 t1 t2 t3")]


@pytest.fixture
def small(monkeypatch, make_recipe, tmp_path, caplog):
    """A function that calls `reproduce` on a table of models that train in moments, and returns the page."""
    recipe = make_recipe(tmp_path / "unused", train={"steps": 4, "valid_bleu_lines": 0})
    monkeypatch.setitem(SCALES, "tiny", Scale("tiny", recipe, 6, (4, 8)))
    monkeypatch.setitem(TABLES, "pair", Table("pair", "Two models", ENTRIES, "none"))
    monkeypatch.setitem(TABLES, "clip", Table("clip", "Short", (Entry("k = 2", "relative", {"clip": 2}),), "", True))
    monkeypatch.setattr(rows, "MIN_TOKENS", 3)
    caplog.set_level(logging.INFO, "relattn.translation.experiments")

    def run(table: str = "pair", **changes):
        options = {"seeds": [1], "models": [], "steps": None, "data": "", **changes}
        page = reproduce.reproduce(table, "tiny", **options, out=tmp_path / "results", runs=tmp_path / "runs")
        assert page == tmp_path / f"results/tiny/{table}.md"
        return page.read_text(encoding="utf-8")

    return run


@pytest.fixture
def first(tmp_path):
    """Path of the first row's file."""
    return tmp_path / "results/tiny/rows/relative-seed1.json.xz"


def test_table_is_trained_measured_and_written(small, tmp_path, text, caplog, first, monkeypatch):
    (tmp_path / "runs/tiny").mkdir(parents=True)
    with FileLock(tmp_path / "runs/tiny/relative-relative_tables=keys-seed1.lock"):
        page = small()
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    assert any("keys-seed1: skipped" in message for message in caplog.messages)
    assert "| keys (1) |" in page
    assert "\n(1) not trained yet\n" in page

    page = small(seeds=[1, 2])
    names = [f"relative{x}-seed{seed}.json.xz" for x in ("-relative_tables=keys", "") for seed in (1, 2)]
    assert sorted(path.name for path in first.parent.iterdir()) == names
    row, pairs = rows.read(first), list(read_parallel(text["valid_src"], text["valid_tgt"]))
    assert len(row.translations) == len(pairs)
    assert sum(b["tokens"] for b in row.positions["single lines"] if b["label"] == "end") == len(pairs)
    assert list(row.positions) == ["single lines", "2 lines joined", "4 lines joined", "6 lines joined"]
    layers, left, norms = row.norms["aV"]
    assert (len(layers), left, len(norms[0])) == (2, 2, 5)
    assert row.log[-1]["step"] == 4
    assert row.conditions["code"] == reproduce.code_digest()
    rows.write(tmp_path / "again.json", row)
    assert (tmp_path / "again.json").read_bytes() == first.read_bytes()
    mean = statistics.mean(
        rows.read(first.with_name(f"relative-seed{seed}.json.xz")).figures["bleu"] for seed in (1, 2)
    )
    assert f"| both | {mean:.1f}" in page
    assert "| 25.8 |" in page
    assert "trained differently" not in page
    for name in ("training", "positions", "lengths", "learned"):
        assert f"![pair-{name}](pair-{name}.png)" in page
        assert (tmp_path / f"results/tiny/pair-{name}.png").read_bytes().startswith(b"\x89PNG")
    with open(tmp_path / "results/tiny/pair.csv", newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [(line["model"], line["seed"]) for line in table] == [(m, s) for m in ("both", "keys") for s in "12"]
    assert {line["code"] for line in table} == {row.conditions["code"]}
    assert not list((tmp_path / "runs/tiny").glob("*/checkpoints"))

    with pytest.raises(InputError, match=r"'rope'.* relative"):
        small(models=["rope"])
    monkeypatch.setattr(reproduce, "train", Mock(side_effect=reproduce.train))
    monkeypatch.setattr(reproduce, "code_digest", lambda: "deadbeef")
    page = small(seeds=[1, 2, 3], models=[names[0].partition("-seed")[0]], steps=2)
    reproduce.train.assert_called_once()  # rows that exist are not trained again
    code = row.conditions["code"]
    assert "| keys (1) |" in page
    assert f"\n(1) seed 3 was trained differently: code: {code} → deadbeef; train.steps: 4 → 2\n" in page


def test_stopped_row_continues_and_is_the_same(small, tmp_path, monkeypatch, first):
    monkeypatch.setattr(report, "draw_all", lambda *_: {})
    small(models=["relative"])
    whole, train = rows.read(first), reproduce.train
    first.unlink()
    (tmp_path / "runs/tiny/relative-seed1").rename(tmp_path / "elsewhere")

    def stopped(recipe, **options):
        assert options["again"] == "the same command"
        train(replace(recipe, train=replace(recipe.train, steps=2)), **options, show=False)
        raise Interrupted("stopped after step 2")

    with monkeypatch.context() as patch:
        patch.setattr(reproduce, "train", stopped)
        with pytest.raises(Interrupted):
            small(models=["relative"])
    assert not first.exists()
    small(models=["relative"])
    again = rows.read(first)
    for name in ("recipe", "conditions", "translations", "positions", "norms"):
        assert getattr(again, name) == getattr(whole, name)
    assert {**again.figures, "seconds": 0} == {**whole.figures, "seconds": 0}


def test_run_that_diverged_is_a_row_with_a_note(small, monkeypatch, first):
    monkeypatch.setattr(report, "draw_all", lambda *_: {})
    scale = SCALES["tiny"]
    wild = replace(scale.recipe, train=replace(scale.recipe.train, learning_rate_factor=1e6, steps=60))
    monkeypatch.setitem(SCALES, "tiny", scale._replace(recipe=wild))
    with pytest.raises(InputError, match=r"pair\.md: there must be a row"):
        small(models=["relative"])
    monkeypatch.setitem(SCALES, "tiny", scale)
    fault = rows.read(first).fault
    assert "diverged" in fault
    page = small()
    assert "| both (1) |" in page
    assert f"\n(1) seed 1: {fault}\n" in page


def test_table_of_short_sentences_has_its_own_rows(small, tmp_path, monkeypatch, first):
    page = small("clip")
    assert "![clip-k](clip-k.png)" in page  # although BLEU is 0, and the picture is relative to it
    assert "| 0.0 |" in page
    row = rows.read(first.with_name("relative-clip=2-6words-seed1.json.xz"))
    assert row.recipe["data"]["max_words"] == 6
    assert row.figures["longest"] < 12
    monkeypatch.setitem(SCALES, "tiny", SCALES["tiny"]._replace(short=None))
    small("clip")  # if all lines of the corpus are short, the rows are those of other tables
    assert first.with_name("relative-clip=2-seed1.json.xz").exists()


def test_committed_rows_can_be_read_and_damaged_ones_are_refused(tmp_path):
    paths = list((Path(__file__).parents[2] / "docs/results").glob("*/rows/*.json.xz"))
    assert paths
    assert all(rows.read(path).figures for path in paths)
    for content in (b"", b"[]", b'{"version": 1}', b"\xff", b"{}", b'{"version": 2}'):
        for written in (content, lzma.compress(content), lzma.compress(paths[0].read_bytes())[:-9]):
            (tmp_path / "row.json.xz").write_bytes(written)
            with pytest.raises(InputError, match=f"^{tmp_path}/row.json.xz: .*$"):
                rows.read(tmp_path / "row.json.xz")


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ("positions --scale demo --data x", "--data"),
        ("tables --scale multi30k --data nowhere", "nowhere/valid.en: no such file"),
        ("table1", "table1"),
        ("tables --seeds -1", "got -1"),
        ("tables --steps 0", "got 0"),
    ],
)
def test_errors_of_the_command(tmp_path, monkeypatch, capsys, arguments, fact):
    monkeypatch.chdir(tmp_path)
    assert_refused(Result(cli.main(["reproduce", *arguments.split()]), *capsys.readouterr()), fact)
    assert list(tmp_path.iterdir()) == []


def test_bootstrap_equals_that_of_sacrebleu(tmp_path):
    """Two systems have errors in different lines, one of them slightly more often."""
    references = [f"the {i}th cat sat on mat {i * i} and slept until {i % 7} today" for i in range(60)]
    base = [line.replace("slept until", "was awake") if i % 5 == 0 else line for i, line in enumerate(references)]
    other = [line.replace("sat on", "saw a") if i % 4 == 1 else line for i, line in enumerate(references)]
    for name, lines in (("base", base), ("other", other), ("ref", references)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "base", "other", "--paired-bs", "-f", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = json.loads(done.stdout)[1]["BLEU"]["p_value"]
    assert 0.1 < expected < 0.5
    assert paired_bootstrap(base, other, references) == pytest.approx(expected, abs=1e-4)
    assert paired_bootstrap(base, base, references) == 1.0
