"""Programs that write parts of the documentation: `python -m tools.NAME`."""
