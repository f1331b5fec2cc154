"""`relattn-mt import`"""

from pathlib import Path

from relattn_mt.commands.options import check_sample
from relattn_mt.support.errors import require


def import_(
    path: str,
    *,
    out: str,
    tokenizer: str = "",
    tgt_tokenizer: str = "",
    src_lang: str = "",
    tgt_lang: str = "",
    check_lines: str = "",
    check_count: int = 20,
    overwrite: bool = False,
) -> None:
    """Convert a model of another toolkit to a bundle: OPUS-MT, Firefox's, M2M-100, NLLB, mBART-50, Argos Translate etc.

    A model for CTranslate2 is compared with CTranslate2, if that is installed.

    Args:
        path: Directory of transformers, or its name on the hub; package for Argos Translate; directory of a model of
            Marian or for CTranslate2.
        out: Directory of the bundle.
        tokenizer: SentencePiece model of the source side or of both sides, or codes of subword-nmt in a file NAME.bpe.
        tgt_tokenizer: The same of the target side, if it has its own.
        src_lang: Source language. By default, the one that the model names. In a model of several languages, its code
            there.
        tgt_lang: Target language, as for src_lang.
        check_lines: File of source lines for the check. By default, random text from the vocabulary.
        check_count: Number of lines for the check.
        overwrite: Replace the bundle in the output directory.
    """
    require(bool(out), "out must name a directory")
    sample = check_sample(check_lines, check_count)

    from relattn_mt.formats.import_model import import_model
    from relattn_mt.hub import fetch_foreign

    print(
        import_model(
            fetch_foreign(path),
            Path(out),
            tokenizer=Path(tokenizer) if tokenizer else None,
            tgt_tokenizer=Path(tgt_tokenizer) if tgt_tokenizer else None,
            src_lang=src_lang,
            tgt_lang=tgt_lang,
            sample=sample,
            overwrite=overwrite,
        )
    )
