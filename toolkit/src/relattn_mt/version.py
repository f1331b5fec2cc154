"""Version of the toolkit, which is also the version of the library that it requires."""

__version__ = "0.1.0"
