"""The corpora that are known by name, and where they lie."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HeldOutText:
    """Text that training must have nothing of, and that is written beside it.

    Attributes:
        name: of its files, before the language: newstest2013.
        sacrebleu: sacreBLEU's name for it; empty where it comes from the corpus's repository.
        file: its name in the repository.
        suffix: of the files that are written: ".gz", or none.
    """

    name: str
    sacrebleu: str = ""
    file: str = ""
    suffix: str = ".gz"


@dataclass(frozen=True)
class Known:
    """A corpus on the Hugging Face hub.

    Attributes:
        repository: the data set.
        train: its files of training text begin so; in Parquet the sides are in the column "translation", in JSON lines
            in fields of the languages' names.
        src_lang: source language.
        tgt_lang: target language.
        held_out: its test sets.
    """

    repository: str
    train: str
    src_lang: str
    tgt_lang: str
    held_out: tuple[HeldOutText, ...]


def _wmt14(folder: str, tgt_lang: str) -> Known:
    held_out = HeldOutText("newstest2013", sacrebleu="wmt13"), HeldOutText("newstest2014", sacrebleu="wmt14/full")
    return Known("wmt/wmt14", f"{folder}/train-", "en", tgt_lang, held_out)


KNOWN = {
    "wmt14-en-de": _wmt14("de-en", "de"),
    "wmt14-en-fr": _wmt14("fr-en", "fr"),
    "multi30k": Known(
        "bentrevett/multi30k",
        "train.jsonl",
        "en",
        "de",
        (
            HeldOutText("valid", file="val.jsonl", suffix=""),  # sacreBLEU has none of it
            HeldOutText("test2016", sacrebleu="multi30k/2016", suffix=""),
        ),
    ),
}
