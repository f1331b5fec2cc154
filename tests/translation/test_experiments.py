"""Tests of `relattn reproduce`: the models of its tables, training without losing or repeating work, and its pages."""

from __future__ import annotations

import csv
import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from relattn.translation.commands import main as cli
from relattn.translation.config import Positions
from relattn.translation.data.text_files import read_parallel
from relattn.translation.errors import InputError, Interrupted
from relattn.translation.evaluation import paired_bootstrap
from relattn.translation.experiments import reproduce, rows
from relattn.translation.experiments.tables import SCALES, TABLES, Entry, Scale, Table, joined

PAPER = {  # BLEU of the paper's base model: tables 1 (newstest2014), 2 and 3 (newstest2013)
    "positions": {"relative": 26.8, "sinusoidal": 26.5},
    "clip": {
        "k = 0": 12.5,
        "k = 1": 25.5,
        "k = 2": 25.8,
        "k = 4": 25.9,
        "k = 16": 25.8,
        "k = 64": 25.9,
        "k = 256": 25.8,
    },
    "tables": {"aK and aV": 25.8, "aK only": 25.8, "aV only": 25.3, "neither": 12.5},
    "length": {"relative": 26.8, "sinusoidal": 26.5},
}
ENTRIES = (Entry("both", "relative", paper=25.8), Entry("keys", "relative", {"relative_tables": "keys"}))


def test_the_papers_figures_are_the_papers():
    for name, figures in PAPER.items():
        assert {e.label: e.paper for e in TABLES[name].entries if e.paper is not None} == figures


def test_every_scheme_is_compared_and_every_model_can_be_made():
    compared = {entry.positions for entry in TABLES["positions"].entries}
    assert compared == set(Positions.__args__)
    for scale in SCALES.values():
        for table in TABLES.values():
            names = [entry.name for entry in table.entries]
            assert len(set(names)) == len(names)
            for entry in table.entries:
                assert entry.model(scale.recipe.model).positions == entry.positions


def test_one_model_has_one_name_and_is_trained_for_all_tables():
    named = {name: {entry.label: entry.name for entry in table.entries} for name, table in TABLES.items()}
    assert named["clip"]["k = 16"] == named["tables"]["aK and aV"] == named["positions"]["relative"] == "relative"
    assert named["tables"]["neither"] == named["positions"]["none"] == "none"
    assert named["clip"]["k = 4"] == "relative-clip=4"
    for scale in SCALES.values():
        models = {}
        for table in TABLES.values():
            for entry in table.entries:
                model = models.setdefault(entry.name, entry.model(scale.recipe.model))
                assert model == entry.model(scale.recipe.model)
    wmt14 = SCALES["wmt14"].recipe.model
    assert ENTRIES[1].model(wmt14) == replace(wmt14, relative_tables="keys")  # tables per head stay


def test_lines_are_joined():
    pairs = [(f"s{i}", f"t{i}") for i in range(7)]
    assert joined(pairs, 2) == [("s0 s1", "t0 t1"), ("s2 s3", "t2 t3"), ("s4 s5", "t4 t5")]
    assert joined(pairs, 6) == [("s0 s1 s2 s3 s4 s5", "t0 t1 t2 t3 t4 t5")]


@pytest.fixture
def small(monkeypatch, make_recipe, tmp_path, text):
    """A function that calls `reproduce` on a table of two models, which train in moments."""
    recipe = make_recipe(tmp_path / "unused", train={"steps": 4})
    monkeypatch.setitem(SCALES, "tiny", Scale("tiny", recipe, 6, (4, 8)))
    monkeypatch.setitem(TABLES, "pair", Table("pair", "Two models", ENTRIES, "none"))
    monkeypatch.setitem(TABLES, "short", Table("short", "Short", ENTRIES[:1], "none", short=True))
    monkeypatch.setattr(rows, "MIN_TOKENS", 3)

    def run(table: str = "pair", **changes):
        options = {"seeds": [1], "models": [], "steps": None, "data": "", **changes}
        return reproduce.reproduce(table, "tiny", **options, out=tmp_path / "results", runs=tmp_path / "runs")

    return run


@pytest.fixture
def first(tmp_path):
    """Path of the first row's file."""
    return tmp_path / "results/tiny/rows/relative-seed1.json"


def files(tmp_path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (tmp_path / "results/tiny/rows").iterdir()}


