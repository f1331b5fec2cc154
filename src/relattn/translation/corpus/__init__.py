"""From a corpus to training text: fetched, cleaned, told. What a run makes of that text is `data/prepare.py`."""
