"""Where a run's figures go beside its own record: TensorBoard's event files, Weights & Biases."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from parl_mq.config.models import RunConfig
from parl_mq.errors import ConfigError, PeerTimeout
from parl_mq.extras import install_command
from parl_mq.metrics import known_figures, metric_of, parted
from parl_mq.observe.tensorboard import EventFile

T = TypeVar("T")

TENSORBOARD: Final = "tensorboard"
WANDB_S: Final = 15.0
"""For the beginning of a run of Weights & Biases, and for its end: nodes give a hub that does not answer half a minute,
and a service manager no more."""

WANDB_LAST_S: Final = 10.0
"""For what is left to be sent. The package waits for that again when the process ends, else without limit, and then for
a run that is being begun too, else for 90 s."""

log = logging.getLogger("parl_mq")


class Sink(Protocol):
    """Takes figures now and then; a call may block for milliseconds."""

    @property
    def name(self) -> str:
        """What people call it."""

    def write(self, wall_time: float, env_steps: int, scalars: Mapping[str, float]) -> None:
        """Takes some figures, by tag.

        Raises:
            OSError: they cannot be kept.
        """

    def close(self) -> None:
        """The run has ended."""


class TensorBoard:
    """Event files in the run directory; each start of the hub begins one."""

    name: Final = "TensorBoard"

    def __init__(self, run_directory: Path) -> None:
        """Writes nothing yet."""
        self._folder = run_directory / TENSORBOARD
        self._file: EventFile | None = None

    def write(self, wall_time: float, env_steps: int, scalars: Mapping[str, float]) -> None:
        """See Sink."""
        if self._file is None:
            self._file = EventFile(self._folder, wall_time, socket.gethostname())
        self._file.write(wall_time, env_steps, scalars)

    def close(self) -> None:
        """See Sink; all is written."""


class WeightsAndBiases:
    """A run of Weights & Biases, with the same id as that of parl_mq, so that a resumed run goes on there.

    `WANDB_MODE=offline` keeps it on this machine, as with every program that uses wandb.
    """

    name: Final = "Weights & Biases"

    def __init__(self, project: str, run_id: str, settings: Mapping[str, Any], folder: Path) -> None:
        """Begins it, which takes seconds.

        Raises:
            ConfigError: the package is not installed, or it cannot begin a run.
            PeerTimeout: it has not begun one within WANDB_S.
        """
        os.environ.setdefault("WANDB_INIT_TIMEOUT", f"{WANDB_S:g}")
        os.environ.setdefault("WANDB_FINISH_TIMEOUT", f"{WANDB_LAST_S:g}")
        try:
            import wandb

            if not hasattr(wandb, "init"):
                raise ImportError("a folder called wandb is no package")
        except ImportError as error:
            raise ConfigError(
                f"node.wandb_project = {project!r}: the package wandb is not installed here; "
                f"{install_command('wandb')}, or leave the setting out"
            ).about("node.wandb_project") from error
        self._error: type[Exception] = wandb.Error
        try:
            self._run = _within(
                WANDB_S,
                lambda: wandb.init(project=project, id=run_id, config=dict(settings), dir=str(folder), resume="allow"),
            )
        except TimeoutError as error:
            raise PeerTimeout(
                f"node.wandb_project = {project!r}: Weights & Biases has begun no run within {WANDB_S:g} s; try again, "
                "or keep its figures here with WANDB_MODE=offline"
            ) from error
        except wandb.Error as error:
            raise ConfigError(
                f"node.wandb_project = {project!r}: no run can be begun there: {error}; leave the setting out"
            ).about("node.wandb_project") from error

    def write(self, wall_time: float, env_steps: int, scalars: Mapping[str, float]) -> None:
        """See Sink; steps that go back, after a resumption, keep their own axis."""
        try:
            self._run.log({"env_steps": env_steps, "wall_time": wall_time, **scalars})
        except self._error as error:
            raise OSError(str(error)) from error

    def close(self) -> None:
        """See Sink."""
        try:
            _within(WANDB_S, self._run.finish)
        except TimeoutError:
            log.warning("%s has not taken the last figures within %g s; `wandb sync` sends them", self.name, WANDB_S)


def _within(limit_s: float, call: Callable[[], T]) -> T:
    """What a call returns, made in a thread of its own, which is left alone if it takes longer.

    Raises:
        TimeoutError: it does.
    """
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # whoever waits for the result gets it
            outcome.set_exception(error)

    threading.Thread(target=work, name="wandb", daemon=True).start()
    return outcome.result(limit_s)


def make_sinks(config: RunConfig, run_directory: Path, run_id: str) -> list[Sink]:
    """Those that the settings ask for; may take seconds.

    Raises:
        ConfigError: a package is missing.
        PeerTimeout: a service does not answer.
    """
    sinks: list[Sink] = [TensorBoard(run_directory)] if config.node.tensorboard else []
    if config.node.wandb_project is not None:
        settings = config.model_dump(mode="json", exclude={"node"})
        sinks.append(WeightsAndBiases(config.node.wandb_project, run_id, settings, run_directory))
    return sinks


def tagged(figures: Mapping[str, float]) -> dict[str, float]:
    """The figures under tags, `group/name`: what belongs together is shown together; unknown ones are left out."""
    return {tag_of(key): value for key, value in known_figures(figures).items()}


def tag_of(key: str) -> str:
    """The tag of a figure, such as `replay/replay_fill`, or `replay/replay_priority_rows/0.1`."""
    name, label = parted(key)
    return "/".join([metric_of(name).group, name, *label.values()])
