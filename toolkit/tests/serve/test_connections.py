"""Connections with limits: clients that send slowly, and too many at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import uvicorn
from relattn_mt.serve.connections import connection_type
from relattn_mt.serve.limits import Limits

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def answer_late(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """An application that takes longer than a header may take."""
    await asyncio.sleep(0.5)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def server(limits: Limits) -> AsyncIterator[int]:
    """Serve on a free port, which is returned."""
    options: dict[str, Any] = {"lifespan": "off", "log_config": None, "http": connection_type(limits)}
    running = uvicorn.Server(uvicorn.Config(answer_late, port=0, **options))
    task = asyncio.create_task(running.serve())
    while not running.started:
        await asyncio.sleep(0.01)
    try:
        yield running.servers[0].sockets[0].getsockname()[1]
    finally:
        running.should_exit = running.force_exit = True
        await task


async def received(reader: asyncio.StreamReader) -> bytes:
    """Return a whole answer."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    return head + await reader.readexactly(length)


async def open_connection(stack: AsyncExitStack, port: int) -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    stack.callback(writer.close)
    return reader, writer


@pytest.mark.parametrize("answered", [0, 1, 2])
def test_a_header_that_does_not_end_is_refused(answered: int) -> None:
    """Also after other requests of the connection, whose answers take longer than a header may take."""

    async def run() -> None:
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(server(Limits(header=0.2)))
            reader, writer = await open_connection(stack, port)
            for _ in range(answered):
                writer.write(GET)
                assert b" 200 " in await received(reader)
            writer.write(GET[:-2])
            assert b" 408 " in await received(reader)
            assert await asyncio.wait_for(reader.read(), 20) == b""  # it is closed

    asyncio.run(run())


def test_a_client_has_half_of_the_connections() -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(server(Limits(connections=5)))
            for status in (b" 200 ", b" 200 ", b" 429 "):
                reader, writer = await open_connection(stack, port)
                writer.write(GET)
                assert status in await received(reader)

    asyncio.run(run())
