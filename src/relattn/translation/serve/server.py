"""The process of a server: its socket, its log, and its end, which waits for what was accepted."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import uvicorn

from relattn.translation.config import SearchConfig
from relattn.translation.errors import InputError, reason
from relattn.translation.serve.app import make
from relattn.translation.serve.keys import Keys
from relattn.translation.serve.limits import Limits
from relattn.translation.serve.models import Models, Pair
from relattn.translation.translate.pipeline import Translator


def serve(
    translators: Mapping[Pair, Translator],
    *,
    searches: Mapping[Pair, SearchConfig] | None = None,
    host: str,
    port: int,
    pivot: str = "",
    keys: Path | None = None,
    cors: Sequence[str] = (),
    limits: Limits,
) -> None:
    """Answer requests until SIGTERM or Ctrl-C; then take no more, and end when those that were taken are answered.

    Args:
        translators: translator of each language pair.
        searches: search of each language pair; that of its translator by default.
        host: the address to listen at.
        port: of it; 0 for one that is free.
        pivot: a language through which texts go between two that no model serves; none where empty.
        keys: file of the keys that are let in; anybody is where None.
        cors: origins whose pages may use it from a browser.
        limits: of what is taken.

    Raises:
        InputError: the address cannot be had, no model reads or writes the pivot, or the keys cannot be read.
    """
    app = make(
        Models(translators, searches=searches, pivot=pivot, limits=limits),
        limits,
        keys=Keys(keys) if keys is not None else None,
        cors=cors,
    )
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise InputError(f"cannot listen at {host}, port {port}: {reason(error)}") from error
    # asyncio does this for sockets that know their protocol alone. Without it the body of an answer, which follows its
    # head, waits 40 ms for the client to say that it has the head. Connections have it from here.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    pairs = ", ".join(f"{source} to {target}" for source, target in sorted(translators))
    shown = f"[{host}]" if ":" in host else host
    print(f"{pairs}: http://{shown}:{listening.getsockname()[1]}/", flush=True)
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(limits.seconds) + 1,
    )
    with listening:
        uvicorn.Server(config).run(sockets=[listening])
