"""Search: from a model's next-token probabilities to translations, text in and text out."""
