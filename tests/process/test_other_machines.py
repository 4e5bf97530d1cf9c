"""Actors on other machines: they join a running `train` over an encrypted connection, with nothing but a join file."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parl_mq.errors import EXIT_NOT_ALLOWED, EXIT_OK
from parl_mq.services.keyring import Keyring
from parl_mq.services.status import picture_of
from tests.net.links import unused
from tests.process.hosts import Hosts, hosts, why_not
from tests.process.running import Run, running


def started(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """A process of another machine, which shares nothing with the run but the network; its log lies in the folder."""
    folder.mkdir(exist_ok=True)
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def actor(join: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "parl_mq", "actor", "--join", str(join), *options]


def moved(run: Run, folder: Path) -> Path:
    """The join file of a run, copied to another machine as one would."""
    join = run.until(lambda: path if (path := run.directory / "actor.join").exists() else None)
    folder.mkdir(exist_ok=True)
    subprocess.run(["cp", "-p", str(join), str(folder / "its.join")], check=True)
    return folder / "its.join"


def steps_of(run: Run, name: str) -> int | None:
    """Whether a node works: its rows have been stored; None while they have not."""
    status = picture_of(run.directory).status
    states = [] if status is None else [node for node in status.nodes if node.name == name]
    return 1 if states and states[0].health == "healthy" and states[0].state in ("stepping", "waiting") else None


def health_of(run: Run, name: str) -> str:
    status = picture_of(run.directory).status
    return next((node.health for node in status.nodes if node.name == name), "") if status is not None else ""


def test_an_actor_joins_with_its_file_alone_and_leaves_when_its_key_is_revoked(tmp_path: Path) -> None:
    place = unused("tcp://127.0.0.1:0")
    with running(tmp_path / "run", "--bind", place) as run:
        join = moved(run, tmp_path / "elsewhere")
        far = started(actor(join), tmp_path / "elsewhere")
        try:
            run.until(lambda: steps_of(run, "actor.guest"))
            run.wait_until_training()
            Keyring(run.directory / "keys").revoke("actor.guest")
            assert far.wait(60) == EXIT_NOT_ALLOWED
            assert b"key is not allowed" in (tmp_path / "elsewhere" / "log").read_bytes()
            run.until(lambda: health_of(run, "actor.guest") == "failed" or None)
        finally:
            far.kill()
            far.wait()
        run.process.send_signal(signal.SIGTERM)
        code, _, stderr = run.finish()
        assert code == EXIT_OK, stderr
        assert "parl-mq actor --join actor.join" in stderr


@pytest.fixture
def network() -> Iterator[Hosts]:
    if (reason := why_not()) is not None:
        pytest.skip(f"NOT TESTED, machines on a network: {reason}")
    with hosts(3) as made:
        if not made.has_delay:
            print("this kernel has no netem: the network is tested without delay and loss")
        yield made


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cartpole_is_learnt_with_actors_on_other_machines_one_of_which_is_unplugged(
    tmp_path: Path, network: Hosts
) -> None:
    """Hub, replay, learner and one actor are on the first host, actors on two others."""
    learns = ("--seed", "1")
    place = f"tcp://{network.address(0)}:29700"
    preset = ("--set", "actor.num_envs=16", "--set", "algorithm.batch_size=256", "--set", "replay.learning_starts=1000")
    prefix = network.command(0)
    with running(tmp_path / "run", "--bind", place, *learns, *preset, prefix=prefix) as run:
        join = moved(run, tmp_path / "host1")
        second = tmp_path / "host2" / "its.join"
        second.parent.mkdir()
        token = ["join-token", "actor", "--run-dir", str(run.directory), "--name", "host2", "--output", str(second)]
        subprocess.run([sys.executable, "-m", "parl_mq", *token], check=True)
        far = [
            started(network.command(1, *actor(join, "--name", "actor.guest")), tmp_path / "host1"),
            started(network.command(2, *actor(second)), tmp_path / "host2"),
        ]
        try:
            for name in ("actor.guest", "host2"):
                run.until(lambda name=name: steps_of(run, name), 120)
            network.unplug(2)
            run.until(lambda: health_of(run, "host2") == "silent" or None, 120)
            network.plug_in(2)
            run.until(lambda: health_of(run, "host2") == "healthy" or None, 120)
            run.until(lambda: any(row.get("best_eval_return", 0) >= 475 for row in run.metrics()) or None, 300)
            run.process.send_signal(signal.SIGTERM)
            code, _, stderr = run.finish()
            assert code == EXIT_OK, stderr
            assert run.summary["reached"], stderr
            assert run.summary["rows"]["balanced"], run.summary["rows"]
            assert [process.wait(60) for process in far] == [EXIT_OK, EXIT_OK]
        finally:
            for process in far:
                process.kill()
                process.wait()
