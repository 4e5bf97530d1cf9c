"""Stable-Baselines3 as a peer in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from parl_mq.bench.train_peer import (
    EQUAL_STEPS,
    EVALUATIONS,
    EXPLORING_STEPS,
    Kind,
    PeerRun,
    PeerSettings,
    published,
    rows_of_update,
    steps_of_updates,
    target_moves,
)
from parl_mq.config.models import RunConfig
from parl_mq.errors import ConfigError

ZOO: Final = "https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/hyperparams"

TUNED: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = {
    ("dqn", "CartPole-v1"): {
        "total_steps": 50_000, "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000,
        "learning_starts": 1_000, "gamma": 0.99, "target_update_interval": 10, "train_freq": 256,
        "gradient_steps": 128, "exploration_fraction": 0.16, "exploration_final_eps": 0.04, "net_arch": [256, 256],
    },
    ("dqn", "LunarLander-v3"): {
        "total_steps": 100_000, "learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000,
        "learning_starts": 0, "gamma": 0.99, "target_update_interval": 250, "train_freq": 4,
        "gradient_steps": -1, "exploration_fraction": 0.12, "exploration_final_eps": 0.1, "net_arch": [256, 256],
    },
    ("dqn", "MountainCar-v0"): {
        "total_steps": 120_000, "learning_rate": 4e-3, "batch_size": 128, "buffer_size": 10_000,
        "learning_starts": 1_000, "gamma": 0.98, "target_update_interval": 600, "train_freq": 16,
        "gradient_steps": 8, "exploration_fraction": 0.2, "exploration_final_eps": 0.07, "net_arch": [256, 256],
    },
    ("sac", "Pendulum-v1"): {"total_steps": 20_000, "learning_rate": 1e-3},
    ("sac", "LunarLanderContinuous-v3"): {
        "total_steps": 500_000, "batch_size": 256, "learning_rate": "lin_7.3e-4", "buffer_size": 1_000_000,
        "ent_coef": "auto", "gamma": 0.99, "tau": 0.01, "train_freq": 1, "gradient_steps": 1,
        "learning_starts": 10_000, "net_arch": [400, 300],
    },
    ("sac", "HalfCheetah-v5"): {"total_steps": 1_000_000, "learning_starts": 10_000},
    ("sac", "Hopper-v5"): {"total_steps": 1_000_000, "learning_starts": 10_000},
}  # fmt: skip
"""(algorithm, environment) -> RL Baselines3 Zoo's settings, of environments that differ in their version at most."""


def settings_of(config: RunConfig, kind: Kind) -> PeerSettings:
    """See PeerModule."""
    name = config.algorithm.name
    if name not in ("dqn", "sac", "td3", "ddpg"):
        raise ConfigError(f"--against sb3: it has no {name}; it has dqn, sac, td3 and ddpg")
    return _equal(config) if kind == "equal" else _best(config)


def train(run: PeerRun) -> None:
    """See PeerModule."""
    from stable_baselines3.common.callbacks import BaseCallback

    settings = run.settings
    model = _model(settings, _environments(run.config, settings.num_envs), run.config.seed)

    class Judging(BaseCallback):  # type: ignore[misc]  # the peer has no types here
        def _on_training_start(self) -> None:
            run.begin()

        def _on_step(self) -> bool:
            return run.goes_on(_acting(model), self.num_timesteps, model._n_updates)

    model.learn(settings.total_steps, callback=Judging())
    run.finish(model.num_timesteps, model._n_updates)


def _environments(config: RunConfig, num_envs: int) -> Any:
    """Not made by their name: SB3 asks for those to be drawn, and LunarLander then keeps particles without end."""
    import gymnasium
    from stable_baselines3.common.env_util import make_vec_env

    make = partial(gymnasium.make, config.environment.id, **config.environment.kwargs)
    return make_vec_env(make, num_envs, seed=config.seed)


def _acting(model: Any) -> Callable[[Any], Any]:
    return lambda obs: model.predict(obs, deterministic=True)[0]


