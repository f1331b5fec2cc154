"""A bundle as a package for Argos Translate, and so for LibreTranslate: a zip archive around an export for CTranslate2.

    NAME/metadata.json         languages and version
    NAME/model/                what CTranslate2 reads
    NAME/sentencepiece.model   the SentencePiece model, of both sides
    NAME/README.md             the bundle's card

How sentences are told apart is left to Argos Translate, which has models of its own for that.
"""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from babel import Locale, UnknownLocaleError

from relattn.translation.bundle import CARD, Bundle
from relattn.translation.config import Quantization
from relattn.translation.data.imported import TGT_TOKENIZER
from relattn.translation.data.tokenizer import TOKENIZER
from relattn.translation.errors import InputError
from relattn.translation.files import write_atomically
from relattn.translation.formats.ctranslate2 import write as ctranslate2


def export(parts: Bundle, out: Path, *, quantization: Quantization, sample: Sequence[str]) -> ctranslate2.Report:
    """Write a package and check that it says the same as the bundle.

    Args:
        parts: of the bundle, whose languages are locales, such as "en" or "pt_BR".
        out: the file, commonly `NAME.argosmodel`; one that is there is replaced.
        quantization: type of the weights.
        sample: lines to check it with.

    Raises:
        InputError: as `export.ctranslate2.export`, or a language is no locale. `out` is then as it was.
    """
    (src, src_name), (tgt, tgt_name) = _language(parts.src_lang), _language(parts.tgt_lang)
    if out.is_dir():
        raise InputError(f"{out}: a directory stands there; a package is a file")
    models = parts.tokenizer.files
    if models.get(TGT_TOKENIZER, models[TOKENIZER]) != models[TOKENIZER]:
        raise InputError(f"{parts.path}: has a SentencePiece model for each side; a package has one")
    about = {
        "package_version": "1.0",
        "argos_version": "1.9",
        "from_code": src,
        "from_name": src_name,
        "to_code": tgt,
        "to_name": tgt_name,
    }
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "model"
        report = ctranslate2.export(parts, made, quantization=quantization, sample=sample)
        beside = {CARD, *parts.tokenizer.files}
        files = {f"model/{file.name}": file.read_bytes() for file in sorted(made.iterdir()) if file.name not in beside}
        files |= {"sentencepiece.model": (made / TOKENIZER).read_bytes(), CARD: (made / CARD).read_bytes()}
    files["metadata.json"] = (json.dumps(about, ensure_ascii=False, indent=4) + "\n").encode()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in files.items():  # by names alone: a time of writing would make each archive another
            package.writestr(zipfile.ZipInfo(f"translate-{src}_{tgt}-1_0/{name}"), content, zipfile.ZIP_DEFLATED)
    write_atomically(out, archive.getbuffer())
    return report


def _language(name: str) -> tuple[str, str]:
    """The code of a locale's language, and what it is called in English."""
    try:
        locale = Locale.parse(name.replace("-", "_"))
    except (UnknownLocaleError, ValueError) as error:
        raise InputError(f"{name}: not a language that a package can name: {error}") from error
    return locale.language, locale.get_language_name("en") or locale.language
