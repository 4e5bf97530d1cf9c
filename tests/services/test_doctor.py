"""What the examination of a machine finds; faults are made for it."""

import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from parl_mq.config.devices import Devices, TorchBuild
from parl_mq.config.loader import load_config
from parl_mq.config.models import NodeConfig, RunConfig
from parl_mq.services import doctor
from parl_mq.services.doctor import examine, open_files
from parl_mq.services.findings import Finding
from parl_mq.services.socket_folders import PREFIX, locked, own_folder


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeConfig]:
    (tmp_path / "rings").mkdir()
    with tempfile.TemporaryDirectory(prefix="pmq-", dir="/tmp") as short:  # socket paths have 107 bytes
        yield NodeConfig(ring_directory=tmp_path / "rings", runtime_directory=Path(short))


def _run(*overrides: str) -> RunConfig:
    return load_config("cartpole-dqn", overrides=overrides, environ={})


def _about(about: str, node: NodeConfig, run: RunConfig | None = None) -> list[Finding]:
    return [finding for finding in examine(node, run) if finding.about == about]


def test_the_machine_that_runs_the_tests_is_healthy() -> None:
    assert [finding for finding in examine(NodeConfig(), _run()) if finding.verdict == "fault"] == []


def test_every_required_package_is_told_with_its_version(node: NodeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = _about("packages", node)
    for name in ("parl_mq", "pyzmq", "torch", "numpy"):
        assert f"{name} " in found.what
    required = doctor._required()
    monkeypatch.setattr(doctor, "_required", lambda: [*required, "no-such-package-here"])
    assert _about("packages", node)[1] == Finding(
        "packages", "fault", "not installed: no-such-package-here; install parl_mq again"
    )


def test_a_device_that_is_not_there_is_a_fault(node: NodeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Devices, "here", lambda: Devices(TorchBuild("2.13.0", "12.8", None), 1))
    (found,) = _about("device", node.model_copy(update={"device": "cuda:1"}))
    assert (found.verdict, "cuda:1" in found.what) == ("fault", True)
    assert [finding.what for finding in _about("device", node)] == [
        "torch 2.13.0, 1 GPUs; node.device = auto trains on a GPU"
    ]


def test_a_limit_of_files_too_low_for_the_actors_is_a_fault(node: NodeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _run("actor.num_actors=500")
    for limit, verdict in ((open_files(run), "ok"), (open_files(run) - 1, "fault")):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, 4_000))
        (found,) = _about("open files", node, run)
        assert found.verdict == verdict
    assert f"ulimit -n {open_files(run)}" in found.what


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("replay.buffer_size=2_000_000_000", "the table needs"),
        ("algorithm.hidden_sizes=[10_000_000, 10_000_000]", "the networks need"),
        ("environment.id=Foo-v1", "no environment 'Foo-v1'"),
    ],
)
def test_a_run_that_cannot_work_here_is_a_fault(node: NodeConfig, override: str, told: str) -> None:
    (found,) = _about("cartpole-dqn", node, _run(override))
    assert (found.verdict, told in found.what) == ("fault", True)


def test_rings_that_nobody_uses_are_told_with_their_size(node: NodeConfig) -> None:
    assert node.ring_directory is not None
    ring = node.ring_directory / "run-replay-0"
    ring.mkdir()
    (ring / "rows").write_bytes(bytes(2**20))
    (found,) = _about("left over", node)
    kept = f"{ring} keeps 1.0 MiB for a run that is not named"
    assert found == Finding("left over", "note", f"{kept}; `rm -r {ring}` removes it")


def test_a_ring_in_use_is_not_left_over(node: NodeConfig) -> None:
    assert node.ring_directory is not None
    ring = node.ring_directory / "run-replay-0"
    ring.mkdir()
    with locked(ring) as is_ours:
        assert is_ours
        assert _about("left over", node) == []


def test_sockets_of_a_dead_run_are_told_and_left_there(node: NodeConfig) -> None:
    assert node.runtime_directory is not None
    left = node.runtime_directory / f"{PREFIX}dead"
    left.mkdir()
    with own_folder(node.runtime_directory) as alive:
        left.mkdir(exist_ok=True)
        (found,) = _about("left over", node)
        assert (found.verdict, str(left) in found.what, alive.exists()) == ("note", True, True)
    assert left.exists()


@pytest.mark.parametrize(("name", "told"), [("missing", "no folder can be made"), ("x" * 90, "107")])
def test_a_place_where_no_sockets_can_lie_is_a_fault(node: NodeConfig, tmp_path: Path, name: str, told: str) -> None:
    place = tmp_path / name
    if name != "missing":
        place.mkdir()
    (found,) = _about("sockets", node.model_copy(update={"runtime_directory": place}))
    assert (found.verdict, told in found.what) == ("fault", True)


def test_a_folder_for_rings_that_is_not_there_is_a_fault(node: NodeConfig) -> None:
    (found,) = _about("replay rings", node.model_copy(update={"ring_directory": Path("/nowhere")}))
    assert found.verdict == "fault"


def test_a_source_that_is_newer_than_what_was_made_of_it_is_named(tmp_path: Path) -> None:
    binary, source = tmp_path / "parl_mq" / "replay" / "_rows.cpython-311.so", tmp_path / "ext" / "rows.pyx"
    for path in (binary, source):
        path.parent.mkdir(parents=True)
        path.write_text("")

    for moment, expected in ((1.0, None), (3.0, "ext/rows.pyx")):
        os.utime(binary, (2.0, 2.0))
        os.utime(source, (moment, moment))
        assert doctor._newer_source(binary) == expected
    source.unlink()
    assert doctor._newer_source(binary) is None
