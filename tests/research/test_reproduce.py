"""The models of the paper's tables, training without losing or repeating work, and the pages."""

import logging
import lzma
import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from filelock import FileLock
from relattn_mt.config import as_dict
from relattn_mt.evaluation import score
from relattn_mt.support.errors import InputError
from relattn_mt.tokens.text_files import ParallelFiles

from research import report, reproduce, rows
from research.significance import paired_bootstrap
from research.tables import SCALES, TABLES, Claim, Entry, Scale, Table, joined

ENTRIES = (Entry("both", "relative", paper=25.8), Entry("keys", "relative", {"relative_tables": "keys"}))

RECIPE = SCALES["demo"].recipe
FIGURES = {"valid_nats": 1.0, "parameters": 2, "seconds": 60.0, "longest": 5}


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


@pytest.fixture
def small(monkeypatch, make_recipe, tmp_path, caplog):
    """A function that calls `reproduce` on a table of models that train in moments, and returns the page."""
    recipe = make_recipe(tmp_path / "unused", train={"steps": 4, "valid_bleu_lines": 0})
    files = ("valid", "valid.src", "valid.tgt"), ("other", "train.src", "train.tgt")
    monkeypatch.setitem(SCALES, "tiny", Scale("tiny", recipe, files))
    monkeypatch.setitem(TABLES, "pair", Table("pair", "Two models", ENTRIES, "none"))
    monkeypatch.setattr(rows, "MIN_TOKENS", 3)
    caplog.set_level(logging.INFO, "research")

    def run(table: str = "pair", **changes):
        options = {"seeds": [1], "models": [], "steps": None, "data": "", **changes}
        page = reproduce.reproduce(table, "tiny", **options, out=tmp_path / "results", runs=tmp_path / "runs")
        assert page == tmp_path / "results/tiny.md"
        return page.read_text(encoding="utf-8")

    return run


@pytest.fixture
def first(tmp_path):
    """Path of the first row's file."""
    return tmp_path / "results/rows/tiny/relative-seed1.json.xz"


def test_table_is_trained_measured_and_written(small, tmp_path, text, caplog, first, monkeypatch):
    (tmp_path / "runs/tiny").mkdir(parents=True)
    with FileLock(tmp_path / "runs/tiny/relative-relative_tables=keys-seed1.lock"), monkeypatch.context() as patched:
        patched.setattr(report, "draw", lambda *_: b"")  # pictures take half of the time of this test
        page = small()
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    assert any("keys-seed1: skipped" in message for message in caplog.messages)
    assert "\n| both | " in page
    assert " Not trained: keys.\n" in page

    copied = shutil.copytree(Path(text["train_src"]).parent, tmp_path / "copied")
    page = small(seeds=[1, 2], data=str(copied))  # rows do not depend on the directory
    names = [f"relative{x}-seed{seed}.json.xz" for x in ("-relative_tables=keys", "") for seed in (1, 2)]
    assert sorted(path.name for path in first.parent.iterdir()) == names
    row = rows.read(first)
    texts = {split: list(ParallelFiles(text[f"{split}_src"], text[f"{split}_tgt"])) for split in ("valid", "train")}
    assert {name: len(lines) for name, lines in row.translations.items()} == {"valid": 7, "other": 48}
    assert sum(b["tokens"] for b in row.positions if b["label"] == "end") == len(joined(texts["valid"], 6))
    assert row.log[-1]["step"] == 4
    assert row.conditions["code"] == reproduce.code_digest()
    rows.write(tmp_path / "again.json", row)
    assert (tmp_path / "again.json").read_bytes() == first.read_bytes()
    header = "| model | valid: BLEU | valid: chrF | valid: p | other: BLEU | other: chrF | other: p | validation loss |"
    assert header in page
    both = [rows.read(first.with_name(f"relative-seed{seed}.json.xz")) for seed in (1, 2)]
    for name, pairs in zip(("valid", "other"), texts.values(), strict=True):
        for row in both:
            scores = score(row.translations[name], [reference for _, reference in pairs])
            assert row.scores[name] == vars(scores)
    cells = page.partition("\n| both |")[2].split("\n")[0].split(" | ")
    assert cells[1].startswith(f"{statistics.mean(row.scores['valid']['chrf'] for row in both):.1f}")
    assert cells[4].startswith(f"{statistics.mean(row.scores['other']['chrf'] for row in both):.1f}")
    assert "| 25.8 |" in page
    assert "trained differently" not in page
    assert "](tiny.png)" in page
    assert (tmp_path / "results/tiny.png").read_bytes().startswith(b"\x89PNG")
    assert not list((tmp_path / "runs/tiny").glob("*/checkpoints"))

    with pytest.raises(InputError, match=r"'rope'.* relative"):
        small(models=["rope"])
    monkeypatch.setattr(report, "draw", lambda *_: b"")
    monkeypatch.setattr(reproduce, "train", Mock(side_effect=reproduce.train))
    code = row.conditions["code"]
    monkeypatch.setattr(reproduce, "code_digest", lambda: "deadbeef")
    page = small(seeds=[1, 2, 3], models=[names[0].partition("-seed")[0]], steps=2)
    reproduce.train.assert_called_once()  # rows that exist are not trained again
    assert "| keys (1) |" in page
    assert f"\n(1) trained differently: code: {code} → deadbeef; train.steps: 4 → 2 (seed 3)\n" in page


