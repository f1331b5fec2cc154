"""What stands before every route: how much may come and how slowly, the headers of answers, the log and the counts.

A line of the log is a JSON object with the route, the status, the time and the size; never a text or a key, nor an
address that has one in it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relattn.translation.serve.limits import Limits
from relattn.translation.serve.metrics import Measures

ROOM = 65_536  # bytes of a request beside its texts
LARGEST_CHARACTER = 12  # bytes in JSON
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
_log = logging.getLogger("relattn.serve")


class Guard:
    """An application behind limits.

    Args:
        app: the application.
        limits: of what is taken.
        measures: that are told of each request.
    """

    def __init__(self, app: ASGIApp, *, limits: Limits, measures: Measures) -> None:
        self._app, self._measures, self._seconds = app, measures, limits.seconds
        self._largest = limits.characters * LARGEST_CHARACTER + ROOM
        self._largest_file = limits.file + ROOM

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, got, coming = time.monotonic(), 500, 0, True
        largest = self._largest_file if scope["path"] == "/translate_file" else self._largest

        async def received() -> Message:
            nonlocal got, coming
            left = self._seconds - (time.monotonic() - began)
            try:
                message = await asyncio.wait_for(receive(), max(0.0, left) if coming else None)
            except TimeoutError:
                raise HTTPException(408, "the request took too long to come", {"Connection": "close"}) from None
            coming = message.get("more_body", False)
            got += len(message.get("body", b""))
            if got > largest:
                raise HTTPException(413, f"a request of more than {largest:,} bytes", {"Connection": "close"})
            return message

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), *_HEADERS]}
            await send(message)

        try:
            await self._app(scope, received, sent)
        except Exception as error:
            _log.error("%s at %s", type(error).__name__, _place(error))
            if status == 500:
                await JSONResponse({"error": "an error of the server's"}, 500)(scope, receive, sent)
        finally:
            self._told(scope, status, time.monotonic() - began, got)

    def _told(self, scope: Scope, status: int, seconds: float, got: int) -> None:
        route: Any = scope.get("route")
        path = getattr(route, "path", "none")
        self._measures.requests.labels(path, status).inc()
        self._measures.seconds.labels(path).observe(seconds)
        _log.info(json.dumps({"route": path, "status": status, "ms": round(1000 * seconds, 1), "bytes": got}))


def _place(error: BaseException) -> str:
    """Where an error was raised; what it says may be a client's words."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno}"
