"""The web application: routes, errors and their status codes, and what applies to every request.

Errors of a client are answered with {"error": …} and status 400, 403, 404, 405, 408, 413, 422 or 429. With 429, the
header `Retry-After` says when to try again. The log has a JSON object per request with its client, route, status,
duration and size. It never has a text, a key, or a URL that contains one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relattn_mt.serve.access import Access
from relattn_mt.serve.api import AUTO, PAGE, Api
from relattn_mt.serve.parameters import describe
from relattn_mt.serve.parsing import ParsingLimitExceeded
from relattn_mt.serve.progress import FileProgress, LongAnswer, disconnected, until
from relattn_mt.serve.queue import CLIENT, QueueFull
from relattn_mt.serve.routing import Router
from relattn_mt.support.errors import InputError, one_line

RETRY_AFTER = {"Retry-After": "2"}  # seconds
CLOSE = {"Connection": "close"}
_STOPPING = "the server is stopping, and its files cannot be downloaded any more"
DISCONNECTED = 499  # status in metrics and log of a request whose client did not wait for the response
DRAIN_BYTES = 50_000_000  # read after the limit of a request, so that the client reads the response
OVERHEAD_BYTES = 65_536  # maximum size of a request without its texts
MAX_BYTES_PER_CHARACTER = 12  # in JSON
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_ANSWERED = InputError, QueueFull, ParsingLimitExceeded, HTTPException
_log = logging.getLogger("relattn_mt.serve")
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def make_app(router: Router, *, keys: Path | None = None, access: Access = Access()) -> Starlette:  # noqa: B008
    """Return the web application for a router. Raises InputError if the keys, one per line, cannot be read."""
    api = Api(router, keys)
    stopping = asyncio.Event()

    seconds = router.limits.seconds
    routes = [
        Route("/translate", _with_deadline(seconds, api.translate), methods=["POST"]),
        Route("/detect", _with_deadline(seconds, api.detect), methods=["POST"]),
        Route("/translate_file", _of_any_length(seconds, stopping, api.translate_file), methods=["POST"]),
        Route("/download_file/{name}", api.download_file),
        Route("/languages", api.languages, methods=["GET", "POST"]),  # libretranslatepy 2.1.1 sends POST
        Route("/frontend/settings", api.settings),
        Route("/suggest", api.suggest, methods=["POST"]),
        Route("/words", _with_deadline(seconds, api.words), methods=["POST"]),
        Route("/health", api.health),
        Route("/metrics", api.metrics),
    ]
    spec = JSONResponse(describe({"source": [*router.sources, AUTO], "target": router.codes}))
    routes += [Route(path, api.page) for path in PAGE]
    middleware = [Middleware(monitor, router=router, access=access)]
    if access.origins:
        origins = list(access.origins)
        middleware.append(Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]))

    async def answer(_: Request, error: Exception) -> Response:
        return _answer_to(error)

    app = Starlette(
        routes=[*routes, Route("/spec", spec, methods=["GET"])],
        middleware=middleware,
        exception_handlers=dict.fromkeys(_ANSWERED, answer),
    )
    app.state.stopping = stopping
    return app


def _with_deadline(seconds: float, handler: _Handler) -> _Handler:
    """Return a handler that stops after some seconds, or as soon as the client disconnects."""

    async def handle(request: Request) -> Response:
        await request.body()  # receiving the body has a separate deadline
        gone = asyncio.ensure_future(disconnected(request.receive))
        if response := await until(handler(request), gone, seconds=seconds):
            return response
        if gone.done():
            return _error(DISCONNECTED, "the client disconnected")
        return _error(429, f"the request took longer than {seconds:g} seconds", RETRY_AFTER)

    return handle


def _of_any_length(seconds: float, stopping: asyncio.Event, handler: _Handler) -> _Handler:
    """Return a handler without a deadline, whose answer begins after half of the usual one. Shutdown ends it."""

    async def handle(request: Request) -> Response:
        await request.body()
        request.state.progress = progress = FileProgress()

        async def work() -> Response:
            try:
                return await until(handler(request), stopping.wait()) or _error(503, _STOPPING)
            except Exception as error:
                return _answer_to(error)

        return LongAnswer(work(), progress, seconds / 2)

    return handle


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status, headers=headers)


def _answer_to(error: Exception) -> Response:
    """Return the response to an error. If no client is at fault, log it without its message, which may have a text."""
    match error:
        case InputError():
            return _error(400, one_line(error))
        case QueueFull():
            return _error(429, str(error), RETRY_AFTER)
        case ParsingLimitExceeded():
            return _error(422, "HTML or a file takes too much time or memory to parse")
        case HTTPException():
            return _error(error.status_code, error.detail, error.headers)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    _log.error("%s at %s:%d", type(error).__name__, frame.filename, frame.lineno)
    return _error(500, "internal server error")


def monitor(app: ASGIApp, router: Router, access: Access) -> ASGIApp:
    """Return middleware that refuses and logs requests, limits their size and time to arrive, and adds headers."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        scope = {**scope, "path": re.sub("/{2,}", "/", scope["path"])}
        if scope["method"] == "HEAD":  # uvicorn leaves out the body
            scope["method"] = "GET"
        CLIENT.set(scope["client"][0] if scope.get("client") else "")
        limits = router.limits
        is_file = scope["path"] == "/translate_file"
        max_bytes = OVERHEAD_BYTES + (limits.file if is_file else limits.characters * MAX_BYTES_PER_CHARACTER)
        start = time.monotonic()
        request = _LimitedRequest(receive, send, start + limits.seconds, max_bytes)
        try:
            answer = _refusal(scope, access) or app
            await answer(scope, request.receive, request.send)
        except ClientDisconnect:
            request.status = DISCONNECTED
        except Exception as error:
            answer = _answer_to(error)
            if request.status == 500:
                await answer(scope, receive, send)
        finally:
            seconds = time.monotonic() - start
            path = getattr(scope.get("route"), "path", "none")
            router.metrics.requests.labels(path, request.status).inc()
            router.metrics.seconds.labels(path).observe(seconds)
            entry = {"client": CLIENT.get(), "route": path, "status": request.status}
            _log.info(json.dumps({**entry, "ms": round(1000 * seconds, 1), "bytes": request.size}))

    return handle


