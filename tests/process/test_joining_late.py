"""Nodes that are started one by one, as on several machines: the learner is there first, the data come later."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from parl_mq.services.status import picture_of
from tests.process.running import poll_until
from tests.process.single_nodes import nodes_of

SLACK = 3


@pytest.mark.slow
@pytest.mark.parametrize("waits_s", [6, 20])
def test_a_learner_that_is_there_before_the_data_waits_quietly_and_begins_soon_after_they_come(
    waits_s: int, tmp_path: Path
) -> None:
    with nodes_of(tmp_path) as nodes:
        nodes.start("hub")
        poll_until(lambda: (nodes.directory / "config.toml").exists() or None, 30)
        nodes.start("replay")
        learner = nodes.start("learner")
        poll_until(lambda: "hold" in nodes.waiting_for("learner-0") or None, 60)
        used = psutil.Process(learner.pid).cpu_times()
        lines_before = len((nodes.logs / "learner-0").read_text().splitlines())
        time.sleep(waits_s)  # the wait itself is what is looked at
        now = psutil.Process(learner.pid).cpu_times()
        assert now.user + now.system - used.user - used.system < 0.05 * waits_s
        assert len((nodes.logs / "learner-0").read_text().splitlines()) - lines_before <= 1 + waits_s / 5
        nodes.start("actor")
        poll_until(lambda: nodes.figures().get("inserted_rows_total", 0) >= 1000 or None, 60)
        began = time.monotonic()
        poll_until(lambda: nodes.figures().get("updates_total", 0) > 0 or None, 2 * SLACK)
        assert time.monotonic() - began < 2 * SLACK


def test_a_hub_on_its_own_may_be_killed_and_goes_on_with_its_run(tmp_path: Path) -> None:
    with nodes_of(tmp_path) as nodes:
        hub = nodes.start("hub")
        poll_until(lambda: (nodes.directory / "config.toml").exists() or None, 30)
        nodes.start("replay")
        poll_until(lambda: nodes.waiting_for("replay-0") or None, 60)
        before = picture_of(nodes.directory)
        hub.kill()
        hub.wait()
        assert picture_of(nodes.directory).source == "directory"
        nodes.start("hub")
        poll_until(lambda: nodes.waiting_for("replay-0") or None, 60)
        poll_until(lambda: picture_of(nodes.directory).source == "hub" or None, 60)
        after = picture_of(nodes.directory)
        assert before.status is not None
        assert after.status is not None
        assert after.status.run_id == before.status.run_id


def test_ctrl_c_ends_a_learner_that_waits_for_data(tmp_path: Path) -> None:
    with nodes_of(tmp_path) as nodes:
        nodes.start("hub")
        poll_until(lambda: (nodes.directory / "config.toml").exists() or None, 30)
        learner = nodes.start("learner")
        poll_until(lambda: nodes.waiting_for("learner-0") or None, 60)
        began = time.monotonic()
        learner.send_signal(signal.SIGINT)
        assert learner.wait(60) == 130
        assert time.monotonic() - began < 5 * SLACK


def test_a_second_process_of_a_name_is_refused_while_the_first_is_there_and_welcome_when_it_was_killed(
    tmp_path: Path,
) -> None:
    with nodes_of(tmp_path) as nodes:
        nodes.start("hub")
        poll_until(lambda: (nodes.directory / "config.toml").exists() or None, 30)
        first = nodes.start("replay")
        poll_until(lambda: nodes.waiting_for("replay-0") or None, 60)
        second = subprocess.run(
            [*first.args[:-3], f"{first.args[-3]}-2", *first.args[-2:]],  # type: ignore[index]  # another socket
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode == 75
        assert f"replay-0 is in the run already, as process {first.pid}" in second.stderr
        first.kill()
        first.wait()
        third = nodes.start("replay")
        poll_until(
            lambda: next(
                (node for node in picture_of(nodes.directory).status.nodes if node.pid == third.pid),  # type: ignore[union-attr]
                None,
            ),
            60,
        )
