"""A server of translations over HTTP, by LibreTranslate's API, and the page that it shows."""
