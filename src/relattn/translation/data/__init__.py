"""Text in, batches out: corpora, word pieces, token-budget batches, and the Lightning data module over them."""
