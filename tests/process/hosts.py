"""Hosts of a network that is made for a test: network namespaces, each at a cable to a switch in the first one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

SUBNET: Final = "10.77.0"
DELAY: Final = ("delay", "5ms", "loss", "0.5%")


@dataclass(frozen=True)
class Hosts:
    """The hosts by name; the first one has the switch.

    Attributes:
        names: of the namespaces.
        has_delay: messages take some milliseconds and some are lost, as the kernel has netem.
    """

    names: list[str]
    has_delay: bool

    def address(self, host: int) -> str:
        return f"{SUBNET}.{host + 1}"

    def command(self, host: int, *command: str) -> list[str]:
        """A command that runs on a host."""
        return ["ip", "netns", "exec", self.names[host], *command]

    def unplug(self, host: int) -> None:
        """Pulls the cable of a host out of the switch."""
        _ip("-n", self.names[0], "link", "set", f"port{host}", "down")

    def plug_in(self, host: int) -> None:
        """Puts it back."""
        _ip("-n", self.names[0], "link", "set", f"port{host}", "up")


def why_not() -> str | None:
    """Why this machine can make no hosts; None where it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no `ip` command"
    name = f"pmq-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"this machine can make no network namespace: {made.stderr.strip()}"
    bridge = subprocess.run(
        ["ip", "-n", name, "link", "add", "switch", "type", "bridge"], capture_output=True, text=True, check=False
    )
    _ip("netns", "del", name)
    return None if bridge.returncode == 0 else f"this kernel has no bridge: {bridge.stderr.strip()}"


@contextmanager
def hosts(number: int) -> Iterator[Hosts]:
    """So many hosts, which go with the block."""
    names = [f"pmq-{os.getpid()}-{index}" for index in range(number)]
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", names[0], "link", "add", "switch", "type", "bridge")
        _ip("-n", names[0], "addr", "add", f"{SUBNET}.1/24", "dev", "switch")
        _ip("-n", names[0], "link", "set", "switch", "up")
        delays = [_plug(names, index) for index in range(1, number)]
        yield Hosts(names, all(delays))
    finally:
        for name in names:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)


def _plug(names: list[str], index: int) -> bool:
    """Lays the cable of a host to the switch; whether it delays and loses what it carries."""
    _ip(
        "link", "add", f"port{index}", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[index]
    )
    _ip("-n", names[0], "link", "set", f"port{index}", "master", "switch", "up")
    _ip("-n", names[index], "addr", "add", f"{SUBNET}.{index + 1}/24", "dev", "cable")
    _ip("-n", names[index], "link", "set", "cable", "up")
    delay = ["tc", "-n", names[index], "qdisc", "add", "dev", "cable", "root", "netem", *DELAY]
    return shutil.which("tc") is not None and subprocess.run(delay, capture_output=True, check=False).returncode == 0


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
