"""CTranslate2's model format: read, write, and translate."""
