"""Real runs for tests: a `parl-mq train` process, its nodes, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil

from parl_mq.services.run_directory import RunDirectory

T = TypeVar("T")

SMALL = (
    "--set", "actor.num_envs=8", "--set", "replay.learning_starts=200", "--set", "replay.fragment_length=8",
    "--set", "algorithm.batch_size=32", "--set", "stop.at_target=false", "--set", "stop.max_seconds=1000000",
)  # fmt: skip
"""Settings under which a run trains within seconds of its start, and does not end by itself."""

ROLES = {"zygote", "zygote-light", "hub", "replay-0", "learner-0", "actor-0", "evaluator-0"}
LOOK_EVERY_S = 0.05


class Run:
    """One `parl-mq train`.

    Attributes:
        directory: its run directory.
        rings: where its rings lie.
        process: the command itself.
    """

    def __init__(self, directory: Path, *options: str, rings: Path | None = None, prefix: Sequence[str] = ()) -> None:
        self.directory = directory
        self._root = Path(tempfile.mkdtemp(prefix="pmq-", dir="/tmp"))  # short: socket paths have 107 bytes
        self.rings = rings or self._root / "rings"
        self.rings.mkdir(exist_ok=True)
        places = ("--set", f"node.ring_directory={self.rings}", "--set", f"node.runtime_directory={self._root}")
        command = [sys.executable, "-m", "parl_mq", "train", "cartpole-dqn", "--run-dir", str(directory), "--json"]
        self.process = subprocess.Popen(
            [*prefix, *command, *_unless_said((*SMALL, *places), options), *options],
            env={name: value for name, value in os.environ.items() if not name.startswith("PARL_MQ_")},  # are settings
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._seen: dict[str, psutil.Process] = {}

    def nodes(self) -> dict[str, psutil.Process]:
        """The processes of the run by name, zygotes included."""
        for child in _children(self.process.pid):
            if (name := _node_name(child)) is not None:
                self._seen[name] = child
        return self._seen

    def wait_until_training(self, timeout_s: float = 60.0) -> dict[str, psutil.Process]:
        """Waits for every role and for the first updates, and returns the nodes."""
        self.until(lambda: self.nodes().keys() >= ROLES or None, timeout_s)
        self.until(lambda: any(row.get("updates_total", 0) > 0 for row in self.metrics()) or None, timeout_s)
        return self.nodes()

    def until(self, find: Callable[[], T | None], timeout_s: float = 60.0) -> T:
        """What `find` gives as soon as it gives something; fails after `timeout_s`, or as soon as the command ends."""

        def found() -> T | None:
            if (code := self.process.poll()) is not None:
                told = self.process.communicate()[1]
                raise AssertionError(f"the command ended with code {code} while it was needed; it said:\n{told}")
            return find()

        return poll_until(found, timeout_s)

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl so far."""
        path = self.directory / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    @property
    def summary(self) -> dict[str, Any]:
        """What the run's hub wrote at the end."""
        summary = RunDirectory(self.directory).read_summary()
        assert summary is not None, "the run left no summary"
        return summary

    def finish(self, timeout_s: float = 60.0) -> tuple[int, str, str]:
        """Exit code, stdout and stderr, once the command has ended; nodes that come until then are seen."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.nodes()
            try:
                stdout, stderr = self.process.communicate(timeout=LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() >= deadline:
                    raise
            else:
                return self.process.returncode, stdout, stderr

    def alive(self) -> list[str]:
        """Names of the nodes that were seen and still live."""
        return [name for name, process in self._seen.items() if _is_alive(process)]

    def left_behind(self) -> list[str]:
        """Sockets that are still there, and rings too unless the run was cut off: then they are kept."""
        sockets = [path.name for path in self._root.iterdir() if path != self.rings]
        return [*sockets, *(self.kept_rings() if RunDirectory(self.directory).is_done() else [])]

    def kept_rings(self) -> list[str]:
        """Rings that are still there."""
        return [path.name for path in self.rings.iterdir()]

    def clean_up(self) -> None:
        """Ends every process of the run, by its id, and removes its folder."""
        for process in (*self._seen.values(), self.process):
            if _is_alive(process):
                process.send_signal(signal.SIGKILL)
        if self.process.stdout and not self.process.stdout.closed:
            self.process.communicate()
        subprocess.run(["rm", "-rf", str(self._root)], check=True)


@contextmanager
def running(directory: Path, *options: str, rings: Path | None = None, prefix: Sequence[str] = ()) -> Iterator[Run]:
    """A run that is cleaned up whatever happens.

    Args:
        directory: the run directory.
        options: of the command.
        rings: where rings lie, which stays; None: in a folder of its own.
        prefix: in front of the command, such as one that runs it elsewhere.
    """
    run = Run(directory, *options, rings=rings, prefix=prefix)
    try:
        yield run
    finally:
        run.clean_up()


def poll_until(find: Callable[[], T | None], timeout_s: float) -> T:
    """What `find` gives as soon as it gives something; fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if (found := find()) is not None:
            return found
        time.sleep(LOOK_EVERY_S)  # another process changes what is looked at, and nothing tells when
    raise AssertionError(f"nothing was found within {timeout_s:g} s")


def _unless_said(defaults: tuple[str, ...], options: tuple[str, ...]) -> list[str]:
    """Those of the settings that the options say nothing about: two flags may not contradict each other."""
    said = {option.partition("=")[0] for option in options}
    return [word for text in defaults[1::2] if text.partition("=")[0] not in said for word in ("--set", text)]


def _children(pid: int) -> list[psutil.Process]:
    """Processes below one that may have ended meanwhile."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _node_name(process: psutil.Process) -> str | None:
    try:
        line, name = process.cmdline(), process.name()
    except psutil.Error:
        return None
    if any(part.endswith("nodes.zygote") for part in line):
        zygote = "zygote" if "torch" in line else "zygote-light"
        return name if name.startswith(("hub", "replay", "actor", "learner", "evaluator")) else zygote
    return None


def _is_alive(process: psutil.Process | subprocess.Popen[str]) -> bool:
    if isinstance(process, subprocess.Popen):
        return process.poll() is None
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def maps(pid: int) -> str:
    """Files that a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text() if os.path.exists(f"/proc/{pid}") else ""
