"""Short runs of the real system that are watched: how fast each part goes, and what each process costs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from parl_mq import api
from parl_mq.bench.processes import Usage, usage_of_family
from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, ConfigError, NodeFailed, UsageError
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.tables import remove_rings
from parl_mq.wire.messages import RunProgress

START_S: Final = 60.0
"""A run in which nobody has begun to work after this time is given up."""
WARM_S: Final = 1.0
"""The first steps and updates of a process are slower than the rest."""
NO_PULSE: Final = (0, 0.0, 0)
OTHERS: Final = "others"
"""Hub, supervisor and the process that the nodes are forked from, together."""
COUNTERS: Final = ("env_steps_total", "inserted_rows_total", "drawn_rows_total", "updates_total")


@dataclass(frozen=True, slots=True)
class Moment:
    """A run at one moment of it.

    Attributes:
        at: on the clock, s.
        counts: of COUNTERS.
        usage: of each node by its name, and of OTHERS.
    """

    at: float
    counts: Mapping[str, float]
    usage: Mapping[str, Usage]


@dataclass(frozen=True, slots=True)
class Observed:
    """What a run did while it was watched; rates are slopes over all moments, since counters come twice a second.

    Attributes:
        seconds: from the first moment to the last.
        env_steps_per_s: of all actors.
        inserts_per_s: live rows that the replay nodes took.
        samples_per_s: rows drawn.
        updates_per_s: of the learner, or of the group of them.
        cores: processor seconds a second of each node, by its name, and of OTHERS.
        busy: the same of the node's busiest thread alone.
        delayed: share of the time that this thread was kept waiting for a core.
    """

    seconds: float
    env_steps_per_s: float
    inserts_per_s: float
    samples_per_s: float
    updates_per_s: float
    cores: Mapping[str, float]
    busy: Mapping[str, float]
    delayed: Mapping[str, float]

    def cores_of(self, role: str) -> float:
        """Processor seconds a second of all processes of a role, such as `actor`."""
        return sum(share for name, share in self.cores.items() if name.partition("-")[0] == role)

    def busy_of(self, role: str) -> float:
        """Processor seconds a second of the busiest threads of all processes of a role."""
        return sum(share for name, share in self.busy.items() if name.partition("-")[0] == role)

    def delayed_of(self, role: str) -> float:
        """Mean share of the time that the role's processes were kept waiting for a core."""
        shares = [share for name, share in self.delayed.items() if name.partition("-")[0] == role]
        return float(np.mean(shares)) if shares else 0.0


