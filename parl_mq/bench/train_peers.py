"""Other libraries to train beside; `python -m parl_mq.bench.train_peers PEER PRESET --run-dir D` runs one."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, cast, get_args

from parl_mq.bench.peers import Peer, open_peers
from parl_mq.bench.train_peer import Kind, PeerRun, PeerSettings
from parl_mq.config.loader import load_config
from parl_mq.config.models import RunConfig
from parl_mq.errors import ConfigError, ParlError, UsageError, exit_code_of
from parl_mq.observe.elapsed import process_started_at
from parl_mq.observe.files import CHECKPOINTS, CONFIG
from parl_mq.rollout.environments import make_vector
from parl_mq.rollout.evaluation import Evaluator
from parl_mq.services.files import write_atomically
from parl_mq.services.run_directory import RunDirectory

PEERS: Final[Mapping[str, Peer[str]]] = {
    "sb3": Peer("stable-baselines3", "stable_baselines3", "parl_mq.bench.train_peers_sb3"),
    "tianshou": Peer("tianshou", "tianshou", "parl_mq.bench.train_peers_tianshou"),
    "rllib": Peer("ray", "ray.rllib", "parl_mq.bench.train_peers_rllib"),
    "torchrl": Peer("torchrl", "torchrl", "parl_mq.bench.train_peers_torchrl"),
}
"""Name -> the module here that trains with it."""


class PeerModule(Protocol):
    """What such a module has."""

    def settings_of(self, config: RunConfig, kind: Kind) -> PeerSettings:
        """What the peer trains with; loads nothing of it.

        Raises:
            ConfigError: it cannot learn this, or nothing has been published for it.
        """

    def train(self, run: PeerRun) -> None:
        """Trains until `run` says that it does not go on; blocks."""


def peer_settings(name: str, config: RunConfig, kind: Kind) -> PeerSettings:
    """What a peer trains with.

    Raises:
        ConfigError: it cannot learn this, or nothing has been published for it.
    """
    _check_environment(name, config)
    return _module(name).settings_of(config, kind)


def _check_environment(name: str, config: RunConfig) -> None:
    """Peers make their environments by gymnasium alone."""
    environment = config.environment
    said = {
        f"environment.id={environment.id}": ":" in environment.id,
        f"environment.frame_stack={environment.frame_stack}": environment.frame_stack > 1,
        f"environment.max_episode_steps={environment.max_episode_steps}": environment.max_episode_steps is not None,
    }
    if unknown := [setting for setting, is_unknown in said.items() if is_unknown]:
        raise ConfigError(f"--against {name}: {' and '.join(unknown)} cannot be said to it; measure without peers")


def main(arguments: Sequence[str]) -> int:
    """Trains with one peer and one seed; the exit code.

    torch takes one thread unless OMP_NUM_THREADS says otherwise: with networks of this size on few cores, more of them
    wait for each other.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    started_at = process_started_at()
    told = _parser().parse_args(arguments)
    try:
        _train(told, started_at)
    except ParlError as error:
        print(f"parl-mq: {error}", file=sys.stderr)
        return exit_code_of(error)
    return 0


def _train(told: argparse.Namespace, started_at: float) -> None:
    open_peers([told.peer], PEERS)
    config = load_config(told.source, overrides=(*told.set, f"seed={told.seed}"))
    settings = peer_settings(told.peer, config, told.settings)
    directory = _create(told.run_dir, settings.recorded(config, f"{told.peer} ({told.settings})", told.limit_s))
    judged = config.evaluation
    evaluator = Evaluator(partial(make_vector, config.environment), num_episodes=judged.num_episodes, seed=judged.seed)
    with directory.held():
        _module(told.peer).train(
            PeerRun(directory, config, settings, evaluator, started_at=started_at, limit_s=told.limit_s)
        )
    evaluator.close()


def _create(path: Path, settings: str) -> RunDirectory:
    try:
        (path / CHECKPOINTS).mkdir(parents=True)
    except FileExistsError as error:
        raise UsageError(f"--run-dir {path}: it exists already") from error
    write_atomically(path / CONFIG, settings)
    return RunDirectory(path)


def _module(name: str) -> PeerModule:
    module: Any = importlib.import_module(PEERS[name].make)
    return cast(PeerModule, module)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m parl_mq.bench.train_peers", description="Train with a peer.")
    parser.add_argument("peer", choices=list(PEERS))
    parser.add_argument("source", metavar="PRESET_OR_FILE")
    parser.add_argument("--settings", choices=get_args(Kind), default="equal")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--limit-s", type=float, default=900.0)
    parser.add_argument("--run-dir", type=Path, required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
