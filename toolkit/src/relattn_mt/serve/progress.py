"""Answers that may take long, such as the translation of a long file.

An answer that is ready soon is sent as it is. Otherwise the answer begins with status 200 while the work continues, and
its last line is the result, or {"error": …}. Before it, there is an empty line from time to time, which JSON allows and
proxies wait for, or the progress, if the client wants it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

JSON_LINES = b"application/x-ndjson"
_REPORT_SECONDS = 0.5  # between two reports of progress


@dataclass
class FileProgress:
    """Progress of the work for a request."""

    is_wanted: bool = False  # whether the client wants reports
    share: float = 0.0  # of the work that is done
    began: asyncio.Event = field(default_factory=asyncio.Event)  # whether there is something to report

    def report(self, share: float) -> None:
        """Note the share of the work that is done."""
        self.share = share
        if self.is_wanted:
            self.began.set()


class LongAnswer(Response):
    """Answer that is sent while work continues. If the client disconnects, the work is cancelled.

    Args:
        work: Coroutine that returns the response. It raises no error of a client.
        progress: Progress of the work.
        seconds: Time after which the answer begins, and between two empty lines.
    """

    def __init__(self, work: Coroutine[Any, Any, Response], progress: FileProgress, seconds: float) -> None:
        super().__init__()
        self._work = work
        self._progress = progress
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. Raises ClientDisconnect."""
        progress = self._progress
        work = asyncio.ensure_future(self._work)
        gone = asyncio.ensure_future(disconnected(receive))
        began = asyncio.ensure_future(progress.began.wait())
        try:
            await asyncio.wait({work, gone, began}, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return await work.result()(scope, receive, send)
            pause = _REPORT_SECONDS if progress.is_wanted else self._seconds
            media_type = JSON_LINES if progress.is_wanted else b"application/json"
            headers = [(b"content-type", media_type), (b"x-accel-buffering", b"no")]  # nginx sends lines at once
            if not gone.done():
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            while not work.done() and not gone.done():
                line = json.dumps({"progress": round(progress.share, 4)}) if progress.is_wanted else ""
                await send({"type": "http.response.body", "body": f"{line}\n".encode(), "more_body": True})
                await asyncio.wait({work, gone}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientDisconnect
            await send({"type": "http.response.body", "body": work.result().body})
        finally:
            for task in (work, gone, began):
                task.cancel()


async def disconnected(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def until(
    work: Coroutine[Any, Any, Response], end: Awaitable[object], seconds: float | None = None
) -> Response | None:
    """Return the response of `work`. If `end` is done earlier, or time is over, cancel it and return None."""
    tasks = asyncio.ensure_future(work), asyncio.ensure_future(end)
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