def watch(
    config: RunConfig,
    *,
    names: Sequence[str],
    seconds: float,
    cores: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Observed:
    """Runs settings as `parl-mq train` does until they have been watched for long enough, in a folder that goes again.

    Not to be called where an event loop runs.

    Args:
        config: what is run; its own limits and target are put aside.
        names: of the nodes that must have got something done before the watch begins, such as `actor-0`.
        seconds: that the watch lasts.
        cores: the run may use so many of this process's; None: all of them.
        clock: seconds, monotonic.

    Raises:
        NodeFailed: a node failed, or had not begun to work after START_S.
        KeyboardInterrupt: Ctrl-C ended the run.
        ParlError: as `parl_mq.train`.
    """
    endless = changed(config, {"stop.target_return": None, "stop.max_steps": None, "stop.max_seconds": None})
    watcher = Watcher(names, seconds, clock, lambda: usage_of_family(os.getpid()))
    events: list[str] = []
    with _own_directory(config) as run_dir, restricted_to(cores):
        result = api.train(endless, run_dir=run_dir, end_when=watcher.note, on_event=events.append, started_at=clock())
    if result.exit_code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if failures := result.summary["failures"]:
        raise NodeFailed(f"{failures[0]['node']} {failures[0]['how']} while it was measured", EXIT_INTERNAL)
    if (observed := watcher.observed) is None:
        told = "; ".join([watcher.state, *events])
        raise NodeFailed(f"nothing could be measured within {START_S:g} s: {told}", EXIT_INTERNAL)
    return observed


@dataclass(slots=True)
class Watcher:
    """Decides when a run has been watched for long enough.

    Attributes:
        names: of the nodes that must have got something done before the watch begins.
        seconds: that it lasts.
        clock: s.
        usage: of all processes, now.
        state: where the run is, in words.
    """

    names: Sequence[str]
    seconds: float
    clock: Callable[[], float]
    usage: Callable[[], list[Usage]]
    state: str = "its start"
    _began_at: float | None = None
    _is_over: bool = False
    _made_at: float = field(init=False)
    _moments: list[Moment] = field(default_factory=list)

    def __post_init__(self) -> None:
        """The time to begin in counts from here."""
        self._made_at = self.clock()

    def note(self, progress: RunProgress) -> bool:
        """Looks at the run; True once it was watched for long enough, or does not come to begin."""
        if self._is_over:
            return True
        now = self.clock()
        if self._began_at is None:
            self.state = "; ".join(f"{name}: {waits_for or state}" for name, state, waits_for in progress.nodes)
            if all(progress.pulses.get(name, NO_PULSE)[2] > 0 for name in self.names):
                self._began_at = now
            self._is_over = now - self._made_at > START_S
            return self._is_over
        if now - self._began_at < WARM_S:
            return False
        self._moments.append(self._moment(now, progress))
        self._is_over = now - self._began_at >= WARM_S + self.seconds
        return self._is_over

    @property
    def observed(self) -> Observed | None:
        """What was seen; None where there is too little of it."""
        if len(self._moments) < 3:
            return None
        at = np.array([moment.at for moment in self._moments])
        per_s = {name: _slope(at, [moment.counts[name] for moment in self._moments]) for name in COUNTERS}
        names = set.intersection(*(set(moment.usage) for moment in self._moments))
        usage = {name: [moment.usage[name] for moment in self._moments] for name in sorted(names)}
        return Observed(
            seconds=float(at[-1] - at[0]),
            env_steps_per_s=per_s["env_steps_total"],
            inserts_per_s=per_s["inserted_rows_total"],
            samples_per_s=per_s["drawn_rows_total"],
            updates_per_s=per_s["updates_total"],
            cores={name: _slope(at, [each.cpu_s for each in seen]) for name, seen in usage.items()},
            busy={name: _slope(at, [each.busy_s for each in seen]) for name, seen in usage.items()},
            delayed={name: _slope(at, [each.delayed_s for each in seen]) for name, seen in usage.items()},
        )

    def _moment(self, now: float, progress: RunProgress) -> Moment:
        names = {pid: name for name, (pid, _, _) in progress.pulses.items()}
        usage: dict[str, Usage] = {}
        for each in self.usage():
            name = names.get(each.pid, OTHERS)
            usage[name] = each + usage[name] if name in usage else each
        return Moment(now, {name: progress.figures.get(name, 0.0) for name in COUNTERS}, usage)


def changed(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The settings with some of them changed; None puts a default back.

    Args:
        config: what they were.
        values: `section.key` -> value.

    Raises:
        ConfigError: they do not fit each other then.
    """
    sections = config.model_dump()
    for key, value in values.items():
        section, _, name = key.partition(".")
        sections[section] = {**sections[section], name: value}
    try:
        return RunConfig.model_validate(sections)
    except ValidationError as error:
        raise ConfigError("; ".join(fault["msg"] for fault in error.errors())) from error


@contextmanager
def _own_directory(config: RunConfig) -> Iterator[Path]:
    """Where a run is recorded; afterwards nothing of it is left, its rings included, as nobody will go on with it."""
    with tempfile.TemporaryDirectory(prefix="parl-mq-") as folder:
        directory = RunDirectory(Path(folder) / "run")
        try:
            yield directory.path
        finally:
            if directory.config.is_file():
                remove_rings(config.node, directory.read_memory().run_id)


@contextmanager
def restricted_to(cores: int | None) -> Iterator[None]:
    """This process and those that it starts meanwhile run on so many of its cores.

    Raises:
        UsageError: it has not so many.
    """
    allowed = os.sched_getaffinity(0)
    if cores is not None and cores > len(allowed):
        raise UsageError(f"--cores {cores}: this process may use {len(allowed)}")
    os.sched_setaffinity(0, sorted(allowed)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _slope(at: np.ndarray[Any, Any], values: Sequence[float]) -> float:
    """Of the line that fits best, per second."""
    return float(np.polyfit(at - at[0], values, 1)[0])
