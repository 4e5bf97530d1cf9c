"""Tianshou 2 as a peer in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from parl_mq.bench.train_peer import (
    EQUAL_STEPS,
    EVALUATIONS,
    LOOK_EVERY,
    Kind,
    PeerRun,
    PeerSettings,
    published,
    replay_and_network,
    rows_of_update,
    sac_options,
    steps_of_updates,
)
from parl_mq.config.models import RunConfig
from parl_mq.errors import ConfigError

REPOSITORY: Final = "https://github.com/thu-ml/tianshou/blob/master"

TUNED: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = {
    ("dqn", "CartPole-v1"): {
        "total_steps": 200_000, "num_envs": 10, "collect": 10, "updates_per_step": 0.1, "batch_size": 64,
        "buffer_size": 20_000, "learning_starts": 640, "starts_at_random": False, "prioritized": True, "alpha": 0.6,
        "beta": 0.4, "learning_rate": 1e-3, "gamma": 0.95, "n_step": 3, "target_update_freq": 320,
        "hidden_sizes": [128, 128, 128, 128], "is_dueling": False, "epsilon": [[10_000, 0.1], [50_000, 0.01]],
        "epsilon_decay": 0.0, "source": "test/discrete/test_dqn.py",
    },
    ("dqn", "LunarLander-v3"): {
        "total_steps": 800_000, "num_envs": 16, "collect": 16, "updates_per_step": 0.0625, "batch_size": 128,
        "buffer_size": 100_000, "learning_starts": 2_048, "starts_at_random": False, "prioritized": False, "alpha": 0.0,
        "beta": 0.0, "learning_rate": 0.013, "gamma": 0.99, "n_step": 4, "target_update_freq": 500,
        "hidden_sizes": [128, 128], "is_dueling": True, "epsilon": [[0, 0.73]], "epsilon_decay": 5e-6,
        "source": "examples/box2d/lunarlander_dqn.py",
    },
    ("sac", "Pendulum-v1"): {
        "total_steps": 240_000, "num_envs": 10, "collect": 10, "updates_per_step": 0.1, "batch_size": 128,
        "buffer_size": 20_000, "learning_starts": 0, "starts_at_random": True, "prioritized": False, "alpha": 0.0,
        "beta": 0.0, "learning_rate": 1e-3, "actor_learning_rate": 1e-3, "temperature_learning_rate": 3e-4,
        "gamma": 0.99, "n_step": 3, "tau": 0.005, "hidden_sizes": [128, 128], "temperature": 1.0,
        "learns_temperature": True, "source": "test/continuous/test_sac_with_il.py",
    },
    ("sac", "HalfCheetah-v5"): {
        "total_steps": 1_000_000, "num_envs": 1, "collect": 1, "updates_per_step": 1.0, "batch_size": 256,
        "buffer_size": 1_000_000, "learning_starts": 10_000, "starts_at_random": True, "prioritized": False,
        "alpha": 0.0, "beta": 0.0, "learning_rate": 1e-3, "actor_learning_rate": 1e-3,
        "temperature_learning_rate": 3e-4, "gamma": 0.99, "n_step": 1, "tau": 0.005, "hidden_sizes": [256, 256],
        "temperature": 0.2, "learns_temperature": False, "source": "examples/mujoco/mujoco_sac.py",
    },
}  # fmt: skip
"""(algorithm, environment) -> settings of Tianshou's own scripts, of environments that differ in version at most.

