"""The supervisor's parts that need no run."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from parl_mq.config.loader import load_node_config
from parl_mq.config.models import NodeConfig
from parl_mq.errors import ConfigError
from parl_mq.services.restarts import FailureRecord
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.run_memory import RunMemory
from parl_mq.services.supervisor import MAX_REASON, Supervisor, _last_failure, _shortened, node_flags, runtime_folder
from parl_mq.wire.messages import RunProgress
from tests.services.builders import small_config


def test_the_folder_for_sockets_is_private_and_goes_with_the_block(tmp_path_factory):
    with runtime_folder(NodeConfig()) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "hub").write_text("")
    assert not folder.exists()


def test_a_folder_for_sockets_that_cannot_be_made_names_its_setting(tmp_path):
    with (
        pytest.raises(ConfigError, match=r"node\.runtime_directory = .*missing: .*No such file"),
        runtime_folder(NodeConfig(runtime_directory=tmp_path / "missing")),
    ):
        pass


def test_a_folder_whose_path_is_too_long_for_sockets_is_refused_and_removed(tmp_path):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with pytest.raises(ConfigError, match="107"), runtime_folder(NodeConfig(runtime_directory=deep)):
        pass
    assert list(deep.iterdir()) == []


def test_of_a_node_that_wrote_nothing_the_log_is_named():
    child: Any = SimpleNamespace(name="actor-0", log="run/logs/actor-0.log", how_it_ended=lambda: "ended with code 3")
    record: Any = SimpleNamespace(num_failures=6, is_constant=False, first_words="")
    told = _last_failure(child, record, 3)
    assert told.endswith("the first time it had written nothing to run/logs/actor-0.log")


async def test_faults_of_environments_are_told_whenever_they_have_doubled(tmp_path):
    events: list[str] = []
    nothing: Any = None
    supervisor = Supervisor(
        small_config(),
        nothing,
        RunDirectory(tmp_path),
        runtime=tmp_path,
        started_at=0.0,
        early=nothing,
        on_progress=lambda _: None,
        on_event=events.append,
    )
    for number in range(6):
        figures = {"environment_faults_total": float(number)}
        supervisor._note_progress(RunProgress(phase="training", nodes=[], figures=figures))
    assert [event.partition(",")[0] for event in events] == [
        "environments broke once",
        "environments broke 2 times",
        "environments broke 4 times",
    ]
    assert f"see {tmp_path}/logs/actor-*.log" in events[0]


def test_a_long_reason_keeps_its_beginning_and_its_cause():
    reason = _shortened("actor-0 failed" + "\n  a line" * 1_000 + "\nValueError: joint 7")
    assert reason.startswith("actor-0 failed")
    assert reason.endswith("ValueError: joint 7")
    assert len(reason) < MAX_REASON + 10


def test_a_nodes_settings_come_through_its_command_line_as_they_are(tmp_path):
    node = NodeConfig(wandb_project="2024", metrics_host="true", ring_directory=tmp_path / 'a "b"', max_restarts=0)
    assert load_node_config(overrides=node_flags(node)[1::2], environ={}) == node
    assert node_flags(node)[::2] == ["--set"] * 4


async def test_a_failure_is_recorded_with_the_seconds_of_the_whole_run(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", small_config())
    directory.write_memory(RunMemory(wall_s=1000.0))
    nothing: Any = None
    supervisor = Supervisor(
        small_config(),
        nothing,
        directory,
        runtime=tmp_path,
        started_at=time.monotonic(),
        early=nothing,
        on_progress=lambda _: None,
        on_event=lambda _: None,
    )
    child: Any = SimpleNamespace(
        name="actor-0",
        role="actor",
        is_zygote=False,
        process=SimpleNamespace(returncode=1),
        cause=lambda: "joint 7",
        how_it_ended=lambda: "ended with code 1",
        end_in_words=lambda: "actor-0 ended",
        started_at=0.0,
    )
    supervisor._note_failure(child, FailureRecord(5))
    [row] = directory.read_failures()
    assert 1000.0 <= row["time_s"] < 1060.0
