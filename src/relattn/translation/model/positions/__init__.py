"""Position schemes: how a model knows the order of its tokens.

`options.py` has the names and options of all schemes, and does not import PyTorch. `schemes.py` has their classes by
name. `base.py` defines what a scheme does, and holds the schemes without a position signal. The other files hold one
family of schemes each: vectors added to embeddings (`absolute.py`), clipped relative positions (`relative.py`), a score
term per distance (`distance_terms.py`) and rotations (`rotary.py`).
"""