`epsilon` are [environment step, value] points with lines between them, of which `epsilon_decay` takes a part at each
step.
"""
MOST_STEPS: Final = 10_000
"""Between two evaluations with published settings: its scripts go on for many times the steps that a target takes."""
LEAST_EPSILON: Final = 0.01
"""Where its scripts end."""


def settings_of(config: RunConfig, kind: Kind) -> PeerSettings:
    """See PeerModule."""
    name = config.algorithm.name
    if name not in ("dqn", "sac"):
        raise ConfigError(f"--against tianshou: {name} is not measured with it; dqn and sac are")
    return _equal(config) if kind == "equal" else _best(config)


def train(run: PeerRun) -> None:
    """See PeerModule."""
    import gymnasium
    import torch
    from tianshou.data import Collector
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.torch_utils import policy_within_training_step

    environment, options, seed = run.config.environment, run.settings.options, run.config.seed
    np.random.seed(seed)  # the peer draws from this stream
    torch.manual_seed(seed)

    def make() -> Any:
        return gymnasium.make(environment.id, **environment.kwargs)

    envs = DummyVectorEnv([make for _ in range(run.settings.num_envs)])
    envs.seed(seed)
    one = make()
    algorithm = (_dqn if run.settings.algorithm == "dqn" else _sac)(options, one)
    collector = Collector(algorithm, envs, _buffer(options, run.settings.num_envs), exploration_noise=True)
    collector.reset()
    run.begin()
    filling = -(-max(options["learning_starts"], options["batch_size"]) // run.settings.num_envs)
    with policy_within_training_step(algorithm.policy):  # which explores then
        collector.collect(n_step=filling * run.settings.num_envs, random=options["starts_at_random"])
    epoch_steps = min(run.settings.evaluate_every, LOOK_EVERY)
    params = OffPolicyTrainerParams(
        training_collector=collector,
        max_epochs=-(-run.settings.total_steps // epoch_steps),
        epoch_num_steps=epoch_steps,
        collection_step_num_env_steps=options["collect"],
        update_step_num_gradient_steps_per_sample=options["updates_per_step"],
        batch_size=options["batch_size"],
        training_fn=_epsilon_schedule(algorithm, options) if run.settings.algorithm == "dqn" else None,
        verbose=False,
        show_progress=False,
    )
    trainer = algorithm.create_trainer(params)
    trainer.reset(reset_collectors=False)
    random_steps, act = collector.collect_step, _acting(algorithm.policy)
    steps = updates = 0
    while steps == 0 or run.goes_on(act, steps, updates):
        trainer.execute_epoch()
        steps = collector.collect_step
        updates = _updates_of(options, steps - random_steps)
    run.finish(steps, updates)


def _updates_of(options: Mapping[str, Any], steps: int) -> int:
    """Gradient steps that Tianshou makes for so many collected ones."""
    collected: int = options["collect"]
    updates_per_step: float = options["updates_per_step"]
    return steps // collected * round(collected * updates_per_step)


def _acting(policy: Any) -> Callable[[Any], Any]:
    import torch
    from tianshou.data import Batch, to_numpy

    def act(obs: Any) -> Any:
        policy.eval()
        with torch.no_grad():
            return policy.map_action(to_numpy(policy(Batch(obs=obs, info=Batch())).act))

    return act


def _buffer(options: Mapping[str, Any], num_envs: int) -> Any:
    from tianshou.data import PrioritizedVectorReplayBuffer, VectorReplayBuffer

    size = options["buffer_size"]
    if options["prioritized"]:
        return PrioritizedVectorReplayBuffer(size, num_envs, alpha=options["alpha"], beta=options["beta"])
    return VectorReplayBuffer(size, num_envs)


def _dqn(options: Mapping[str, Any], env: Any) -> Any:
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net

    sizes = options["hidden_sizes"]
    stream = {"hidden_sizes": sizes}
    net = Net(
        state_shape=env.observation_space.shape,
        action_shape=env.action_space.n,
        hidden_sizes=sizes,
        dueling_param=(stream, stream) if options["is_dueling"] else None,
    )
    policy = DiscreteQLearningPolicy(model=net, action_space=env.action_space, eps_training=_epsilon_at(options, 0))
    return DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=options["learning_rate"]),
        gamma=options["gamma"],
        n_step_return_horizon=options["n_step"],
        target_update_freq=options["target_update_freq"],
    )


def _epsilon_schedule(algorithm: Any, options: Mapping[str, Any]) -> Callable[[int, int], None]:
    def at(epoch: int, env_step: int) -> None:
        del epoch
        algorithm.policy.set_eps_training(_epsilon_at(options, env_step))

    return at


def _epsilon_at(options: Mapping[str, Any], env_step: int) -> float:
    steps, values = zip(*options["epsilon"], strict=True)
    decay: float = options["epsilon_decay"]
    return max(LEAST_EPSILON, float(np.interp(env_step, steps, values)) * (1 - decay) ** env_step)


def _sac(options: Mapping[str, Any], env: Any) -> Any:
    import math

    from tianshou.algorithm import SAC
    from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

    shape, actions = env.observation_space.shape, env.action_space.shape

    def critic() -> Any:
        net = Net(state_shape=shape, action_shape=actions, hidden_sizes=options["hidden_sizes"], concat=True)
        return ContinuousCritic(preprocess_net=net)

    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=shape, hidden_sizes=options["hidden_sizes"]),
        action_shape=actions,
        unbounded=True,
        conditioned_sigma=True,
    )
    alpha = options["temperature"]
    if options["learns_temperature"]:
        optimizer = AdamOptimizerFactory(lr=options["temperature_learning_rate"])
        alpha = AutoAlpha(-float(math.prod(actions)), math.log(options["temperature"]), optimizer)
    return SAC(
        policy=SACPolicy(actor=actor, action_space=env.action_space),
        policy_optim=AdamOptimizerFactory(lr=options["actor_learning_rate"]),
        critic=critic(),
        critic_optim=AdamOptimizerFactory(lr=options["learning_rate"]),
        critic2=critic(),
        critic2_optim=AdamOptimizerFactory(lr=options["learning_rate"]),
        tau=options["tau"],
        gamma=options["gamma"],
        alpha=alpha,
        n_step_return_horizon=options["n_step"],
    )


def _best(config: RunConfig) -> PeerSettings:
    tuned = published("tianshou", TUNED, config)
    num_envs, total, source = tuned.pop("num_envs"), tuned.pop("total_steps"), tuned.pop("source")
    every = max(1, min(total // EVALUATIONS, MOST_STEPS))
    return PeerSettings(
        config.algorithm.name, num_envs, config.stop.max_steps or total, every, tuned, f"{REPOSITORY}/{source}"
    )


def _equal(config: RunConfig) -> PeerSettings:
    algorithm, replay = config.algorithm, config.replay
    collect = config.actor.num_actors * config.actor.num_envs
    num_envs = _envs_with_room(config, collect)
    options = {
        "collect": collect,
        "starts_at_random": True,
        "updates_per_step": replay.samples_per_insert / rows_of_update(config),
        **replay_and_network(config),
        **(_equal_dqn(config) if algorithm.name == "dqn" else sac_options(config)),
    }
    every = steps_of_updates(config, config.evaluation.every_updates)
    source = "the preset's; a soft target becomes a copy after 1 / tau updates, and exploration is Tianshou's own"
    if num_envs != collect:
        source += f"; {num_envs} environments, each with a part of the buffer that holds its longest episode"
    return PeerSettings(algorithm.name, num_envs, config.stop.max_steps or EQUAL_STEPS, every, options, source)


def _envs_with_room(config: RunConfig, num_envs: int) -> int:
    """The most, up to the preset's, whose parts of the buffer hold whole episodes: Tianshou fails at longer ones."""
    import gymnasium

    longest = gymnasium.spec(config.environment.id).max_episode_steps or 0
    fitting = [n for n in range(1, num_envs + 1) if num_envs % n == 0 and config.replay.buffer_size // n > longest]
    return max(fitting, default=1)


def _equal_dqn(config: RunConfig) -> dict[str, Any]:
    tau, interval = config.value_of("algorithm.tau"), config.value_of("algorithm.target_update_interval")
    return {
        "target_update_freq": max(1, round(interval / tau)),
        "is_dueling": False,
        "epsilon": [[0, 0.1]],
        "epsilon_decay": 0.0,
    }
