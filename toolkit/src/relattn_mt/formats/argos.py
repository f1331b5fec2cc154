"""Packages for Argos Translate and LibreTranslate: zip archives of a model for CTranslate2.

    NAME/metadata.json         languages and version
    NAME/model/                files that CTranslate2 reads, and our tokenizer if it is not sentencepiece.model
    NAME/sentencepiece.model   SentencePiece model, which encodes the source and decodes the target; or bpe.model
    NAME/README.md             the bundle's card

Argos Translate splits text into sentences with its own models. It takes the first token of a translation, if that is
given, from the metadata, and removes it only from the first sentence of a text. It shows a piece that
sentencepiece.model does not have as the text of that piece.
"""

from __future__ import annotations

import io
import json
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from relattn_mt.bundle import CARD, Bundle
from relattn_mt.config import SearchConfig
from relattn_mt.formats.ctranslate2 import write as ctranslate2
from relattn_mt.formats.ctranslate2.directory import Quantization
from relattn_mt.formats.foreign_model import BPE, ForeignModel
from relattn_mt.formats.packed import temporary
from relattn_mt.formats.parity import Report
from relattn_mt.support.errors import InputError, one_line, reading, require, require_installed
from relattn_mt.support.files import output, require_outside
from relattn_mt.support.types import Fields, Sample
from relattn_mt.tokens.imported_tokenizer import TGT_TOKENIZER, VOCABULARY, AnyTokenizer, ImportedTokenizer
from relattn_mt.tokens.tokenizer import SPACE_MARK, TOKENIZER, pieces_of, processor

_METADATA = "metadata.json"
_SENTENCEPIECE = "sentencepiece.model"
SUFFIX = ".argosmodel"
PACKAGE = "package for Argos Translate"  # name of such a file in messages
SEARCH = SearchConfig(length_penalty="average", alpha=0.2, early_stopping=True)  # of Argos Translate itself


def export(bundle: Bundle, out: Path, *, quantization: Quantization, sample: Sample) -> Report:
    """Write a package and check that it agrees with the bundle.

    Args:
        bundle: The bundle, whose languages must be locales such as "en" or "pt_BR".
        out: The file, commonly `NAME.argosmodel`. An existing package is replaced, as `files.output` does.
        quantization: Type of the weights.
        sample: Lines for the check, or the number of lines to draw from the vocabulary.

    Raises:
        InputError: As `ctranslate2.write.export`, a language is not a locale, or `out` is a file other than a package.
            `out` is then unchanged.
    """
    require_outside(out, bundle.path)
    src, src_name = _language(bundle.src_lang)
    tgt, tgt_name = _language(bundle.tgt_lang)
    replaceable = not out.is_file() or out.stat().st_size == 0 or is_package(out)
    require(replaceable, f"{out}: not replaced, because it is not a package for Argos Translate")
    tokenizer = bundle.tokenizer
    bpe = tokenizer.vocabulary.bpe if isinstance(tokenizer, ImportedTokenizer) else ""
    require(bpe != "opus-mt", f"{bundle.path}: Argos Translate does not prepare text for BPE as OPUS-MT does")
    name = BPE if bpe else _SENTENCEPIECE
    model = tokenizer.files[TOKENIZER] if bpe else _sentencepiece_model(tokenizer, bundle.path)
    special = bundle.tokenizer.special
    added = ctranslate2.added_tokens(bundle.tokenizer)
    representable = added == (bool(special.src_begin), bool(special.src_end)) and len(special.tgt_begin) <= 1
    require(representable, f"{bundle.path}: Argos Translate does not add the special tokens around its sources")
    metadata = {
        "package_version": "1.0",
        "argos_version": "1.9",
        "from_code": src,
        "from_name": src_name,
        "to_code": tgt,
        "to_name": tgt_name,
    }
    if special.tgt_begin:
        metadata["target_prefix"] = bundle.tokenizer.vocabularies[1][special.tgt_begin[0]]
    with output(out) as write, tempfile.TemporaryDirectory() as directory:
        export = Path(directory) / "model"
        report = ctranslate2.export(bundle, export, quantization=quantization, sample=sample, one_pair=True)
        content = {file.name: file.read_bytes() for file in sorted(export.iterdir())}
        files = {f"model/{file}": data for file, data in content.items() if file != CARD and data != model}
        files |= {name: model, CARD: content[CARD]}
        files[_METADATA] = (json.dumps(metadata, ensure_ascii=False, indent=4) + "\n").encode()
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as package:
            for file, data in files.items():  # ZipInfo without a time, so that equal models give equal archives
                package.writestr(zipfile.ZipInfo(f"translate-{src}_{tgt}-1_0/{file}"), data, zipfile.ZIP_DEFLATED)
        write(archive.getbuffer())
    return report


