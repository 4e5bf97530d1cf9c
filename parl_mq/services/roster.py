"""Who is in a run: nodes by name and by route, their indices, and who of two processes has a name; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from parl_mq.metrics import known_figures
from parl_mq.net.channel import PeerId
from parl_mq.wire.messages import Hello, NodeReport, Role

BUSY_AFTER_S: Final = 3.0
"""Heartbeats come twice a second; a node without one for so long does something that lets nothing else run."""
MAX_INDEX: Final = 10_000
MAX_EPOCHS: Final = 16
"""Processes of one name whose rows are still told of apart."""
MAX_TOTAL: Final = float(2**50)
"""Of a counter: the sum over all nodes, and its change in a moment, are numbers that can be told."""
MAX_STATE: Final = 64
MAX_WAITING_FOR: Final = 500
"""Characters of what a node says that are kept, and shown to people."""

_DURATION: Final = re.compile(r" \(for \d+ s\)$")
"""What a node adds itself to a wait that has lasted."""

Health = Literal["healthy", "silent", "away", "left", "failed"]


@dataclass(slots=True)
class Node:
    """One node of the run, as its messages describe it.

    Attributes:
        peer: its route; None while the hub has not heard of it since its own start.
        host_index: its index among the nodes of its role on its machine.
        starts: processes of this name so far.
        epochs: given to the processes of this name, the newest last; a clock that was set back makes none go backwards.
        heard_at: time of its last message, s.
        waits_since: time since when it waits for `waiting_for`, s.
    """

    peer: PeerId | None
    hello: Hello
    index: int
    host_index: int = 0
    starts: int = 1
    heard_at: float = 0.0
    waits_since: float = 0.0
    progress: int = 0
    state: str = "starting"
    waiting_for: str | None = None
    counters: dict[str, float] = field(default_factory=dict)
    has_left: bool = False
    has_table: bool = False
    epochs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """The first process of a name has the epoch that it says."""
        self.epochs = self.epochs or [self.hello.epoch]

    @property
    def epoch(self) -> int:
        """That of its process."""
        return self.epochs[-1]

    @property
    def role(self) -> Role:
        """The node's role."""
        return self.hello.role

    @property
    def name(self) -> str:
        """The node's name."""
        return self.hello.name

    @property
    def key(self) -> tuple[str, int]:
        """Tells this process from others of the same name."""
        return self.name, self.epoch

    @property
    def told(self) -> tuple[str, str, str | None]:
        """Its name, what it does, and what it waits for."""
        return self.name, self.state, self.waiting_for

    def note_counters(self, counters: Mapping[str, float]) -> None:
        """Takes the figures that there are of a node of its role: those of replay nodes alone have labels."""
        self.counters = {
            name: min(max(value, 0.0), MAX_TOTAL) if name.endswith("_total") else value
            for name, value in known_figures(counters).items()
            if self.role == "replay" or "{" not in name
        }

    def note_beat(
        self, *, progress: int, state: str, waiting_for: str | None, counters: Mapping[str, float], now: float
    ) -> None:
        """Takes what a heartbeat says."""
        if waiting_for is None or self.waiting_for is None or _subject(waiting_for) != _subject(self.waiting_for):
            self.waits_since = now
        self.progress, self.state = progress, state[:MAX_STATE]
        self.waiting_for = None if waiting_for is None else waiting_for[:MAX_WAITING_FOR]
        self.note_counters(counters)

    def report(self, now: float) -> NodeReport:
        """The node for people."""
        return NodeReport(
            name=self.name,
            role=self.role,
            health=self._health(now),
            state=self.state,
            waiting_for=None if self.waiting_for is None else _DURATION.sub("", self.waiting_for),
            waiting_s=0.0 if self.waiting_for is None else max(0.0, now - self.waits_since),
            silent_s=max(0.0, now - self.heard_at),
            starts=self.starts,
            pid=self.hello.pid,
            host=self.hello.host,
            figures=dict(self.counters),
        )

    def health_figures(self, now: float) -> dict[str, float]:
        """How it is, by the metric's name."""
        return {
            "node_up": float(self._health(now) == "healthy"),
            "node_starts": float(self.starts),
            "node_silent_seconds": max(0.0, now - self.heard_at),
            "node_waits_seconds": 0.0 if self.waiting_for is None else max(0.0, now - self.waits_since),
        }

    def _health(self, now: float) -> Health:
        if self.has_left:
            return "failed" if self.state == "failed" else "left"
        if self.peer is None:
            return "away"
        return "healthy" if now - self.heard_at < BUSY_AFTER_S else "silent"

    def to_json(self) -> dict[str, Any]:
        """What a hub that starts again must know of it."""
        totals = {name: value for name, value in self.counters.items() if name.endswith("_total")}
        return {
            "hello": self.hello.model_dump(mode="json"),
            "index": self.index,
            "host_index": self.host_index,
            "starts": self.starts,
            "epochs": self.epochs,
            "has_left": self.has_left,
            "has_table": self.has_table,
            "totals": totals,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, now: float, has_left: bool) -> Node:
        """A node of which the hub has not heard since its own start."""
        return cls(
            None,
            Hello.model_validate(values["hello"]),
            values["index"],
            values.get("host_index", 0),
            starts=values["starts"],
            heard_at=now,
            waits_since=now,
            state="away",
            counters=dict(values["totals"]),
            has_left=has_left or values["has_left"],
            has_table=values["has_table"],
            epochs=list(values.get("epochs", ())),
        )


