"""The paper's tables, the demo and the built-in corpus: `python -m research`, in a checkout."""