def _refusal(scope: Scope, access: Access) -> Response | None:
    """Return the response to a request that is refused before it is read."""
    headers = Headers(scope=scope)
    _, port = scope.get("server") or ("", None)  # none of a Unix socket
    if refusal := access.refusal(scope["method"], headers, port):
        return _error(403, refusal, CLOSE)
    if "content-length" in headers and "transfer-encoding" in headers:
        return _error(400, "a request must not have both Content-Length and Transfer-Encoding", CLOSE)
    return None


@dataclass
class _LimitedRequest:
    """A request with limits on its size and on the time to receive it. Its response gets `HEADERS`."""

    app_receive: Receive
    app_send: Send
    deadline: float  # of the body
    max_bytes: int  # of the body
    size: int = 0  # bytes of the body that have arrived
    is_complete: bool = False  # whether all of it has
    status: int = 500  # of the response

    async def receive(self) -> Message:
        """Return the next part of the body. What exceeds the limit is read, but not returned."""
        while True:
            remaining = None if self.is_complete else max(0.0, self.deadline - time.monotonic())
            try:
                message = await asyncio.wait_for(self.app_receive(), remaining)
            except TimeoutError:
                raise HTTPException(408, "the request was not received in time", CLOSE) from None
            self.is_complete = not message.get("more_body", False)
            self.size += len(message.get("body", b""))
            if self.size <= self.max_bytes:
                return message
            if self.is_complete or self.size > self.max_bytes + DRAIN_BYTES:
                raise HTTPException(413, f"a request must have at most {self.max_bytes:,} bytes", CLOSE)

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message).update(HEADERS)
        await self.app_send(message)
