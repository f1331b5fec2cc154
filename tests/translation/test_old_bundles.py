"""Bundles of every version of the format, written by the code of its time, say what they said then.

`bundles/N` was written by the last commit whose format was N, with random weights; its `says.json` is what that commit
found for some lines. A new version of the format brings a directory of its own, and none is ever changed or taken out.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import relattn.translation
from relattn.translation import bundle
from relattn.translation.translate.options import TranslateOptions

BUNDLES = Path(__file__).parent / "bundles"


def test_there_is_one_of_every_version():
    assert sorted(path.name for path in BUNDLES.iterdir()) == [str(n + 1) for n in range(bundle.VERSION)]
    for path in BUNDLES.iterdir():
        assert f"version: {path.name}\n" in (path / "config.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("version", range(1, bundle.VERSION + 1))
def test_it_says_what_it_said(version):
    translator = relattn.translation.load(BUNDLES / str(version))
    said = json.loads((BUNDLES / str(version) / "says.json").read_text(encoding="utf-8"))
    found = translator.n_best([line["source"] for line in said], TranslateOptions(n_best=2))
    for line, hypotheses in zip(said, found, strict=True):
        assert [h.text for h in hypotheses] == [then["text"] for then in line["translations"]]
        assert [h.score for h in hypotheses] == pytest.approx([t["score"] for t in line["translations"]], abs=1e-3)
