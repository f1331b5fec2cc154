"""HTTP server of translations with the API of LibreTranslate, and its web page."""
