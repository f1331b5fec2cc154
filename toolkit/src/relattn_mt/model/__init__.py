"""The encoder–decoder Transformer: position schemes, token mixers, layers, and the model built from them."""