def _model(settings: PeerSettings, envs: Any, seed: int) -> Any:
    import stable_baselines3
    from stable_baselines3.common.noise import NormalActionNoise

    options = dict(settings.options)
    policy = {"net_arch": options.pop("net_arch")} if "net_arch" in options else {}
    if "noise" in options:
        shape = envs.action_space.shape
        options["action_noise"] = NormalActionNoise(np.zeros(shape), np.full(shape, options.pop("noise")))
    if isinstance(rate := options.get("learning_rate"), str):  # as the zoo writes one that falls to 0
        first = float(rate.removeprefix("lin_"))
        options["learning_rate"] = lambda left: first * left
    make = getattr(stable_baselines3, settings.algorithm.upper())
    return make("MlpPolicy", envs, policy_kwargs=policy, seed=seed, device="cpu", **options)


def _best(config: RunConfig) -> PeerSettings:
    tuned = published("sb3", TUNED, config)
    total = int(config.stop.max_steps or tuned["total_steps"])
    every = max(1, tuned.pop("total_steps") // EVALUATIONS)
    return PeerSettings(config.algorithm.name, 1, total, every, tuned, f"{ZOO}/{config.algorithm.name}.yml")


def _equal(config: RunConfig) -> PeerSettings:
    algorithm, replay = config.algorithm, config.replay
    num_envs = config.actor.num_actors * config.actor.num_envs
    total = config.stop.max_steps or EQUAL_STEPS
    train_freq, gradient_steps = _updates(config, num_envs)
    options = {
        "learning_rate": algorithm.learning_rate,
        "buffer_size": replay.buffer_size,
        "learning_starts": replay.learning_starts,
        "batch_size": rows_of_update(config),
        "gamma": algorithm.gamma,
        "n_steps": algorithm.n_step,
        "net_arch": list(config.value_of("algorithm.hidden_sizes")),
        "train_freq": train_freq,
        "gradient_steps": gradient_steps,
        **_OWN_OPTIONS[algorithm.name](config, num_envs, gradient_steps, total),
    }
    every = steps_of_updates(config, config.evaluation.every_updates)
    lacks = ["prioritized replay"] if replay.kind == "prioritized" else []
    lacks += ["double targets"] if algorithm.name == "dqn" and config.value_of("algorithm.double") else []
    source = "the preset's" + (f", without {' and '.join(lacks)}, which SB3 lacks" if lacks else "")
    return PeerSettings(algorithm.name, num_envs, total, every, options, f"{source}; exploration is SB3's own")


def _updates(config: RunConfig, num_envs: int) -> tuple[int, int]:
    """(vector steps between two trainings, gradient steps of each), for the preset's updates for each step."""
    for_each = num_envs * config.replay.samples_per_insert / rows_of_update(config)
    return (1, round(for_each)) if for_each >= 1 else (round(1 / for_each), 1)


def _dqn_options(config: RunConfig, num_envs: int, gradient_steps: int, total: int) -> dict[str, Any]:
    moves = gradient_steps / config.value_of("algorithm.target_update_interval")
    tau, interval = target_moves(config.value_of("algorithm.tau"), moves, num_envs)
    return {
        "tau": tau,
        "target_update_interval": interval,
        "max_grad_norm": config.value_of("algorithm.max_grad_norm"),
        "exploration_fraction": EXPLORING_STEPS / total,
    }


def _sac_options(config: RunConfig, num_envs: int, gradient_steps: int, total: int) -> dict[str, Any]:
    del num_envs, gradient_steps, total
    temperature = config.value_of("algorithm.temperature")
    learns = config.value_of("algorithm.learns_temperature")
    return {"tau": config.value_of("algorithm.tau"), "ent_coef": f"auto_{temperature}" if learns else temperature}


def _ddpg_options(config: RunConfig, num_envs: int, gradient_steps: int, total: int) -> dict[str, Any]:
    del num_envs, gradient_steps, total
    return {"tau": config.value_of("algorithm.tau"), "noise": config.value_of("algorithm.exploration_noise")}


def _td3_options(config: RunConfig, num_envs: int, gradient_steps: int, total: int) -> dict[str, Any]:
    return {
        **_ddpg_options(config, num_envs, gradient_steps, total),
        "policy_delay": config.value_of("algorithm.policy_delay"),
        "target_policy_noise": config.value_of("algorithm.target_noise"),
        "target_noise_clip": config.value_of("algorithm.target_noise_clip"),
    }


_OWN_OPTIONS: Final = {"dqn": _dqn_options, "sac": _sac_options, "td3": _td3_options, "ddpg": _ddpg_options}
