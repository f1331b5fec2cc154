"""Training: from a recipe to a bundle (`relattn-mt train`)."""
