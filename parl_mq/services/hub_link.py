"""A node's end of the control plane: it joins, beats, hears what is settled, and leaves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, assert_never

from parl_mq.errors import EXIT_NOT_ALLOWED, EXIT_TEMPORARY, PeerTimeout, Refused
from parl_mq.net.channel import ClientChannel, LinkEvent
from parl_mq.services.addresses import PublicSocket
from parl_mq.services.process_figures import process_figures
from parl_mq.services.runtime import StopSignal
from parl_mq.spec import TableSpec
from parl_mq.wire.codec import Decoder, encode
from parl_mq.wire.messages import (
    PROTOCOL_VERSION,
    FromHub,
    Goodbye,
    GroupEnded,
    GroupFormed,
    GroupWaiting,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    HelloHeld,
    HelloRefused,
    KeysAllowed,
    Message,
    OpenTable,
    Ping,
    Pong,
    ProbeReply,
    Role,
    RunProgress,
    RunState,
    RunStatus,
    SayHello,
    Stop,
    Welcome,
)

T = TypeVar("T")

JOIN_TIMEOUT_S: Final = 30.0
"""A hub that does not answer for this long is given up at the start."""
MAX_TEXT: Final = 2000
"""Characters of a text in a message."""
LEAVE_S: Final = 2.0
"""A hub has this long to say that it has heard a node's Goodbye."""
LONG_S: Final = 2.0
"""From here on it is told how long a node has been waiting."""
REPEAT_HELLO_S: Final = 2.0
"""A Hello without an answer is repeated after this time: the hub may have started later."""

log = logging.getLogger("parl_mq")


class Reconnecting(Protocol):
    """A link to a peer, whose connection may break and come back."""

    @property
    def num_reconnects(self) -> int: ...  # noqa: D102 - times that it came back


class NodeStatus:
    """What a node says of itself in its heartbeats; the service writes it, the link reads it.

    Attributes:
        progress: grows whenever the work loop got something done.
        state: one word for the progress view.
        counters: metric name -> value since the process started.
        links: those whose reconnects are counted.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.progress = 0
        self.state = "starting"
        self.counters: dict[str, float] = {}
        self.links: list[Reconnecting] = []
        self._clock = clock
        self._waited_s = 0.0
        self._waits_for: Callable[[], str] | None = None
        self._waits_since = 0.0

    def works(self, state: str) -> None:
        """The work loop got something done."""
        self.progress += 1
        self.state = state
        if self._waits_for is not None:
            self._waited_s += self._clock() - self._waits_since
            self._waits_for = None

    def waits(self, what: str | Callable[[], str]) -> None:
        """The work loop has nothing to do until something happens elsewhere.

        Args:
            what: is waited for, such that "NODE waits for" may stand in front of it; a function where that may change.
        """
        if self._waits_for is None:
            self._waits_since = self._clock()
        self.state = "waiting"
        self._waits_for = (lambda: what) if isinstance(what, str) else what

    @property
    def waiting_for(self) -> str | None:
        """What is waited for, in words, and for how long, where that is worth a word; None while something is done."""
        if self._waits_for is None:
            return None
        duration_s = self._clock() - self._waits_since
        return self._waits_for() + (f" (for {duration_s:.0f} s)" if duration_s >= LONG_S else "")

    def measured(self) -> dict[str, float]:
        """The counters that are finite, with the process's own memory and times."""
        finite = {name: value for name, value in self.counters.items() if math.isfinite(value)}
        waits_s = 0.0 if self._waits_for is None else self._clock() - self._waits_since
        return {
            **finite,
            **process_figures(),
            "waiting_seconds_total": self._waited_s + waits_s,
            "reconnects_total": sum(link.num_reconnects for link in self.links),
        }


@dataclass(slots=True)
class _Delivery:
    """A message that the hub must get.

    Attributes:
        behind: sequence number of the first heartbeat sent after it; None while it has not been sent.
    """

    message: Message
    behind: int | None = None


