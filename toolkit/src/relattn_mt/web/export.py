"""Write a site that translates: a page for browsers, and a module, the engine, a model and its tokenizer for others."""

import hashlib
import json
from pathlib import Path
from typing import Any

from relattn_mt.bundle import Bundle
from relattn_mt.support.errors import InputError
from relattn_mt.support.files import as_size, putting, require_outside, require_replaceable
from relattn_mt.tokens.tokenizer import TOKENIZER, Tokenizer
from relattn_mt.web.build import FOLDER, engines
from relattn_mt.web.model_file import model_file

MODULE = ("relattn.mjs", "relattn.d.ts", "engine.mjs", "errors.mjs", "sentencepiece.mjs")
PAGE = ("index.html", "page.mjs", "worker.mjs", "icon.svg", "site.webmanifest")
STYLE = FOLDER.parent / "serve/page/page.css"  # that of the server's page
MANIFEST = "model.json"
SERVICE = "service.js"


def export(bundle: Bundle, out: Path) -> str:
    """Write the files of a bundle to a directory, and return what was written. An earlier export is replaced.

    The names of the engine and of the model have their hash, so that a cache never has an old one. `model.json` lists
    them.

    Raises:
        InputError: WebAssembly does not run the model, its tokenizer is imported, or the directory cannot be written.
    """
    if not isinstance(bundle.tokenizer, Tokenizer):
        raise InputError("export web supports models of this toolkit's tokenizer, got an imported model")
    require_outside(out, bundle.path)
    hashed = [path.name for path in out.glob("*-????????????.*")]
    require_replaceable(out, [MANIFEST, SERVICE, STYLE.name, *MODULE, *PAGE, *hashed], "site")
    model = model_file(bundle)
    tokenizer = bundle.tokenizer.files[TOKENIZER]
    files = {name: (FOLDER / name).read_bytes() for name in (*MODULE, *PAGE)}
    files[STYLE.name] = STYLE.read_bytes()

    def named(name: str, content: bytes) -> dict[str, Any]:
        """Add a file under its name and hash, and return its entry in the manifest."""
        stem, suffix = name.split(".")
        path = f"{stem}-{hashlib.sha256(content).hexdigest()[:12]}.{suffix}"
        files[path] = content
        return {"file": path, "bytes": len(content)}

    manifest = {
        "format": 1,
        "engines": {name: named(f"{name}.wasm", content) for name, content in engines().items()},
        "model": named("model.bin", model),
        "tokenizer": named("tokenizer.model", tokenizer),
        "pairs": [_pair(bundle, *pair) for pair in bundle.pairs or [(bundle.src_lang, bundle.tgt_lang)]],
        "src_end": bundle.tokenizer.special.src_end,
        "max_length_ratio": bundle.search.max_length_ratio,
        "max_length_extra": bundle.search.max_length_extra,
    }
    files[MANIFEST] = json.dumps(manifest, indent=1).encode()
    version = hashlib.sha256(b"".join(files.values())).hexdigest()[:12]
    listed = f"const VERSION = {json.dumps(version)}, FILES = {json.dumps([*files])};\n"
    files[SERVICE] = listed.encode() + (FOLDER / SERVICE).read_bytes()
    with putting(out) as aside:
        aside.mkdir()
        for name, content in files.items():
            (aside / name).write_bytes(content)
    return f"{out}: {len(files)} files, {as_size(sum(map(len, files.values())))}"


def _pair(bundle: Bundle, src_lang: str, tgt_lang: str) -> dict[str, Any]:
    """Return a pair of languages, and the tokens before its sources."""
    tokenizer = bundle.tokenizer.with_languages(src_lang, tgt_lang)
    return {"from": src_lang, "to": tgt_lang, "src_begin": tokenizer.special.src_begin}
