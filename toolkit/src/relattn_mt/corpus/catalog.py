"""Corpora that are known by name, and the places to download them from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HeldOutSet:
    """Text that training text must not overlap with. It is written next to the training text.

    Attributes:
        name: Beginning of its file names, such as newstest2013.
        sacrebleu: Name of the test set in sacreBLEU; empty if it comes from the corpus's repository.
        file: Name of its file in the repository; empty if it comes from sacreBLEU.
        suffix: End of its file names, ".gz" or empty.
    """

    name: str
    sacrebleu: str = ""
    file: str = ""
    suffix: str = ".gz"


@dataclass(frozen=True)
class CatalogEntry:
    """A data set of the Hugging Face hub.

    Parquet files have both sides in the column "translation"; JSON lines have one field per language.

    Attributes:
        repository: Name of the data set.
        train: Beginning of the names of its files of training text.
        src_lang: Source language.
        tgt_lang: Target language.
        held_out: Test and validation sets.
    """

    repository: str
    train: str
    src_lang: str
    tgt_lang: str
    held_out: tuple[HeldOutSet, ...]


_NEWSTEST = HeldOutSet("newstest2013", sacrebleu="wmt13"), HeldOutSet("newstest2014", sacrebleu="wmt14/full")

CATALOG = {
    "wmt14-en-de": CatalogEntry("wmt/wmt14", "de-en/train-", "en", "de", _NEWSTEST),
    "wmt14-en-fr": CatalogEntry("wmt/wmt14", "fr-en/train-", "en", "fr", _NEWSTEST),
    "multi30k": CatalogEntry(
        "bentrevett/multi30k",
        "train.jsonl",
        "en",
        "de",
        (
            HeldOutSet("valid", file="val.jsonl", suffix=""),  # not in sacreBLEU
            HeldOutSet("test2016", sacrebleu="multi30k/2016", suffix=""),
        ),
    ),
}
