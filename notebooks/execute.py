"""Runs notebooks from top to bottom and keeps what they showed: `make notebooks`.

One that fails is left as it was. Nothing of the machine is kept: no times, no paths, no versions of the kernel.
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm's, which would draw its bars by ipywidgets
for path in map(Path, sys.argv[1:]):
    notebook = nbformat.read(path, as_version=4)
    here = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=None, record_timing=False, resources=here).execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata.clear()
    aside = path.with_suffix(".part")
    nbformat.write(notebook, aside)
    os.replace(aside, path)
