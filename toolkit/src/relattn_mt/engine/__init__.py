"""Compiled kernels of the toolkit: the decoder of a Transformer, for searches on CPUs."""
