"""Replay nodes for tests: real desks and tables on the in-memory channel, which may be silent or cut off."""

from __future__ import annotations

import numpy as np

from parl_mq.replay.table import Table
from parl_mq.services.replay_desk import ReplayDesk
from parl_mq.services.tables import limiter, table_settings
from parl_mq.wire.codec import Decoder
from parl_mq.wire.messages import ToReplay
from tests.services.builders import SPEC


class DeskNode:
    """One replay node.

    Attributes:
        is_silent: it neither reads nor answers, until `wake`.
        received: messages that it has read.
    """

    def __init__(self, network, name, config, *, clock, directory=None):
        self.is_silent = False
        self.received = []
        self.table = Table(table_settings(config), SPEC, directory=directory, rng=np.random.default_rng(len(name)))
        self.limiter = limiter(config, self.table.words)
        self.desk = ReplayDesk(self.table, self.limiter, SPEC, config, "run")
        self.server = network.bind(name)
        self._clock = clock
        self._unread = []
        self._decode = Decoder(ToReplay)

    def insert(self, batch):
        """Rows that are there without an actor."""
        self.table.insert(batch)
        self.limiter.note_inserted(batch.num_live)

    async def run(self):
        while True:
            self._unread += await self.server.receive_many()
            if not self.is_silent:
                self.wake()

    def wake(self):
        """Reads what has come, and answers."""
        self.is_silent = False
        unread, self._unread = self._unread, []
        for peer, frames in unread:
            message, arrays = self._decode(frames)
            self.received.append(message)
            self.desk.handle(peer, message, arrays)
        self.send()

    def send(self):
        for peer, frames in self.desk.due(self._clock()):
            self.server.try_send(peer, frames)
