"""Models in the formats of other programs: exports, imports, and the check that both models agree."""
