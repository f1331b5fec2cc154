"""Tables trained again: which models stand in them, that work is neither lost nor done twice, and what a page says."""

from __future__ import annotations

import csv
import json
import logging
import math
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from filelock import FileLock

from relattn.translation.commands import main as cli
from relattn.translation.config import Positions, as_dict
from relattn.translation.data.text_files import read_parallel
from relattn.translation.errors import InputError, Interrupted
from relattn.translation.evaluation import paired_bootstrap
from relattn.translation.experiments import report, reproduce, rows
from relattn.translation.experiments.scales import SCALES, Scale, joined
from relattn.translation.experiments.tables import TABLES, Entry, Table

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
    sets = joined(pairs)
    assert sets["single lines"] == pairs
    assert sets["joined by twos"] == [("s0 s1", "t0 t1"), ("s2 s3", "t2 t3"), ("s4 s5", "t4 t5")]
    assert sets["joined by sixes"] == [(" ".join(f"s{i}" for i in range(6)), " ".join(f"t{i}" for i in range(6)))]


@pytest.fixture
def small(monkeypatch, make_recipe, tmp_path, text):
    """A table of two models at a scale of moments; a call of `reproduce` on it."""
    recipe = make_recipe(tmp_path / "unused", train={"steps": 4})
    scale = Scale("tiny", recipe, 6, 4, (4, 8), joined)
    monkeypatch.setitem(reproduce.SCALES, "tiny", scale)
    monkeypatch.setitem(reproduce.TABLES, "pair", Table("pair", "Two models", ENTRIES, "no paper"))
    monkeypatch.setitem(reproduce.TABLES, "short", Table("short", "Short", ENTRIES[:1], "no paper", short=True))
    monkeypatch.setattr(report, "_FEWEST", 3)

    def run(table: str = "pair", **changes):
        usual = {"seeds": [1, 2], "chosen": [], "steps": None, "data": None}
        return reproduce.reproduce(
            table, "tiny", **{**usual, **changes}, out=tmp_path / "results", runs=tmp_path / "runs"
        )

    return run


def files(tmp_path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (tmp_path / "results/tiny/rows").iterdir()}


