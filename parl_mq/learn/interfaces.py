"""Which of this machine's network interfaces has an address; Linux tells it by two ways, one for each IP."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final

SIOCGIFADDR: Final = 0x8915
IN_IFREQ: Final = slice(20, 24)
"""Where the answer has the four bytes of the address: behind the name and the head of a sockaddr_in."""
IPV6_ADDRESSES: Final = Path("/proc/net/if_inet6")
"""A line each: 32 hexadecimal digits of the address, four numbers, the interface."""


def interface_of(host: str) -> str | None:
    """The interface whose address `host` is; None if there is none, or `host` is no address."""
    try:
        wanted = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    found = _ipv4() if wanted.version == 4 else _ipv6()
    return found.get(wanted.packed)


def _ipv4() -> dict[bytes, str]:
    """Each interface's first address."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has none
                continue
            found[answer[IN_IFREQ]] = name
    return found


def _ipv6() -> dict[bytes, str]:
    lines = IPV6_ADDRESSES.read_text().splitlines() if IPV6_ADDRESSES.exists() else []
    return {bytes.fromhex(line.split()[0]): line.split()[-1] for line in lines}
