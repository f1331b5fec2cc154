"""The loader of compiled kernels, and a check before autograd functions, for packages that add kernels of their own.

`relattn.translation` uses it for its compiled decoder and its linear layers.
"""

from relattn.backends.autograd import is_transformed
from relattn.backends.native.library import SUPPORTED, Kernels, Source, load_best, name_of

__all__ = ["SUPPORTED", "Kernels", "Source", "is_transformed", "load_best", "name_of"]
