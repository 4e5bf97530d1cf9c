"""Addresses: which are allowed, and which are taken."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import Final

from parl_mq.errors import ConfigError

MAX_IPC_PATH_BYTES: Final = 107
"""What a unix socket's address can hold on Linux, without its closing zero byte."""
PROBE_S: Final = 0.5


def check_endpoint(endpoint: str) -> None:
    """Checks what can be checked without a socket.

    Raises:
        ConfigError: it is not `ipc://PATH` with a path of at most 107 bytes, nor `tcp://HOST:PORT`.
    """
    kind, _, address = endpoint.partition("://")
    if kind not in ("ipc", "tcp") or not address or (kind == "tcp" and not _host_and_port(endpoint)[0]):
        raise ConfigError(f"endpoint {endpoint!r} must be ipc://PATH or tcp://HOST:PORT")
    num_bytes = len(address.encode())
    if kind == "ipc" and num_bytes > MAX_IPC_PATH_BYTES:
        raise ConfigError(
            f"endpoint {endpoint!r}: the path has {num_bytes} bytes, the system allows {MAX_IPC_PATH_BYTES}; "
            "set node.runtime_directory to a shorter one"
        )


def is_private(endpoint: str) -> bool:
    """Whether only this machine can reach the endpoint."""
    return endpoint.startswith("ipc://") or _is_loopback(_host_and_port(endpoint)[0])


def is_wildcard(endpoint: str) -> bool:
    """Whether it stands for all addresses of this machine, so that nobody can connect to it as it stands."""
    host = _host_and_port(endpoint)[0].strip("[]")
    return host == "*" or (_is_address(host) and ipaddress.ip_address(host).is_unspecified)


def host_of(endpoint: str) -> str:
    """The host of a tcp endpoint, with the brackets of an IPv6 address."""
    return _host_and_port(endpoint)[0]


def port_of(endpoint: str) -> int:
    """The port of a tcp endpoint."""
    return int(_host_and_port(endpoint)[1])


def at_host(endpoint: str, host: str | None) -> str:
    """A tcp endpoint as others are to reach it: at another host, where that is given."""
    return endpoint if host is None else f"tcp://{host}:{port_of(endpoint)}"


def is_ipv6(endpoint: str) -> bool:
    """Whether the endpoint's host is an IPv6 address."""
    return endpoint.startswith("tcp://[")


def is_served(endpoint: str) -> bool:
    """Whether somebody listens at an ipc endpoint.

    The transport would not say: it removes whatever lies at the path, and the old server would never hear from anyone
    again. For tcp it says so itself, and this is False.

    Raises:
        ConfigError: a file that is no socket lies at the path; binding would remove it.
    """
    if not endpoint.startswith("ipc://") or endpoint.startswith("ipc://@"):
        return False
    path = Path(endpoint.removeprefix("ipc://"))
    if path.exists() and not path.is_socket():
        raise ConfigError(f"cannot bind {endpoint!r}: what lies there is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(str(path))
        except (TimeoutError, BlockingIOError):
            return True  # so many callers wait there that this one has no place
        except OSError:
            return False
    return True


def _host_and_port(endpoint: str) -> tuple[str, str]:
    """Both empty where the address has another form."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) < 2**16
    return (host, port) if host and is_port else ("", "")


def _is_loopback(host: str) -> bool:
    host = host.strip("[]")
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