def test_claims_of_the_paper_are_tested_on_each_text(monkeypatch, tmp_path):
    """Against scores and p-values of evaluation.py: of two models, the second has errors in many lines of one text."""
    references = [f"the {i}th cat sat on the mat of dog {i * i} today" for i in range(60)]
    wrong = [line.replace("sat on", "saw a") if i % 2 else line for i, line in enumerate(references)]
    pairs = {"valid": [(line, line) for line in references], "other": [(line, line) for line in references]}
    monkeypatch.setattr(report, "draw", lambda *_: b"")
    for relation, found in ((">", "1"), ("=", "0"), ("≤", "0")):
        claim = Claim("relative", relation, "relative-relative_tables=keys")
        monkeypatch.setattr(report, "CLAIMS", (claim, claim._replace(second="rope")))
        monkeypatch.setattr(report, "TABLES", {"pair": Table("pair", "Two models", ENTRIES, "none")})
        for entry, lines in zip(ENTRIES, (references, wrong), strict=True):
            translations = {"valid": lines, "other": references}
            scores = {name: vars(score(translations[name], references)) for name in pairs}
            row = rows.Row(1, as_dict(RECIPE), reproduce.conditions(RECIPE), "", FIGURES, [], scores, translations, [])
            rows.write(rows.path_of(tmp_path / "rows/tiny", entry, 1), row)
        page = report.write(Scale("tiny", RECIPE, (("valid", "", ""),)), tmp_path, pairs).read_text(encoding="utf-8")
        difference = score(references, references).bleu - score(wrong, references).bleu
        p = paired_bootstrap(wrong, references, references)
        assert p < 0.05
        claims = page.partition("## The paper's claims\n\n")[2].partition("\n\n")[0].split("\n")
        assert len(claims) == 3
        assert claims[2].split(" | ")[1:] == [
            *(f"+{difference:.1f}", f"{p:.3f}", f"{found} of 1"),
            *("+0.0", "1.000", f"{int(relation != '>')} of 1 |"),
        ]


def test_committed_rows_can_be_read_and_damaged_ones_are_refused(tmp_path):
    paths = list((Path(__file__).parents[2] / "docs/results/rows").glob("*/*.json.xz"))
    assert paths
    assert all(rows.read(path).figures for path in paths)
    for content in (b"", b"[]", b'{"version": 1}', b"\xff", b"{}", b'{"version": 3}'):
        for written in (content, lzma.compress(content), lzma.compress(paths[0].read_bytes())[:-9]):
            (tmp_path / "row.json.xz").write_bytes(written)
            with pytest.raises(InputError, match=f"^{tmp_path}/row.json.xz: .*$"):
                rows.read(tmp_path / "row.json.xz")
