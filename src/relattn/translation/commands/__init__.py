"""Commands: one typed function per command; its signature is its flags and its docstring is its help."""
