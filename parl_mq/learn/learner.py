"""The learner without its sockets: from drawn rows to updates, published weights and checkpoints.

Pure and synchronous; it belongs to the learner's work thread.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from parl_mq.algorithms.averaging import Averaging
from parl_mq.algorithms.base import Observation, ParallelTrainer, Trainer, TrainingBatch
from parl_mq.config.models import LearnerConfig
from parl_mq.errors import ConfigError, ParlError, SnapshotError
from parl_mq.learn.checkpoint import Checkpoint
from parl_mq.learn.programs import make_programs
from parl_mq.model.snapshot import WeightsSnapshot
from parl_mq.model.weights import pack, unpack
from parl_mq.replay.draws import importance_weights
from parl_mq.spec import STEP_COLUMNS, TableSpec, WeightsVersion

Columns = Mapping[str, npt.NDArray[np.generic]]

CPU: Final = torch.device("cpu")

FIRST_CHECKPOINT_S: Final = 1.0
"""After a learner's start. The next ones come after twice the time of the one before, up to the period that is set: a
learner that dies young loses half of what it has learned at most, not all of it."""


@dataclass(frozen=True, slots=True)
class DrawnRows:
    """One batch as it was drawn, joined where several replay nodes gave parts of it; B rows.

    Attributes:
        columns: name -> [B, ...]: the observation's columns, the same with `next_` in front, the action's, `reward`,
            `discount`, and the algorithm's extra ones.
        probabilities: [B] float64, P(i) at which each row was drawn; 0 marks a row that must not count.
        num_live: N, rows of the run that the draw could have given.
    """

    columns: Columns
    probabilities: npt.NDArray[np.float64]
    num_live: int


@dataclass(frozen=True, slots=True)
class LearnerStep:
    """What one update leads to.

    Attributes:
        magnitudes: [B] float64 >= 0, the rows' new priorities.
        was_skipped: the loss was not finite, and nothing was changed.
        published: a new version of the weights, or None while none is due.
        is_checkpoint_due: take `Learner.checkpoint` and save it now.
    """

    magnitudes: npt.NDArray[np.float64]
    was_skipped: bool
    published: WeightsSnapshot | None
    is_checkpoint_due: bool


class CommonStart(Averaging, Protocol):
    """A group of learners that begin with one state."""

    def broadcast(self, payload: bytes) -> bytes:
        """The state that all begin with, of the learner that has the most updates."""


class Learner:
    """Runs a trainer, counts what it does, and says when weights and checkpoints are due.

    Args:
        trainer: the algorithm's, fresh or about to take a checkpoint back.
        spec: the table's.
        config: when to publish, to checkpoint and to give up.
        beta: exponent of the importance weights.
        clock: monotonic seconds.
        generation: of the versions that this learner publishes, until it joins a group.
        device: the trainer's.
        run_id: of the run, which checkpoints say.

    Raises:
        ConfigError: the algorithm cannot be compiled, or the device not record, where that is asked for.
    """

    def __init__(
        self,
        trainer: Trainer,
        spec: TableSpec,
        config: LearnerConfig,
        *,
        beta: float,
        clock: Callable[[], float],
        generation: int = 0,
        device: torch.device = CPU,
        run_id: str = "",
    ) -> None:
        self._trainer = trainer
        self._device_type = device.type
        self._run_id = run_id
        make_programs(trainer, config, device)
        self._spec = spec
        self._config = config
        self._beta = beta
        self._clock = clock
        self._next_version = WeightsVersion(generation, 0)
        self._began_at = clock()
        self._checkpoint_at = self._began_at + min(FIRST_CHECKPOINT_S, config.checkpoint_every_s)
        self._num_skipped = 0
        self._num_skipped_in_a_row = 0
        self._recent: defaultdict[str, float] = defaultdict(float)
        self._num_recent = 0
        self._stage_s = self._update_s = self._publish_s = 0.0
        self._is_first = True

    @property
    def num_updates(self) -> int:
        """Gradient steps, those before a resume included, the skipped ones not."""
        return self._trainer.num_updates

    def join(self, group: CommonStart, generation: int) -> None:
        """Learns with this group from now on, all with the state of one of them; waits for the others.

        Only rank 0 publishes versions, of this generation, and asks for checkpoints.

        Raises:
            ConfigError: the algorithm cannot learn with others.
            GroupBroken: a learner is gone.
        """
        if group.size > 1:
            self._share(group)
        self._is_first = group.rank == 0
        self._next_version = WeightsVersion(generation, 0)
        self._num_skipped_in_a_row = 0

    def _share(self, group: CommonStart) -> None:
        trainer = parallel(self._trainer)
        own = self.checkpoint().to_bytes()
        if (common := group.broadcast(own)) != own:
            self.resume(Checkpoint.from_bytes(common))
        trainer.join(group)

    def learn(self, rows: DrawnRows) -> LearnerStep:
        """One update.

        Raises:
            GroupBroken: a learner of the group is gone. Nothing has changed.
            ParlError: too many updates in a row had a loss that was not finite.
        """
        began_at = self._clock()
        batch = training_batch(rows, self._spec, self._beta)
        staged_at = self._clock()
        with self._precision():
            outcome = self._trainer.update(batch)
        self._stage_s += staged_at - began_at
        self._update_s += self._clock() - staged_at
        self._count(outcome.figures, was_skipped=outcome.was_skipped)
        is_publication_due = not outcome.was_skipped and self.num_updates % self._config.publish_every_updates == 0
        published = self.publish() if is_publication_due and self._is_first else None
        is_checkpoint_due = self._is_first and self._is_checkpoint_due()
        return LearnerStep(outcome.magnitudes, outcome.was_skipped, published, is_checkpoint_due)

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        if self._config.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self._device_type, torch.bfloat16)

    def publish(self) -> WeightsSnapshot:
        """The weights as they are now, under the next version: the first is (generation, 0)."""
        version, began_at = self._next_version, self._clock()
        self._next_version = version._replace(counter=version.counter + 1)
        snapshot = WeightsSnapshot.of(version, self.num_updates, pack(self._trainer.policy_weights()))
        self._publish_s += self._clock() - began_at
        return snapshot

    def take_figures(self) -> dict[str, float]:
        """Totals, and means of the trainer's figures over the updates since the last call; none if there were none."""
        means = {name: total / self._num_recent for name, total in self._recent.items()}
        self._recent.clear()
        self._num_recent = 0
        return {
            "updates_total": self.num_updates,
            "skipped_updates_total": self._num_skipped,
            "learner_stage_seconds_total": self._stage_s,
            "learner_update_seconds_total": self._update_s,
            "learner_publish_seconds_total": self._publish_s,
            **means,
        }

    def checkpoint(self) -> Checkpoint:
        """All that is needed to go on exactly; later updates do not touch it, so another thread may save it."""
        tensors, values = self._trainer.state()
        return Checkpoint(
            updates=self.num_updates,
            weights=pack(self._trainer.policy_weights()),
            trainer=pack(tensors),
            values={"trainer": values, "num_skipped": self._num_skipped, "run_id": self._run_id},
        )

    def resume(self, checkpoint: Checkpoint) -> None:
        """Takes back what `checkpoint` gave, of this process or an earlier one.

        Raises:
            SnapshotError: it is not a learner's, or of another algorithm or network. Nothing is changed then.
        """
        values: Mapping[str, Any] = checkpoint.values
        if checkpoint.trainer is None or not isinstance(trainer_values := values.get("trainer"), Mapping):
            raise SnapshotError("this checkpoint holds weights alone: a learner cannot go on from it")
        self._trainer.load_state(unpack(checkpoint.trainer), trainer_values)
        self._num_skipped = int(values.get("num_skipped", 0))

    def _count(self, figures: Mapping[str, float], *, was_skipped: bool) -> None:
        self._num_skipped_in_a_row = self._num_skipped_in_a_row + 1 if was_skipped else 0
        self._num_skipped += was_skipped
        if self._num_skipped_in_a_row > self._config.max_skipped_updates:
            raise ParlError(
                f"learner: the loss was not finite in {self._num_skipped_in_a_row} updates in a row "
                f"(learner.max_skipped_updates = {self._config.max_skipped_updates}), after update {self.num_updates}; "
                "look for rewards or observations that are NaN or huge, or lower algorithm.learning_rate"
            )
        if not was_skipped:
            self._num_recent += 1
            for name, value in figures.items():
                self._recent[name] += value

    def _is_checkpoint_due(self) -> bool:
        if (now := self._clock()) < self._checkpoint_at:
            return False
        self._checkpoint_at = now + min(now - self._began_at, self._config.checkpoint_every_s)
        return True


