"""Position schemes: the parts of a model that know where a piece stands in its sequence.

`base.py` says what a scheme does, and holds the schemes without a position signal. The other files hold one family of
schemes each: vectors added to embeddings (`absolute.py`), clipped relative positions (`relative.py`), a score term per
distance (`distance_terms.py`) and rotations (`rotary.py`).
"""
