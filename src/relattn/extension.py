"""The loader of compiled kernels, and a check before autograd functions, for packages that add kernels of their own.

`relattn.translation` uses it for its compiled decoder and its linear layers.
"""

from relattn.backends.autograd import is_transformed
from relattn.backends.native.levels import INT8_DOTS
from relattn.backends.native.library import FEATURES, SUPPORTED, Kernels, Source, load_best, name_of

__all__ = ["FEATURES", "INT8_DOTS", "SUPPORTED", "Kernels", "Source", "is_transformed", "load_best", "name_of"]
