"""The model format of CTranslate2: read, write, and translate with it."""
