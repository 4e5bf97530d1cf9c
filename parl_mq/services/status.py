"""How a run is: asked of its hub, or read from what the hub has written where it does not answer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from parl_mq.errors import EXIT_NOT_ALLOWED, CodedError, RecordError
from parl_mq.net.endpoints import is_served
from parl_mq.net.zmq_channel import Network
from parl_mq.observe.files import check_directory, is_held
from parl_mq.observe.runs import SILENT_AFTER_S, dead_in_words
from parl_mq.services.joining import CONTROL_MESSAGE_BYTES
from parl_mq.services.run_directory import RunDirectory
from parl_mq.wire.codec import Decoder, encode
from parl_mq.wire.messages import FromHub, RunStatus, StatusRequest

ANSWER_S: Final = 2.0
"""A hub that does not answer for this long is busy, stopped or gone."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A run at one moment.

    Attributes:
        path: the run's directory.
        status: what its hub says or said; None where it never said anything.
        source: `hub`, or `directory` where the hub does not answer.
        age_s: seconds since it was said, or, where nothing was, since the directory was made.
        has_ended: the hub has written its summary.
        is_dead: it has not, and no process of the run is left.
        failures: nodes that ended unasked, oldest first: `time_s`, `node`, `how`, `restart`, `told`.
    """

    path: Path
    status: RunStatus | None
    source: str
    age_s: float
    has_ended: bool
    is_dead: bool
    failures: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """All of it, as plain values."""
        status = None if self.status is None else self.status.model_dump(mode="json", exclude={"kind", "nodes"})
        nodes = [] if self.status is None else [node._asdict() for node in self.status.nodes]
        return {
            "source": self.source,
            "age_s": round(self.age_s, 3),
            "has_ended": self.has_ended,
            "is_dead": self.is_dead,
            **(status or {}),
            "nodes": nodes,
            "failures": self.failures,
        }

    def age_in_words(self) -> str:
        """Where this comes from, and how new it is; nothing where the hub has just said it."""
        if self.source == "hub":
            return ""
        if self.is_dead:
            return dead_in_words(self.path, time.time() - self.age_s)
        if self.status is None:
            return "the run has not begun: its hub has said nothing yet"
        return f"the {'run has ended' if self.has_ended else 'hub does not answer'}; as of {self.age_s:,.0f} s ago"


def picture_of(path: Path) -> Picture:
    """How the run in a directory is. Blocks for ANSWER_S at most; not to be called where an event loop runs.

    Raises:
        UsageError: there is no such directory.
        RecordError: it is no run directory, or a file in it is damaged.
        CodedError: this user may not read it.
    """
    try:
        return _picture_of(path)
    except PermissionError as error:
        raise CodedError(
            f"{path} cannot be read by this user; ask as its owner, or as root", EXIT_NOT_ALLOWED
        ) from error
    except ValueError as error:
        raise RecordError(f"{path} holds a damaged file: {error}") from error


def _picture_of(path: Path) -> Picture:
    directory = RunDirectory(path)
    check_directory(path)
    if not directory.config.is_file():
        raise RecordError(f"{path} is no run directory: it has no {directory.config.name}")
    status, written_at = None, directory.config.stat().st_mtime
    endpoint = directory.read_endpoint()
    if endpoint is not None and (is_served(endpoint) or not endpoint.startswith("ipc://")):
        status = _asked(endpoint)
    is_told = status is not None
    if not is_told and (written := directory.read_status()) is not None:
        status, written_at = RunStatus.model_validate(written[0]), written[1]
    age_s = 0.0 if is_told else max(0.0, time.time() - written_at)
    has_ended = directory.read_summary() is not None
    is_dead = age_s > SILENT_AFTER_S and not has_ended and not is_held(path)
    if is_dead and status is not None:
        dead = [node._replace(health="failed", state="dead", waiting_for=None) for node in status.nodes]
        status = status.model_copy(update={"nodes": dead})
    source = "hub" if is_told else "directory"
    return Picture(path, status, source, age_s, has_ended, is_dead, directory.read_failures())


def _asked(endpoint: str) -> RunStatus | None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(ask(endpoint))


async def ask(endpoint: str) -> RunStatus | None:
    """What the hub at this endpoint says; None where it does not say anything within ANSWER_S."""
    network = Network()
    try:
        channel = network.connect(endpoint, CONTROL_MESSAGE_BYTES)
        async with asyncio.timeout(ANSWER_S):
            await channel.send(encode(StatusRequest()))
            while True:
                for frames in await channel.receive_many():
                    message, _ = Decoder(FromHub)(frames)
                    if isinstance(message, RunStatus):
                        return message
    except TimeoutError:
        return None
    finally:
        network.close(linger_s=0)
