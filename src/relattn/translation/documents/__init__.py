"""Texts to translate: sentences, HTML and files."""
