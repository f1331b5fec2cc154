"""Reproduce the paper's tables and a comparison of position schemes: `relattn reproduce`."""