class HubLink:
    """Speaks with the hub for one node. `run` does the receiving and beating; the rest only reads or sends.

    Messages of one connection arrive in order. So a heartbeat that was answered says that all before it have arrived;
    and when the hub, or the connection, is another one, this node is welcomed anew, and says again what was not sure.

    Attributes:
        status: what the heartbeats say.
        run_state: what has been settled so far; None before the hub has said it.
        on_progress: called with each RunProgress; only supervisors get any.
        on_keys: called with each KeysAllowed; only replay nodes get any.
        on_servers: called with the keys of servers that this node may have to connect to.
        on_group: called with what the hub says of groups of learners; only learners hear of any.
        run_is_done: the stop that has come was the run's own end: nothing is kept for a resumption.
        num_reconnects: times that the hub has welcomed this node again.
    """

    def __init__(
        self,
        channel: ClientChannel,
        *,
        role: Role,
        name: str,
        stop: StopSignal,
        data_endpoint: str | None = None,
        public: PublicSocket | None = None,
        run_id: str | None = None,
    ) -> None:
        self.status = NodeStatus()
        self.run_state: RunState | None = None
        self.on_progress: Callable[[RunProgress], None] | None = None
        self.on_keys: Callable[[KeysAllowed], None] | None = None
        self.on_servers: Callable[[Mapping[str, str]], None] | None = None
        self.on_group: Callable[[GroupFormed | GroupWaiting | GroupEnded], None] | None = None
        self.run_is_done = False
        self.num_reconnects = 0
        self.status.links.append(self)
        self._channel = channel
        self._stop = stop
        self._decode = Decoder(FromHub)
        self._welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._opening: asyncio.Future[OpenTable] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Condition()
        self._held = asyncio.Event()
        self._replays: list[tuple[str, str | None]] | None = None
        self._epoch: int | None = None
        self._sequence = 0
        self._deliveries: deque[_Delivery] = deque()
        self._is_welcome = False
        self._all_arrived = asyncio.Event()
        self._hello = Hello(
            protocol=PROTOCOL_VERSION,
            role=role,
            name=name,
            epoch=time.time_ns(),
            pid=os.getpid(),
            host=socket.gethostname(),
            run_id=run_id,
            data_endpoint=data_endpoint,
            public_endpoint=None if public is None else public.endpoint,
            data_key=None if public is None else public.key,
        )

    @property
    def role(self) -> Role:
        """This node's role."""
        return self._hello.role

    @property
    def name(self) -> str:
        """This node's name."""
        return self._hello.name

    @property
    def epoch(self) -> int:
        """Later than that of an earlier process of the same name, once the hub has welcomed this one."""
        return self._hello.epoch if self._epoch is None else self._epoch

    async def join(self) -> Welcome:
        """Says Hello until the hub answers. `run` must be under way.

        Raises:
            Refused: the hub gave a reason.
            PeerTimeout: no answer within JOIN_TIMEOUT_S.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S) as limit:
                while not self._welcome.done():
                    await self._channel.send(encode(self._hello))
                    await asyncio.wait({self._welcome}, timeout=REPEAT_HELLO_S)
                    if self._held.is_set():  # it has answered, only not decided
                        self._held.clear()
                        limit.reschedule(loop.time() + JOIN_TIMEOUT_S)
                return self._welcome.result()
        except TimeoutError as error:
            raise PeerTimeout(f"the hub did not answer within {JOIN_TIMEOUT_S:.0f} s; is it running?") from error

    async def run(self) -> None:
        """Receives and beats until cancelled.

        Raises:
            Refused: the hub refused this node, or its connection; or a replay node that it uses has moved.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_link())
            tasks.create_task(self._receive())
            tasks.create_task(self._beat())

    async def until(self, find: Callable[[RunState], T | None]) -> T:
        """Waits until `find` gives something for the run's state, and returns that."""
        async with self._changed:
            while True:
                found = find(self.run_state) if self.run_state is not None else None
                if found is not None:
                    return found
                await self._changed.wait()

    async def table_spec(self) -> TableSpec:
        """The table's spec, once the run has one."""
        return await self.until(
            lambda state: TableSpec.from_wire(state.columns, state.spaces) if state.columns is not None else None
        )

    async def replay_endpoints(self, num_nodes: int) -> list[str]:
        """Data endpoints of the run's replay nodes by index, once all their tables are open.

        Where they are at others later, with other keys, or both, `run` ends.
        """
        self._replays = await self.until(
            lambda state: _replays_of(state) if len(state.replay_endpoints) >= num_nodes else None
        )
        return [endpoint for endpoint, _ in self._replays]

    async def table_to_open(self) -> OpenTable:
        """The table that a replay node is to make ready, once the run has a spec."""
        return await asyncio.shield(self._opening)

    def send(self, message: Message) -> None:
        """Sends a message that may be lost while the hub is away: the next one says it again."""
        self._channel.try_send(encode(message))

    def deliver(self, message: Message) -> None:
        """Sends a message that must not be lost: again and again until the hub, this one or the next, has it.

        It may get it twice.
        """
        self._deliveries.append(_Delivery(message))
        self._all_arrived.clear()
        self._send_deliveries()

    def beat(self) -> None:
        """Sends a heartbeat now."""
        self._send_deliveries()
        self._sequence += 1
        status = self.status
        self.send(
            Heartbeat(
                sequence=self._sequence,
                progress=status.progress,
                state=status.state,
                waiting_for=status.waiting_for,
                counters=status.measured(),
            )
        )

    async def leave(self, error: str | None = None) -> None:
        """Says the last message, with the final counters, and waits a while until the hub has heard all of them.

        Args:
            error: what ended the node, where that was an error.
        """
        if not self._welcome.done() or self._welcome.exception() is not None:
            return  # it was never in the run
        self._sequence += 1
        told = None if error is None else error[:MAX_TEXT]
        goodbye = Goodbye(counters=self.status.measured(), error=told, sequence=self._sequence)
        self.deliver(goodbye)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_arrived.wait(), LEAVE_S)

    def _send_deliveries(self) -> None:
        if not self._is_welcome:
            return
        for delivery in self._deliveries:
            if delivery.behind is None:
                if not self._channel.try_send(encode(delivery.message)):
                    return
                answered = delivery.message.sequence if isinstance(delivery.message, Goodbye) else self._sequence + 1
                delivery.behind = answered

    def _note_arrived(self, sequence: int) -> None:
        while self._deliveries and (behind := self._deliveries[0].behind) is not None and behind <= sequence:
            self._deliveries.popleft()
        if not self._deliveries:
            self._all_arrived.set()

    async def _beat(self) -> None:
        welcome = await asyncio.shield(self._welcome)
        while True:
            self.beat()
            await asyncio.sleep(welcome.heartbeat_s)  # the period itself, not a wait for a condition

    async def _watch_link(self) -> None:
        while await self._channel.next_event() is not LinkEvent.REFUSED:
            pass
        self._fail(
            Refused(
                "the hub refused the connection: this node's key is not allowed there (any more), or the hub has "
                "another key than this node expects; get a new join file with `parl-mq join-token`",
                EXIT_NOT_ALLOWED,
            )
        )

    async def _receive(self) -> None:
        while True:
            for frames in await self._channel.receive_many():
                message, _ = self._decode(frames)
                await self._handle(message)

    async def _handle(self, message: Any) -> None:
        known: FromHubMessage = message
        match known:
            case Welcome():
                self._take_welcome(known)
            case HelloRefused():
                self._refuse(known)
            case SayHello():
                self._is_welcome = False
                self.send(self._hello)
            case HelloHeld():
                log.info("not in the run yet: %s", known.reason)
                self._held.set()
            case Ping():
                self.send(Pong())
            case RunState():
                if self.on_servers is not None:
                    self.on_servers(known.server_keys)
                self._check_replays(known)
                async with self._changed:
                    self.run_state = known
                    self._changed.notify_all()
            case OpenTable():
                if not self._opening.done():
                    self._opening.set_result(known)
            case Stop():
                self.run_is_done = known.is_final
                self._stop.set(known.reason)
            case RunProgress():
                if self.on_progress is not None:
                    self.on_progress(known)
            case GroupFormed() | GroupWaiting() | GroupEnded():
                if self.on_group is not None:
                    self.on_group(known)
            case HeartbeatSeen():
                self._note_arrived(known.sequence)
            case KeysAllowed():
                if self.on_keys is not None:
                    self.on_keys(known)
            case RunStatus() | ProbeReply():
                pass  # the answer to whoever asks; nodes do not
            case _:
                assert_never(known)

    def _take_welcome(self, welcome: Welcome) -> None:
        if self._epoch is not None and self._epoch != welcome.epoch:
            self._fail(Refused(f"another process has been {self.name} meanwhile; start this one again", EXIT_TEMPORARY))
        self._epoch = welcome.epoch
        self._hello = self._hello.model_copy(update={"run_id": welcome.run_id})
        self._is_welcome = True
        for delivery in self._deliveries:
            delivery.behind = None
        self._send_deliveries()
        if self._welcome.done():
            self.num_reconnects += 1
        else:
            self._welcome.set_result(welcome)

    def _check_replays(self, state: RunState) -> None:
        """A node that is away is missing in the list; it comes back where it was, or another has taken its place."""
        now = _replays_of(state)
        if self._replays is None or len(now) < len(self._replays) or now == self._replays:
            return
        before, after = ({place for place, _ in replays} for replays in (self._replays, now))
        moved = f"moved to {', '.join(sorted(after - before))}" if after - before else "started again with another key"
        self._fail(Refused(f"a replay node has {moved}; this node ends, to be started again", EXIT_TEMPORARY))

    def _refuse(self, refused: HelloRefused) -> None:
        self._fail(Refused(f"the hub refused this node: {refused.reason}", refused.exit_code))

    def _fail(self, error: Refused) -> None:
        if self._welcome.done():
            raise error
        self._welcome.set_exception(error)


def _replays_of(state: RunState) -> list[tuple[str, str | None]]:
    """Endpoint and server key of each."""
    return [(endpoint, state.server_keys.get(endpoint)) for endpoint in state.replay_endpoints]


FromHubMessage = (
    Welcome
    | HelloRefused
    | HelloHeld
    | SayHello
    | Ping
    | RunState
    | OpenTable
    | GroupFormed
    | GroupWaiting
    | GroupEnded
    | HeartbeatSeen
    | Stop
    | RunProgress
    | RunStatus
    | ProbeReply
    | KeysAllowed
)
