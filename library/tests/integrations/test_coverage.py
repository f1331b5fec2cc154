"""Tests of the lists of classes in transformers: those that compute a relative term, and those that are supported."""

import re
import runpy

from relattn.integrations.transformers.families import load_families

from tools import DOCS, coverage

PATCHED = {patch.class_path for family in load_families() for patch in family.patches}


def test_the_page_lists_every_class(monkeypatch):
    listed = list(coverage.coverage())
    monkeypatch.setattr(coverage, "coverage", lambda: listed)
    page = coverage.page()
    assert page == coverage.PAGE.read_text(encoding="utf-8"), "run python -m tools.coverage"
    headings = re.findall("^### (.*)$", (DOCS / "family.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"see \[(.*?)\]", page)) <= set(headings)
    assert "not examined" not in page
    rows = {(model, name): status for model, name, status in listed}
    for model, _, name in (path.split(".") for path in PATCHED):
        assert rows.get((model, name), "*enabled*") == "*enabled*"
        assert "Attention" not in name or (model, name) in rows
    assert rows["bloom", "BloomAttention"].startswith("*expressible*")
    for row in (
        ("bros", "BrosSelfAttention"),
        ("esm", "EsmFoldSelfAttention"),
        ("layoutlmv3", "LayoutLMv3SelfAttention"),
    ):
        assert "Pair bias" in rows[row]
    assert all("Inkling" in status for (model, _), status in rows.items() if model.startswith("inkling"))
    assert rows["gemma3n", "Gemma3nAudioAttention"].startswith("*not expressible*: a tanh")
    assert not {"llama", "reformer", "whisper"} & {model for model, _ in rows}


def test_the_command_prints_the_supported_classes(capsys):
    runpy.run_module("relattn.integrations.transformers", run_name="__main__")
    assert set(capsys.readouterr().out.split()) == PATCHED
