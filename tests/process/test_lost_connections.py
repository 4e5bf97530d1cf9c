"""Connections that are lost without a word, and a hub that is away for long: nothing is lost, and the run goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.process.running import poll_until
from tests.process.single_nodes import Nodes, nodes_of

SLACK = 3
NOTICED_S = 6 + 10  # ZMTP's time-out, and the longest pause between two attempts to connect
ROLES = ("replay", "learner", "actor", "evaluator")


@contextmanager
def own_network() -> Iterator[tuple[list[str], Callable[[str], None]]]:
    """A command that starts another in a network of its own, and what sets its loopback `up` or `down`."""
    tried = subprocess.run(["unshare", "--net", "ip", "link"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no network of its own can be made here, so no port can be blocked: {tried.stderr.strip()}")
    holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    inside = ["nsenter", f"--target={holder.pid}", "--net"]
    try:
        yield inside, lambda state: _set_loopback(inside, state)
    finally:
        holder.kill()
        holder.wait()


def _set_loopback(inside: list[str], state: str) -> None:
    subprocess.run([*inside, "ip", "link", "set", "lo", state], check=True)


def _is_isolated(pid: int) -> bool | None:
    own, its = (Path(f"/proc/{name}/ns/net").readlink() for name in ("self", str(pid)))
    return own != its or None


def _begin(nodes: Nodes) -> None:
    nodes.start("hub")
    poll_until(lambda: (nodes.directory / "config.toml").exists() or None, 60)
    for role in ROLES:
        nodes.start(role)
    _wait_for_work(nodes, 120)


def _wait_for_work(nodes: Nodes, timeout_s: float) -> None:
    """Waits until there are both new rows and new updates."""
    before = nodes.figures()
    for name in ("acknowledged_rows_total", "updates_total"):
        poll_until(lambda name=name: nodes.figures().get(name, 0.0) > before.get(name, 0.0) or None, timeout_s)


def _end(nodes: Nodes) -> None:
    """Ends the run in order, and looks at its books."""
    nodes.processes["hub"].send_signal(signal.SIGTERM)
    for process in nodes.processes.values():
        process.wait(60)
    rows = json.loads((nodes.directory / "summary.json").read_text())["rows"]
    assert rows["balanced"], rows
    assert rows["lost"] == 0
    assert rows["stored"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_port_that_is_blocked_without_a_word_for_a_while_costs_no_row(tmp_path: Path) -> None:
    with own_network() as (inside, set_loopback):
        poll_until(lambda: _is_isolated(int(inside[1].partition("=")[2])), 10)
        set_loopback("up")
        with nodes_of(tmp_path, inside=inside, data="tcp://127.0.0.1:5555") as nodes:
            _begin(nodes)
            actor = psutil.Process(nodes.processes["actor"].pid)
            memory = actor.memory_info().rss
            set_loopback("down")
            time.sleep(NOTICED_S)  # the time for which it is blocked, of which this is half
            rows = nodes.figures()["acknowledged_rows_total"]
            time.sleep(NOTICED_S)
            assert nodes.figures()["acknowledged_rows_total"] == rows
            assert actor.memory_info().rss - memory < 64 * 2**20
            assert all(process.poll() is None for process in nodes.processes.values())
            set_loopback("up")
            _wait_for_work(nodes, NOTICED_S * SLACK)
            _end(nodes)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hub_that_is_away_for_half_a_minute_finds_everybody_at_work(tmp_path: Path) -> None:
    with nodes_of(tmp_path) as nodes:
        _begin(nodes)
        nodes.processes["hub"].kill()
        nodes.processes["hub"].wait()
        time.sleep(30)  # the time for which it is away
        assert all(nodes.processes[role].poll() is None for role in ROLES)
        nodes.start("hub")
        _wait_for_work(nodes, 30 * SLACK)
        _end(nodes)
