"""RLlib as a peer in training: its newer stack, with environments and learner in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from parl_mq.bench.train_peer import (
    EQUAL_STEPS,
    EVALUATIONS,
    EXPLORING_STEPS,
    LOOK_EVERY,
    Act,
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

TUNED_AT: Final = "https://github.com/ray-project/ray/blob/master/rllib/tuned_examples"

TUNED: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = {
    ("dqn", "CartPole-v1"): {
        "total_steps": 200_000, "file": "dqn/cartpole_dqn.py",
        "training": {
            "lr": 5e-4, "train_batch_size_per_learner": 32, "n_step": [2, 5], "double_q": True, "dueling": True,
            "epsilon": [[0, 1.0], [10_000, 0.02]],
            "replay_buffer_config": {
                "type": "PrioritizedEpisodeReplayBuffer", "capacity": 50_000, "alpha": 0.6, "beta": 0.4,
            },
        },
        "model": {
            "fcnet_hiddens": [256], "fcnet_activation": "tanh", "fcnet_bias_initializer": "zeros_",
            "head_fcnet_bias_initializer": "zeros_", "head_fcnet_hiddens": [256],
        },
    },
    ("sac", "Pendulum-v1"): {
        "total_steps": 20_000, "file": "sac/pendulum_sac.py",
        "training": {
            "initial_alpha": 1.001, "actor_lr": 2e-4, "critic_lr": 8e-4, "alpha_lr": 9e-4, "target_entropy": "auto",
            "n_step": [2, 5], "tau": 0.005, "train_batch_size_per_learner": 256, "target_network_update_freq": 1,
            "num_steps_sampled_before_learning_starts": 256,
            "replay_buffer_config": {
                "type": "PrioritizedEpisodeReplayBuffer", "capacity": 100_000, "alpha": 1.0, "beta": 0.0,
            },
        },
        "model": {
            "fcnet_hiddens": [256, 256], "fcnet_activation": "relu", "fcnet_kernel_initializer": "xavier_uniform_",
            "head_fcnet_hiddens": [], "head_fcnet_kernel_initializer": "orthogonal_",
            "head_fcnet_kernel_initializer_kwargs": {"gain": 0.01},
        },
    },
}  # fmt: skip
"""(algorithm, environment) -> what RLlib's tuned examples have for one learner."""


def settings_of(config: RunConfig, kind: Kind) -> PeerSettings:
    """See PeerModule."""
    name = config.algorithm.name
    if name not in _OWN_OPTIONS:
        raise ConfigError(f"--against rllib: it has no {name}; it has {' and '.join(_OWN_OPTIONS)}")
    return _equal(config) if kind == "equal" else _best(config)


def train(run: PeerRun) -> None:
    """See PeerModule; one iteration of RLlib's comes before each look at whether training goes on."""
    algorithm = _algorithm(run)
    batch_size = algorithm.config.total_train_batch_size
    env_steps = updates = 0
    run.begin()
    while run.goes_on(_acting(algorithm), env_steps, updates):
        reported = algorithm.train()
        env_steps = int(reported["env_runners"]["num_env_steps_sampled_lifetime"])
        learned = reported.get("learners", {}).get("default_policy", {})
        updates = int(learned.get("num_module_steps_trained_lifetime", 0)) // batch_size
    run.finish(env_steps, updates)
    algorithm.stop()


def _algorithm(run: PeerRun) -> Any:
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.algorithms.sac import SACConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    environment, settings = run.config.environment, run.settings
    training = dict(settings.options["training"])
    if isinstance(training["n_step"], list):  # a range to draw from
        training["n_step"] = tuple(training["n_step"])
    if settings.algorithm == "sac":
        training["lr"] = None  # each of its three parts has its own
    config = {"dqn": DQNConfig, "sac": SACConfig}[settings.algorithm]()
    config.environment(environment.id, env_config=dict(environment.kwargs))
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=settings.num_envs)
    config.learners(num_learners=0, num_gpus_per_learner=0)
    config.training(**training)
    config.rl_module(model_config=DefaultModelConfig(**settings.options["model"]))
    looks_every = max(settings.num_envs, min(settings.evaluate_every, LOOK_EVERY))
    config.reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=looks_every)
    config.debugging(seed=run.config.seed, log_level="ERROR")
    return config.build_algo()


