"""An actor's sending half as a process of its own: `python -m tests.process.sender ENDPOINT NAME`.

It sends fragments of large observations as fast as its credit allows, until it is killed. Each row carries a checksum
of its observation.
"""

from __future__ import annotations

import asyncio
import sys
import time
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from parl_mq.fragments import FragmentBatch
from parl_mq.net.channel import Frame
from parl_mq.net.credit import SenderBook
from parl_mq.net.zmq_channel import Network
from parl_mq.services.replay_link import ReplayLink
from parl_mq.spec import TableSpec
from parl_mq.wire.codec import encode
from parl_mq.wire.fragments import arrays_of
from parl_mq.wire.messages import MAIN_TABLE, PROTOCOL_VERSION, Attach, Attached, Credit, InsertFragments, Message

OBS_BYTES = 200 * 1024
SPEC = TableSpec.of({"obs": ((OBS_BYTES,), "uint8"), "action": ((), "int64"), "checksum": ((), "int64")})
LIVE = 4


def fragment(rng: np.random.Generator) -> FragmentBatch:
    """LIVE steps of random observations."""
    rows = LIVE + 1
    obs = rng.integers(0, 256, (rows, OBS_BYTES), np.uint8)
    return FragmentBatch(
        columns={
            "obs": obs,
            "action": np.zeros(rows, np.int64),
            "checksum": np.array([zlib.crc32(row.tobytes()) for row in obs], np.int64),
            "reward": np.zeros(rows, np.float32),
            "terminated": np.zeros(rows, bool),
            "truncated": np.zeros(rows, bool),
        },
        lengths=np.array([LIVE], np.int32),
        num_context=np.zeros(1, np.int32),
        num_overlap=np.zeros(1, np.int32),
        starts_episode=np.ones(1, bool),
        priorities=None,
        versions=np.zeros((1, 2), np.uint32),
    )


async def send(endpoint: str, name: str) -> None:
    """Attaches and sends without an end."""
    book, changed, rng = SenderBook(), asyncio.Event(), np.random.default_rng(time.time_ns())

    def handle(message: Message, arrays: dict[str, npt.NDArray[Any]]) -> list[list[Frame]]:
        again: list[list[Frame]] = []
        if isinstance(message, Attached):
            counted = {"counted_rows": message.counted_rows, "counted_bytes": message.counted_bytes}
            again = book.reattach(message.last_sequence, **counted)
        if isinstance(message, Credit):
            book.acknowledge(message.last_sequence)
        if isinstance(message, Attached | Credit):
            book.grant(message.credit_rows, message.credit_bytes)
        changed.set()
        return again

    attach = Attach(
        protocol=PROTOCOL_VERSION,
        run_id="run",
        role="actor",
        name=name,
        epoch=time.time_ns(),
        table=MAIN_TABLE,
        digest=SPEC.digest,
    )
    link = ReplayLink(Network().connect(endpoint), attach, handle)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(link.run())
        while True:
            changed.clear()
            if book.available_rows < LIVE:
                await changed.wait()
                continue
            rows = fragment(rng)
            frames = encode(InsertFragments(sequence=book.next_sequence, table=MAIN_TABLE), arrays_of(rows))
            book.add(frames, rows=rows.num_live, num_bytes=rows.num_bytes)
            await link.channel.send(frames)


if __name__ == "__main__":
    asyncio.run(send(*sys.argv[1:3]))
