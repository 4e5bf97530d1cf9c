"""Which learners make a group, when it is over, and who broke it; pure, a part of what the hub decides.

A group has as many learners as the run's settings say. It ends as soon as one of them is lost or silent: the hub says
so to the others, by the lost one's name, and all of them report again. Learners beyond those of the group wait and take
the place of one that is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from parl_mq.services.roster import Node, Roster
from parl_mq.wire.messages import GroupEnded, GroupFormed, GroupWaiting, LearnerReady, Message


class LearnerGroups:
    """The groups of a run, one after the other.

    Attributes:
        generation: of the newest one; 0 before the first.
    """

    def __init__(self, roster: Roster, size: int, generation: int, silence_limit_s: float) -> None:
        """Goes on after the groups that there were.

        Args:
            roster: of the run.
            size: learners of a group.
            generation: of the last one.
            silence_limit_s: without a sign of life a learner of a group counts as lost.
        """
        self.generation = generation
        self._roster = roster
        self._size = size
        self._silence_limit_s = silence_limit_s
        self._ready: dict[str, LearnerReady] = {}
        self._members: dict[str, int] = {}
        self._missing: dict[str, str] = {}
        self._formed: dict[str, GroupFormed] = {}

    def note_ready(self, node: Node, ready: LearnerReady, now: float) -> list[tuple[Node, Message]]:
        """A learner can begin; where it is in the newest group, that one is over."""
        outgoing: list[tuple[Node, Message]] = []
        if node.name in self._members and ready.generation < self.generation and node.name in self._formed:
            return [(node, self._formed[node.name])]  # it has not heard of its group
        if node.name in self._members:
            outgoing = self._end(f"{node.name} has left it: {ready.reason or 'it begins anew'}", but=node.name)
        self._ready[node.name] = ready
        self._missing.pop(node.name, None)
        return [*outgoing, *self._form(now), *self._tell_waiting(node.name)]

    def note_beat(self, node: Node, generation: float) -> None:
        """A learner says which group it works in: a hub that was started again learns so of a group."""
        if generation == self.generation > 0:
            self._members.setdefault(node.name, node.hello.epoch)

    def note_gone(self, name: str, how: str) -> list[tuple[Node, Message]]:
        """A learner's process is gone, or another one has its name."""
        self._ready.pop(name, None)
        if name not in self._members:
            return []
        return self._end(f"{name} {how}", but=name, how=how)

    def tick(self, now: float) -> list[tuple[Node, Message]]:
        """To be called a few times a second: ends a group of which one is silent, and forms the next."""
        outgoing: list[tuple[Node, Message]] = []
        for node in self._nodes(self._members):
            if (silent_s := now - node.heard_at) > self._silence_limit_s and self._size > 1:
                how = f"has given no sign of life for {silent_s:.0f} s"
                outgoing += self._end(f"{node.name} {how}", but=node.name, how=how)
        return [*outgoing, *self._form(now)]

    @property
    def waiting_for(self) -> str:
        """What a learner that has no place waits for, such that "NODE waits for" may stand in front of it."""
        if self._members:
            return f"a place in the group of {self._size}: {', '.join(self._members)} are at work"
        missing = [f"{name} {how}".strip() for name, how in self._missing.items()]
        whom = f"; missing: {', '.join(missing)}" if missing else ""
        return f"the group of learners to be complete: {len(self._ready)} of {self._size} are here{whom}"

    def _form(self, now: float) -> list[tuple[Node, Message]]:
        """The next group, if there is none and enough learners are ready and not silent."""
        here = [node for node in self._nodes(self._ready) if now - node.heard_at <= self._silence_limit_s]
        if self._members or len(here) < self._size:
            return []
        chosen = sorted(here, key=lambda node: (node.index, node.name))[: self._size]
        ready = [self._ready.pop(node.name) for node in chosen]
        self.generation += 1
        self._members = {node.name: node.hello.epoch for node in chosen}
        self._missing = {}
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

    def _end(self, reason: str, *, but: str, how: str | None = None) -> list[tuple[Node, Message]]:
        """Tells all `but` the one that is at fault, or has said so itself; `how` it was lost, where it was."""
        others = [node for node in self._nodes(self._members) if node.name != but]
        self._missing = {node.name: "" for node in others} | ({} if how is None else {but: how})
        self._members, self._formed = {}, {}
        return [(node, GroupEnded(generation=self.generation, reason=reason[:2000])) for node in others]

    def _tell_waiting(self, name: str) -> list[tuple[Node, Message]]:
        nodes = self._nodes([name] if name in self._ready else [])
        return [(node, GroupWaiting(reason=self.waiting_for)) for node in nodes]

    def _nodes(self, names: Iterable[str]) -> list[Node]:
        nodes = [self._roster.named(name) for name in names]
        return [node for node in nodes if node is not None and not node.has_left]


def _backend(nodes: list[Node], ready: list[LearnerReady]) -> Literal["gloo", "nccl"]:
    """NCCL wants a GPU of its own for each learner."""
    devices = {(node.hello.host, each.device) for node, each in zip(nodes, ready, strict=True)}
    has_gpus = all(each.device.startswith("cuda") for each in ready)
    return "nccl" if has_gpus and len(devices) == len(ready) else "gloo"
