"""`parl_mq.train`: what the command `parl-mq train` does, from Python."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import uvloop

from parl_mq.config.loader import load_config
from parl_mq.config.models import RunConfig
from parl_mq.errors import (
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_OK,
    NodeFailed,
    RecordError,
    SnapshotError,
    UsageError,
)
from parl_mq.observe.files import metrics_files
from parl_mq.services.attachment import PublicPlace
from parl_mq.services.early_start import EarlyStart
from parl_mq.services.preflight import check_ports, check_run
from parl_mq.services.rings import check_rings, rings_of_run, sweep
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.runtime import StopSignal, hangups
from parl_mq.services.supervisor import Supervisor, runtime_folder
from parl_mq.wire.messages import RunProgress

log = logging.getLogger("parl_mq")

INTERRUPTED: Final = "interrupted by Ctrl-C"
INTERRUPTED_TWICE: Final = "interrupted by Ctrl-C twice"
ONE_KEY_S: Final = 0.3
"""Launchers hand Ctrl-C on to a process that the terminal has told already: so near each other, two are one."""
TERMINATED: Final = "asked to stop by SIGTERM"
SEEN_ENOUGH: Final = "asked to stop by its caller"
HUNG_UP: Final = "asked to stop by SIGHUP: the terminal is gone"


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to.

    Attributes:
        reached: an evaluation met the target return.
        eval_return: mean return of the last evaluation, or None if there was none.
        env_steps: steps of all actors.
        updates: learner updates.
        wall_s: seconds from the start to the end.
        time_to_target_s: seconds from the start to the end of the first evaluation that met the target, or None.
        run_dir: where everything about the run lies.
        exit_code: 0, or 130 after Ctrl-C.
        summary: everything that summary.json holds.
    """

    reached: bool
    eval_return: float | None
    env_steps: int
    updates: int
    wall_s: float
    time_to_target_s: float | None
    run_dir: Path
    exit_code: int = EXIT_OK
    summary: dict[str, Any] = field(default_factory=dict)


def train(
    config: RunConfig | str | Path,
    *,
    run_dir: Path | str | None = None,
    resume: bool = False,
    on_progress: Callable[[RunProgress], None] | None = None,
    end_when: Callable[[RunProgress], bool] | None = None,
    on_event: Callable[[str], None] | None = None,
    started_at: float | None = None,
    bind: str | None = None,
    advertise: str | None = None,
    early: EarlyStart | None = None,
) -> Result:
    """Trains with every node on this machine, and returns when all of them have ended.

    Blocks. In the main thread, Ctrl-C, SIGTERM and SIGHUP end the run in order. Not to be called where an event loop
    runs.

    Args:
        config: settings, or the name of a preset, or a TOML file.
        run_dir: must not exist yet, unless it is to be resumed; None makes one under `runs/`.
        resume: the run in `run_dir` goes on: learner, counters, evaluations, and the rows of the replay where the run
            was cut off; after its end they are gone, and the replay is filled anew.
        on_progress: called about four times a second.
        end_when: called as often; the run ends in order once it says True.
        on_event: called with a line for people when a node has failed and was started again; None logs it.
        started_at: monotonic time from which the run's seconds count; None: now.
        bind: `tcp://HOST` or `tcp://HOST:PORT` where actors on other machines may join with a join file, which is made
            in the run directory and told to `on_event`; None: nowhere.
        advertise: host by which they reach this one; None: that of `bind`.
        early: what the run needs whatever its settings are, where the caller has started it before it knew them.

    Raises:
        ConfigError: the settings are impossible, the algorithm cannot learn in the environment, the device is not
            there, `run_dir` exists, or it holds another run than the one to be resumed. Nothing was started.
        EnvironmentFault: the environment cannot be made. Nothing was started.
        MemoryRefused: the replay table or the networks would not fit. Nothing was started.
        CodedError: another command is training in `run_dir`, or a port is in use. Nothing was started.
        RecordError: the run directory cannot be written; what ran was ended at once.
        NodeFailed: a node could not be kept running; the others were stopped.
        KeyboardInterrupt: Ctrl-C came a second time; everything was ended at once.
    """
    with early or EarlyStart() as early:
        started_at = time.monotonic() if started_at is None else started_at
        public = None if bind is None else PublicPlace.of(bind, advertise)
        settings = config if isinstance(config, RunConfig) else load_config(config)
        check_ports(bind, settings.node)
        spec = check_run(settings, reused_bytes=_bytes_of_rings(settings, run_dir) if resume else 0)
        stop, kill = StopSignal(), StopSignal()
        with runtime_folder(settings.node) as runtime:
            directory = _open(settings, run_dir) if resume else _create(settings, run_dir)
            with directory.held():
                for line in sweep(settings.node, but=directory.read_memory().run_id):
                    (on_event or log.warning)(line)
                if resume:
                    check_rings(settings, directory)
                    directory.write_config(settings)
                    directory.forget_summary()

                async def run() -> None:
                    _end_on_signals(stop, kill)
                    supervisor = Supervisor(
                        settings,
                        spec,
                        directory,
                        runtime=runtime,
                        started_at=started_at,
                        early=early,
                        on_progress=_heard_by(on_progress, end_when, stop),
                        on_event=on_event or log.warning,
                        public=public,
                    )
                    await supervisor.run(stop, kill)

                try:
                    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                        runner.run(run())
                    if kill.is_set():
                        raise KeyboardInterrupt(kill.reason)
                finally:
                    if not kill.is_set():
                        _draw(directory)
        return _result(directory, was_interrupted=stop.reason == INTERRUPTED)


