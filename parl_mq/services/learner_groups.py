"""Which learners make a group, when it is over, and who broke it; pure, a part of what the hub decides.

A group has as many learners as the run's settings say. It ends as soon as one of them is lost or silent: the hub says
so to the others, by the lost one's name, and all of them report again. Learners beyond those of the group wait and take
the place of one that is lost. Those that have the most updates are taken first: no state is lost that somebody holds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Literal

from parl_mq.errors import EXIT_CONFIG
from parl_mq.net.endpoints import is_private
from parl_mq.services.roster import Node, Roster
from parl_mq.wire.messages import GroupEnded, GroupFormed, GroupWaiting, HelloRefused, LearnerReady, Message

log = logging.getLogger("parl_mq")


class LearnerGroups:
    """The groups of a run, one after the other.

    Attributes:
        generation: of the newest one; 0 before the first.
        members: names of the learners of the group at work; empty where none is.
    """

    def __init__(
        self, roster: Roster, size: int, generation: int, silence_limit_s: float, *, members: Iterable[str] = ()
    ) -> None:
        """Goes on after the groups that there were.

        Args:
            roster: of the run.
            size: learners of a group.
            generation: of the last one.
            silence_limit_s: without a sign of life a learner of a group counts as lost.
            members: of the group that an earlier hub has left at work.
        """
        self.generation = generation
        self.members = tuple(members)
        self._roster = roster
        self._size = size
        self._silence_limit_s = silence_limit_s
        self._ready: dict[str, LearnerReady] = {}
        self._missing: dict[str, str] = {}
        self._formed: dict[str, GroupFormed] = {}
        self._begun_with = 0
        self._first = self.members[0] if self.members else None

    def is_led_by(self, name: str) -> bool:
        """Whether this learner tells how far the run is: rank 0 of the newest group does, also when that is over."""
        return self._first in (None, name)

    def note_at_work(self, node: Node, generation: float) -> list[tuple[Node, Message]]:
        """A learner says in which group it is; where that one is over, it has not heard so."""
        is_at_work = node.name in self.members and generation == self.generation
        if is_at_work or not 1 <= generation <= self.generation:
            return []
        reason = f"it went on without {node.name}, or has ended"
        return [(node, GroupEnded(generation=int(generation), reason=reason))]

    def note_ready(self, node: Node, ready: LearnerReady, now: float) -> list[tuple[Node, Message]]:
        """A learner can begin; where it is in the newest group, that one is over."""
        outgoing: list[tuple[Node, Message]] = []
        if node.name in self.members and ready.generation < self.generation and node.name in self._formed:
            return [(node, self._formed[node.name])]  # it has not heard of its group
        if node.name in self.members:
            outgoing = self._end(f"{node.name} has left it: {ready.reason or 'it begins anew'}", but=node.name)
        self._ready[node.name] = ready
        self._missing.pop(node.name, None)
        return [*outgoing, *self._form(now), *self._tell_waiting(node.name)]

    def note_gone(self, name: str, how: str) -> list[tuple[Node, Message]]:
        """A learner's process is gone, or another one has its name."""
        self._ready.pop(name, None)
        if name in self._missing:
            self._missing[name] = how
        if name not in self.members:
            return []
        return self._end(f"{name} {how}", but=name, lost=(name, how))

    def tick(self, now: float) -> list[tuple[Node, Message]]:
        """To be called a few times a second: ends a group of which one is silent, and forms the next."""
        outgoing: list[tuple[Node, Message]] = []
        for node in self._nodes(self.members):
            if (silent_s := now - node.heard_at) > self._silence_limit_s and self._size > 1:
                how = f"has given no sign of life for {silent_s:.0f} s"
                outgoing += self._end(f"{node.name} {how}", but=None, lost=(node.name, how))
        return [*outgoing, *self._form(now)]

    def wind_up(self, now: float) -> list[tuple[Node, Message]]:
        """The run ends, and who is lost does not come back: one alone goes on from here, lest its updates are lost."""
        self._size = 1
        return self._form(now)

    @property
    def waiting_for(self) -> str:
        """What a learner that has no place waits for, such that "NODE waits for" may stand in front of it."""
        if self.members:
            return f"a place in the group of {self._size}: {', '.join(self.members)} are at work"
        missing = [f"{name} {how}".strip() for name, how in self._missing.items()]
        whom = f"; missing: {', '.join(missing)}" if missing else ""
        return f"the group of learners to be complete: {len(self._ready)} of {self._size} are here{whom}"

    def _form(self, now: float) -> list[tuple[Node, Message]]:
        """The next group, if there is none and enough learners are ready and not silent."""
        here = self._not_silent(self._ready, now)
        if self.members or len(here) < self._size or self._may_lose_updates(here, now):
            return []
        ahead = sorted(here, key=lambda node: (-self._ready[node.name].updates, node.index, node.name))
        chosen = sorted(ahead[: self._size], key=lambda node: (node.index, node.name))
        if strangers := self._refuse_strangers(chosen):
            return strangers
        ready = [self._ready.pop(node.name) for node in chosen]
        self.generation += 1
        self.members = tuple(node.name for node in chosen)
        self._first = self.members[0]
        self._missing, self._begun_with = {}, max(each.updates for each in ready)
        common = GroupFormed(
            generation=self.generation,
            rank=0,
            names=[node.name for node in chosen],
            source=max(range(len(ready)), key=lambda rank: (ready[rank].updates, -rank)),
            backend=_backend(chosen, ready),
            store=ready[0].store,
        )
        formed = [(node, common.model_copy(update={"rank": rank})) for rank, node in enumerate(chosen)]
        self._formed = {node.name: message for node, message in formed}
        return list(formed)

    def _may_lose_updates(self, here: list[Node], now: float) -> bool:
        """Whether nobody here has the state of the last group, and one that was in it may yet report."""
        told = self._not_silent((name for name, how in self._missing.items() if not how), now)
        ready = [self._ready[node.name] for node in here]
        has_state = any(each.generation == self.generation and each.updates >= self._begun_with for each in ready)
        return bool(told) and not has_state

    def _refuse_strangers(self, nodes: list[Node]) -> list[tuple[Node, Message]]:
        """Those who could not reach one that listens where its own machine alone can."""
        hidden = next((node for node in nodes if _is_loopback(self._ready[node.name])), None)
        strangers = [] if hidden is None else [node for node in nodes if node.hello.host != hidden.hello.host]
        for node in strangers:
            del self._ready[node.name]
        return [(node, _unreachable(node, hidden)) for node in strangers if hidden is not None]

    def _end(self, reason: str, *, but: str | None, lost: tuple[str, str] | None = None) -> list[tuple[Node, Message]]:
        """Tells all `but` the one that is gone, or has said so itself; who was `lost`, and how.

        One that is silent is told too: it may wake up.
        """
        told = [node for node in self._nodes(self.members) if node.name != but]
        self._missing = {node.name: "" for node in told} | ({} if lost is None else dict([lost]))
        self.members, self._formed = (), {}
        return [(node, GroupEnded(generation=self.generation, reason=reason[:2000])) for node in told]

    def _tell_waiting(self, name: str) -> list[tuple[Node, Message]]:
        nodes = self._nodes([name] if name in self._ready else [])
        return [(node, GroupWaiting(reason=self.waiting_for)) for node in nodes]

    def _not_silent(self, names: Iterable[str], now: float) -> list[Node]:
        return [node for node in self._nodes(names) if now - node.heard_at <= self._silence_limit_s]

    def _nodes(self, names: Iterable[str]) -> list[Node]:
        nodes = [self._roster.named(name) for name in names]
        return [node for node in nodes if node is not None and not node.has_left]


def _is_loopback(ready: LearnerReady) -> bool:
    return ready.store is not None and is_private(f"tcp://{ready.store[0]}:{ready.store[1]}")


def _unreachable(node: Node, hidden: Node) -> HelloRefused:
    reason = (
        f"{node.name} on {node.hello.host} cannot share updates with {hidden.name}, which joined the hub at an address "
        f"of its own machine, {hidden.hello.host}, and so listens for other learners there alone; start every learner "
        "of this run with --hub tcp://ADDRESS, by which all their machines reach the hub"
    )
    return HelloRefused(reason=reason, exit_code=EXIT_CONFIG)


def _backend(nodes: list[Node], ready: list[LearnerReady]) -> Literal["gloo", "nccl"]:
    """NCCL wants a GPU of its own for each learner."""
    devices = {(node.hello.host, each.device) for node, each in zip(nodes, ready, strict=True)}
    if not all(each.device.startswith("cuda") for each in ready):
        return "gloo"
    if len(devices) < len(ready):
        where = ", ".join(
            f"{node.name} {each.device} of {node.hello.host}" for node, each in zip(nodes, ready, strict=True)
        )
        log.warning("learners share a GPU, and so average by way of the host's memory (gloo): %s", where)
        return "gloo"
    return "nccl"
