"""`relattn-mt prepare`"""

from pathlib import Path

from relattn_mt.config import CleaningConfig
from relattn_mt.support.errors import require, require_language
from relattn_mt.support.processor import cores


def prepare(
    *,
    src: str = "",
    tgt: str = "",
    pairs: str = "",
    src_lang: str,
    tgt_lang: str,
    out: str,
    exclude: list[str] = [],  # noqa: B006
    valid: int = 0,
    processes: int | None = None,
    cleaning: CleaningConfig,
) -> None:
    """Clean a parallel corpus for training, and report which pairs were dropped and why.

    After an interruption, the same command continues.

    Args:
        src: File of source sentences, one per line, plain or compressed.
        tgt: File of their translations, in the same order.
        pairs: One file of pairs, instead of src and tgt: .tsv, .jsonl, .tmx or .parquet. All but the last may be
            compressed. The first row of columns names the languages, or src and tgt. Without names, the source is
            first.
        src_lang: Source language, such as en or pt-BR.
        tgt_lang: Target language.
        out: Output directory.
        exclude: Files of held-out lines, such as test sets. Training pairs that overlap with them are dropped.
        valid: Number of pairs to set aside as valid.LANGUAGE, drawn from those that are kept.
        processes: Number of processes that filter pairs. By default, one per core.
    """
    processes = cores() if processes is None else processes
    require(1 <= processes <= 1024, f"processes must be at least 1 and at most 1,024, got {processes}")
    require(bool(pairs) != bool(src or tgt) and bool(src) == bool(tgt), "prepare requires --src and --tgt, or --pairs")
    for flag, code in (("src_lang", src_lang), ("tgt_lang", tgt_lang)):  # they become parts of file names
        require_language(flag, code)

    from relattn_mt.corpus import pipeline
    from relattn_mt.corpus.sources import OwnFiles

    corpus = OwnFiles(pairs or src, tgt, (src_lang, tgt_lang), exclude=tuple(exclude))
    stats = pipeline.prepare(corpus, Path(out), cleaning, valid=valid, processes=processes)
    print(stats, end=f"\n\n{Path(out) / pipeline.RECORD}\n")