def _draw(directory: RunDirectory) -> None:
    from parl_mq.observe.plots import write_learning_curve  # it loads matplotlib, which the start must not wait for

    try:
        if metrics_files(directory.path):
            write_learning_curve(directory.path)
    except RecordError as error:
        log.warning("no learning curve was drawn: %s", error)


def _bytes_of_rings(config: RunConfig, run_dir: Path | str | None) -> int:
    """What the rings of a run to be resumed take already; what is wrong with it, `_open` tells."""
    try:
        run_id = RunDirectory(Path(run_dir or "")).read_memory().run_id
    except SnapshotError:
        return 0
    return sum(ring.num_bytes for ring in rings_of_run(config.node, run_id))


def _heard_by(
    on_progress: Callable[[RunProgress], None] | None,
    end_when: Callable[[RunProgress], bool] | None,
    stop: StopSignal,
) -> Callable[[RunProgress], None]:
    def hear(progress: RunProgress) -> None:
        if on_progress is not None:
            on_progress(progress)
        if end_when is not None and end_when(progress):
            stop.set(SEEN_ENOUGH)

    return hear


def _create(config: RunConfig, run_dir: Path | str | None) -> RunDirectory:
    return RunDirectory.create(Path(run_dir) if run_dir is not None else _new_run_path(config), config)


def _open(config: RunConfig, run_dir: Path | str | None) -> RunDirectory:
    """The directory of a run to be resumed, which must have been started with the same settings."""
    if run_dir is None:
        raise UsageError("--resume needs --run-dir, the run to go on with")
    return RunDirectory.reopen(Path(run_dir), config)


def _new_run_path(config: RunConfig) -> Path:
    moment = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return Path("runs") / f"{config.preset}-seed{config.seed}-{moment}"


def _end_on_signals(stop: StopSignal, kill: StopSignal) -> None:
    """Ctrl-C, SIGTERM and a terminal that goes end the run in order, a second Ctrl-C at once.

    Signals reach the main thread alone; elsewhere nothing is set.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    interrupted_at: list[float] = []

    def interrupt() -> None:
        interrupted_at.append(loop.time())
        if interrupted_at[-1] - interrupted_at[0] > ONE_KEY_S:
            kill.set(INTERRUPTED_TWICE)
        stop.set(INTERRUPTED)

    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGTERM, stop.set, TERMINATED)
    for number in hangups():
        loop.add_signal_handler(number, stop.set, HUNG_UP)


def _result(directory: RunDirectory, *, was_interrupted: bool) -> Result:
    summary = directory.read_summary()
    if summary is None:
        raise NodeFailed(f"the hub left no summary in {directory.path}", EXIT_INTERNAL)
    return Result(
        reached=summary["reached"],
        eval_return=summary["eval_return"],
        env_steps=summary["env_steps"],
        updates=summary["updates"],
        wall_s=summary["wall_s"],
        time_to_target_s=summary["time_to_target_s"],
        run_dir=directory.path,
        exit_code=EXIT_INTERRUPTED if was_interrupted else EXIT_OK,
        summary=summary,
    )
