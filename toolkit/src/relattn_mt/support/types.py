"""Names of types that many modules share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

LanguagePair = tuple[str, str]  # codes of the source and the target language
SentencePair = tuple[str, str]  # a source and its translation
Ids = tuple[int, ...]  # of pieces or tokens
IdRows = Sequence[Sequence[int]]  # ids of the pieces of sentences
IdPair = tuple[list[int], list[int]]  # ids of the pieces of a source and of its translation
VocabSizes = tuple[int, int]  # number of source and of target pieces
AnyPath = str | Path  # of a file or a directory
Span = tuple[int, int]  # where a part of a text or of a list begins and ends
Fields = dict[str, Any]  # values by name: of a JSON object, or arguments of a class
Sample = Sequence[str] | int  # lines, or the number of lines to draw from a vocabulary
PathPair = tuple[Path, Path]  # files of the source and of the target
