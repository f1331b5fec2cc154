"""Documents of many kinds as texts to translate, and documents with their translations."""
