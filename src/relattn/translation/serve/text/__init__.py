"""Texts that are translated: sentences, HTML and documents."""
