"""Tests of the list of classes in transformers that compute a relative term."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from relattn.integrations.transformers.coverage import coverage
from relattn.integrations.transformers.families import load_families

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_lists_every_class_and_is_that_of_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "relattn.integrations.transformers"], capture_output=True, text=True, check=True
    )
    assert done.stdout == (DOCS / "coverage.md").read_text(encoding="utf-8")
    headings = re.findall("^### (.*)$", (DOCS / "family.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"see \[(.*?)\]", done.stdout)) <= set(headings)
    assert "not examined" not in done.stdout
    rows = {(model, name): status for model, name, status in coverage()}
    patched = [patch.class_path.split(".") for family in load_families() for patch in family.patches]
    for model, _, name in patched:
        assert rows.get((model, name), "*enabled*") == "*enabled*"
        assert "Attention" not in name or (model, name) in rows
    assert rows["bloom", "BloomAttention"].startswith("*expressible*")
    assert rows["gemma3n", "Gemma3nAudioAttention"].startswith("*not expressible*: a tanh")
    assert not {"llama", "reformer", "whisper"} & {model for model, _ in rows}
