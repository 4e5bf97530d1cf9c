"""Serves one page over HTTP: the hub's figures, for Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from types import TracebackType
from typing import Final

from parl_mq.config.models import NodeConfig
from parl_mq.errors import ConfigError
from parl_mq.observe.prometheus import CONTENT_TYPE

PATH: Final = "/metrics"
PATIENCE_S: Final = 5.0
"""A client has this long to say what it wants, and to take it."""
MAX_REQUEST_BYTES: Final = 8 * 1024
MAX_CLIENTS: Final = 16
"""At once; more are sent away."""

log = logging.getLogger("parl_mq")


@asynccontextmanager
async def serving_metrics(node: NodeConfig, page: Callable[[], str]) -> AsyncIterator[str | None]:
    """Serves what `page` gives while the block is open, where `node.metrics_port` asks for it.

    Gives:
        The page's address, or None.

    Raises:
        ConfigError: the address is in use, or none of this machine's.
    """
    if node.metrics_port is None:
        yield None
        return
    host = node.metrics_host
    endpoint = _Endpoint(page)
    try:
        server = await asyncio.start_server(endpoint.begin, host, node.metrics_port, limit=MAX_REQUEST_BYTES)
    except OSError as error:
        raise ConfigError(
            f"node.metrics_port = {node.metrics_port}: metrics cannot be served at {host}: {error.strerror or error}; "
            "take another port, or 0 for any free one"
        ).about("node.metrics_port", "node.metrics_host") from error
    async with endpoint, server:
        address = f"http://{_written(host)}:{server.sockets[0].getsockname()[1]}{PATH}"
        if not is_loopback(host):
            log.warning("metrics are served at %s, to everybody who reaches this machine", address)
        yield address


class _Endpoint:
    """Answers GET of one path, one request a connection."""

    def __init__(self, page: Callable[[], str]) -> None:
        self._page = page
        self._clients: set[asyncio.Task[None]] = set()
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> None:
        await self._tasks.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves those who have not been answered yet."""
        for client in self._clients:
            client.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client has come."""
        client = self._tasks.create_task(self._answer(reader, writer))
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reads a request and writes the answer; whatever a client does, it harms nobody else."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._response_to(head.split(b"\r\n")[0]))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # it has gone, or never said what it wants
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await asyncio.wait_for(writer.wait_closed(), PATIENCE_S)

    def _response_to(self, request: bytes) -> bytes:
        if len(self._clients) > MAX_CLIENTS:
            return _response("503 Service Unavailable", "too many clients at once\n")
        match request.split(b" "):
            case [b"GET", target, b"HTTP/1.1" | b"HTTP/1.0"] if target.split(b"?")[0] == PATH.encode():
                return _response("200 OK", self._page(), CONTENT_TYPE)
            case [b"GET", _, b"HTTP/1.1" | b"HTTP/1.0"]:
                return _response("404 Not Found", f"the metrics are at {PATH}\n")
            case [_, _, _]:
                return _response("405 Method Not Allowed", "there is nothing but GET\n", more="Allow: GET\r\n")
            case _:
                return _response("400 Bad Request", "this is no request\n")


def _response(status: str, text: str, kind: str = "text/plain; charset=utf-8", more: str = "") -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}Connection: close\r\n\r\n"
    )
    return head.encode() + body


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host else host
