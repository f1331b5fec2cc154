"""Data of a run: from text to tokens to batches."""
