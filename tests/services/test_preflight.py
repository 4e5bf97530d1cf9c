"""What is refused before any process is started."""

import socket
from pathlib import Path

import pytest

from parl_mq.config.loader import load_config
from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_TEMPORARY, CodedError, ConfigError, EnvironmentFault, MemoryRefused, exit_code_of
from parl_mq.rollout.building import table_spec
from parl_mq.services.preflight import check_networks, check_ports, check_run
from parl_mq.services.tables import check_messages
from parl_mq.spec import TableSpec

GIB = 2**30


def _config(*overrides: str) -> RunConfig:
    return load_config("cartpole-dqn", overrides=overrides, environ={})


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A /proc of a machine with 1 GiB available and no cgroup."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("")
    (tmp_path / "meminfo").write_text("MemTotal: 9999999 kB\nMemAvailable: 1048576 kB\n")
    return tmp_path


@pytest.mark.parametrize(
    ("override", "error", "key"),
    [
        ("environment.id=Cartpole-v9", EnvironmentFault, "environment.id"),
        ("environment.id=Pendulum-v1", ConfigError, "environment.id"),
        ("node.device=cuda:4096", ConfigError, "node.device"),
        ("algorithm.hidden_sizes=[10_000_000, 10_000_000]", MemoryRefused, "algorithm.hidden_sizes"),
        ("replay.buffer_size=2_000_000_000", MemoryRefused, "replay.buffer_size"),
        ("node.ring_directory=/nowhere", ConfigError, "node.ring_directory"),
    ],
)
def test_what_cannot_work_here_is_refused_and_names_its_setting(
    override: str, error: type[ConfigError], key: str
) -> None:
    with pytest.raises(error) as caught:
        check_run(_config(override))
    assert key in caught.value.keys


IMAGE = TableSpec.of({"obs": ((3, 224, 224), "float32"), "action": ((), "int64")})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["actor.num_envs=32", "replay.fragment_length=64"], "an actor's largest message, 32 fragments of 64 steps"),
        (["actor.num_envs=1", "replay.fragment_length=8", "learner.mapped=off"], "a batch of 256 rows would have 0.29"),
    ],
)
def test_rows_too_large_for_a_message_are_refused_with_what_to_lower(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_messages(_config(*overrides), IMAGE)


def test_batches_that_are_read_from_the_ring_may_be_of_any_size() -> None:
    check_messages(_config("actor.num_envs=1", "replay.fragment_length=8"), IMAGE)


def test_a_run_that_can_work_gets_its_table() -> None:
    config = _config()
    assert check_run(config).digest == table_spec(config).digest


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_ports_in_use_are_refused_before_anything_is_made(host: str) -> None:
    family = socket.AF_INET6 if "[" in host else socket.AF_INET
    with socket.create_server((host.strip("[]"), 0), family=family) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CodedError, match=f"--bind tcp://.*:{port}: the port is in use") as caught:
            check_ports(f"tcp://{host}:{port}", _config().node)
        assert exit_code_of(caught.value) == EXIT_TEMPORARY
        if "[" not in host:
            with pytest.raises(CodedError, match=f"node.metrics_port = {port}: the port is in use"):
                check_ports(None, _config(f"node.metrics_port={port}").node)
    check_ports(f"tcp://{host}:{port}", _config(f"node.metrics_port={port}").node)
    check_ports("tcp://*:0", _config("node.metrics_port=0").node)


def test_copies_of_all_processes_are_counted(machine: Path) -> None:
    config = _config("actor.num_actors=3")
    spec = table_spec(config)
    copies = 5 + 2 + 2 * (3 + 1)
    largest = GIB // 4 // copies
    units = next(n for n in range(1, 10**8) if (4 + 1) * n + (n + 1) * 2 > largest)
    for num_units, fits in ((units - 1, True), (units, False)):
        sized = config.model_copy(
            update={"algorithm": config.algorithm.model_copy(update={"hidden_sizes": (num_units,)})}
        )
        if fits:
            check_networks(sized, spec, learns_on_gpu=False, proc=machine, cgroups=machine)
        else:
            with pytest.raises(MemoryRefused, match=rf"x {copies} copies = 1\.00 GiB, .* available, 1\.00 GiB"):
                check_networks(sized, spec, learns_on_gpu=False, proc=machine, cgroups=machine)
            check_networks(sized, spec, learns_on_gpu=True, proc=machine, cgroups=machine)
