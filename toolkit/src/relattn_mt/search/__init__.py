"""Search: from the next-token probabilities of a model to hypotheses. It works on tokens, not on text."""