class Roster:
    """All nodes that there have been; the newest process of each name."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        """Begins with nodes that were there before."""
        self._nodes = {node.name: node for node in nodes}
        self._by_peer: dict[PeerId, Node] = {}

    def __iter__(self) -> Iterator[Node]:
        """All, in the order in which their names came."""
        return iter(self._nodes.values())

    def at(self, peer: PeerId) -> Node | None:
        """The node that has said Hello by this route."""
        return self._by_peer.get(peer)

    def named(self, name: str) -> Node | None:
        """The newest process of this name."""
        return self._nodes.get(name)

    def greet(self, peer: PeerId, hello: Hello, now: float) -> tuple[Node, Node | None]:
        """Takes a node in, or finds it again by its new route.

        Returns:
            The node, and the old process of its name where it has taken that over.
        """
        known = self._nodes.get(hello.name)
        for left in (known, self._by_peer.get(peer)):  # a route is one node's, and a node has one
            if left is not None and left.peer is not None:
                del self._by_peer[left.peer]
                left.peer = None
        if known is not None and known.hello.epoch == hello.epoch:
            known.peer, known.hello, known.heard_at, known.has_left = peer, hello, now, False
            if known.state == "away":
                known.state = "starting"
            self._by_peer[peer] = known
            return known, None
        index = self._free_index(hello) if known is None else known.index
        starts = 1 if known is None else known.starts + 1
        epochs = [] if known is None else [*known.epochs, max(hello.epoch, known.epoch + 1)][-MAX_EPOCHS:]
        host_index = self._host_index(hello, known)
        node = Node(peer, hello, index, host_index, starts, heard_at=now, waits_since=now, epochs=epochs)
        self._nodes[hello.name] = self._by_peer[peer] = node
        return node, known

    def has_given(self, name: str, epoch: int) -> bool:
        """Whether this is one of the newest processes of a name."""
        node = self._nodes.get(name)
        return node is not None and epoch in node.epochs

    def workers(self) -> list[Node]:
        """All but the supervisors."""
        return [node for node in self._nodes.values() if node.role != "supervisor"]

    def living(self) -> list[Node]:
        """Those who have not left."""
        return [node for node in self._nodes.values() if not node.has_left]

    def excuse(self, seconds: float) -> None:
        """The hub itself was away for so long: nobody's silence counts."""
        for node in self._nodes.values():
            node.heard_at += seconds

    def _host_index(self, hello: Hello, before: Node | None) -> int:
        """That of the process before where nobody else has it, else the smallest free one."""
        others = [node for node in self.living() if (node.role, node.hello.host) == (hello.role, hello.host)]
        taken = {node.host_index for node in others if node.name != hello.name}
        if before is not None and before.hello.host == hello.host and before.host_index not in taken:
            return before.host_index
        return next(index for index in range(len(taken) + 1) if index not in taken)

    def _free_index(self, hello: Hello) -> int:
        """The number at the end of the name where it is free, else the smallest free one."""
        taken = {node.index for node in self._nodes.values() if node.role == hello.role}
        number = re.search(r"(\d+)$", hello.name)
        if number is not None and int(number[1]) not in taken and int(number[1]) < MAX_INDEX:
            return int(number[1])
        return next(index for index in range(len(taken) + 1) if index not in taken)


def _subject(waiting_for: str) -> str:
    """What is waited for, without the numbers that change while it is."""
    return _DURATION.sub("", waiting_for).partition(":")[0]
