"""Handlers of LibreTranslate's HTTP API, and of the web page."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from relattn_mt.documents.read import FORMATS, file_suffix
from relattn_mt.serve.files import FileStore
from relattn_mt.serve.languages import Detector, language_name, served_code
from relattn_mt.serve.pair_service import Word
from relattn_mt.serve.parameters import Parameters, check_parameters, read_parameters
from relattn_mt.serve.progress import FileProgress
from relattn_mt.serve.queue import CLIENT, QueueFull
from relattn_mt.serve.routing import Router, ScoredText
from relattn_mt.support.errors import reading, require, require_at_most
from relattn_mt.support.types import Fields
from relattn_mt.tokens.text_files import read_lines
from relattn_mt.translate import output_formats
from relattn_mt.translate.glossary import Glossary
from relattn_mt.translate.options import SentenceOptions

AUTO = "auto"  # source language: detect it
CHUNK = 65_536  # bytes
WRONG_KEY_SECONDS = 1.0  # until a wrong key is refused, which slows down those who guess
PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    **{f"/{name}": (name, "text/javascript; charset=utf-8") for name in ("page.js", "common.js", "texts.js")},
}


def read_keys(path: Path) -> frozenset[bytes]:
    """Return the digests of the API keys in a file, one per line. Empty lines and those after a # are ignored."""
    with reading(path, "not a list of keys"):
        lines = [line.strip() for line in read_lines(path)]
    digests = frozenset(_digest(line) for line in lines if line and not line.startswith("#"))
    require(digests, f"{path} must have at least one key")
    return digests


def _digest(key: object) -> bytes:
    """Return the digest of a key. The time to compare digests reveals nothing about the keys."""
    return hashlib.sha256(str(key).encode("utf-8", "surrogatepass")).digest()


