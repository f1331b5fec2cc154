"""Translation of text: a pipeline around a search, with its options."""

from typing import Literal

Precision = Literal["fp32", "bf16", "int8"]  # precision of weights and arithmetic
LongLines = Literal["error", "copy", "split"]  # what is done with lines that a model cannot read
Format = Literal["text", "tsv", "jsonl"]  # output format of translations
