"""A peer's training: what it is given, and how it is judged and recorded, which is as a run of parl_mq is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy.typing as npt
import tomli_w

from parl_mq.bench.train_runs import EVALUATION_S, FIRST_STEP_S
from parl_mq.config.models import RunConfig
from parl_mq.errors import ConfigError
from parl_mq.rollout.evaluation import Evaluator
from parl_mq.services.run_directory import RunDirectory

Kind = Literal["equal", "best"]
"""A peer has the preset's settings, or its own published ones."""
Act = Callable[[Any], npt.NDArray[Any]]
"""[M, ...] observations -> [M, ...] greedy actions."""

EQUAL_STEPS: Final = 500_000
"""Environment steps of a training with the preset's settings, where these name no end."""
EXPLORING_STEPS: Final = 10_000
"""In which such a training's epsilon falls from 1 to its end, as SB3's own default does over a tenth of 100,000."""
LOOK_EVERY: Final = 500
"""Environment steps at most between two looks at whether training goes on."""
EVALUATIONS: Final = 40
"""Of a training with published settings: it ends near its target, and little of its time goes into judging."""


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """What a peer trains with.

    Attributes:
        algorithm: `dqn`, `sac`, `td3` or `ddpg`.
        num_envs: environments that step together.
        total_steps: environment steps at most, over which schedules run.
        evaluate_every: environment steps between two evaluations.
        options: the peer's own, by its own names; plain values.
        source: where they were published, or in which way they are not the preset's.
    """

    algorithm: str
    num_envs: int
    total_steps: int
    evaluate_every: int
    options: Mapping[str, Any]
    source: str

    def recorded(self, config: RunConfig, label: str, limit_s: float) -> str:
        """The settings as a TOML file that `parl-mq runs` reads.

        Args:
            config: of the preset.
            label: of the peer.
            limit_s: seconds after which the run ends.
        """
        return tomli_w.dumps(
            {
                "preset": f"{config.preset}, {label}",
                "seed": config.seed,
                "environment": {"id": config.environment.id, "kwargs": config.environment.kwargs},
                "algorithm": {"name": self.algorithm, **self.options},
                "actor": {"num_envs": self.num_envs},
                "evaluation": {
                    "num_episodes": config.evaluation.num_episodes,
                    "seed": config.evaluation.seed,
                    "every_steps": self.evaluate_every,
                },
                "stop": {
                    **({} if config.stop.target_return is None else {"target_return": config.stop.target_return}),
                    "max_steps": self.total_steps,
                    "max_seconds": limit_s,
                },
                "source": self.source,
            }
        )


def rows_of_update(config: RunConfig) -> int:
    """Rows of one update of parl_mq, whose learners may draw a batch each."""
    return config.learner.num_learners * config.learner_batch_size


def steps_of_updates(config: RunConfig, updates: float) -> int:
    """Environment steps that a run of parl_mq makes for so many updates; at least 1."""
    return max(1, round(updates * rows_of_update(config) / config.replay.samples_per_insert))


def published(peer: str, tuned: Mapping[tuple[str, str], Mapping[str, Any]], config: RunConfig) -> dict[str, Any]:
    """What a peer has published for the run's algorithm and environment; a copy.

    Args:
        peer: as `--against` names it.
        tuned: (algorithm, environment) -> all that it has published.
        config: of the run.

    Raises:
        ConfigError: there is nothing for these two.
    """
    key = (config.algorithm.name, config.environment.id)
    if key not in tuned:
        known = ", ".join(f"{algorithm} on {env_id}" for algorithm, env_id in tuned)
        raise ConfigError(f"--against {peer} --settings best: no published settings of {' on '.join(key)}; of {known}")
    return dict(tuned[key])


def replay_and_network(config: RunConfig) -> dict[str, Any]:
    """The preset's batches, replay, returns and network, by the names that its own settings have."""
    algorithm, replay = config.algorithm, config.replay
    return {
        "batch_size": rows_of_update(config),
        "buffer_size": replay.buffer_size,
        "learning_starts": replay.learning_starts,
        "prioritized": replay.kind == "prioritized",
        "alpha": replay.alpha,
        "beta": replay.beta,
        "learning_rate": algorithm.learning_rate,
        "gamma": algorithm.gamma,
        "n_step": algorithm.n_step,
        "hidden_sizes": list(config.value_of("algorithm.hidden_sizes")),
    }


