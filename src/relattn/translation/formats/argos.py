"""Export a bundle as a package for Argos Translate and LibreTranslate: a zip archive of an export for CTranslate2.

    NAME/metadata.json         languages and version
    NAME/model/                files that CTranslate2 reads
    NAME/sentencepiece.model   SentencePiece model of both sides
    NAME/README.md             the bundle's card

Argos Translate splits text into sentences with its own models.
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
from relattn.translation.data.imported_tokenizer import TGT_TOKENIZER
from relattn.translation.data.tokenizer import TOKENIZER
from relattn.translation.errors import InputError, require
from relattn.translation.files import output, require_outside
from relattn.translation.formats.ctranslate2 import write as ctranslate2
from relattn.translation.formats.ctranslate2.directory import Quantization
from relattn.translation.formats.parity import Report

_METADATA = "metadata.json"


def export(bundle: Bundle, out: Path, *, quantization: Quantization, sample: Sequence[str] | int) -> Report:
    """Write a package and check that it agrees with the bundle.

    Args:
        bundle: the bundle, whose languages must be locales such as "en" or "pt_BR".
        out: the file, commonly `NAME.argosmodel`. An existing package is replaced, as `files.output` does.
        quantization: type of the weights.
        sample: lines for the check, or the number of lines to draw from the vocabulary.

    Raises:
        InputError: as `ctranslate2.write.export`, a language is not a locale, or `out` is a file other than a package.
            `out` is then unchanged.
    """
    require_outside(out, bundle.path)
    (src, src_name), (tgt, tgt_name) = _language(bundle.src_lang), _language(bundle.tgt_lang)
    replaceable = not out.is_file() or _is_package(out)
    require(replaceable, f"{out}: not replaced, because it is not a package for Argos Translate")
    tokenizers = bundle.tokenizer.files
    if tokenizers.get(TGT_TOKENIZER, tokenizers[TOKENIZER]) != tokenizers[TOKENIZER]:
        raise InputError(f"{bundle.path}: must have one SentencePiece model for both sides, has two")
    metadata = {
        "package_version": "1.0",
        "argos_version": "1.9",
        "from_code": src,
        "from_name": src_name,
        "to_code": tgt,
        "to_name": tgt_name,
    }
    with output(out) as write, tempfile.TemporaryDirectory() as directory:
        export = Path(directory) / "model"
        report = ctranslate2.export(bundle, export, quantization=quantization, sample=sample)
        content = {file.name: file.read_bytes() for file in sorted(export.iterdir())}
        files = {f"model/{name}": data for name, data in content.items() if name not in {CARD, *tokenizers}}
        files |= {"sentencepiece.model": content[TOKENIZER], CARD: content[CARD]}
        files[_METADATA] = (json.dumps(metadata, ensure_ascii=False, indent=4) + "\n").encode()
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as package:
            for name, data in files.items():  # ZipInfo without a time, so that equal models give equal archives
                package.writestr(zipfile.ZipInfo(f"translate-{src}_{tgt}-1_0/{name}"), data, zipfile.ZIP_DEFLATED)
        write(archive.getbuffer())
    return report


def _is_package(path: Path) -> bool:
    """Return whether a file is a zip archive with the metadata of a package, or empty."""
    try:
        with zipfile.ZipFile(path) as package:
            return any(name.endswith(f"/{_METADATA}") for name in package.namelist())
    except (OSError, zipfile.BadZipFile):
        return path.stat().st_size == 0


def _language(name: str) -> tuple[str, str]:
    """Return the code of a locale's language and its name in English."""
    try:
        locale = Locale.parse(name.replace("-", "_"))
    except (UnknownLocaleError, ValueError) as error:
        raise InputError(f"{name}: a package requires a locale such as en or pt_BR: {error}") from error
    return locale.language, locale.get_language_name("en") or locale.language
