"""What both implementations of the channels agree on: how many frames, of what size, how many messages at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from parl_mq.net.channel import Frame

MAX_FRAMES: Final = 2
"""A header and a slab. With three, a message that a dying connection cuts short could not be taken back whole."""
MESSAGES_PER_CALL: Final = 64
"""Messages that one receive returns at most, so that other tasks get their turn."""
QUEUE_MESSAGES: Final = 1000
"""Messages that may wait at each end of a connection; a second line of defence behind credit."""
MAX_MESSAGE_BYTES: Final = 256 * 1024 * 1024
"""Of one frame, where the caller does not say."""
MAX_EVENTS: Final = 256
"""Link events that wait to be taken; more than that are old news."""


def checked(frames: Sequence[Frame], max_message_bytes: int) -> list[memoryview]:
    """Views on the frames of a message that can be sent.

    Raises:
        ValueError: there are not one or two frames, or one is larger than the receiver would take.
        TypeError: a frame is not bytes-like, or its bytes do not lie one after the other.
    """
    if not 1 <= len(frames) <= MAX_FRAMES:
        raise ValueError(f"a message has 1 to {MAX_FRAMES} frames, not {len(frames)}")
    views = [memoryview(frame) for frame in frames]
    for view in views:
        if not view.c_contiguous:
            raise TypeError("a frame's bytes must lie one after the other")
        if view.nbytes > max_message_bytes:
            raise ValueError(f"a frame of {view.nbytes} bytes, at most {max_message_bytes} may be sent on this channel")
    return views
