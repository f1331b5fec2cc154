"""Connections of a server: how many there are, and how long they may take to send a header and to read an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from relattn_mt.serve.limits import Limits


def connection_type(limits: Limits) -> type[H11Protocol]:
    """Return uvicorn's class of connections, with limits. A client has at most half of the connections."""

    class Connection(H11Protocol):
        timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            connections: Iterable[Any] = self.connections
            hosts = [each.client and each.client[0] for each in connections]  # without ports
            of_client = hosts.count(self.client and self.client[0])
            if len(hosts) > limits.connections or of_client > max(1, limits.connections // 2):
                self._refuse("429 Too Many Requests", "there are too many connections")
            else:
                self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.timer is None and not self._is_answering():
                self._start_timer()
            super().data_received(data)
            if self._is_answering():
                self._stop_timer()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stop_timer()
            self.timer = self.loop.call_later(limits.seconds, self.transport.abort)  # the client does not read

        def resume_writing(self) -> None:
            self._stop_timer()
            super().resume_writing()

        def shutdown(self) -> None:
            """Close the connection; if a request is being answered, with its answer, which says so."""
            super().shutdown()
            if self._is_answering():
                headers = [*self.scope["headers"], (b"connection", b"close")]
                self.scope["headers"] = headers  # uvicorn answers with the same header

        def send_400_response(self, msg: str) -> None:
            self._refuse("400 Bad Request", "the request must be valid HTTP")

        def _is_answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _start_timer(self) -> None:
            message = "the header of a request was not received in time"
            self.timer = self.loop.call_later(limits.header, self._refuse, "408 Request Timeout", message)

        def _stop_timer(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def _refuse(self, status: str, message: str) -> None:
            """Answer with an error, and close the connection."""
            body = json.dumps({"error": message}).encode()
            head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            self.transport.write(f"{head}Retry-After: 2\r\nConnection: close\r\n\r\n".encode() + body)
            self.transport.close()

    return Connection
