"""Translation of text: a pipeline around a search, with its options."""
