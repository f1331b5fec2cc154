"""Routes of LibreTranslate's HTTP API, and those of the web page: their parameters and responses.

Parameters are JSON, a form, or the query of the URL.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qsl, quote

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import generate_latest
from pydantic import BaseModel, Field, InstanceOf, ValidationError, WithJsonSchema
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from relattn.translation.documents.read import FORMATS, file_suffix
from relattn.translation.errors import InputError, one_line, reading, require
from relattn.translation.serve.files import FileStore
from relattn.translation.serve.languages import Detector, codes_by_name, language_name
from relattn.translation.serve.pair_service import Word
from relattn.translation.serve.progress import FileProgress
from relattn.translation.serve.queue import CLIENT, QueueFull
from relattn.translation.serve.routing import Router, ScoredText
from relattn.translation.text.sentences import LONGEST
from relattn.translation.translate.glossary import Glossary
from relattn.translation.translate.options import TranslateOptions

AUTO = "auto"  # source language: detect it
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
KEEP_LITERALS = Field(
    True, description="copy placeholders, addresses, @names, hashtags, emoji, long numbers and identifiers unchanged"
)
MOST_TERMS = 1000
MOST_PREFIX = 4 * LONGEST  # characters; a translation may be longer than its sentence
CHUNK = 65_536  # bytes
PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    **{f"/{name}": (name, "text/javascript; charset=utf-8") for name in ("page.js", "common.js")},
}


@dataclass(frozen=True)
class UploadedFile:
    """File of a form."""

    name: str
    content: bytes


class TranslateBody(BaseModel):
    """Parameters of /translate."""

    q: str | list[str] = Field(description="text or list of texts")
    source: str = Field(description="language of the text, or auto to detect it")
    target: str = Field(description="language to translate into")
    format: Literal["text", "html", ""] = Field("text", description="format of the text; empty means text")
    alternatives: int = Field(0, le=100, description="maximum number of other translations per text; none if negative")
    keep_literals: bool = KEEP_LITERALS
    warnings: bool = Field(False, description="report what is implausible in the translation")
    confidence: bool = Field(False, description="report exp of the mean log-probability of the translation's tokens")
    glossary: dict[str, str] = Field({}, max_length=MOST_TERMS, description="terms and their translations")
    api_key: str = ""


class TranslateFileBody(BaseModel):
    """Parameters of /translate_file."""

    source: str
    target: str
    keep_literals: bool = KEEP_LITERALS
    progress: bool = Field(False, description="report progress: the answer is a JSON object per line")
    api_key: str = ""
    file: Annotated[InstanceOf[UploadedFile], WithJsonSchema({"type": "string", "format": "binary"})]


class DetectBody(BaseModel):
    """Parameters of /detect."""

    q: str
    api_key: str = ""


class WordsBody(DetectBody):
    """Parameters of /words."""

    source: str
    target: str
    alternatives: int = Field(0, ge=0, le=100)
    prefix: str = Field(
        "", max_length=MOST_PREFIX, description="beginning of the translation; requires a text of one sentence"
    )
    choice: str = Field("", description="translation whose words are returned; one of those that `alternatives` allows")


B = TypeVar("B", bound=BaseModel)


async def read_parameters(request: Request) -> dict[str, Any]:
    """Return the parameters of a request by name. Raises InputError if its body cannot be parsed."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    parameters: dict[str, Any] = _urlencoded(request.scope["query_string"])
    if content_type == FORM:
        parameters |= _urlencoded(await request.body())
    elif content_type == MULTIPART:
        async with request.form(max_files=1, max_fields=100, max_part_size=1 << 30) as form:
            for name in form:
                values = [
                    UploadedFile(each.filename or "", await each.read()) if isinstance(each, UploadFile) else each
                    for each in form.getlist(name)
                ]
                parameters[name] = values[0] if len(values) == 1 else values
    elif body := await request.body():
        try:
            content = json.loads(body)
            json.dumps(content, ensure_ascii=False).encode()  # refuse half of a surrogate pair
        except (ValueError, RecursionError) as error:
            raise InputError("the body must be JSON in UTF-8, or a form with its Content-Type") from error
        require(isinstance(content, dict), "the body must be a JSON object")
        parameters |= content
    return {name: value for name, value in parameters.items() if value is not None}


