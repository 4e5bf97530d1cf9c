"""Where the nodes of a run find each other: on this machine by private sockets, from other machines by public ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from parl_mq.net.channel import PeerId
from parl_mq.wire.messages import Hello


@dataclass(frozen=True, slots=True)
class PublicSocket:
    """A server socket as other machines see it.

    Attributes:
        endpoint: where they reach it.
        key: that is proved there; None: nothing is encrypted.
    """

    endpoint: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Addresses:
    """The hub's own sockets, and how each node is to reach those of the others.

    Attributes:
        weights: endpoint of the weights socket.
        public_weights: the same for other machines; None: there is none.
        is_remote: whether a node that is connected by this route is on another machine.
    """

    weights: str
    public_weights: str | None = None
    is_remote: Callable[[PeerId], bool] = lambda peer: False

    def weights_for(self, peer: PeerId) -> str:
        """Where a node finds the weights socket."""
        return self.public_weights or self.weights if self.is_remote(peer) else self.weights

    def replays_for(self, peer: PeerId, replays: Iterable[Hello]) -> tuple[list[str], dict[str, str]]:
        """Where a node finds the replay nodes, in their order; and endpoint -> key of those that are encrypted."""
        is_remote = self.is_remote(peer)
        endpoints, keys = [], {}
        for hello in replays:
            endpoint = (hello.public_endpoint if is_remote else None) or hello.data_endpoint or ""
            endpoints.append(endpoint)
            if hello.data_key is not None and endpoint.startswith("tcp://"):
                keys[endpoint] = hello.data_key
        return endpoints, keys
