"""Nodes that are started one by one, as on several machines."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from parl_mq.services.status import picture_of

SETTINGS = ("replay.learning_starts=1000", "algorithm.batch_size=64", "actor.num_envs=8", "replay.fragment_length=8")


class Nodes:
    """Single nodes of one run, by name.

    Attributes:
        directory: run directory.
    """

    def __init__(self, directory: Path, sockets: Path, *, inside: Sequence[str], data: str | None) -> None:
        self.directory = directory
        self.data = data or f"ipc://{sockets}/replay"
        self.logs = sockets / "logs"
        self.logs.mkdir()
        self._sockets = sockets
        self._inside = inside
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, role: str) -> subprocess.Popen[bytes]:
        name = f"{role}-0"
        command = [*self._inside, sys.executable, "-m", "parl_mq", role, "--name", name]
        rings = ["--set", f"node.ring_directory={self._sockets}"]
        match role:
            case "hub":
                directory = ["--config", "cartpole-dqn", "--run-dir", str(self.directory)]
                settings = [word for setting in SETTINGS for word in ("--set", setting)]
                command += ["--bind", self._endpoint("hub"), *directory, *settings, "--resume"]
            case "replay":
                command += ["--hub", self._endpoint("hub"), "--bind", self.data, *rings]
            case "learner":
                command += [
                    "--hub",
                    self._endpoint("hub"),
                    "--run-dir",
                    str(self.directory),
                    "--set",
                    "node.device=cpu",
                ]
            case _:
                command += ["--hub", self._endpoint("hub")]
        with (self.logs / name).open("ab") as log:
            self.processes[role] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self.processes[role]

    def figures(self) -> dict[str, Any]:
        """What the hub says."""
        picture = picture_of(self.directory)
        return {} if picture.status is None else dict(picture.status.figures)

    def waiting_for(self, name: str) -> str:
        """What a node waits for, as the hub says; empty where it does not wait."""
        status = picture_of(self.directory).status
        nodes = [] if status is None else [node for node in status.nodes if node.name == name]
        return nodes[0].waiting_for or "" if nodes else ""

    def _endpoint(self, name: str) -> str:
        return f"ipc://{self._sockets}/{name}"


@contextmanager
def nodes_of(tmp_path: Path, *, inside: Sequence[str] = (), data: str | None = None) -> Iterator[Nodes]:
    """Nodes that are killed at the end of the block.

    Args:
        tmp_path: the run directory's parent.
        inside: a command that starts each node in a place of its own.
        data: endpoint of the replay node.
    """
    with tempfile.TemporaryDirectory(prefix="pmq-", dir="/tmp") as sockets:
        nodes = Nodes(tmp_path / "run", Path(sockets), inside=inside, data=data)
        try:
            yield nodes
        finally:
            for process in nodes.processes.values():
                process.kill()
                process.wait()