def _urlencoded(content: bytes) -> dict[str, Any]:
    """Return the parameters of a form or a query. Bytes that are not escaped are UTF-8, as curl sends them."""
    try:
        pairs = parse_qsl(content.decode(), keep_blank_values=True, max_num_fields=100, errors="strict")
    except ValueError as error:
        raise InputError("a form must be UTF-8 and have at most 100 fields") from error
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: each[0] if len(each) == 1 else each for name, each in values.items()}


def read_keys(path: Path) -> list[bytes]:
    """Return the digests of API keys in a file with a key per line. Empty lines and lines after a # are ignored.

    Raises:
        InputError: The file cannot be read, or has no key.
    """
    with reading(path, "not a list of keys"):
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    digests = [_digest(line) for line in lines if line and not line.startswith("#")]
    require(bool(digests), f"{path} must have at least one key")
    return digests


def _is_accepted(key: object, keys: Sequence[bytes]) -> bool:
    """Return whether a key is accepted, in constant time, so that the time reveals nothing about the keys."""
    return isinstance(key, str) and sum(hmac.compare_digest(_digest(key), each) for each in keys) > 0


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class Api:
    """Handlers of the routes.

    Args:
        router: Models, by language pair.
        keys: File of API keys that are accepted, as `read_keys` reads it; None requires no key.
    """

    def __init__(self, router: Router, keys: Path | None) -> None:
        self._router, self._limits, self._metrics = router, router.limits, router.metrics
        self._keys = None if keys is None else read_keys(keys)
        self._detector, self._files = Detector(router.sources), FileStore(self._limits.stored)
        self._codes = codes_by_name([*router.codes, AUTO])
        self._working: Counter[str] = Counter()  # files that are translated, by client

    async def translate(self, request: Request) -> Response:
        """Translate a text or a list of texts."""
        body = await self._parse_body(TranslateBody, request)
        texts = [body.q] if isinstance(body.q, str) else body.q
        limit = self._limits.texts
        require(len(texts) <= limit, f"q must have at most {limit:,} texts, got {len(texts):,}")
        self._router.check_characters(texts)
        self._metrics.characters.inc(sum(map(len, texts)))
        html, readable = body.format == "html", texts
        if html and body.source == AUTO:
            readable = await self._router.readable_texts(texts)
        sources, detected = self._sources(readable, body.source)
        count = max(0, body.alternatives) + 1
        terms = ((i, *term) for i, term in enumerate(body.glossary.items(), start=1))
        glossary = Glossary(terms, source="glossary") if body.glossary else None
        options = TranslateOptions(n_best=count, keep_literals=body.keep_literals, glossary=glossary)
        translations = await self._router.translate(texts, sources, body.target, options, html=html)
        response: dict[str, Any] = {"translatedText": [each.ranked[0] for each in translations]}
        if detected:
            response["detectedLanguage"] = detected
        if count > 1:
            response["alternatives"] = [each.ranked[1:] for each in translations]
        if body.confidence:
            response["confidence"] = [round(each.confidence, 4) for each in translations]
        if body.warnings:
            response["warnings"] = [each.warnings for each in translations]
        if isinstance(body.q, str):
            response = {name: values[0] for name, values in response.items()}
        return JSONResponse(response)

    async def detect(self, request: Request) -> Response:
        """Detect the language of a text, among those that can be translated."""
        body = await self._parse_body(DetectBody, request)
        self._router.check_characters([body.q])
        return JSONResponse(self._detector.rank(body.q))

    async def languages(self) -> Response:
        """List the languages, and those that each can be translated into."""
        return JSONResponse(
            [{**_language_entry(code), "targets": self._router.targets(code)} for code in self._router.codes]
        )

    async def translate_file(self, request: Request) -> Response:
        """Translate a file. The response has the URL of the translation, which can be downloaded for half an hour."""
        progress: FileProgress = request.state.progress
        body = await self._parse_body(TranslateFileBody, request)
        content, limit = body.file.content, self._limits.file
        if len(content) > limit:
            raise HTTPException(413, f"the file must have at most {limit:,} bytes, got {len(content):,}")
        name, source = body.file.name, body.source
        with self._place():
            progress.is_wanted = body.progress
            if source == AUTO:
                text = await self._router.readable_text(name, content)
                ((source,), _) = self._sources([text[: self._limits.characters]], source)
            options = TranslateOptions(keep_literals=body.keep_literals)
            file = name, content, source, body.target
            translation = await self._router.document(*file, options, report=progress.report)
            key = self._files.add(translation, name, file_suffix(name), CLIENT.get())
        return JSONResponse({"translatedFileUrl": str(request.url_for("download_file", name=key))})

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Count a file that is translated. Raises QueueFull if there are too many, in total or of the client."""
        client, most = CLIENT.get(), self._limits.files
        if self._working.total() >= most or self._working[client] >= max(1, most // 2):
            raise QueueFull("too many files are being translated")
        self._working[client] += 1
        try:
            yield
        finally:
            self._working -= Counter([client])  # without entries of zero

    async def download_file(self, request: Request) -> Response:
        """Download a translated file. Its name is that of the uploaded file."""
        file = self._files.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404, "the file does not exist or has expired")
        headers = {
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(_last_part(file.name), safe='')}",
            "Content-Length": str(len(file.content)),
        }
        return StreamingResponse(_chunks(file.content), media_type="application/octet-stream", headers=headers)

    async def suggest(self) -> Response:
        """Refuse a suggestion."""
        raise HTTPException(403, "suggestions are not accepted")

    async def settings(self) -> Response:
        """Return the settings that a client's page needs."""
        source, target = map(_language_entry, self._router.default_pair)
        return JSONResponse(
            {
                "apiKeys": self._keys is not None,
                "charLimit": self._limits.characters,
                "examples": self._router.examples,
                "filesTranslation": True,
                "frontendTimeout": 500,
                "keyRequired": self._keys is not None,
                "language": {"source": source, "target": target},
                "suggestions": False,
                "supportedFilesFormat": list(FORMATS),
            }
        )

    async def health(self) -> Response:
        """Report whether the server can translate."""
        if reason := await self._router.unavailable_reason():
            raise HTTPException(503, f"the server cannot translate: {reason}")
        return JSONResponse({"status": "ok"})

    async def metrics(self) -> Response:
        """Return metrics for Prometheus."""
        text = generate_latest(self._metrics.registry)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def words(self, request: Request) -> Response:
        """Translate a text, with the confidence of each word."""
        body = await self._parse_body(WordsBody, request)
        self._router.check_characters([body.q])
        (source,), detected = self._sources([body.q], body.source)
        scored = ScoredText([], [Word(body.q)], [], [])
        if source != body.target:
            scored = await self._router.words(
                body.q, source, body.target, count=body.alternatives + 1, prefix=body.prefix, choice=body.choice
            )
        response: dict[str, Any] = {
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
        return Response((files("relattn.translation.serve.page") / name).read_bytes(), media_type=media_type)

    async def _parse_body(self, body: type[B], request: Request) -> B:
        """Return the parameters of a request. Raises HTTPException without a valid key, and InputError."""
        parameters = await read_parameters(request)
        for name in ("source", "target"):  # codes in any case, as LibreTranslate's
            if isinstance(code := parameters.get(name), str):
                parameters[name] = self._codes.get(code.lower().replace("_", "-"), code)
        if self._keys is not None and not _is_accepted(parameters.get("api_key"), self._keys):
            raise HTTPException(403, "api_key is missing or wrong")
        try:
            return body.model_validate(parameters)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = str(first["loc"][0]) if first["loc"] else "the request"
            missing = first["type"] == "missing"
            raise InputError(f"{field} is missing" if missing else f"{field}: {one_line(first['msg'], 200)}") from error

    def _sources(self, texts: Sequence[str], source: str) -> tuple[list[str], list[dict[str, Any]]]:
        """Return the language of each text, and the detected languages if `source` asks for detection."""
        if source != AUTO:
            return [source] * len(texts), []
        detected = [self._detector.rank(text)[0] for text in texts]
        return [each["language"] for each in detected], detected


def _last_part(path: str) -> str:
    """Return the last part of a path, without control characters."""
    return "".join(filter(str.isprintable, re.split(r"[/\\]", path)[-1]))


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    """Yield a file in parts, so that a slow client does not need memory for all of it."""
    for start in range(0, len(content), CHUNK):
        yield content[start : start + CHUNK]


def _language_entry(code: str) -> dict[str, Any]:
    return {"code": code, "name": language_name(code)}
