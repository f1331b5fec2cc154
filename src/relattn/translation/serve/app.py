"""LibreTranslate's HTTP API: its routes, the names of its fields, its errors and their status codes.

Parameters come as JSON, as a form, or in the address. A mistake of a client's is answered with {"error": …} and 400,
403, 404, 405, 408, 413 or 429; the last says in `Retry-After` when to come again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException

from relattn.translation.errors import InputError, one_line
from relattn.translation.serve.files import Files
from relattn.translation.serve.guard import Guard
from relattn.translation.serve.keys import Keys
from relattn.translation.serve.languages import Detector, language_name
from relattn.translation.serve.limits import Limits
from relattn.translation.serve.metrics import Measures
from relattn.translation.serve.models import Models
from relattn.translation.serve.page import Attention, Page, Words
from relattn.translation.serve.parameters import FORMS, File, parameters
from relattn.translation.serve.queue import Busy
from relattn.translation.serve.routing import Translating
from relattn.translation.serve.text.documents import FORMATS, ending

AUTO = "auto"  # the source language that is to be found
RETRY_AFTER = {"Retry-After": "2"}  # seconds
GONE = 499  # in the counts and the log: the client did not wait for its answer
P = TypeVar("P", bound=BaseModel)


class Translate(BaseModel):
    """What is asked of /translate."""

    q: str | list[str] = Field(description="a text, or several")
    source: str = Field(description="its language, or auto")
    target: str = Field(description="the language to translate into")
    format: Literal["text", "html"] = "text"
    alternatives: int = Field(0, ge=0, le=100, description="other translations, at most")
    api_key: str = ""


class Detect(BaseModel):
    """What is asked of /detect."""

    q: str
    api_key: str = ""


class TranslateFile(BaseModel):
    """What is asked of /translate_file, beside the file."""

    source: str
    target: str
    api_key: str = ""


class Api:
    """The routes, over some models.

    Args:
        models: by their languages.
        limits: of what is taken.
        keys: who may use it; anybody where None.
    """

    def __init__(self, models: Models, limits: Limits, keys: Keys | None) -> None:
        self._models, self._limits, self._keys = models, limits, keys
        self.translating, self._detector = Translating(models, limits), Detector(models.sources)
        self.measures = Measures(models)
        self._files = Files()

    async def translate(self, request: Request) -> Response:
        """Translate a text or several."""
        given = self.admitted(Translate, await parameters(request))
        texts = [given.q] if isinstance(given.q, str) else given.q
        if len(texts) > self._limits.texts:
            raise InputError(f"q has {len(texts):,} texts; at most {self._limits.texts:,} are translated at once")
        self.translating.require_few_characters(texts)
        self.measures.characters.inc(sum(map(len, texts)))
        sources, detected = self.sources(texts, given.source)
        html = given.format == "html"
        found = await self.translating.texts(
            list(zip(texts, sources, strict=True)), given.target, html=html, alternatives=given.alternatives
        )
        answer: dict[str, Any] = {"translatedText": [one.best for one in found]}
        if detected:
            answer["detectedLanguage"] = detected
        if given.alternatives:
            answer["alternatives"] = [one.alternatives for one in found]
        return JSONResponse({key: one[0] for key, one in answer.items()} if isinstance(given.q, str) else answer)

    async def detect(self, request: Request) -> Response:
        """Which language a text is in, of those that are translated here."""
        given = self.admitted(Detect, await parameters(request))
        self.translating.require_few_characters([given.q])
        ranked = self._detector.ranked(given.q)
        return JSONResponse([{"confidence": sure, "language": code} for code, sure in ranked])

    async def languages(self) -> Response:
        """The languages, and what each can be translated into."""
        return JSONResponse(
            [
                {"code": code, "name": language_name(code), "targets": self._models.targets(code)}
                for code in self._models.codes
            ]
        )

    async def translate_file(self, request: Request) -> Response:
        """Translate a file; the answer says where the translation can be fetched, for half an hour."""
        told = await parameters(request)
        file = told.pop("file", None)
        given = self.admitted(TranslateFile, told)
        if not isinstance(file, File):
            raise InputError("file is missing")
        size = len(file.content)
        if size > self._limits.file:
            raise HTTPException(413, f"a file of {size:,} bytes; at most {self._limits.file:,} are taken")
        (source,), _ = self.sources([file.content[:1000].decode("utf-8", "ignore")], given.source)
        done = await self.translating.document(file.name, file.content, source, given.target)
        token = self._files.keep(done, ending(file.name))
        return JSONResponse({"translatedFileUrl": str(request.url_for("download_file", name=token))})

    async def download_file(self, name: str) -> Response:
        """A file's translation."""
        content = self._files.get(name)
        if content is None:
            raise HTTPException(404, "there is no such file, or no longer")
        disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type="application/octet-stream", headers=disposition)

    async def suggest(self) -> Response:
        """Suggestions are not taken."""
        raise HTTPException(403, "suggestions are off")

    async def settings(self) -> Response:
        """What a client's own page goes by."""
        pairs = [{"code": code, "name": language_name(code)} for code in min(self._models.by_pair)]
        return JSONResponse(
            {
                "apiKeys": self._keys is not None,
                "charLimit": self._limits.characters,
                "filesTranslation": True,
                "frontendTimeout": 500,
                "keyRequired": self._keys is not None,
                "language": {"source": pairs[0], "target": pairs[1]},
                "suggestions": False,
                "supportedFilesFormat": list(FORMATS),
            }
        )

    async def health(self) -> Response:
        """Whether it can be asked."""
        return JSONResponse({"status": "ok"})

    async def metrics(self) -> Response:
        """What it has done, for Prometheus."""
        return Response(self.measures.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def admitted(self, kind: type[P], told: dict[str, Any]) -> P:
        """Parameters that are right, from who may ask. Raises HTTPException and InputError."""
        if self._keys is not None:
            key = told.get("api_key", "")
            if not (isinstance(key, str) and self._keys.admit(key)):
                raise HTTPException(403, "api_key is missing or wrong")
        try:
            return kind.model_validate(told)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            field = str(fault["loc"][0]) if fault["loc"] else "the request"
            if fault["type"] == "missing":
                raise InputError(f"{field} is missing") from error
            raise InputError(f"{field}: {one_line(fault['msg'], 200)}") from error

    def sources(self, texts: Sequence[str], source: str) -> tuple[list[str], list[dict[str, Any]]]:
        """The language of each text, and what is said of those that had to be found."""
        if source != AUTO:
            return [source] * len(texts), []
        found = [(self._detector.ranked(text) or [(self._models.sources[0], 0.0)])[0] for text in texts]
        return [code for code, _ in found], [{"confidence": sure, "language": code} for code, sure in found]


def make(models: Models, limits: Limits, *, keys: Keys | None = None, cors: Sequence[str] = ()) -> FastAPI:
    """The application that answers requests.

    Args:
        models: by their languages.
        limits: of what is taken.
        keys: who may use it; anybody where None.
        cors: origins whose pages may use it from a browser.
    """
    api = Api(models, limits, keys)
    page = Page(api)

    @asynccontextmanager
    async def working(_: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(queue.run()) for model in models.by_pair.values() for queue in model.queues]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            models.close()

    app = FastAPI(title="relattn", openapi_url="/spec", docs_url=None, redoc_url=None, lifespan=working)
    routes: list[tuple[str, str, Callable[..., Awaitable[Response]], type[BaseModel] | None]] = [
        ("/translate", "POST", api.translate, Translate),
        ("/detect", "POST", api.detect, Detect),
        ("/languages", "GET", api.languages, None),
        ("/translate_file", "POST", api.translate_file, TranslateFile),
        ("/download_file/{name}", "GET", api.download_file, None),
        ("/suggest", "POST", api.suggest, None),
        ("/frontend/settings", "GET", api.settings, None),
        ("/health", "GET", api.health, None),
        ("/metrics", "GET", api.metrics, None),
        ("/words", "POST", page.words, Words),
        ("/attention", "POST", page.attention, Attention),
    ]
    for path, method, answer, body in routes:
        app.add_api_route(
            path,
            _within(limits.seconds, answer) if body else answer,
            methods=[method],
            name=answer.__name__,
            description=answer.__doc__,
            response_model=None,
            openapi_extra={"requestBody": _described(body, models)} if body else None,
            responses={status: {"description": what} for status, what in _FAULTS.items()} if body else None,
        )
    for path in page.FILES:
        app.add_api_route(path, page.file, methods=["GET"], include_in_schema=False)
    app.add_exception_handler(InputError, lambda _, error: _refused(400, one_line(error)))
    app.add_exception_handler(Busy, lambda _, error: _refused(429, "too much is waiting", RETRY_AFTER))
    app.add_exception_handler(HTTPException, _as_error)
    if cors:
        app.add_middleware(CORSMiddleware, allow_origins=list(cors), allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(Guard, limits=limits, measures=api.measures)
    return app


_FAULTS = {
    400: "a parameter is missing or wrong",
    403: "api_key is missing or wrong",
    408: "the request took too long to come",
    413: "the request is too large",
    429: "too much is waiting: come again after Retry-After seconds",
}


def _described(body: type[BaseModel], models: Models) -> dict[str, Any]:
    """What a route takes, for the description of the API."""
    schema = body.model_json_schema()
    for name, codes in (("source", [*models.sources, AUTO]), ("target", models.codes)):
        if name in schema["properties"]:
            schema["properties"][name]["enum"] = codes
    if body is not TranslateFile:
        return {"required": True, "content": {"application/json": {"schema": schema}, FORMS[0]: {"schema": schema}}}
    schema["properties"]["file"] = {"type": "string", "format": "binary"}
    schema["required"].append("file")
    return {"required": True, "content": {FORMS[1]: {"schema": schema}}}


def _within(
    seconds: float, answer: Callable[[Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """A route whose work ends with its time, and with its client."""

    async def answered(request: Request) -> Response:
        await request.body()  # which has its own time
        work, leaving = asyncio.ensure_future(answer(request)), asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({work, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            if leaving.done():
                return _refused(GONE, "the client has gone")
            return _refused(429, f"not done within {seconds:g} seconds", RETRY_AFTER)
        finally:
            work.cancel()
            leaving.cancel()

    return answered


async def _gone(request: Request) -> None:
    """When the client goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _refused(status: int, why: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": why}, status, headers=headers)


async def _as_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _refused(error.status_code, str(error.detail), dict(error.headers or {}))
