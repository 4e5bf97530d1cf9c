"""Examines a connection: whether this machine reaches a hub and all that belongs to its run, and is let in."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from parl_mq import __version__
from parl_mq.errors import ConfigError
from parl_mq.net.channel import ClientChannel, LinkEvent
from parl_mq.net.curve import fingerprint
from parl_mq.net.endpoints import host_of, is_private, is_served, port_of
from parl_mq.net.zmq_channel import Network
from parl_mq.services.findings import Finding
from parl_mq.services.join_file import JoinFile, read_join_file
from parl_mq.services.joining import CONTROL_MESSAGE_BYTES
from parl_mq.wire.codec import Decoder, encode
from parl_mq.wire.messages import PROTOCOL_VERSION, FromHub, ProbeReply, ProbeRequest

REACH_S: Final = 3.0
"""A port that takes longer to answer is blocked or far away."""
HANDSHAKE_S: Final = 5.0
"""The other end gives up a handshake after 3 s."""
SKEW_S: Final = 2.0
"""Nothing here depends on equal clocks, but logs of two machines that differ by more are hard to compare."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be examined: the hub at an endpoint, with or without a join file."""

    hub: str
    join: JoinFile | None = None


def check_connection(hub: str | None, join_file: Path | None, key: Path | None = None) -> list[Finding]:
    """Part after part. Blocks for some seconds at most for each; not to be called where an event loop runs."""
    findings: list[Finding] = []
    target = Target(hub) if hub is not None else None
    if join_file is not None:
        try:
            join = read_join_file(join_file, key)
        except ConfigError as error:
            return [Finding("join file", "fault", str(error))]
        target = Target(join.hub, join)
        what = f"{join_file}: {join.name} as {join.role}, key {fingerprint(join.public)}; you alone can read it"
        findings.append(Finding("join file", "ok", what))
    if target is None:
        return findings
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return findings + runner.run(_examined(target))


async def _examined(target: Target) -> list[Finding]:
    return [finding async for finding in _examine(target)]


async def _examine(target: Target) -> AsyncIterator[Finding]:
    reach = await _reach("hub", target.hub)
    yield reach
    if reach.verdict == "fault":
        return
    pair = None if target.join is None else target.join.pair
    network = Network(pair=pair)
    try:
        if target.join is not None:
            network.trust({target.hub: target.join.server_key})
        reply = await _probe(network, target)
        if isinstance(reply, Finding):
            yield reply
            return
        yield _handshake_finding(target)
        for finding in (_run_finding(reply, target), _version_finding(reply), _clock_finding(reply)):
            yield finding
        network.trust(reply.server_keys)
        for name, endpoint in reply.endpoints.items():
            yield await _socket_finding(network, name, endpoint)
    finally:
        network.close(linger_s=0)


async def _reach(name: str, endpoint: str) -> Finding:
    """Whether somebody listens there."""
    if endpoint.startswith("ipc://"):
        is_there = is_served(endpoint)
        return Finding(name, "ok" if is_there else "fault", f"{endpoint}{'' if is_there else ': nobody listens there'}")
    host, port = host_of(endpoint).strip("[]"), port_of(endpoint)
    began_at = time.monotonic()
    try:
        async with asyncio.timeout(REACH_S):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    except TimeoutError:
        return Finding(name, "fault", f"{endpoint}: no answer within {REACH_S:g} s; a firewall may drop port {port}")
    except socket.gaierror as error:
        return Finding(name, "fault", f"{endpoint}: the name {host} is not known here: {error.strerror}")
    except OSError as error:
        return Finding(name, "fault", f"{endpoint}: {error.strerror or error}")
    return Finding(name, "ok", f"{endpoint} is reached in {(time.monotonic() - began_at) * 1e3:.1f} ms")


async def _probe(network: Network, target: Target) -> ProbeReply | Finding:
    channel = network.connect(target.hub, CONTROL_MESSAGE_BYTES)
    if (fault := await _shaken(channel, "handshake", target.hub)) is not None:
        return fault
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            await channel.send(encode(ProbeRequest()))
            while True:
                for frames in await channel.receive_many():
                    message, _ = Decoder(FromHub)(frames)
                    if isinstance(message, ProbeReply):
                        return message
    except TimeoutError:
        return Finding("hub", "fault", f"{target.hub} lets this machine in, but does not answer; is it a hub?")


async def _shaken(channel: ClientChannel, about: str, endpoint: str) -> Finding | None:
    """What was wrong with the handshake of a new channel; None: nothing."""
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            event = await channel.next_event()
    except TimeoutError:
        return Finding(about, "fault", f"{endpoint}: the port is open, but nobody there speaks the protocol in time")
    if event is LinkEvent.CONNECTED:
        return None
    return Finding(
        about,
        "fault",
        f"{endpoint} refused: it needs a join file, or does not allow the key of this one (any more), or has another "
        "key than the file says",
    )


def _handshake_finding(target: Target) -> Finding:
    if target.join is not None:
        key = fingerprint(target.join.server_key)
        return Finding("handshake", "ok", f"encrypted; the hub has proved its key {key}")
    if is_private(target.hub):
        return Finding("handshake", "ok", "without keys, within this machine")
    return Finding("handshake", "note", "neither encrypted nor does it prove who is there")


def _run_finding(reply: ProbeReply, target: Target) -> Finding:
    wanted = None if target.join is None else target.join.run_id
    if wanted not in (None, reply.run_id):
        return Finding("run", "fault", f"the hub has run {reply.run_id}, the join file is for run {wanted}")
    return Finding("run", "ok", reply.run_id)


def _version_finding(reply: ProbeReply) -> Finding:
    if reply.protocol != PROTOCOL_VERSION:
        what = f"the hub speaks protocol {reply.protocol}, this machine {PROTOCOL_VERSION}; install the same version"
        return Finding("versions", "fault", what)
    if reply.version != __version__:
        return Finding("versions", "note", f"the hub has parl_mq {reply.version}, this machine {__version__}")
    return Finding("versions", "ok", f"parl_mq {__version__} at both ends")


def _clock_finding(reply: ProbeReply) -> Finding:
    skew_s = time.time() - reply.time_s
    what = f"{abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} the hub's"
    if abs(skew_s) > SKEW_S:
        return Finding("clock", "note", f"{what}: harmless to the run, but times in logs cannot be compared")
    return Finding("clock", "ok", what)


async def _socket_finding(network: Network, name: str, endpoint: str) -> Finding:
    reach = await _reach(name, endpoint)
    if reach.verdict == "fault":
        return reach
    try:
        channel = network.connect(endpoint)
    except ConfigError as error:
        return Finding(name, "fault", str(error))
    return await _shaken(channel, name, endpoint) or reach
