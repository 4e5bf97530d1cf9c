"""The wire format, pinned: each message kind against a file (tests/wire/examples.py says how to write them anew)."""

from typing import get_args

import numpy as np
import pytest

from parl_mq.wire import messages
from parl_mq.wire.codec import Decoder
from parl_mq.wire.messages import FromHub, FromReplay, ToHub, ToReplay, Weights
from tests.wire.examples import GOLDEN, MESSAGES, golden_bytes, golden_frames, golden_path

UNIONS = [ToHub, FromHub, Weights, ToReplay, FromReplay]
each_message = pytest.mark.parametrize(("message", "arrays"), MESSAGES, ids=[each.kind for each, _ in MESSAGES])


def unions_with(message):
    return [union for union in UNIONS if type(message) in get_args(get_args(union)[0])]


@each_message
def test_encoding_gives_the_golden_bytes(message, arrays):
    assert golden_bytes(message, arrays) == golden_path(message).read_bytes()


@each_message
def test_golden_bytes_decode_to_the_message_and_its_arrays(message, arrays):
    frames = golden_frames(golden_path(message).read_bytes())
    for union in unions_with(message):
        decoded, views = Decoder(union)(frames)
        assert decoded == message
        assert views.keys() == arrays.keys()
        for name, view in views.items():
            np.testing.assert_array_equal(view, arrays[name], strict=True)


@each_message
def test_each_message_has_a_receiver(message, arrays):
    assert unions_with(message)


def test_every_kind_of_message_has_an_example_and_every_file_a_message():
    kinds = [
        each.model_fields["kind"].default
        for each in vars(messages).values()
        if isinstance(each, type) and issubclass(each, messages.Message) and each is not messages.Message
    ]
    assert sorted(kinds) == sorted(message.kind for message, _ in MESSAGES)
    assert sorted(kinds) == sorted(path.stem for path in GOLDEN.iterdir())
