"""Process of a server: its socket, its log, and its shutdown."""

from __future__ import annotations

import gc
import json
import logging
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import uvicorn

from relattn_mt.serve.access import ANY, Access, is_loopback
from relattn_mt.serve.app import make_app
from relattn_mt.serve.connections import connection_type
from relattn_mt.serve.routing import Router
from relattn_mt.support.errors import InputError, reason, require

_SHOWN = 20  # pairs of languages that the first line names


def serve(
    router: Router,
    *,
    host: str,
    port: int,
    keys: Path | None,
    hosts: Sequence[str],
    cors: Sequence[str],
    proxies: Sequence[str],
) -> None:
    """Serve translations until SIGTERM or Ctrl-C. Arguments are those of the command.

    Accepted requests are answered, files with an error. Raises InputError if the address or the keys cannot be used.
    """
    require(host, "host must be an address to listen on, such as 127.0.0.1, or 0.0.0.0 for all, got ''")
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise InputError(f"cannot listen on {host}, port {port}: {reason(error)}") from error
    with listener:
        # asyncio sets TCP_NODELAY only on sockets whose protocol it knows. Without it, the body of a response waits
        # 40 ms for the client to acknowledge the header. Connections inherit it from this socket.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        address, port = listener.getsockname()[:2]  # "0" is the name of all addresses, for example
        accepts_all = ANY in hosts or not (hosts or is_loopback(address))
        names = None if accepts_all else [name.lower() for name in hosts]
        app = make_app(router, keys=keys, access=Access(names, cors))
        pairs = ", ".join(map(" to ".join, router.pairs[:_SHOWN]))
        pairs += ", …" * (len(router.pairs) > _SHOWN)
        place = f"[{address}]" if ":" in address else address
        print(f"{pairs}: http://{place}:{port}/", flush=True)
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            http=connection_type(router.limits),
            forwarded_allow_ips=list(proxies),
            timeout_graceful_shutdown=int(router.limits.seconds) + 1,
        )
        gc.freeze()  # a collection would visit all objects of the models and libraries, while requests wait
        with _json_log():
            _Server(config).run(sockets=[listener])


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the requests that were accepted. Files are not finished: nobody could download them."""
        self.config.app.state.stopping.set()  # type: ignore[union-attr]
        await super().shutdown(sockets)


@contextmanager
def _json_log() -> Iterator[None]:
    """Log requests and errors as a JSON object per line on standard error.

    Warnings of libraries are left out: they concern requests that are refused with a message, and may contain texts.
    """
    root = logging.getLogger()
    handler = logging.StreamHandler(sys.stderr)
    before = root.handlers
    handler.setFormatter(_JsonFormatter())
    handler.addFilter(lambda record: record.name == "relattn_mt.serve" or record.levelno >= logging.ERROR)
    root.handlers = [handler]
    try:
        yield
    finally:
        root.handlers = before


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return a JSON object. The messages of requests are JSON already.

        Tracebacks, and lines after the first, may contain texts: asyncio writes there what an error is.
        """
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        message = record.getMessage()
        is_error = record.levelno >= logging.ERROR
        fields = {"logger": record.name, "message": message.split("\n")[0]} if is_error else json.loads(message)
        return json.dumps({"time": time, "level": record.levelname.lower(), **fields})
