"""Modules of the position schemes that `relattn_mt.config.positions` describes.

`stack.py` builds them for an encoder or a decoder. The other files hold one family each: vectors added to embeddings
(`absolute.py`), a score term per distance (`distance_terms.py`) and rotations (`rotary.py`). Clipped relative positions
are `relattn.RelativeAttention`.
"""
