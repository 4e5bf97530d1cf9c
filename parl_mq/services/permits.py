"""Who may say what: a key is for nodes of one name and one role, and these send the messages of that role alone; pure.

Peers without a key are this machine's own, behind a private socket. What they say is held against what they joined as.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from parl_mq.errors import ConfigError
from parl_mq.net.curve import Verdict
from parl_mq.net.endpoints import check_endpoint
from parl_mq.services.keyring import Grant, KeyRole
from parl_mq.wire.messages import (
    Attach,
    ChunkWanted,
    EpisodesFinished,
    EvaluationFinished,
    Goodbye,
    Heartbeat,
    Hello,
    InsertFragments,
    KeysAllowed,
    LearnerReady,
    Message,
    Pong,
    ProbeRequest,
    RunCounts,
    SampleRequest,
    SenderAccounts,
    SpecOffer,
    StatusRequest,
    StopRequest,
    TableOpened,
    TableRefused,
    UpdatePriorities,
    VersionGone,
    WeightsAnnounced,
    WeightsChunk,
    WeightsWanted,
)

_ASKING: Final[frozenset[type[Message]]] = frozenset({StatusRequest, ProbeRequest})
_EVERY_NODE: Final[frozenset[type[Message]]] = frozenset({Hello, Heartbeat, Goodbye, Pong, *_ASKING})

MAY_SEND: Final[Mapping[KeyRole, frozenset[type[Message]]]] = {
    "actor": _EVERY_NODE.union((SpecOffer, EpisodesFinished, WeightsWanted, ChunkWanted, Attach, InsertFragments)),
    "evaluator": _EVERY_NODE.union((SpecOffer, EvaluationFinished, WeightsWanted, ChunkWanted)),
    "learner": _EVERY_NODE.union(
        (
            LearnerReady,
            WeightsAnnounced,
            WeightsChunk,
            VersionGone,
            Attach,
            SampleRequest,
            UpdatePriorities,
            RunCounts,
        )
    ),
    "replay": _EVERY_NODE.union((TableOpened, TableRefused, SenderAccounts)),
    "host": _ASKING,
}
"""Messages that a key of each role is good for, on all sockets."""
LOCAL_ALONE: Final[frozenset[type[Message]]] = frozenset({StopRequest})
"""Messages that no key is good for."""
NEWCOMER_S: Final = 10.0
"""A replay node hears of a key from the hub; for so long one that it does not know may only be early."""
MAX_NEWCOMERS: Final = 1_000
MAX_NAMES: Final = 256
"""Nodes of one key, those that have left included: a name, and what is counted under it, is kept to the run's end."""


class Permits:
    """What the keys are good for, as whoever keeps them says at the moment."""

    def __init__(self, grant_of: Callable[[str], Grant | None], names: Callable[[], Iterable[str]] = list) -> None:
        """Makes permits.

        Args:
            grant_of: what a key is for; None where it is not allowed.
            names: of all nodes that there have been.
        """
        self._grant_of = grant_of
        self._names = names

    def name_of(self, key: str | None) -> str | None:
        """The name that a key is for."""
        grant = None if key is None else self._grant_of(key)
        return None if grant is None else grant.name

    def why_not(self, key: str | None, message: Message) -> str | None:
        """Why the owner of a key may not send a message; None where it may."""
        if key is None:
            return None
        grant = self._grant_of(key)
        if grant is None:
            return "its key is not allowed any more"
        if type(message) not in MAY_SEND[grant.role]:
            return f"{grant.name} may not send {type(message).__name__}: its key is for the role {grant.role}"
        if isinstance(message, WeightsWanted) and message.keep and grant.role != "evaluator":
            return f"{grant.name} may not have weights kept for it: its key is for the role {grant.role}"
        if isinstance(message, Hello | Attach):
            return (
                _why_not_as(grant, message)
                or (_why_not_at(grant, message) if isinstance(message, Hello) else None)
                or self._why_not_one_more(grant, message.name)
            )
        return None

    def _why_not_one_more(self, grant: Grant, name: str) -> str | None:
        known = {each for each in self._names() if grant.covers(each)}
        if name in known or len(known) < MAX_NAMES:
            return None
        return (
            f"the key of {grant.name} has had {MAX_NAMES} nodes in this run, as many as a key may, and {name} is none "
            "of them; take the name of one that is gone, or another key (`parl-mq join-token`)"
        )


class ToldKeys:
    """The keys that a replay node was told of by its hub; one that it was not told of may only be early."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begins without any.

        Args:
            clock: monotonic, s.
        """
        self._clock = clock
        self._grants: dict[str, Grant] = {}
        self._newcomers: dict[str, float] = {}
        self._was_told = False

    def take(self, told: KeysAllowed) -> None:
        """The hub says which keys there are now."""
        before, self._was_told = self._grants, True
        self._grants = {
            key: Grant(name=name, role=role, public=key)
            for key, name, role in told.keys
            if role in ("actor", "learner", "evaluator", "replay")
        }
        self._newcomers |= dict.fromkeys(before.keys() - self._grants.keys(), -NEWCOMER_S)

    def grant_of(self, key: str) -> Grant | None:
        """What a key is for; None where it is not allowed."""
        return self._grants.get(key)

    def admit(self, key: str) -> Verdict:
        """Whether a key may connect."""
        if key in self._grants:
            self._newcomers.pop(key, None)
            return Verdict.WELCOME
        if not self._was_told:  # the hub is away: nobody has said that this key is not good
            return Verdict.LATER
        if len(self._newcomers) >= MAX_NEWCOMERS and key not in self._newcomers:
            return Verdict.DENIED
        waits_since = self._newcomers.setdefault(key, self._clock())
        return Verdict.LATER if self._clock() - waits_since < NEWCOMER_S else Verdict.DENIED


def _why_not_as(grant: Grant, message: Hello | Attach) -> str | None:
    if message.role != grant.role:
        return f"{message.name} joins as {message.role}, but its key is for the role {grant.role}"
    if not grant.covers(message.name):
        return (
            f"the key of {grant.name} is not for {message.name}; its nodes are called {grant.name}, or {grant.name}.X "
            "with any X"
        )
    return None


def _why_not_at(grant: Grant, hello: Hello) -> str | None:
    """Others are told to connect where a replay node says, so it must be one that they can check."""
    endpoints = [each for each in (hello.data_endpoint, hello.public_endpoint) if each is not None]
    if grant.role != "replay":
        return f"{hello.name} has no endpoint to offer: it is no replay node" if endpoints or hello.data_key else None
    if hello.data_key != grant.public:
        return f"{hello.name} must guard its data socket with its own key"
    for endpoint in endpoints:
        try:
            check_endpoint(endpoint)
        except ConfigError as error:
            return str(error)
        if not endpoint.startswith("tcp://"):
            return f"{hello.name} offers {endpoint}, which nobody on another machine can reach"
    return None
