"""What an algorithm is to the rest of the system: three Protocols, for the learner, the actor and the evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from parl_mq.spec import TableSpec

if TYPE_CHECKING:
    import torch

    from parl_mq.algorithms.averaging import Averaging

Observation = npt.NDArray[np.generic] | dict[str, npt.NDArray[np.generic]]
"""[B, *shape], or a dict of such arrays, one for each column `obs/KEY`, by KEY."""

Compiler = Callable[[Callable[[Any], Any]], Callable[[Any], Any]]
"""Makes a function that does the same, faster."""


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """One batch as the learner sees it; B rows.

    Attributes:
        obs: [B, ...].
        action: [B, ...], in the environment's scale.
        reward: [B] float32, the n-step sum.
        next_obs: [B, ...], k steps later.
        discount: [B] float32, gamma^k, or 0 where the window ended in termination.
        weight: [B] float32 importance weights in (0, 1].
        extras: the algorithm's extra columns by name.
        weight_peak: the largest (N P)^-beta of these rows, by which the weights were divided; learners that share a
            batch bring their weights to one scale by it.
    """

    obs: Observation
    action: npt.NDArray[np.generic]
    reward: npt.NDArray[np.float32]
    next_obs: Observation
    discount: npt.NDArray[np.float32]
    weight: npt.NDArray[np.float32]
    extras: Mapping[str, npt.NDArray[np.generic]]
    weight_peak: float = 1.0


@dataclass(frozen=True, slots=True)
class UpdateOutcome:
    """What one update gives back.

    Attributes:
        magnitudes: [B] float64, |TD error| from the unweighted error; >= 0.
        figures: name -> value, for the metrics (see parl_mq.metrics).
        was_skipped: the loss was not finite, and nothing was changed.
    """

    magnitudes: npt.NDArray[np.float64]
    figures: Mapping[str, float]
    was_skipped: bool = False

    @classmethod
    def skipped(cls, magnitudes: npt.NDArray[np.float64]) -> UpdateOutcome:
        """Of an update that was not made: rows whose error is not finite are drawn as rarely as the table allows."""
        return cls(np.where(np.isfinite(magnitudes), magnitudes, 0.0), {}, was_skipped=True)


class Trainer(Protocol):
    """The learner's half of an algorithm. Lives in one thread."""

    @property
    def num_updates(self) -> int:
        """Gradient steps taken, without the skipped ones."""

    def update(self, batch: TrainingBatch) -> UpdateOutcome:
        """One gradient step."""

    def policy_weights(self) -> dict[str, torch.Tensor]:
        """What a policy needs to act; CPU copies that later updates do not touch."""

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Everything needed to go on exactly: tensors (networks, targets, optimizer), and plain JSON values."""

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """Takes back what `state` gave.

        Raises:
            SnapshotError: a tensor is missing, unknown or of another shape. Nothing is changed then.
        """


@runtime_checkable
class ParallelTrainer(Trainer, Protocol):
    """A trainer that can be one of several that share each batch, and hold the same state after each update.

    Its update averages gradients, and all else that a step depends on, by parl_mq.algorithms.averaging.SharedGradients,
    and decides by the averages alone whether it is skipped.
    """

    def join(self, group: Averaging) -> None:
        """Learns together with this group from the next update on."""


@runtime_checkable
class CompilableTrainer(Trainer, Protocol):
    """A trainer whose arithmetic can be made one program (see parl_mq.learn.programs)."""

    def compile_with(self, compiler: Compiler) -> None:
        """Computes by what the compiler makes of its arithmetic from the next update on; the first ones are slow then.

        Asked again, it hands over what it computes by already. A function that it hands over

        - takes the staged batch, which is the same object, on the same memory, as long as the batch size is the same;
        - reads nothing else that changes but tensors that stay in their memory, as parameters do;
        - may be called several times for one batch: it overwrites, and neither adds to a gradient nor makes a step;
        - asks no device for a value;
        - gives a result that is used before it is called again.
        """


class Policy(Protocol):
    """The actor's and the evaluator's half: CPU only, one thread."""

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Acts with these from now on."""

    def act(self, obs: Observation, rng: np.random.Generator) -> npt.NDArray[np.generic]:
        """[M, ...] exploring actions for M environments, of the action space's dtype, in the environment's scale."""

    def act_greedily(self, obs: Observation) -> npt.NDArray[np.generic]:
        """[M, ...] actions without exploration."""


class Algorithm(Protocol):
    """An algorithm's entry: the object that parl_mq.algorithms.registry finds under its name."""

    def make_trainer(self, config: Any, spec: TableSpec, seed: int, device: torch.device) -> Trainer:
        """A fresh trainer.

        Args:
            config: the algorithm's settings (the `algorithm` section of the run's config).
            spec: columns and spaces of the table.
            seed: of the network's first weights and of whatever else is drawn.
            device: where the networks live.

        Raises:
            ConfigError: the algorithm cannot learn in these spaces; the message says which it can.
        """

    def make_policy(self, config: Any, spec: TableSpec, ladder: npt.NDArray[np.float64]) -> Policy:
        """A policy for M environments.

        Args:
            config: as above.
            spec: as above.
            ladder: [M], each environment's place on the run's exploration ladder, from 0 (explores most) to 1.
        """
