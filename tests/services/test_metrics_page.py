"""The page over HTTP, and clients that are not as they should be; real loopback sockets."""

import asyncio
import contextlib

import pytest

from parl_mq.config.models import NodeConfig
from parl_mq.errors import ConfigError
from parl_mq.observe.prometheus import CONTENT_TYPE
from parl_mq.services import metrics_page
from parl_mq.services.metrics_page import MAX_CLIENTS, serving_metrics
from tests.services.builders import soon

ANYWHERE = NodeConfig(metrics_port=0)
GET = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.fixture
async def port():
    async with serving_metrics(ANYWHERE, lambda: "a 1\n") as address:
        assert address.startswith("http://127.0.0.1:")
        yield int(address.removesuffix("/metrics").rpartition(":")[2])


async def ask(port, request):
    """All that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await soon(reader.read())
    finally:
        await _close(writer)


async def _close(writer):
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_the_page_is_served_with_its_type_and_length(port):
    head, _, body = (await ask(port, GET)).partition(b"\r\n\r\n")
    assert body == b"a 1\n"
    status, *fields = head.decode().split("\r\n")
    assert status == "HTTP/1.1 200 OK"
    assert {f"Content-Type: {CONTENT_TYPE}", "Content-Length: 4", "Connection: close"} <= set(fields)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics?name=loss HTTP/1.0", b"200 OK"),
        (b"GET / HTTP/1.1", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1", b"405 Method Not Allowed"),
        (b"nonsense", b"400 Bad Request"),
    ],
)
async def test_other_requests_get_their_status(port, request_line, status):
    answer = await ask(port, request_line + b"\r\n\r\n")
    assert answer.split(b"\r\n")[0] == b"HTTP/1.1 " + status


async def test_an_endless_request_is_cut_off_and_others_are_served(port):
    assert await ask(port, b"GET /" + b"a" * 100_000) == b""
    assert (await ask(port, GET)).endswith(b"a 1\n")


async def test_a_client_that_says_nothing_is_left_after_a_while(port, monkeypatch):
    monkeypatch.setattr(metrics_page, "PATIENCE_S", 0.05)
    assert await ask(port, b"") == b""


async def test_of_very_many_clients_the_last_are_sent_away(port):
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CLIENTS)]
    answer = await ask(port, GET)
    for _, writer in silent:
        await _close(writer)
    assert answer.startswith(b"HTTP/1.1 503")


async def test_without_a_port_nothing_is_served():
    async with serving_metrics(NodeConfig(), lambda: "") as address:
        assert address is None


async def test_a_port_in_use_is_named_with_what_to_do(port):
    with pytest.raises(ConfigError, match=rf"node\.metrics_port = {port}: .*take another port") as caught:
        async with serving_metrics(NodeConfig(metrics_port=port), lambda: ""):
            pass
    assert "node.metrics_port" in caught.value.keys


async def test_an_address_beyond_this_machine_is_warned_of(caplog):
    async with serving_metrics(NodeConfig(metrics_port=0, metrics_host="0.0.0.0"), lambda: ""):
        pass
    assert "to everybody who reaches this machine" in caplog.text
