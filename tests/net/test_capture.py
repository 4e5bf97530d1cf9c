"""Captures of messages, written and read."""

import json

import pytest

from parl_mq.errors import RecordError
from parl_mq.net import capture as capture_module
from parl_mq.net.capture import Capture, Captured, read_capture
from parl_mq.net.zmq_channel import Network


def written(path, *messages):
    capture = Capture(path, lambda: 5.0)
    for frames in messages:
        capture.note(frames, sent=True, endpoint="ipc:///hub", peer=b"\x00\x01")
    capture.close()


def test_messages_are_read_back_in_order_without_their_slabs(tmp_path):
    written(tmp_path / "c", [b"one"], [b"two", bytes(100)])
    assert list(read_capture(tmp_path / "c")) == [
        Captured(5.0, True, "ipc:///hub", "0001", b"one", 0),
        Captured(5.0, True, "ipc:///hub", "0001", b"two", 100),
    ]


def test_a_process_that_starts_again_adds_to_the_file(tmp_path):
    written(tmp_path / "c", [b"one"])
    written(tmp_path / "c", [b"two"])
    assert [message.header for message in read_capture(tmp_path / "c")] == [b"one", b"two"]


def headers_until_refused(path, match):
    """The headers of the whole messages in front of a damaged one."""
    headers = []
    with pytest.raises(RecordError, match=match):
        headers.extend(message.header for message in read_capture(path))  # what came before the error is kept
    return headers


@pytest.mark.parametrize("num_cut", [1, 4, 7, 8, 60])
def test_a_message_that_was_cut_short_is_told_of_behind_the_whole_ones(tmp_path, num_cut):
    path = tmp_path / "c"
    written(path, [b"one"], [b"two"])
    path.write_bytes(path.read_bytes()[:-num_cut])
    assert headers_until_refused(path, "/c is damaged: message 2: it is cut short") == [b"one"]


def test_a_length_that_no_capture_can_have_is_damage(tmp_path):
    path = tmp_path / "c"
    written(path, [b"one"])
    path.write_bytes(path.read_bytes() + b"\xff" * 100)
    assert headers_until_refused(path, "/c is damaged: message 2: it is cut short, or its length is wrong") == [b"one"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("time", 1e30),
        ("time", "a"),
        ("time", float("nan")),
        ("time", None),
        ("time", -1),
        ("slab_bytes", "x"),
        ("slab_bytes", -1),
        ("slab_bytes", True),
        ("sent", 1),
        ("endpoint", 3),
        ("peer", []),
    ],
)
def test_what_goes_with_a_message_is_checked_and_named(tmp_path, field, value):
    path = tmp_path / "c"
    written(path, [b"one"])
    about = {"time": 5.0, "sent": True, "endpoint": "e", "peer": "", "slab_bytes": 0, field: value}
    parts = [json.dumps(about).encode(), b"two"]
    damaged = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    path.write_bytes(path.read_bytes() + damaged)
    assert headers_until_refused(path, f"/c is damaged: message 2: .*{field} ") == [b"one"]


def test_a_capture_has_a_largest_size(tmp_path, monkeypatch):
    monkeypatch.setattr(capture_module, "MAX_CAPTURE_BYTES", 1000)
    written(tmp_path / "c", *([bytes(50)] for _ in range(100)))
    assert (tmp_path / "c").stat().st_size < 1000 + len(capture_module.MAGIC)


@pytest.mark.parametrize("content", [b"", b"something else", capture_module.MAGIC + b"\x01\0\0\0{\x01\0\0\0a"])
def test_what_is_no_capture_is_refused_by_its_path(tmp_path, content):
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(RecordError, match="/c is "):
        list(read_capture(tmp_path / "c"))


def test_a_missing_capture_is_named(tmp_path):
    with pytest.raises(RecordError, match="cannot be read: No such file"):
        list(read_capture(tmp_path / "c"))


async def test_both_ends_of_a_connection_are_captured(tmp_path):
    endpoint = f"ipc://{tmp_path}/s"
    network = Network(capture=Capture(tmp_path / "c", lambda: 1.0))
    try:
        server, client = network.bind(endpoint), network.connect(endpoint)
        await client.send([b"question"])
        [(peer, _)] = await server.receive_many()
        server.try_send(peer, [b"answer", b"slab"])
        await client.receive_many()
    finally:
        network.close()
    seen = [(message.sent, message.header, message.slab_bytes) for message in read_capture(tmp_path / "c")]
    assert seen == [(True, b"question", 0), (False, b"question", 0), (True, b"answer", 4), (False, b"answer", 4)]
