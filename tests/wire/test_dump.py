"""Messages in words."""

import msgpack
import numpy as np
import pytest

from parl_mq.errors import WireError
from parl_mq.wire.codec import encode
from parl_mq.wire.dump import in_words
from parl_mq.wire.messages import SampleRequest
from tests.wire.examples import MESSAGES


@pytest.mark.parametrize(("message", "arrays"), MESSAGES, ids=[each.kind for each, _ in MESSAGES])
def test_every_message_is_one_line_that_begins_with_its_kind(message, arrays):
    told = in_words(encode(message, arrays)[0])
    assert told.split(" ")[0] == message.kind
    assert "\n" not in told


def test_fields_and_arrays_are_told():
    frames = encode(SampleRequest(request_id=3, table="main", batch_size=8), {"keys": np.zeros((2, 3), np.uint64)})
    line = "sample request_id=3 table='main' batch_size=8 num_batches=1 rows=True keys:uint64[2,3]"
    assert in_words(frames[0]) == line


def test_long_values_are_cut():
    told = in_words(msgpack.packb({"kind": "new", "text": "x" * 1000, "list": list(range(1000)), "half": 0.5}))
    assert told.startswith("new text='xxx")
    assert "[0, 1, 2, 3, 4, 5, ... 994 more]" in told
    assert len(told) < 200


@pytest.mark.parametrize("name", ["text", "arrays"])
def test_what_is_nested_very_deep_is_an_error(name):
    header = msgpack.packb({name: []})[:-1] + 1000 * b"\x91" + b"\x00"
    with pytest.raises(WireError, match="nested too deep"):
        in_words(header)


@pytest.mark.parametrize("header", [b"", b"\xff", msgpack.packb([1]), msgpack.packb({"arrays": 5})])
def test_what_is_no_header_is_an_error(header):
    with pytest.raises(WireError):
        in_words(header)
