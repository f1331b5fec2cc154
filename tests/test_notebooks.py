"""The notebooks are as `make notebooks` leaves them, and their cells still run."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

DIRECTORY = Path(__file__).parents[1] / "notebooks"
PATHS = sorted(DIRECTORY.glob("*.ipynb"))
SHORT = {
    "STEPS": "4",
    "PAIRS": "500",
    "LINES": "4",
    "REPEATS": "1",
    "SECONDS": "[1, 2]",
    "CLIPS": "[0, 8, 16]",
}  # in the place of what stands
LOCAL = re.compile(r"/(home|root|tmp|work|Users|var|usr|opt)/|[A-Z]:\\|0x[0-9a-f]{8}")  # paths of a machine, addresses


def cells_of(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def test_there_are_both():
    assert [path.name for path in PATHS] == ["models.ipynb", "paper.ipynb"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
class TestAsItLies:
    def test_every_cell_was_executed_once_and_in_order(self, path):
        counts = [cell["execution_count"] for cell in cells_of(path, "code")]
        assert counts == list(range(1, len(counts) + 1))

    def test_no_output_is_an_error_or_a_warning(self, path):
        for cell in cells_of(path, "code"):
            for output in cell["outputs"]:
                assert output["output_type"] != "error", source(cell)
                assert output.get("name") != "stderr", source(cell)

    def test_nothing_of_the_machine_is_in_it(self, path):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        assert notebook["metadata"].keys() == {"kernelspec", "language_info"}
        assert notebook["metadata"]["language_info"] == {"name": "python"}
        for cell in notebook["cells"]:
            assert cell["metadata"] == {}
            texts = [source(cell)]
            for output in cell.get("outputs", []):
                texts += ["".join(output.get("text", "")), "".join(output.get("data", {}).get("text/plain", ""))]
            for text in texts:
                assert not LOCAL.search(text), text

    def test_what_it_names_is_there(self, path):
        prose, code = ("\n".join(map(source, cells_of(path, kind))) for kind in ("markdown", "code"))
        named = re.findall(r"\]\(([^)#:]+)\)", prose) + re.findall(r'"(\.\./[^"]+)"', code)
        assert named
        for target in named:
            assert (path.parent / target).exists(), target

    def test_it_is_small(self, path):
        assert path.stat().st_size < 2**20


@pytest.mark.whole
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_its_cells_run(path, monkeypatch):
    """With shorter trainings, and without Jupyter."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, "show", lambda: pyplot.close("all"))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(Image=bytes))
    monkeypatch.chdir(path.parent)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells_of(path, "code"), start=1):
        text = source(cell)
        for name, value in SHORT.items():
            text = re.sub(rf"^{name} = [^#\n]+", f"{name} = {value}  ", text, flags=re.MULTILINE)
        exec(compile(text, f"{path.name}, cell {number}", "exec"), names)
