"""Programs of systemd for tests: what a machine lacks is installed where that may be, else tests are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from typing import Final

import pytest

PACKAGES: Final = {
    "systemctl": "systemd",
    "systemd-analyze": "systemd",
    "systemd-nspawn": "systemd-container",
    "unshare": "util-linux",
}
"""Debian package of each program."""
INSTALL_S: Final = 300


def need(*programs: str) -> None:
    """Skips the test where one of the programs is not there and cannot be installed."""
    for program in programs:
        if (why := _why_missing(program)) is not None:
            pytest.skip(f"{program} is not on this machine: {why}")


def need_namespaces(command: tuple[str, ...]) -> None:
    """Skips the test where this user may not make the namespaces that a command makes."""
    need(command[0])
    done = subprocess.run([*command, "true"], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no namespaces can be made on this machine: {done.stderr.strip()}")


@cache
def _why_missing(program: str) -> str | None:
    if shutil.which(program) is not None:
        return None
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"install the Debian package {PACKAGES[program]} (root and apt-get would have done it here)"
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "--yes", "--no-install-recommends", PACKAGES[program]]):
        done = subprocess.run(
            ["apt-get", "--quiet", *words], env=environ, capture_output=True, text=True, timeout=INSTALL_S
        )
    there = shutil.which(program) is not None
    return None if there else f"apt-get could not install {PACKAGES[program]}: {done.stderr.strip()[-300:]}"