def sac_options(config: RunConfig) -> dict[str, Any]:
    """The preset's target, temperature and further learning rates, by the names that its own settings have."""
    rate = config.algorithm.learning_rate
    own = {name: config.value_of(f"algorithm.{name}") for name in ("tau", "temperature", "learns_temperature")}
    rates = ("actor_learning_rate", "temperature_learning_rate")
    return {**own, **{name: config.value_of(f"algorithm.{name}") or rate for name in rates}}


def target_moves(tau: float, moves: float, num_envs: int) -> tuple[float, int]:
    """How a peer whose target moves once for a vector step at most makes it move as far as parl_mq's.

    Args:
        tau: share that the target takes at each move of parl_mq's.
        moves: of parl_mq's for each vector step.
        num_envs: environments of a vector step.

    Returns:
        The share of one move, and environment steps between two.
    """
    return (1 - (1 - tau) ** moves, num_envs) if moves > 1 else (tau, round(num_envs / moves))


class PeerRun:
    """One training of a peer, which is judged as parl_mq's are: same episodes, same seeds, raw rewards.

    Args:
        directory: where it is recorded; `config.toml` is there.
        config: of the preset.
        settings: of the peer.
        evaluator: plays the episodes.
        started_at: monotonic time at which the process was started, s.
        limit_s: seconds from then on, after which it ends.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        directory: RunDirectory,
        config: RunConfig,
        settings: PeerSettings,
        evaluator: Evaluator,
        *,
        started_at: float,
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.settings = settings
        self._directory = directory
        self._evaluator = evaluator
        self._clock = clock
        self._started_at = started_at
        self._limit_s = limit_s
        self._first_step_s: float | None = None
        self._judging_s = 0.0
        self._due = settings.evaluate_every
        self._last_return: float | None = None
        self._to_target_s: float | None = None

    def begin(self) -> None:
        """Set-up is over; the next thing is an environment step."""
        self._first_step_s = self._wall_s()
        self._note_figures(self._first_step_s, 0, 0, "training")

    def goes_on(self, act: Act, env_steps: int, updates: int) -> bool:
        """Judges the policy if an evaluation is due; whether training goes on.

        Args:
            act: the greedy policy.
            env_steps: so far.
            updates: gradient steps so far.
        """
        if env_steps >= self._due:
            self._due = env_steps + self.settings.evaluate_every
            self._judge(act, env_steps, updates)
        has_ended = self._to_target_s is not None and self.config.stop.at_target
        return not has_ended and env_steps < self.settings.total_steps and self._wall_s() < self._limit_s

    def finish(self, env_steps: int, updates: int) -> None:
        """Writes the summary: the run has come to its end."""
        wall_s = self._wall_s()
        self._note_figures(wall_s, env_steps, updates, "done")
        self._directory.write_summary(
            {
                "reached": self._to_target_s is not None,
                "eval_return": self._last_return,
                "env_steps": env_steps,
                "updates": updates,
                "wall_s": wall_s,
                "time_to_target_s": self._to_target_s,
                FIRST_STEP_S: self._first_step_s,
                EVALUATION_S: self._judging_s,
                "interrupted": False,
                "error": None,
            }
        )

    def _judge(self, act: Act, env_steps: int, updates: int) -> None:
        begun_s = self._wall_s()
        evaluation = self._evaluator.evaluate(_Acting(act))
        assert evaluation is not None  # nobody stops it
        wall_s = self._wall_s()
        self._judging_s += wall_s - begun_s
        self._last_return = float(evaluation.returns.mean())
        self._note_figures(wall_s, env_steps, updates, "training")
        self._directory.append_metrics(
            {
                "kind": "evaluation",
                "time_s": wall_s,
                "env_steps": env_steps,
                "updates": updates,
                "mean_return": self._last_return,
                "returns": evaluation.returns.tolist(),
                "lengths": evaluation.lengths.tolist(),
                "duration_s": wall_s - begun_s,
            }
        )
        target = self.config.stop.target_return
        if target is not None and self._last_return >= target and self._to_target_s is None:
            self._to_target_s = wall_s

    def _note_figures(self, wall_s: float, env_steps: int, updates: int, phase: str) -> None:
        figures = {"env_steps_total": env_steps, "updates_total": updates}
        self._directory.append_metrics({"kind": "figures", "time_s": wall_s, "phase": phase, **figures})

    def _wall_s(self) -> float:
        return self._clock() - self._started_at


@dataclass(frozen=True, slots=True)
class _Acting:
    """A function as a policy."""

    act_greedily: Act
