"""`relattn-mt import`"""

from dataclasses import replace
from pathlib import Path

from relattn_mt.commands.options import check_sample
from relattn_mt.firefox import is_name
from relattn_mt.support.errors import require
from relattn_mt.tokens.text_files import ParallelFiles

_CHECK_COUNT = 20


def import_(
    path: str,
    *,
    out: str = "",
    tokenizer: str = "",
    tgt_tokenizer: str = "",
    src_lang: str = "",
    tgt_lang: str = "",
    check_lines: str = "",
    check_count: int = _CHECK_COUNT,
    alignment_text: list[str] = [],  # noqa: B006
    overwrite: bool = False,
    architecture: str = "",
    offline: bool = False,
) -> None:
    """Convert a model of another toolkit to a bundle: OPUS-MT, Firefox's, NLLB, mBART-50, MADLAD-400, Argos etc.

    A model for CTranslate2 is compared with CTranslate2, if that is installed. firefox:en-de is downloaded from Mozilla
    to the cache, unless it is there, and is then translated and served by this name, also without a network.

    Args:
        path: Directory of transformers, or its name on the hub; package for Argos Translate; directory of a model of
            Marian or for CTranslate2; or a model of Firefox, such as firefox:en-de or, of a version, firefox:en-de@3.0.
        out: Directory of the bundle. A model of Firefox is also in the cache, and requires none.
        tokenizer: SentencePiece model of the source side or of both sides, or codes of subword-nmt in a file NAME.bpe.
        tgt_tokenizer: The same of the target side, if it has its own.
        src_lang: Source language. By default, the one that the model names. In a model of several languages, its code
            there.
        tgt_lang: Target language, as for src_lang.
        check_lines: File of source lines for the check. By default, random text from the vocabulary.
        check_count: Number of lines for the check.
        alignment_text: Two files, of sentences and their translations. The layer and the head that align words best are
            chosen by a lexicon of this text. By default they are those that the model names, or assumed.
        overwrite: Replace the bundle in the output directory.
        architecture: Architecture of a model of Firefox: base-memory, base or tiny. By default, the first that there
            is, released models first.
        offline: Take a model of Firefox from the cache only.
    """
    if is_name(path):
        others = {
            "tokenizer": tokenizer,
            "tgt_tokenizer": tgt_tokenizer,
            "src_lang": src_lang,
            "tgt_lang": tgt_lang,
            "check_lines": check_lines,
            "check_count": check_count != _CHECK_COUNT,
            "alignment_text": alignment_text,
        }
        without_effect = " ".join(f"--{name}" for name, value in others.items() if value)
        require(not without_effect, f"{path} has its own files and languages; got {without_effect}")
        _import_firefox(path, out, overwrite=overwrite, architecture=architecture, offline=offline)
        return
    require(not (architecture or offline), "--architecture and --offline require a model such as firefox:en-de")
    require(out, "out must name a directory")
    sample = check_sample(check_lines, check_count)
    count = len(alignment_text)
    require(count in (0, 2), f"alignment_text must have two files, of sources and translations, got {count}")
    pairs = list(ParallelFiles(*alignment_text)) if alignment_text else []

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
            alignment_text=pairs,
            overwrite=overwrite,
        )
    )


def _import_firefox(name: str, out: str, *, overwrite: bool, architecture: str, offline: bool) -> None:
    """Bring a model of Firefox into the cache, and copy it to a directory if one is given."""
    from relattn_mt.firefox.cache import bundles

    paths = bundles(name, architecture=architecture, offline=offline, update=True)
    if out:
        from relattn_mt import bundle

        require(len(paths) == 1, f"{name}: goes through English with two models; name one of them, or give no --out")
        bundle.require_writable(out, overwrite)
        read = bundle.read_bundle(paths[0])
        replace(read, path=Path(out)).save(read.card)
        paths = [Path(out)]
    print("\n".join(map(str, paths)))
