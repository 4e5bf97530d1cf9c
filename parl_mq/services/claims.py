"""Two processes of one name: who of them has it; pure.

Nothing tells that a connection has gone. So the process that is known is pinged: a pong keeps it the name; that there
is no such route any more, or a silence longer than the limit, gives it to the newcomer, who waits meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from parl_mq.errors import EXIT_TEMPORARY
from parl_mq.net.channel import PeerId
from parl_mq.services.roster import Node, Roster
from parl_mq.wire.messages import Hello, HelloHeld, HelloRefused, Message, Ping

PING_EVERY_S: Final = 1.0

Outgoing = tuple[PeerId, Message]


@dataclass(slots=True)
class Claim:
    """A process that wants the name of another one, which may still be there."""

    peer: PeerId
    hello: Hello
    ping_at: float


class Claims:
    """The names that newcomers wait for; one waits for each, the latest."""

    def __init__(self, roster: Roster, busy_limit_s: float) -> None:
        """Begins without a claim.

        Args:
            roster: who has which name.
            busy_limit_s: silence after which a process loses its name.
        """
        self._roster = roster
        self._busy_limit_s = busy_limit_s
        self._claims: dict[str, Claim] = {}

    def is_contested(self, hello: Hello, now: float) -> bool:
        """Whether another process has this name and may still be there."""
        known = self._roster.named(hello.name)
        return known is not None and known.hello.epoch != hello.epoch and self._may_be_there(known, now)

    def hold(self, peer: PeerId, hello: Hello, now: float) -> list[Outgoing]:
        """Lets a newcomer wait, and asks whoever has the name for a sign of life."""
        outgoing: list[Outgoing] = []
        if (other := self._claims.get(hello.name)) is not None and other.hello.epoch != hello.epoch:
            outgoing.append((other.peer, superseded(hello.name)))
        self._claims[hello.name] = Claim(peer, hello, now + PING_EVERY_S)
        reason = f"it is being seen whether the {hello.name} that has joined is still there"
        return [*outgoing, (peer, HelloHeld(reason=reason)), *_ping(self._roster.named(hello.name))]

    def keep(self, node: Node) -> list[Outgoing]:
        """A process has answered: it keeps its name."""
        claim = self._claims.pop(node.name, None)
        if claim is None:
            return []
        where = f"as process {node.hello.pid} on {node.hello.host}"
        reason = f"{node.name} is in the run already, {where}; stop that one, or take another name with --name"
        return [(claim.peer, HelloRefused(reason=reason, exit_code=EXIT_TEMPORARY))]

    def give_up(self, name: str) -> Claim | None:
        """A process cannot be reached: the newcomer, if one waits for its name."""
        return self._claims.pop(name, None)

    def settle(self, now: float) -> tuple[list[Claim], list[Outgoing]]:
        """Newcomers who need not wait any longer; and pings that are due for the others."""
        free, pings = [], []
        for name, claim in list(self._claims.items()):
            known = self._roster.named(name)
            if known is None or not self._may_be_there(known, now):
                free.append(self._claims.pop(name))
            elif now >= claim.ping_at:
                claim.ping_at = now + PING_EVERY_S
                pings += _ping(known)
        return free, pings

    def _may_be_there(self, node: Node, now: float) -> bool:
        return node.peer is not None and not node.has_left and now - node.heard_at < self._busy_limit_s


def superseded(name: str) -> HelloRefused:
    """What an older process of a name is told."""
    return HelloRefused(reason=f"a newer {name} has joined the run", exit_code=EXIT_TEMPORARY)


def _ping(node: Node | None) -> list[Outgoing]:
    return [] if node is None or node.peer is None else [(node.peer, Ping())]
