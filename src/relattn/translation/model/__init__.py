"""The encoder–decoder Transformer: position schemes, layers, and the model built from them."""