class Api:
    """Handlers of the routes. `keys` is a file as `read_keys` reads it; None requires no key."""

    def __init__(self, router: Router, keys: Path | None) -> None:
        self._router = router
        self._limits = router.limits
        self._metrics = router.metrics
        self._keys = None if keys is None else read_keys(keys)
        self._detector = cache(lambda: Detector(router.sources))
        self._files = FileStore(self._limits.stored)
        self._languages = cache(
            lambda: JSONResponse([{**_language_entry(code), "targets": router.targets(code)} for code in router.codes])
        )
        self._working: Counter[str] = Counter()  # files that are translated, by client

    async def translate(self, request: Request) -> Response:
        """Translate a text or a list of texts."""
        body = await self._parameters(request)
        texts = [body["q"]] if isinstance(body["q"], str) else body["q"]
        require_at_most(self._limits.texts, len(texts), "q", "texts")
        self._router.check_texts(texts)
        self._metrics.characters.inc(sum(map(len, texts)))
        html = body["format"] == "html"
        readable = texts
        if html and body["source"] == AUTO:
            readable = await self._router.readable_texts(texts)
        sources, detected = await self._sources(readable, body["source"])
        count = max(0, body["alternatives"]) + 1
        options = SentenceOptions(
            n_best=count,
            keep_literals=body["keep_literals"],
            glossary=_glossary(body),
            check_language=body["warnings"],
        )
        translations = await self._router.translate(texts, sources, body["target"], options, html=html)
        response = {"translatedText": [each.ranked[0] for each in translations]}
        if detected:
            response["detectedLanguage"] = detected
        if count > 1:
            response["alternatives"] = [each.ranked[1:] for each in translations]
        if body["confidence"]:
            response["confidence"] = [round(each.confidence, 4) for each in translations]
        if body["warnings"]:
            response["warnings"] = [each.warnings for each in translations]
        if isinstance(body["q"], str):
            response = {name: values[0] for name, values in response.items()}
        return JSONResponse(response)

    async def detect(self, request: Request) -> Response:
        """Detect the language of a text, among those that can be translated."""
        body = await self._parameters(request)
        self._router.check_texts([body["q"]])
        return JSONResponse((await self._rank([body["q"]]))[0])

    async def languages(self, _: Request) -> Response:
        """List the languages, and those that each can be translated into."""
        return self._languages()

    async def translate_file(self, request: Request) -> Response:
        """Translate a file. The response has the URL of the translation, which can be downloaded for half an hour."""
        progress: FileProgress = request.state.progress
        body = await self._parameters(request)
        name, content = body["file"]
        source = body["source"]
        target = body["target"]
        limit = self._limits.file
        if len(content) > limit:
            raise HTTPException(413, f"the file must have at most {limit:,} bytes, got {len(content):,}")
        with self._place():
            progress.is_wanted = body["progress"]
            answer: Fields = {}
            if source == AUTO:
                text = await self._router.readable_text(name, content)
                texts = [text[: self._limits.characters]]
                (source,), (answer["detectedLanguage"],) = await self._sources(texts, source)
            glossary = _glossary(body)
            options = SentenceOptions(keep_literals=body["keep_literals"], check_language=True, glossary=glossary)
            stem, _, suffix = name.rpartition(".")
            translated = await self._router.document(name, content, source, target, options, report=progress.report)
            files = {  # if there is no room for both, the second is kept
                "reportUrl": (f"{stem}_{target}.tsv", output_formats.report(translated.rows)),
                "translatedFileUrl": (f"{stem}_{target}.{suffix}", translated.content),
            }
            for field, (name, content) in files.items():
                key = self._files.add(content, name, file_suffix(name), CLIENT.get())
                answer[field] = str(request.url_for("download_file", name=key))
        return JSONResponse({**answer, "sentences": len(translated.rows), "sentencesWithWarnings": translated.flagged})

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Count a file that is translated. Raises QueueFull if there are too many, in total or of the client."""
        client = CLIENT.get()
        most = self._limits.files
        if self._working.total() >= most or self._working[client] >= max(1, most // 2):
            raise QueueFull("too many files are being translated")
        self._working[client] += 1
        try:
            yield
        finally:
            self._working -= Counter([client])  # without entries of zero

    async def download_file(self, request: Request) -> Response:
        """Download a translated file. Its name is that of the uploaded file, with the target language."""
        file = self._files.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404, "the file does not exist or has expired")
        headers = {
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(_last_part(file.name), safe='')}",
            "Content-Length": str(len(file.content)),
        }
        # in parts, so that a slow client does not need memory for all of it
        parts = (file.content[start : start + CHUNK] for start in range(0, len(file.content), CHUNK))
        return StreamingResponse(parts, media_type="application/octet-stream", headers=headers)

    async def suggest(self, _: Request) -> Response:
        """Refuse a suggestion."""
        raise HTTPException(403, "suggestions are not accepted")

    async def settings(self, _: Request) -> Response:
        """Return the settings that a client's page needs."""
        source, target = map(_language_entry, self._router.pairs[0])
        return JSONResponse(
            {
                "apiKeys": self._keys is not None,
                "charLimit": self._limits.characters,
                "sentenceLimit": self._limits.sentences,
                "examples": self._router.examples,
                "cards": self._router.cards,
                "filesTranslation": True,
                "frontendTimeout": 500,
                "keyRequired": self._keys is not None,
                "language": {"source": source, "target": target},
                "suggestions": False,
                "supportedFilesFormat": list(FORMATS),
            }
        )

    async def health(self, _: Request) -> Response:
        """Report whether the server can translate."""
        if reason := await self._router.unavailable_reason():
            raise HTTPException(503, f"the server cannot translate: {reason}")
        return JSONResponse({"status": "ok"})

    async def metrics(self, _: Request) -> Response:
        """Return metrics for Prometheus."""
        media_type = "text/plain; version=0.0.4; charset=utf-8"
        return Response(generate_latest(self._metrics.registry), media_type=media_type)

    async def words(self, request: Request) -> Response:
        """Translate a text, with the confidence of each word."""
        body = await self._parameters(request)
        self._router.check_texts([body["q"]])
        (source,), detected = await self._sources([body["q"]], body["source"])
        scored = ScoredText([], [Word(body["q"])], [], [])
        if source != body["target"]:
            options = SentenceOptions(n_best=body["alternatives"] + 1, check_language=True, glossary=_glossary(body))
            scored = await self._router.words(
                body["q"], source, body["target"], options, prefix=body["prefix"], choice=body["choice"]
            )
        response: Fields = {
            "sentences": scored.sentences,
            "words": [word._asdict() for word in scored.words],
            "alternatives": scored.others,
            "warnings": scored.warnings,
            "hasChoices": scored.has_choices,
        }
        if detected:
            response["detectedLanguage"] = detected[0]
        return JSONResponse(response)

    async def page(self, request: Request) -> Response:
        """Return a file of the web page."""
        name, media_type = PAGE[request.url.path]
        return Response((files("relattn_mt.serve.page") / name).read_bytes(), media_type=media_type)

    async def _parameters(self, request: Request) -> Parameters:
        """Return the parameters of a request. Raises HTTPException without a valid key, and InputError."""
        parameters = await read_parameters(request)
        for name in ("source", "target"):  # codes in any case, as LibreTranslate's
            if isinstance(code := parameters.get(name), str):
                parameters[name] = served_code(code, [*self._router.codes, AUTO])
        bearer = re.sub("(?i)^bearer +", "", request.headers.get("authorization", ""))
        if self._keys is not None and not self._keys & {_digest(parameters.get("api_key", "")), _digest(bearer)}:
            if bearer or parameters.get("api_key"):
                await asyncio.sleep(WRONG_KEY_SECONDS)
            raise HTTPException(403, "api_key is missing or wrong")
        return check_parameters(parameters, request.scope["route"].path)

    async def _rank(self, texts: Sequence[str]) -> list[list[Fields]]:
        """Return the detected languages of each text, likeliest first. The first call loads the detector."""
        return await asyncio.to_thread(lambda: [self._detector().rank(text) for text in texts])

    async def _sources(self, texts: Sequence[str], source: str) -> tuple[list[str], list[Fields]]:
        """Return the language of each text, and the detected languages if `source` asks for detection."""
        if source != AUTO:
            return [source] * len(texts), []
        detected = [ranked[0] for ranked in await self._rank(texts)]
        return [each["language"] for each in detected], detected


def _glossary(body: Parameters) -> Glossary | None:
    """Return the glossary in the parameters of a request."""
    terms = ((i, *term) for i, term in enumerate(body["glossary"].items(), start=1))
    return Glossary(terms, source="glossary") if body["glossary"] else None


def _last_part(path: str) -> str:
    """Return the last part of a path, without control characters."""
    return "".join(filter(str.isprintable, re.split(r"[/\\]", path)[-1]))


def _language_entry(code: str) -> Fields:
    return {"code": code, "name": language_name(code)}
