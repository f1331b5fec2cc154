"""The paper's tables, and a comparison of position schemes, trained again: `relattn reproduce`.

A table (`tables.py`) is a list of models; a scale (`scales.py`) is a corpus and a budget to train each of them with. A
row (`rows.py`) is one model trained from one seed and measured: a small file that stays. `reproduce.py` goes through
the rows of a table, and `report.py` makes of their files a page with pictures (`pictures.py`).
"""