def test_a_table_is_trained_measured_and_told(small, tmp_path, text, caplog):
    caplog.set_level(logging.INFO, "relattn.translation.experiments")
    page, told = small(), caplog.messages
    assert next(line for line in told if " of 4: " in line) == "1 of 4: relative-seed1; 0 done, 4 left"
    assert "2 of 4: relative-relative_tables=keys-seed1; 1 done, 3 left, which should take 0:00:" in "\n".join(told)
    assert told[-1] == "4 done, 0 left"
    names = [f"relative{x}-seed{seed}.json" for x in ("", "-relative_tables=keys") for seed in (1, 2)]
    assert sorted(files(tmp_path)) == sorted(names)
    result = rows.read(tmp_path / "results/tiny/rows/relative-seed1.json")
    pairs = list(read_parallel(text["valid_src"], text["valid_tgt"]))
    assert len(result.translations) == len(pairs)
    assert sum(b.pieces for b in result.positions["single lines"] if b.positions is None) == len(pairs)
    assert result.norms["aK"].left == 2
    assert len(result.norms["aV"].rows[0]) == 5
    assert result.log[-1].step == 4
    assert result.conditions["code"] == rows.code()
    written = page.read_text(encoding="utf-8")
    mean = (
        sum(rows.read(tmp_path / f"results/tiny/rows/relative-seed{seed}.json").scores["bleu"] for seed in (1, 2)) / 2
    )
    assert f"| both | {mean:.1f} (" in written
    assert "25.8 |" in written
    assert "made otherwise" not in written
    for name in ("training", "positions", "lengths", "learned"):
        assert f"![pair-{name}](pair-{name}.png)" in written
        assert (page.parent / f"pair-{name}.png").read_bytes().startswith(b"\x89PNG")
    with open(page.with_suffix(".csv"), newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [(row["name"], row["seed"]) for row in table] == [
        (name, seed) for name in ("relative", "relative-relative_tables=keys") for seed in ("1", "2")
    ]
    assert {row["code"] for row in table} == {rows.code()}
    assert not list((tmp_path / "runs/tiny").glob("*/checkpoints"))


@pytest.mark.whole
def test_what_is_done_is_not_done_again(small, tmp_path, monkeypatch, capsys):
    page = small(seeds=[1])
    before, written = files(tmp_path), page.read_text(encoding="utf-8")
    monkeypatch.setattr(rows, "train", None)  # nothing may be trained
    assert small(seeds=[1]).read_text(encoding="utf-8") == written
    assert files(tmp_path) == before
    assert small("pair", seeds=[1], chosen=["relative"]) == page
    with pytest.raises(InputError, match=r"^pair has no model 'rope'; it has relative, relative-relative_tables=keys$"):
        small(chosen=["rope"])


@pytest.mark.whole
def test_a_row_that_was_stopped_goes_on_and_is_the_same(small, tmp_path, monkeypatch):
    def stopped(recipe, **options):
        assert options["again"] == "the same command"
        rows.train.whole(replace(recipe, train=replace(recipe.train, steps=2)), **options, show=False)
        raise Interrupted("stopped after step 2")

    small(seeds=[1], chosen=["relative"])
    path, run = tmp_path / "results/tiny/rows/relative-seed1.json", tmp_path / "runs/tiny/relative-seed1"
    whole = rows.read(path)
    path.unlink()
    run.rename(tmp_path / "elsewhere")
    stopped.whole = rows.train
    monkeypatch.setattr(rows, "train", stopped)
    with pytest.raises(Interrupted):
        small(seeds=[1], chosen=["relative"])
    assert not path.exists()
    monkeypatch.setattr(rows, "train", stopped.whole)
    small(seeds=[1], chosen=["relative"])
    again = rows.read(path)
    for name in ("recipe", "conditions", "translations", "scores", "positions", "norms", "longest", "parameters"):
        assert getattr(again, name) == getattr(whole, name)


@pytest.mark.whole
def test_one_that_diverged_is_a_row_that_says_so(small, tmp_path, monkeypatch, capsys):
    scale = reproduce.SCALES["tiny"]
    wild = replace(
        scale, recipe=replace(scale.recipe, train=replace(scale.recipe.train, learning_rate_factor=1e6, steps=60))
    )
    monkeypatch.setitem(reproduce.SCALES, "tiny", wild)
    small(seeds=[1], chosen=["relative"])
    fault = json.loads(files(tmp_path)["relative-seed1.json"])["fault"]
    assert "diverged" in fault
    monkeypatch.setitem(reproduce.SCALES, "tiny", scale)
    written = small(seeds=[1, 2]).read_text(encoding="utf-8")
    assert f"(1) seed 1: {fault}" in written
    assert "| both (1)" in written


@pytest.mark.whole
def test_rows_of_another_budget_or_other_code_are_told(small, tmp_path, monkeypatch):
    small(seeds=[1], chosen=["relative"])
    small(seeds=[1], steps=2)
    monkeypatch.setattr(rows, "code", lambda: "deadbeef")
    written = small(seeds=[2]).read_text(encoding="utf-8")
    assert "(2) seed 1 was made otherwise: train.steps: 4 → 2" in written
    assert f"(1) seed 2 was made otherwise: code: {rows_code(tmp_path)} → deadbeef" in written
    assert "| both (1) |" in written
    assert "| keys (2) (1) |" in written


@pytest.mark.whole
def test_a_row_that_translated_other_lines_is_no_hindrance(small, tmp_path):
    small(seeds=[1])
    path = tmp_path / "results/tiny/rows/relative-relative_tables=keys-seed1.json"
    result = rows.read(path)
    assert re.search(r"\| keys \|.* \| 0\.\d{3}|1\.000 \|", small(seeds=[1]).read_text(encoding="utf-8"))
    rows.write(path, replace(result, translations=result.translations[1:]))
    assert re.search(r"\| keys \|.* \|  \|", small(seeds=[1]).read_text(encoding="utf-8"))


def rows_code(tmp_path) -> str:
    return json.loads(files(tmp_path)["relative-seed1.json"])["conditions"]["code"]


@pytest.mark.whole
def test_a_row_that_another_process_trains_is_passed_over(small, tmp_path, caplog):
    caplog.set_level(logging.INFO, "relattn.translation.experiments")
    (tmp_path / "runs/tiny").mkdir(parents=True)
    with FileLock(tmp_path / "runs/tiny/relative-seed1.lock"):
        written = small(seeds=[1]).read_text(encoding="utf-8")
    assert "1 of 2: relative-seed1: another process is training it" in caplog.messages
    assert list(files(tmp_path)) == ["relative-relative_tables=keys-seed1.json"]
    assert "Not trained yet: both." in written


@pytest.mark.whole
def test_a_table_of_short_sentences_has_rows_of_its_own(small, tmp_path, monkeypatch):
    small("short", seeds=[1])
    result = rows.read(tmp_path / "results/tiny/rows/relative-6words-seed1.json")
    assert result.recipe["data"]["max_words"] == 6
    assert result.longest < 12
    monkeypatch.setitem(reproduce.SCALES, "tiny", replace(reproduce.SCALES["tiny"], short=None))
    small("short", seeds=[1])  # where lines are short as they are, the rows are those of other tables
    assert "relative-seed1.json" in files(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"name": "x"}', b"\xff"])
def test_a_damaged_row_is_told_in_a_line(small, tmp_path, content):
    path = tmp_path / "results/tiny/rows/relative-seed1.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"^{path}: (not a row of a table|not UTF-8)"):
        small(seeds=[1])


def test_a_row_is_read_as_it_was_written(small, tmp_path):
    small(seeds=[1], chosen=["relative"])
    path = tmp_path / "results/tiny/rows/relative-seed1.json"
    result = rows.read(path)
    rows.write(tmp_path / "again.json", result)
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert rows.read(tmp_path / "again.json") == result
    assert math.isfinite(result.wall)


def test_the_command(tmp_path, capsys, monkeypatch):
    assert cli.main(["reproduce", "positions", "--scale", "demo", "--data", "x"]) == 2
    told = "relattn: error: --data means nothing for demo, whose text is the built-in corpus\n"
    assert capsys.readouterr().err == told
    assert cli.main(["reproduce", "tables", "--scale", "multi30k", "--data", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"relattn: error: {tmp_path / 'valid.en'}: no such file\n"
    assert cli.main(["reproduce", "table1"]) == 2
    assert "table1" in capsys.readouterr().err
    assert cli.main(["reproduce", "tables", "--seeds", "-1"]) == 2
    assert capsys.readouterr().err == "relattn: error: seed must be in [0, 9223372036854775808), got -1\n"
    assert cli.main(["reproduce", "tables", "--steps", "0"]) == 2
    assert capsys.readouterr().err == "relattn: error: steps must be in [1, 1e9], got 0\n"


def test_the_bootstrap_is_that_of_sacrebleus_command(tmp_path):
    """Of two systems that are wrong in other lines, one of them a little more often."""
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


def test_the_codes_digest_changes_with_any_line_of_it(tmp_path, monkeypatch):
    for name in ("a.py", "kernels/b.c", "kernels/b.h", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n", encoding="utf-8")
    monkeypatch.setattr(rows.relattn, "__file__", str(tmp_path / "__init__.py"))
    seen = [rows.code()]
    for name in ("a.py", "kernels/b.c", "kernels/b.h"):
        (tmp_path / name).write_text("x = 2\n", encoding="utf-8")
        seen.append(rows.code())
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    seen.append(rows.code())
    assert len(set(seen)) == 5
    assert all(len(code) == 8 for code in seen)
    (tmp_path / "notes.md").unlink()
    assert rows.code() == seen[-1]


def test_recipes_of_rows_differ_in_nothing_else(tmp_path):
    scale = SCALES["multi30k"]
    for entry in TABLES["positions"].entries:
        recipe = rows.recipe_of(scale, entry, 3, tmp_path, 12)
        same = replace(recipe, seed=1, out=scale.recipe.out, model=scale.recipe.model)
        assert as_dict(same) == as_dict(replace(scale.recipe, data=replace(scale.recipe.data, max_words=12)))
