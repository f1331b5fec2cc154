"""`relattn-mt prepare`"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from relattn_mt.config import CleaningConfig
from relattn_mt.support.errors import require, require_language, unknown
from relattn_mt.support.processor import cores


@dataclass(frozen=True, kw_only=True)
class OwnText:
    """Files of your own, instead of a known corpus

    Args:
        src: File of source sentences, one per line, plain or compressed.
        tgt: File of their translations, in the same order.
        src_lang: Source language, such as en or pt-BR.
        tgt_lang: Target language.
    """

    src: str = ""
    tgt: str = ""
    src_lang: str = ""
    tgt_lang: str = ""


def prepare(
    name: str = "",
    *,
    text: OwnText,
    exclude: list[str] = [],  # noqa: B006
    out: str = "",
    processes: int | None = None,
    cleaning: CleaningConfig,
) -> None:
    """Clean a parallel corpus for training, and report which pairs were dropped and why.

    A known corpus is downloaded: wmt14-en-de, wmt14-en-fr or multi30k. After an interruption, the same command
    continues.

    Args:
        name: Name of a known corpus. Leave it out to prepare files of your own.
        exclude: Files of held-out lines, such as test sets. Training pairs that overlap with them are dropped.
        out: Output directory. By default data/NAME.
        processes: Number of processes that filter pairs. By default, one per core.
    """
    processes = cores() if processes is None else processes
    require(1 <= processes <= 1024, f"processes must be at least 1 and at most 1,024, got {processes}")
    require(bool(name or out), "prepare requires the name of a known corpus, or text of your own and --out")

    from relattn_mt.corpus.pipeline import CARD
    from relattn_mt.corpus.pipeline import prepare as run

    directory = Path(out or f"data/{name}")
    corpus = _corpus(name, text, exclude)
    prepared = run(corpus, directory, cleaning, processes=processes)
    if prepared.already_done:
        print(f"{directory} was prepared before, from the same text by the same rules", end="\n\n")
    print(prepared.stats, end=f"\n\n{directory / CARD}\n")


def _corpus(name: str, text: OwnText, exclude: list[str]) -> Any:
    """Return the corpus to prepare."""
    from relattn_mt.corpus.catalog import CATALOG
    from relattn_mt.corpus.sources import KnownCorpus, OwnFiles

    flags = {field.name: getattr(text, field.name) for field in fields(text)}
    if name:
        if name not in CATALOG:
            raise unknown("corpus", name, CATALOG)
        for flag, value in {**flags, "exclude": exclude}.items():
            require(not value, f"--{flag} does not work with the known corpus {name}")
        return KnownCorpus(name)
    for flag, value in flags.items():
        require(bool(value), f"text of your own requires --{', --'.join(flags)} and --out; --{flag} is missing")
    for flag in ("src_lang", "tgt_lang"):  # they become parts of file names
        require_language(flag, flags[flag])
    return OwnFiles(text.src, text.tgt, (text.src_lang, text.tgt_lang), exclude=tuple(exclude))
