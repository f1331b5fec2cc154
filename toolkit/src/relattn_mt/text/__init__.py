"""Texts between a document and a model: marks, sentences, and what is not translated. Nothing here knows a model."""
