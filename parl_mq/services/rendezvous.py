"""A learner's half of how groups come about: it says that it is ready, and hears of groups that begin and end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Final

from parl_mq.services.hub_link import HubLink
from parl_mq.services.runtime import StopSignal
from parl_mq.wire.messages import GroupEnded, GroupFormed, GroupWaiting, LearnerReady

REPEAT_S: Final = 1.0
"""A learner says again that it is ready: the hub may be another one, and its answer tells who is missing."""
LOOPBACK: Final = "127.0.0.1"

log = logging.getLogger("parl_mq")


class Rendezvous:
    """One learner's, for as long as it lives.

    Attributes:
        host: this machine's address for other learners.
    """

    def __init__(
        self, link: HubLink, stop: StopSignal, *, device: str, host: str = LOOPBACK, store: tuple[str, int] | None
    ) -> None:
        """Hears what the hub says from now on.

        Args:
            link: to the hub.
            stop: of this node.
            device: that the learner computes on.
            host: see above.
            store: where it would let a group meet; None where none needs that.
        """
        self.host = host
        self._link = link
        self._stop = stop
        self._device = device
        self._store = store
        self._formed: GroupFormed | None = None
        self._has_formed = asyncio.Event()
        self._heard_of = self._joined = 0
        self._ended, self._end_reason = 0, ""
        self._has_ended = asyncio.Event()
        self._waiting_for = "the hub to form a group of learners"
        self._reason = ""
        link.on_group = self._hear

    async def next_group(self, *, updates: int, reason: str = "") -> GroupFormed:
        """Says that this learner is ready until it is in a new group, the newest one that is not over.

        Args:
            updates: in the state that it holds.
            reason: why its last group is over.
        """
        ready = LearnerReady(
            generation=self._joined, updates=updates, device=self._device, store=self._store, reason=reason[:2000]
        )
        self._reason = reason
        while True:
            self._link.send(ready)
            self._link.status.waits(lambda: self._waiting_for)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPEAT_S):
                    await self._has_formed.wait()
            if (formed := self.take_formed()) is not None:
                return formed

    def take_formed(self) -> GroupFormed | None:
        """The group that the hub has formed for this learner, if there is one that is not over."""
        formed, self._formed = self._formed, None
        self._has_formed.clear()
        if formed is not None:
            self._joined = formed.generation
        return formed

    async def ended(self, generation: int) -> str:
        """Waits until the hub says that this group is over; the reason."""
        while not self.has_ended(generation):
            self._has_ended.clear()
            await self._has_ended.wait()
        return self._end_reason

    def has_ended(self, generation: int) -> bool:
        """Whether this group is over for the hub, as it has said before the stop: others may be at work since."""
        return generation <= self._ended

    def _hear(self, message: GroupFormed | GroupWaiting | GroupEnded) -> None:
        match message:
            case GroupFormed():
                if message.generation > self._heard_of:
                    self._tell_reason()
                    self._end(self._heard_of, "another group has been formed")
                    self._heard_of, self._formed = message.generation, message
                    self._has_formed.set()
            case GroupWaiting():
                self._end(self._joined, "the hub has this learner in no group")
                if message.reason != self._waiting_for:
                    log.info("waiting for %s", message.reason)
                self._waiting_for = message.reason
                self._tell_reason()
            case GroupEnded():
                self._end(message.generation, message.reason)

    def _end(self, generation: int, reason: str) -> None:
        """This group and all before it are over; at the stop all groups are, and that none went on says nothing."""
        if generation <= self._ended or self._stop.is_set():
            return
        self._ended, self._end_reason = generation, reason
        self._has_ended.set()
        if self._formed is not None and self._formed.generation <= generation:
            self._formed = None
            self._has_formed.clear()

    def _tell_reason(self) -> None:
        """Only now that the hub answers: at the run's end groups break without any consequence."""
        if self._reason:
            log.warning("the group of learners is over: %s", self._reason)
            self._reason = ""


def own_address(hub: str) -> str:
    """The address of this machine at which others that reach the hub can reach it.

    Args:
        hub: endpoint of the hub.
    """
    if not hub.startswith("tcp://"):
        return LOOPBACK
    host, _, port = hub.removeprefix("tcp://").rpartition(":")
    family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as route:
        route.connect(address)  # sends nothing: only the route is looked up
        return str(route.getsockname()[0])
