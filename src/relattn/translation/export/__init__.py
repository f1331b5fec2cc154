"""Bundles for other programs: what is written, and the check that it says the same."""
