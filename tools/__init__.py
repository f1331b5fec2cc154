"""Programs that write parts of the documentation: `python -m tools.NAME`."""

from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