def _acting(algorithm: Any) -> Act:
    """The greedy policy; a squashed Gaussian's is the hyperbolic tangent of its mean, on the scale of the bounds."""
    import torch

    module = algorithm.get_module()
    is_discrete = hasattr(module.action_space, "n")

    def act(obs: Any) -> npt.NDArray[Any]:
        with torch.no_grad():
            output = module.forward_inference({"obs": torch.from_numpy(np.asarray(obs, np.float32))})
        if is_discrete:
            return np.asarray(output["actions"])
        mean, _ = np.split(np.asarray(output["action_dist_inputs"]), 2, axis=-1)
        space = algorithm.env_runner.env.single_action_space
        return np.asarray(space.low + (np.tanh(mean) + 1) / 2 * (space.high - space.low))

    return act


def _best(config: RunConfig) -> PeerSettings:
    tuned = published("rllib", TUNED, config)
    total = int(config.stop.max_steps or tuned["total_steps"])
    options = {part: tuned[part] for part in ("training", "model")}
    return PeerSettings(
        config.algorithm.name, 1, total, tuned["total_steps"] // EVALUATIONS, options, f"{TUNED_AT}/{tuned['file']}"
    )


def _equal(config: RunConfig) -> PeerSettings:
    algorithm, replay = config.algorithm, config.replay
    num_envs = config.actor.num_actors * config.actor.num_envs
    prioritized = {"type": "PrioritizedEpisodeReplayBuffer", "alpha": replay.alpha, "beta": replay.beta}
    kept = prioritized if replay.kind == "prioritized" else {"type": "EpisodeReplayBuffer"}
    training = {
        "train_batch_size_per_learner": rows_of_update(config),
        "gamma": algorithm.gamma,
        "n_step": algorithm.n_step,
        "training_intensity": replay.samples_per_insert,
        "num_steps_sampled_before_learning_starts": replay.learning_starts,
        "replay_buffer_config": {**kept, "capacity": replay.buffer_size},
        **_OWN_OPTIONS[algorithm.name](config, num_envs),
    }
    model = {
        "fcnet_hiddens": list(config.value_of("algorithm.hidden_sizes")),
        "fcnet_activation": "relu",
        "head_fcnet_hiddens": [],
    }
    return PeerSettings(
        algorithm.name,
        num_envs,
        config.stop.max_steps or EQUAL_STEPS,
        steps_of_updates(config, config.evaluation.every_updates),
        {"training": training, "model": model},
        "the preset's; exploration is RLlib's own",
    )


def _dqn_options(config: RunConfig, num_envs: int) -> dict[str, Any]:
    updates = num_envs * config.replay.samples_per_insert / rows_of_update(config)  # of a vector step
    moves = updates / config.value_of("algorithm.target_update_interval")
    tau, interval = target_moves(config.value_of("algorithm.tau"), moves, num_envs)
    return {
        "lr": config.algorithm.learning_rate,
        "double_q": config.value_of("algorithm.double"),
        "dueling": config.value_of("algorithm.dueling"),
        "epsilon": [[0, 1.0], [EXPLORING_STEPS, 0.05]],
        "grad_clip": config.value_of("algorithm.max_grad_norm"),
        "grad_clip_by": "global_norm",
        "tau": tau,
        "target_network_update_freq": interval,
    }


def _sac_options(config: RunConfig, num_envs: int) -> dict[str, Any]:
    del num_envs
    rate = config.algorithm.learning_rate
    learns = config.value_of("algorithm.learns_temperature")
    return {
        "actor_lr": config.value_of("algorithm.actor_learning_rate") or rate,
        "critic_lr": rate,
        "alpha_lr": (config.value_of("algorithm.temperature_learning_rate") or rate) if learns else 0.0,
        "initial_alpha": config.value_of("algorithm.temperature"),
        "target_entropy": "auto",
        "tau": config.value_of("algorithm.tau"),
        "target_network_update_freq": 1,
    }


_OWN_OPTIONS: Final[Mapping[str, Callable[[RunConfig, int], dict[str, Any]]]] = {
    "dqn": _dqn_options,
    "sac": _sac_options,
}
