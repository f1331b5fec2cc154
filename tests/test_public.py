"""Tests of the public names: each is in the reference, and typed."""

import re
import runpy
from pathlib import Path

import relattn
import relattn_mt
import torch
from relattn.integrations import transformers
from relattn_mt.config import Recipe
from relattn_mt.translate.translator import Translator

DOCS = Path(__file__).parents[1] / "docs"
NAMES = {
    **{f"relattn.{name}": getattr(relattn, name) for name in relattn.__all__},
    **{f"relattn.integrations.transformers.{name}": getattr(transformers, name) for name in transformers.__all__},
    "relattn_mt.load": relattn_mt.load,
    "relattn_mt.translate.translator.Translator": Translator,
}


def test_the_reference_has_every_public_name():
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    listed = set(re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE))
    assert {name for name in NAMES if not {name, name.rpartition(".")[0]} & listed} == set()


def test_the_typed_program_runs():
    """tests/system/test_wheels.py checks its types."""
    names = runpy.run_path(str(Path(__file__).with_name("typed_program.py")))
    out, lse = names["attend"](torch.randn(2, 3, 5, 8))
    assert (out.shape, lse.shape) == ((2, 3, 5, 8), (2, 3, 5))
    y, length = names["decode"](torch.randn(2, 5, 8))
    assert (y.shape, length) == ((2, 5, 8), 5)
    assert names["translate"]("nowhere", ["a"])[0].startswith("nowhere: ")
    assert names["wider"](Recipe()).clip == 17
