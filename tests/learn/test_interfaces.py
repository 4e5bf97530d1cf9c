"""Interfaces are those that psutil tells of."""

from __future__ import annotations

import socket

import psutil
import pytest

from parl_mq.learn.interfaces import interface_of


def test_each_interface_is_found_by_its_first_address() -> None:
    for name, addresses in psutil.net_if_addrs().items():
        by_family = {each.family: each.address for each in reversed(addresses)}
        for family in {socket.AF_INET, socket.AF_INET6} & by_family.keys():
            assert interface_of(by_family[family]) == name


@pytest.mark.parametrize("host", ["192.0.2.255", "2001:db8::dead", "a name", ""])
def test_what_no_interface_has_is_none(host: str) -> None:
    assert interface_of(host) is None
