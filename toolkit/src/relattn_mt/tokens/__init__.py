"""Tokenizers, normalization, lines of text files and batches by size: what translation needs of them."""
