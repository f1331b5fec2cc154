"""The loader of compiled kernels, for packages that add kernels of their own. It does not import PyTorch.

`relattn_mt` uses it for its compiled decoder.
"""
