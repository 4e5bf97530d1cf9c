"""An actor is killed in the middle of sending, over and over: a real replay service, senders in their own processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from parl_mq.net.zmq_channel import Network
from parl_mq.replay.table import Table
from parl_mq.services.hub_link import NodeStatus
from parl_mq.services.replay import ReplayNode
from parl_mq.services.replay_desk import ReplayDesk
from parl_mq.services.runtime import StopSignal, WorkThread
from parl_mq.services.tables import limiter, table_settings
from tests.process.sender import SPEC
from tests.services.builders import small_config

PATIENCE_S = 60.0


def sender(endpoint: str, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.process.sender", endpoint, name])


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - another process brings it about
            await asyncio.sleep(0.02)


def rows_of(desk: ReplayDesk, name: str) -> dict[int, int]:
    """Epoch -> rows stored of it."""
    return {epoch: rows for each, epoch, rows in desk.accounts().accounts if each == name}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
async def test_every_row_of_an_actor_that_is_killed_while_it_sends_is_whole_and_counted(
    kills: int, tmp_path: Path
) -> None:
    config = small_config("replay.buffer_size=200", "replay.samples_per_insert=1", "replay.error_band=1000000")
    network, stop, chance = Network(), StopSignal(), np.random.default_rng(1)
    table = Table(table_settings(config), SPEC, directory=None, rng=np.random.default_rng(1))
    desk = ReplayDesk(table, limiter(config), SPEC, config, "run")
    told = SimpleNamespace(status=NodeStatus(), send=lambda message: None, deliver=lambda message: None)
    server = network.bind(f"ipc://{tmp_path}/r")
    serving = asyncio.create_task(ReplayNode(told, server, desk, WorkThread("rows")).run(stop))  # type: ignore[arg-type]
    steady, victim = sender(server.endpoint, "a0"), sender(server.endpoint, "a1")
    try:
        await until(lambda: rows_of(desk, "a0") and rows_of(desk, "a1"))
        resources = []
        for kill in range(kills):
            await asyncio.sleep(float(chance.uniform(0.05, 0.5)))  # the random moment
            before = rows_of(desk, "a0")
            victim.kill()
            victim.wait()
            victim = sender(server.endpoint, "a1")
            await until(lambda kill=kill: len(rows_of(desk, "a1")) == kill + 2)  # type: ignore[misc]
            await until(lambda: min(rows_of(desk, "a1").values()) > 0)
            assert rows_of(desk, "a0").items() > before.items() or rows_of(desk, "a0") != before
            drawn = table.draw(64)
            checksums = [zlib.crc32(row.tobytes()) for row in drawn.columns["obs"]]
            assert checksums == drawn.columns["checksum"].tolist()
            resources.append((psutil.Process().num_fds(), psutil.Process().memory_info().rss))
        counts = table.counts
        assert sum(rows_of(desk, "a0").values()) + sum(rows_of(desk, "a1").values()) == counts.inserted
        assert all(rows % 4 == 0 for rows in rows_of(desk, "a1").values())  # whole messages alone
        assert resources[-1][0] <= resources[0][0] + 2
        assert steady.poll() is None
    finally:
        for process in (steady, victim):
            process.kill()
            process.wait()
        stop.set("the test is over")
        await asyncio.wait_for(serving, PATIENCE_S)
        network.close(linger_s=0)
        table.close()
