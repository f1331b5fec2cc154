"""Write a site that translates: a page for browsers, and a module, the engine, a model and its tokenizer for others."""

import hashlib
import json
from io import BytesIO
from pathlib import Path
from typing import Any

from relattn_mt.bundle import Bundle
from relattn_mt.engine.shortlist import SHORTLIST
from relattn_mt.support.errors import require
from relattn_mt.support.files import as_size, putting, require_outside, require_replaceable, write_files
from relattn_mt.support.types import Fields
from relattn_mt.tokens.imported_tokenizer import TGT_TOKENIZER, VOCABULARY, AnyTokenizer, ImportedTokenizer
from relattn_mt.tokens.tokenizer import TOKENIZER
from relattn_mt.translate.translator import pairs_of
from relattn_mt.web.build import FOLDER, engines
from relattn_mt.web.model_file import model_file

MODULE = (
    "relattn.mjs",
    "relattn.d.ts",
    "alignment.mjs",
    "client.mjs",
    "engine.mjs",
    "errors.mjs",
    "sentencepiece.mjs",
    "tokenizer.mjs",
    "worker.mjs",
)
PAGE = ("index.html", "page.mjs", "icon.svg", "site.webmanifest")
STYLE = FOLDER.parent / "serve/page/page.css"  # that of the server's page
MANIFEST = "model.json"
PARTS = {TOKENIZER: "source", TGT_TOKENIZER: "target", VOCABULARY: "vocabulary"}  # names in the manifest
SERVICE = "service.js"


def export(bundle: Bundle, out: Path) -> str:
    """Write the files of a bundle to a directory, and return what was written. An earlier export is replaced.

    The names of the engine and of the model have their hash, so that a cache never has an old one. `model.json` lists
    them.

    Raises:
        InputError: WebAssembly does not run the model or its tokenizer, or the directory cannot be written.
    """
    require_outside(out, bundle.path)
    hashed = [path.name for path in out.glob("*-????????????.*")]
    require_replaceable(out, [MANIFEST, SERVICE, STYLE.name, *MODULE, *PAGE, *hashed], "site")
    tokenizer = _tokenizer_files(bundle.tokenizer)
    model = model_file(bundle)
    files = {name: (FOLDER / name).read_bytes() for name in (*MODULE, *PAGE)}
    files[STYLE.name] = STYLE.read_bytes()

    def named(name: str, content: bytes) -> Fields:
        """Add a file under its name and hash, and return its entry in the manifest."""
        stem, suffix = name.rsplit(".", 1)
        path = f"{stem}-{hashlib.sha256(content).hexdigest()[:12]}.{suffix}"
        files[path] = content
        return {"file": path, "bytes": len(content)}

    default = (bundle.src_lang, bundle.tgt_lang)
    pairs = pairs_of(bundle.tokenizer, bundle.pairs, default)
    pairs = sorted(pairs, key=lambda pair: (pair != default, pair[0] != default[0]))  # the module takes the first
    manifest = {
        "format": 1,
        "engines": {name: named(f"{name}.wasm", content) for name, content in engines().items()},
        "model": named("model.bin", model),
        "tokenizer": {PARTS[name]: named(name, content) for name, content in tokenizer.items()},
        "pairs": [_pair(bundle, *pair) for pair in pairs],
        "max_length_ratio": bundle.search.max_length_ratio,
        "max_length_extra": bundle.search.max_length_extra,
    }
    if bundle.shortlist is not None:
        rules = {
            "size": bundle.shortlist.size,
            "shared": bundle.shortlist.is_shared,
            "banned": bundle.tokenizer.special.banned,
        }
        manifest["shortlist"] = named(SHORTLIST, bundle.shortlist.content) | rules
    files[MANIFEST] = json.dumps(manifest, indent=1).encode()
    version = hashlib.sha256(b"".join(files.values())).hexdigest()[:12]
    listed = f"const VERSION = {json.dumps(version)}, FILES = {json.dumps([*files])};\n"
    files[SERVICE] = listed.encode() + (FOLDER / SERVICE).read_bytes()
    with putting(out) as aside:
        aside.mkdir()
        write_files(aside, files)
    return f"{out}: {len(files)} files, {as_size(sum(map(len, files.values())))}"


def _pair(bundle: Bundle, src_lang: str, tgt_lang: str) -> Fields:
    """Return a pair of languages, and the tokens around its sources and before its targets."""
    special = bundle.tokenizer.with_languages(src_lang, tgt_lang).special
    tokens = {"src_begin": special.src_begin, "src_end": special.src_end, "tgt_begin": special.tgt_begin}
    return {"from": src_lang, "to": tgt_lang, **tokens}


def _tokenizer_files(tokenizer: AnyTokenizer) -> dict[str, bytes]:
    """Return the contents of a tokenizer's files by name. Raises InputError."""
    files = {TOKENIZER: tokenizer.files[TOKENIZER]}
    if isinstance(tokenizer, ImportedTokenizer):
        vocabulary = tokenizer.vocabulary
        require(not vocabulary.bpe, "WebAssembly has no rules of Moses, which codes of subword-nmt require")
        if tokenizer.files[TGT_TOKENIZER] != files[TOKENIZER]:
            files[TGT_TOKENIZER] = tokenizer.files[TGT_TOKENIZER]
            _require_supported(TGT_TOKENIZER, files[TGT_TOKENIZER])
        pieces = {
            "source_pieces": vocabulary.source,
            "target_pieces": None if vocabulary.target == vocabulary.source else vocabulary.target,
            "unknown": vocabulary.source.index(vocabulary.unknown),
            "not_text": sorted(tokenizer.not_text),
            "controls": sorted(tokenizer.controls),
        }
        files[VOCABULARY] = json.dumps(pieces, ensure_ascii=False).encode()
    _require_supported(TOKENIZER, files[TOKENIZER])
    return files


def _require_supported(name: str, content: bytes) -> None:
    """Raise an InputError unless the module splits text as a SentencePiece model does.

    The numbers of fields are those of sentencepiece_model.proto.
    """
    model = _fields(content)
    trainer = _fields(model[2])
    kind = trainer.get(3, 1)
    require(kind in (1, 2), f"{name}: WebAssembly splits text by unigram (1) and BPE (2), got a model of type {kind}")
    require(
        not trainer.get(24), f"{name}: WebAssembly supports spaces before words, got a model with spaces after them"
    )
    denormalizer = _fields(model.get(5, b""))
    require(not denormalizer.get(2), f"{name}: WebAssembly does not support a model that denormalizes translations")


def _fields(content: bytes) -> dict[int, Any]:
    """Return the last value of each field of a protocol buffer: a number, or bytes."""
    fields: dict[int, Any] = {}
    file = BytesIO(content)
    while file.tell() < len(content):
        number, wire = divmod(_varint(file), 8)
        if wire == 0:
            fields[number] = _varint(file)
        else:
            fields[number] = file.read(_varint(file) if wire == 2 else {1: 8, 5: 4}[wire])
    return fields


def _varint(file: BytesIO) -> int:
    """Return the next number: seven bits per byte, the lowest first."""
    byte = file.read(1)[0]
    return byte if byte < 128 else byte - 128 + 128 * _varint(file)
