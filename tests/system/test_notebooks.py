"""The notebooks, with short trainings and without Jupyter. `make notebooks` executes them in full before a release."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

PATHS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
SHORT = {"STEPS": "4", "PAIRS": "500", "LINES": "4", "REPEATS": "1", "SECONDS": "[1, 2]", "CLIPS": "[0, 4, 16]"}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_cells_run(path, monkeypatch):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, "show", lambda: pyplot.close("all"))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str))
    monkeypatch.setattr(sys, "path", [*sys.path])  # a notebook adds to it
    monkeypatch.chdir(path.parent)
    names = {"__name__": "__main__"}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate((cell for cell in cells if cell["cell_type"] == "code"), start=1):
        text = "".join(cell["source"])
        for name, value in SHORT.items():
            text = re.sub(rf"^{name} = [^#\n]+", f"{name} = {value}  ", text, flags=re.MULTILINE)
        exec(compile(text, f"{path.name}, cell {number}", "exec"), names)