def test_a_table_is_trained_measured_and_written(small, tmp_path, text, caplog, first):
    caplog.set_level(logging.INFO, "relattn.translation.experiments")
    page = small(seeds=[1, 2])
    assert "relative-seed1: training; 0 of 4 rows are done" in caplog.messages
    names = [f"relative{x}-seed{seed}.json" for x in ("", "-relative_tables=keys") for seed in (1, 2)]
    assert sorted(files(tmp_path)) == sorted(names)
    row = rows.read(first)
    pairs = list(read_parallel(text["valid_src"], text["valid_tgt"]))
    assert len(row.translations) == len(pairs)
    assert sum(b["tokens"] for b in row.positions["single lines"] if b["label"] == "end") == len(pairs)
    assert list(row.positions) == ["single lines", "2 lines joined", "4 lines joined", "6 lines joined"]
    layers, left, norms = row.norms["aV"]
    assert (len(layers), left, len(norms[0])) == (2, 2, 5)
    assert row.log[-1]["step"] == 4
    assert row.conditions["code"] == reproduce.code_digest()
    rows.write(tmp_path / "again.json", row)
    assert (tmp_path / "again.json").read_bytes() == first.read_bytes()
    written = page.read_text(encoding="utf-8")
    mean = (row.figures["bleu"] + rows.read(first.with_name("relative-seed2.json")).figures["bleu"]) / 2
    assert f"| both | {mean:.1f}" in written
    assert "| 25.8 |" in written
    assert "trained differently" not in written
    for name in ("training", "positions", "lengths", "learned"):
        assert f"![pair-{name}](pair-{name}.png)" in written
        assert (page.parent / f"pair-{name}.png").read_bytes().startswith(b"\x89PNG")
    with open(page.with_suffix(".csv"), newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [(line["model"], line["seed"]) for line in table] == [
        ("both", "1"),
        ("both", "2"),
        ("keys", "1"),
        ("keys", "2"),
    ]
    assert {line["code"] for line in table} == {reproduce.code_digest()}
    assert not list((tmp_path / "runs/tiny").glob("*/checkpoints"))


@pytest.mark.whole
def test_finished_rows_are_not_trained_again(small, tmp_path, monkeypatch):
    page = small()
    before, written = files(tmp_path), page.read_text(encoding="utf-8")
    monkeypatch.setattr(reproduce, "train", None)  # nothing may be trained
    assert small().read_text(encoding="utf-8") == written
    assert files(tmp_path) == before
    assert small(models=["relative"]) == page
    with pytest.raises(InputError, match=r"^unknown model 'rope'; choose from relative, "):
        small(models=["rope"])


@pytest.mark.whole
def test_a_stopped_row_continues_and_is_the_same(small, tmp_path, monkeypatch, first):
    def stopped(recipe, **options):
        assert options["again"] == "the same command"
        train(replace(recipe, train=replace(recipe.train, steps=2)), **options, show=False)
        raise Interrupted("stopped after step 2")

    small(models=["relative"])
    whole = rows.read(first)
    first.unlink()
    (tmp_path / "runs/tiny/relative-seed1").rename(tmp_path / "elsewhere")
    train = reproduce.train
    monkeypatch.setattr(reproduce, "train", stopped)
    with pytest.raises(Interrupted):
        small(models=["relative"])
    assert not first.exists()
    monkeypatch.setattr(reproduce, "train", train)
    small(models=["relative"])
    again = rows.read(first)
    for name in ("recipe", "conditions", "translations", "positions", "norms"):
        assert getattr(again, name) == getattr(whole, name)
    assert {**again.figures, "seconds": 0} == {**whole.figures, "seconds": 0}


@pytest.mark.whole
def test_a_run_that_diverged_is_a_row_with_a_note(small, monkeypatch, first):
    scale = SCALES["tiny"]
    wild = replace(scale.recipe, train=replace(scale.recipe.train, learning_rate_factor=1e6, steps=60))
    monkeypatch.setitem(SCALES, "tiny", scale._replace(recipe=wild))
    with pytest.raises(InputError, match=r"pair.md: there must be a row with figures, got none$"):
        small(models=["relative"])
    fault = json.loads(first.read_bytes())["fault"]
    assert "diverged" in fault
    monkeypatch.setitem(SCALES, "tiny", scale)
    assert f"\n(1) seed 1: {fault}\n" in small(models=["relative-relative_tables=keys"]).read_text(encoding="utf-8")
    written = small(seeds=[1, 2]).read_text(encoding="utf-8")
    assert f"\n(1) seed 1: {fault}\n" in written
    assert "| both (1) |" in written


@pytest.mark.whole
def test_rows_of_another_recipe_or_other_code_have_notes(small, monkeypatch, first):
    small(models=["relative"])
    small(steps=2)
    monkeypatch.setattr(reproduce, "code_digest", lambda: "deadbeef")
    written = small(seeds=[2]).read_text(encoding="utf-8")
    code = rows.read(first).conditions["code"]
    assert f"\n(1) seed 2 was trained differently: code: {code} → deadbeef\n" in written
    assert "\n(2) seed 1 was trained differently: train.steps: 4 → 2\n" in written
    assert "| both (1) |" in written
    assert "| keys (2) (1) |" in written


@pytest.mark.whole
def test_a_row_that_another_process_trains_is_skipped(small, tmp_path, caplog):
    caplog.set_level(logging.INFO, "relattn.translation.experiments")
    (tmp_path / "runs/tiny").mkdir(parents=True)
    with FileLock(tmp_path / "runs/tiny/relative-seed1.lock"):
        written = small().read_text(encoding="utf-8")
    assert "relative-seed1: skipped, because another process is training it" in caplog.messages
    assert list(files(tmp_path)) == ["relative-relative_tables=keys-seed1.json"]
    assert "| both (1) |" in written
    assert "\n(1) not trained yet\n" in written


@pytest.mark.whole
def test_a_table_of_short_sentences_has_its_own_rows(small, tmp_path, monkeypatch):
    small("short")
    row = rows.read(tmp_path / "results/tiny/rows/relative-6words-seed1.json")
    assert row.recipe["data"]["max_words"] == 6
    assert row.figures["longest"] < 12
    monkeypatch.setitem(SCALES, "tiny", SCALES["tiny"]._replace(short=None))
    small("short")  # if all lines of the corpus are short, the rows are those of other tables
    assert "relative-seed1.json" in files(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"version": 1}', b"\xff", b"{}", b'{"version": 2}'])
def test_a_damaged_row_is_an_error_of_one_line(small, content, first):
    first.parent.mkdir(parents=True)
    first.write_bytes(content)
    with pytest.raises(InputError, match=f"^{first}: (not a row of a table|not UTF-8).*$"):
        small(models=["relative"])


def test_committed_rows_can_be_read():
    paths = list((Path(__file__).parents[2] / "docs/results").glob("*/rows/*.json"))
    assert paths
    assert all(rows.read(path).figures for path in paths)


def test_errors_of_the_command(tmp_path, capsys):
    assert cli.main(["reproduce", "positions", "--scale", "demo", "--data", "x"]) == 2
    message = "relattn: error: --data must not be set for demo, which has the built-in corpus\n"
    assert capsys.readouterr().err == message
    assert cli.main(["reproduce", "tables", "--scale", "multi30k", "--data", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"relattn: error: {tmp_path / 'valid.en'}: no such file\n"
    assert cli.main(["reproduce", "table1"]) == 2
    assert "table1" in capsys.readouterr().err
    assert cli.main(["reproduce", "tables", "--seeds", "-1"]) == 2
    assert capsys.readouterr().err == "relattn: error: seed must be in [0, 9223372036854775808), got -1\n"
    assert cli.main(["reproduce", "tables", "--steps", "0"]) == 2
    assert capsys.readouterr().err == "relattn: error: steps must be in [1, 1e9], got 0\n"


def test_the_bootstrap_equals_that_of_sacrebleus_command(tmp_path):
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


def test_the_code_digest_changes_with_every_change_of_the_code(tmp_path, monkeypatch):
    for name in ("a.py", "kernels/b.c", "kernels/b.h", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n", encoding="utf-8")
    monkeypatch.setattr(reproduce.relattn, "__file__", str(tmp_path / "__init__.py"))
    digests = [reproduce.code_digest()]
    for name in ("a.py", "kernels/b.c", "kernels/b.h"):
        (tmp_path / name).write_text("x = 2\n", encoding="utf-8")
        digests.append(reproduce.code_digest())
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    digests.append(reproduce.code_digest())
    assert len(set(digests)) == 5
    assert all(len(digest) == 8 for digest in digests)
    (tmp_path / "notes.md").unlink()
    assert reproduce.code_digest() == digests[-1]
