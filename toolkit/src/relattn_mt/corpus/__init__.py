"""Cleaning of parallel corpora: from raw text to training text (`relattn-mt prepare`)."""
