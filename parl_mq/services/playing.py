"""Plays a finished run's policy: greedy episodes from a checkpoint, judged, filmed or shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from parl_mq import __version__
from parl_mq.config.loader import load_config
from parl_mq.config.models import RunConfig
from parl_mq.errors import ConfigError, RecordError, SnapshotError
from parl_mq.learn.checkpoint import BEST, Checkpoint, find_newest, load
from parl_mq.learn.threads import prepare_training_thread
from parl_mq.model.weights import unpack
from parl_mq.observe.film import Film
from parl_mq.observe.runs import read_settings
from parl_mq.rollout.building import build_evaluator
from parl_mq.rollout.environments import AnyVectorEnv
from parl_mq.rollout.evaluation import Evaluation
from parl_mq.rollout.filming import frames_per_s, make_filmed, make_shown
from parl_mq.services.run_directory import RunDirectory

Which = Literal["best", "newest"]


@dataclass(frozen=True, slots=True)
class Performance:
    """What was played.

    Attributes:
        run_dir: of the run.
        checkpoint: directory of the weights.
        updates: learner updates in them.
        seed: of the environments.
        evaluation: the episodes.
        film: where it lies, or None.
    """

    run_dir: Path
    checkpoint: Path
    updates: int
    seed: int
    evaluation: Evaluation
    film: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values by name."""
        returns, lengths = self.evaluation.returns, self.evaluation.lengths
        return {
            "run_dir": str(self.run_dir),
            "checkpoint": str(self.checkpoint),
            "updates": self.updates,
            "seed": self.seed,
            "num_episodes": len(returns),
            "mean_return": float(returns.mean()),
            "min_return": float(returns.min()),
            "max_return": float(returns.max()),
            "mean_length": float(lengths.mean()),
            "returns": returns.tolist(),
            "lengths": lengths.tolist(),
            "video": None if self.film is None else str(self.film),
        }


@dataclass(frozen=True, slots=True)
class Chosen:
    """A run, and the weights of it that are played.

    Attributes:
        damaged: what is wrong with newer checkpoints, which were passed over.
    """

    run_dir: Path
    config: RunConfig
    checkpoint: Checkpoint
    path: Path
    damaged: tuple[SnapshotError, ...] = ()


def choose(run_dir: Path, which: Which) -> Chosen:
    """Reads a run's settings and one of its checkpoints.

    Raises:
        UsageError: there is no such directory.
        RecordError: the directory is no run's, its settings cannot be used here, or it has no such checkpoint.
        SnapshotError: the checkpoint is damaged, or of another format.
    """
    read_settings(run_dir)
    directory = RunDirectory(run_dir)
    try:
        config = load_config(directory.config, environ={})
    except ConfigError as error:
        version = (directory.read_summary() or {}).get("version", __version__)
        differs = f": it was made by parl_mq {version}, and this is {__version__}" if version != __version__ else ""
        raise RecordError(f"the settings of {run_dir} cannot be used here{differs}\n{error}") from error
    root = directory.checkpoints
    if which == "best":
        if not (root / BEST).exists():
            raise RecordError(f"{root} has no best checkpoint: no evaluation has ended; try --checkpoint newest")
        return Chosen(run_dir, config, load(root / BEST), root / BEST)
    found = find_newest(root)
    if found.checkpoint is None or found.path is None:
        reasons = "".join(f"\n{error}" for error in found.damaged)
        raise RecordError(f"{root} has no whole checkpoint{reasons or ': the run ended before its first'}")
    return Chosen(run_dir, config, found.checkpoint, found.path, found.damaged)


def play(chosen: Chosen, *, num_episodes: int, seed: int) -> Performance:
    """Plays episodes in as many environments at once as an evaluation does. Blocks until all have ended.

    Raises:
        EnvironmentFault: the environment cannot be made, or failed.
        SnapshotError: the weights belong to another network.
    """
    return _perform(chosen, num_episodes, seed, None)


def film(chosen: Chosen, path: Path, *, num_episodes: int, seed: int) -> Performance:
    """Plays episodes one after another and films them.

    Raises:
        UsageError: the film cannot be written here.
        EnvironmentFault: the environment cannot be made or rendered, or failed.
        RecordError: the film could not be written.
        SnapshotError: the weights belong to another network.
    """
    environment = chosen.config.environment
    with Film(path, frames_per_s(environment, "rgb_array")) as camera:
        played = _perform(chosen, num_episodes, seed, lambda: make_filmed(environment, camera))
    return replace(played, film=path)


def show(chosen: Chosen, *, num_episodes: int, seed: int) -> Performance:
    """Plays episodes one after another in a window.

    Raises:
        EnvironmentFault: the environment cannot be made or rendered, or failed.
        SnapshotError: the weights belong to another network.
    """
    environment = chosen.config.environment
    frames_per_s(environment, "human")  # says which modes there are
    return _perform(chosen, num_episodes, seed, lambda: make_shown(environment))


def _perform(chosen: Chosen, num_episodes: int, seed: int, make_one: Callable[[], AnyVectorEnv] | None) -> Performance:
    prepare_training_thread(chosen.config.actor.threads)  # as an evaluator does: else some sums come out otherwise
    evaluation = chosen.config.evaluation.model_copy(update={"num_episodes": num_episodes, "seed": seed})
    evaluator, policy = build_evaluator(chosen.config.model_copy(update={"evaluation": evaluation}), make_one)
    try:
        policy.load_weights(unpack(chosen.checkpoint.weights))
        episodes = evaluator.evaluate(policy)
    finally:
        evaluator.close()
    assert episodes is not None, "nobody can stop it"
    return Performance(chosen.run_dir, chosen.path, chosen.checkpoint.updates, seed, episodes)
