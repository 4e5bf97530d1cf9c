"""One training of a benchmark as a process of its own: its command, what is there of it already, and how it ends."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from parl_mq.bench.tables import OWN
from parl_mq.bench.train_peer import Kind
from parl_mq.bench.train_peers import peer_settings
from parl_mq.config.loader import dump_toml, load_config
from parl_mq.errors import EXIT_TEMPORARY, NodeFailed, UsageError
from parl_mq.observe.runs import dotted, read_run, read_settings
from parl_mq.observe.words import seconds
from parl_mq.services.run_directory import RunDirectory

ENDS_WITHIN_S: Final = 60.0
"""A run that is asked to stop writes its last checkpoint first."""
LAST_LINES: Final = 12
"""Of a failed run's output that are told."""
MAX_SHOWN: Final = 5
"""Settings that are told where a directory holds a run of others."""


class Job(Protocol):
    """One training."""

    @property
    def system(self) -> str:
        """Name of the library."""

    @property
    def settings(self) -> str:
        """`preset`, `equal` or `best`."""

    @property
    def label(self) -> str:
        """Of all jobs that differ in their seed alone."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def path(self) -> Path:
        """Its run directory."""

    def check(self) -> None:
        """Refuses a directory that holds a run of other settings.

        Raises:
            ConfigError: it does, or the library cannot learn this.
        """

    def is_done(self) -> bool:
        """Whether it has ended by itself, and need not run."""

    def prepare(self) -> None:
        """Clears away what an earlier attempt left that cannot be gone on with.

        Raises:
            CodedError: that attempt still goes on.
        """

    def command(self) -> list[str]:
        """What runs it, or goes on with it."""


@dataclass(frozen=True, slots=True)
class OwnJob:
    """`parl-mq train` with one seed; a run that was cut off is resumed."""

    source: str
    overrides: tuple[str, ...]
    seed: int
    directory: Path
    system: str = OWN
    settings: str = "preset"
    label: str = OWN

    @property
    def name(self) -> str:
        """See Job."""
        return f"{self.source}, seed {self.seed}"

    @property
    def path(self) -> Path:
        """See Job."""
        return self.directory / f"{OWN}-seed{self.seed}"

    def check(self) -> None:
        """See Job."""
        config = load_config(self.source, overrides=(*self.overrides, f"seed={self.seed}"))
        if self.path.exists():
            _refuse_others(self.path, tomllib.loads(dump_toml(config, with_node=False)))

    def is_done(self) -> bool:
        """See Job."""
        return self.path.exists() and RunDirectory(self.path).is_done()

    def prepare(self) -> None:
        """See Job."""

    def command(self) -> list[str]:
        """See Job."""
        options = [text for override in self.overrides for text in ("--set", override)]
        resumed = ["--resume"] if self.path.exists() else []
        ends = ["--seed", str(self.seed), "--run-dir", str(self.path), *resumed]
        return [sys.executable, "-P", "-m", "parl_mq", "train", self.source, *options, *ends]


@dataclass(frozen=True, slots=True)
class PeerJob:
    """Another library's training with one seed; one that was cut off begins anew."""

    source: str
    overrides: tuple[str, ...]
    seed: int
    directory: Path
    system: str
    kind: Kind
    limit_s: float

    @property
    def settings(self) -> str:
        """See Job."""
        return self.kind

    @property
    def label(self) -> str:
        """See Job."""
        return f"{self.system} ({self.kind})"

    @property
    def name(self) -> str:
        """See Job."""
        return f"{self.source} by {self.label}, seed {self.seed}"

    @property
    def path(self) -> Path:
        """See Job."""
        return self.directory / f"{self.system}-{self.kind}-seed{self.seed}"

    def check(self) -> None:
        """See Job."""
        config = load_config(self.source, overrides=(*self.overrides, f"seed={self.seed}"))
        wanted = peer_settings(self.system, config, self.kind).recorded(config, self.label, self.limit_s)
        if self.path.exists():
            _refuse_others(self.path, tomllib.loads(wanted))

    def is_done(self) -> bool:
        """See Job."""
        return self.path.exists() and RunDirectory(self.path).is_done()

    def prepare(self) -> None:
        """See Job."""
        if self.path.exists():
            with RunDirectory(self.path).held():
                shutil.rmtree(self.path)

    def command(self) -> list[str]:
        """See Job."""
        options = [text for override in self.overrides for text in ("--set", override)]
        told = ["--settings", self.kind, "--seed", str(self.seed), "--limit-s", str(self.limit_s)]
        script = [sys.executable, "-P", "-m", "parl_mq.bench.train_peers", self.system, self.source]
        return [*script, *options, *told, "--run-dir", str(self.path)]


def run_to_end(job: Job, title: str, tell: Callable[[str], None]) -> None:
    """Runs a job unless it is done; blocks until its process has ended.

    Its output goes to `NAME.log` beside its directory. Where this process is interrupted, the job is asked to stop and
    waited for.

    Raises:
        NodeFailed: it ended with an error, or without having come to its end.
    """
    if job.is_done():
        tell(f"{title}: is there already ({_in_words(job.path)})")
        return
    tell(f"{title} ...")
    log = job.path.with_name(f"{job.path.name}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    job.prepare()
    code = _wait_for(job.command(), log)
    if code != 0 or not job.is_done():
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        raise NodeFailed(
            "\n".join([f"{job.name} ended with code {code}; the end of {log}:", *lines]), code or EXIT_TEMPORARY
        )
    tell(f"{title}: {_in_words(job.path)}")


def _wait_for(command: Sequence[str], log: Path) -> int:
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        return process.wait()
    except BaseException:  # whatever ends this process ends the job's too
        process.terminate()
        try:
            process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
        raise


def _refuse_others(path: Path, wanted: Mapping[str, Any]) -> None:
    """A directory is gone on with only if its run has the settings that are wanted."""
    found, asked = (
        {key: value for key, value in settings.items() if not key.startswith("node.")}
        for settings in (read_settings(path), dict(dotted(wanted)))
    )
    if differing := [key for key in sorted({*found, *asked}) if found.get(key) != asked.get(key)]:
        shown = ", ".join(f"{key} = {found.get(key, 'none')!r}" for key in differing[:MAX_SHOWN])
        raise UsageError(f"{path} holds a run of other settings ({shown}); name another --directory, or remove it")


def _in_words(path: Path) -> str:
    run = read_run(path, time.time())
    judged = "no evaluation" if run.eval_return is None else f"return {run.eval_return:.4g}"
    if run.time_to_target_s is not None:
        return f"reached {run.target_return:g} after {seconds(run.time_to_target_s)}"
    return f"{judged} after {run.env_steps:,} steps, {seconds(run.wall_s)}"