def is_package(path: Path) -> bool:
    """Return whether a file is a zip archive with the metadata of a package."""
    try:
        with zipfile.ZipFile(path) as package:
            return any(name.endswith(f"/{_METADATA}") for name in package.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


@contextmanager
def unpacked(path: Path) -> Iterator[tuple[Path, Fields]]:
    """Yield a temporary directory with the model in a package, its tokenizer included, and the metadata.

    Raises:
        InputError: The package is damaged, has no translation model or another kind of tokenizer. An error of the block
            names the package instead of the directory.
    """
    with temporary(path) as directory:
        model = directory / "model"
        model.mkdir()
        with reading(path, f"not a {PACKAGE}, or a damaged one"), zipfile.ZipFile(path) as package:
            names = package.namelist()
            root = next(name for name in names if name.endswith(f"/{_METADATA}")).removesuffix(_METADATA)
            metadata = json.loads(package.read(root + _METADATA))
            kind = metadata.get("type", "translate")
            require(kind == "translate", f"{path}: must be a package of type translate, got {one_line(kind, 40)}")
            tokenizer = next((name for name in (_SENTENCEPIECE, BPE) if root + name in names), "")
            require(tokenizer, f"{path}: not a complete {PACKAGE}: it has no {_SENTENCEPIECE} and no {BPE}")
            for name in names:
                file = name.removeprefix(f"{root}model/")
                if file and file not in (name, ".", "..") and not {*file} & {"/", "\\"}:
                    (model / file).write_bytes(package.read(name))
            sides = [BPE if tokenizer == BPE else TOKENIZER]
            if (model / VOCABULARY).is_file():
                sides = [TOKENIZER, TGT_TOKENIZER]
            for side in sides:
                if not (model / side).is_file():
                    (model / side).write_bytes(package.read(root + tokenizer))
        yield model, metadata


def with_metadata(foreign: ForeignModel, metadata: Fields) -> ForeignModel:
    """Return a model with the languages of its package, and with Argos Translate's search unless it is our export."""
    begin = metadata.get("target_prefix")
    tokenizer = foreign.tokenizer
    if begin and isinstance(tokenizer, ImportedTokenizer) and tokenizer.vocabulary.target_begin != [begin]:
        vocabulary = replace(tokenizer.vocabulary, target_begin=[begin], languages={})
        tokenizer = ImportedTokenizer(tokenizer.files[TOKENIZER], tokenizer.files[TGT_TOKENIZER], vocabulary)
    foreign = replace(foreign, toolkit="Argos Translate", tokenizer=tokenizer)
    if foreign.languages != ("", ""):
        return foreign
    languages = str(metadata.get("from_code") or ""), str(metadata.get("to_code") or "")
    return replace(foreign, languages=languages, search=SEARCH)


def _sentencepiece_model(tokenizer: AnyTokenizer, source: Path) -> bytes:
    """Return the SentencePiece model of a package: the source's, with the special tokens of the target.

    They become control tokens, which have no text. Argos Translate would show them, such as the first token of the
    second sentence.

    Raises:
        InputError: The model decodes pieces of the target otherwise than the target's own. `source` names the bundle.
    """
    content = tokenizer.files[TOKENIZER]
    model = processor(content)
    target = processor(tokenizer.files.get(TGT_TOKENIZER, content))
    pieces = pieces_of(model)
    vocabulary = tokenizer.vocabularies[1]
    texts = list(zip(vocabulary, tokenizer.target_texts, strict=True))
    known = [["x", piece] for piece, text in texts if text]
    decoded = zip(known, model.decode(known), target.decode(known), strict=True)
    wrong = [
        piece for (_, piece), ours, own in decoded if ours.replace(SPACE_MARK, " ") != own.replace(SPACE_MARK, " ")
    ]
    if wrong:
        raise InputError(
            f"{source}: a package has one SentencePiece model for both sides, and that of the source does not decode "
            f"{len(wrong):,} of the target's {len(known):,} pieces, such as {one_line(repr(wrong[0]), 40)}"
        )
    for number, (token, text) in enumerate(texts):
        is_control = not text and token not in pieces and not tokenizer.decode([number])
        if is_control:  # fields of a message in protobuf's format may have any order
            name = token.encode()
            entry = b"\x0a" + _varint(len(name)) + name + b"\x15" + struct.pack("<f", 0.0) + b"\x18\x03"
            content += b"\x0a" + _varint(len(entry)) + entry
    return content


def _varint(number: int) -> bytes:
    """Return a number in protobuf's format: seven bits per byte, the lowest first."""
    return bytes([number % 128 + 128]) + _varint(number // 128) if number >= 128 else bytes([number])


def _language(name: str) -> tuple[str, str]:
    """Return the code of a locale's language and its name in English."""
    require_installed("export", "babel")
    from babel import Locale, UnknownLocaleError

    try:
        locale = Locale.parse(name.replace("-", "_"))
    except (UnknownLocaleError, ValueError) as error:
        raise InputError(f"{name}: a package requires a locale such as en or pt_BR: {error}") from error
    return locale.language, locale.get_language_name("en") or locale.language
