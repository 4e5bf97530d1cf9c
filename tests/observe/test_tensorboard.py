"""Event files: checksums of RFC 3720, records and messages read back by a reader of the test's own."""

import struct

import pytest

from parl_mq.observe.tensorboard import EventFile, crc32c


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_checksums_are_those_of_the_standard(content, expected):
    assert crc32c(content) == expected


def test_the_first_record_is_the_one_that_other_writers_write(tmp_path):
    """As tensorboardX 2.6 writes it at time 1.0."""
    file = EventFile(tmp_path / "tensorboard", 1.0, "host")
    assert file.path.name == "events.out.tfevents.0000000001.host"
    assert file.path.read_bytes()[12:-4].hex() == "09000000000000f03f1a0d" + b"brain.Event:2".hex()


def test_scalars_are_read_back(tmp_path):
    file = EventFile(tmp_path / "tensorboard", 1.0, "host")
    file.write(2.5, 300, {"learner/loss": 0.25, "eval/eval_return": -1e9})
    file.write(3.5, 70_000, {"learner/loss": 0.5})
    head, first, second = [_message(content) for content in _records(file.path.read_bytes())]
    assert head == {1: [struct.pack("<d", 1.0)], 3: [b"brain.Event:2"]}
    assert _event(first) == (2.5, 300, {"learner/loss": 0.25, "eval/eval_return": -1e9})
    assert _event(second) == (3.5, 70_000, {"learner/loss": 0.5})


def _records(content):
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        assert _unmasked(content[8:12]) == crc32c(content[:8])
        yield (found := content[12 : 12 + length])
        assert _unmasked(content[12 + length : 16 + length]) == crc32c(found)
        content = content[16 + length :]


def _unmasked(content):
    rotated = (struct.unpack("<I", content)[0] - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def _event(message):
    values = [_message(value) for value in _message(message[5][0])[1]]
    scalars = {value[1][0].decode(): struct.unpack("<f", value[2][0])[0] for value in values}
    return struct.unpack("<d", message[1][0])[0], message[2][0], scalars


def _message(content):
    """Field number -> its values, by the rules of protocol buffers."""
    fields = {}
    while content:
        key, content = _varint(content)
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            value, content = _varint(content)
        else:
            if size is None:
                size, content = _varint(content)
            value, content = content[:size], content[size:]
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(content):
    value = 0
    for place, byte in enumerate(content):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, content[place + 1 :]
    raise AssertionError("cut off")


def test_what_no_float32_holds_is_infinite(tmp_path):
    file = EventFile(tmp_path / "tensorboard", 1.0, "host")
    file.write(2.0, 1, {"return": -1e300})
    assert struct.pack("<f", -float("inf")) in file.path.read_bytes()
