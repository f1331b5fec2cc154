"""Tests of the notebooks as `make notebooks` leaves them. tests/system/test_notebooks.py runs their cells."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

PATHS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
LOCAL = re.compile(r"/(home|root|tmp|work|Users|var|usr|opt)/|[A-Z]:\\|0x[0-9a-f]{8}")  # paths of a machine, addresses


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_every_cell_was_executed_in_order_without_errors(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert all(output["output_type"] != "error" and output.get("name") != "stderr" for output in outputs)
    texts = ["".join(cell["source"]) for cell in notebook["cells"]]
    printed = ["".join(out.get("text", "")) + "".join(out.get("data", {}).get("text/plain", "")) for out in outputs]
    assert [text for text in (*texts, *printed) if LOCAL.search(text)] == []
    prose = "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    files = re.findall(r"\]\(([^)#:]+)\)", prose) + re.findall(r'"(\.\./[^"]+)"', "".join(texts))
    assert [name for name in files if not (path.parent / name).exists()] == []