def parallel(trainer: Trainer) -> ParallelTrainer:
    """The trainer as one that can share its batches.

    Raises:
        ConfigError: says what it lacks.
    """
    if not isinstance(trainer, ParallelTrainer):
        raise ConfigError(
            f"algorithm.name: this algorithm's trainer, {type(trainer).__name__}, cannot learn with others: it has no "
            "method `join` (docs/own-algorithm.md); set learner.num_learners = 1"
        )
    return trainer


def training_batch(rows: DrawnRows, spec: TableSpec, beta: float) -> TrainingBatch:
    """The batch that a trainer learns from, with the importance weights over all of it."""
    columns: Mapping[str, npt.NDArray[Any]] = rows.columns
    inputs = (*spec.observation_names, *spec.action_names, *STEP_COLUMNS)
    return TrainingBatch(
        obs=_observation(columns, spec, prefix=""),
        action=columns["action"],
        reward=columns["reward"],
        next_obs=_observation(columns, spec, prefix="next_"),
        discount=columns["discount"],
        weight=importance_weights(rows.probabilities, beta),
        extras={column.name: columns[column.name] for column in spec.columns if column.name not in inputs},
        weight_peak=weight_peak(rows, beta),
    )


def weight_peak(rows: DrawnRows, beta: float) -> float:
    """The largest (N P)^-beta of the rows that count, which importance weights are relative to; 0 if none counts."""
    counting = rows.probabilities[rows.probabilities > 0.0]
    return float((rows.num_live * counting.min()) ** -beta) if len(counting) else 0.0


def _observation(columns: Columns, spec: TableSpec, *, prefix: str) -> Observation:
    if spec.observation_names == ("obs",):
        return columns[f"{prefix}obs"]
    return {name.removeprefix("obs/"): columns[prefix + name] for name in spec.observation_names}
