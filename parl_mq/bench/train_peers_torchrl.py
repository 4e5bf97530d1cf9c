"""TorchRL as a peer in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from parl_mq.bench.train_peer import (
    EQUAL_STEPS,
    EVALUATIONS,
    EXPLORING_STEPS,
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

REPOSITORY: Final = "https://github.com/pytorch/rl/blob/main/sota-implementations"

TUNED: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = {
    ("dqn", "CartPole-v1"): {
        "total_steps": 500_100, "collect": 1_000, "updates": 100, "batch_size": 128, "buffer_size": 10_000,
        "learning_starts": 10_000, "prioritized": False, "alpha": 0.0, "beta": 0.0, "learning_rate": 2.5e-4,
        "gamma": 0.99, "n_step": 1, "hidden_sizes": [120, 84], "loss": "l2", "is_double": False, "tau": 1.0,
        "target_update_interval": 50, "epsilon": [1.0, 0.05, 250_000], "max_grad_norm": 0.0,
        "source": "dqn/config_cartpole.yaml",
    },
    ("sac", "HalfCheetah-v5"): {
        "total_steps": 1_000_000, "collect": 1_000, "updates": 1_000, "batch_size": 256, "buffer_size": 1_000_000,
        "learning_starts": 25_000, "prioritized": False, "alpha": 0.0, "beta": 0.0, "learning_rate": 3e-4,
        "actor_learning_rate": 3e-4, "temperature_learning_rate": 3e-4, "gamma": 0.99, "n_step": 1,
        "hidden_sizes": [256, 256], "tau": 0.005, "temperature": 1.0, "learns_temperature": True,
        "source": "sac/config.yaml",
    },
}  # fmt: skip
"""(algorithm, environment) -> settings of TorchRL's own implementations; environments differ in version at most."""


def settings_of(config: RunConfig, kind: Kind) -> PeerSettings:
    """See PeerModule."""
    name = config.algorithm.name
    if name not in ("dqn", "sac"):
        raise ConfigError(f"--against torchrl: {name} is not measured with it; dqn and sac are")
    return _equal(config) if kind == "equal" else _best(config)


def train(run: PeerRun) -> None:
    """See PeerModule; steps, then updates, in turn, as TorchRL's own implementations do."""
    import torch
    from torchrl.collectors import Collector
    from torchrl.data import MultiStep
    from torchrl.envs import Compose, DoubleToFloat, GymEnv, InitTracker, SerialEnv, TransformedEnv

    config, options, seed = run.config, run.settings.options, run.config.seed
    torch.manual_seed(seed)

    def make() -> Any:
        env = GymEnv(config.environment.id, categorical_action_encoding=True, **config.environment.kwargs)
        return TransformedEnv(env, Compose(DoubleToFloat(), InitTracker()))

    envs = SerialEnv(run.settings.num_envs, make) if run.settings.num_envs > 1 else make()
    envs.set_seed(seed)
    learner = (_DQN if run.settings.algorithm == "dqn" else _SAC)(options, make())
    buffer = _buffer(options)
    collector = Collector(
        envs,
        learner.exploring,
        frames_per_batch=options["collect"],
        init_random_frames=options["learning_starts"],
        postproc=MultiStep(gamma=options["gamma"], n_steps=options["n_step"]) if options["n_step"] > 1 else None,
    )
    run.begin()
    steps = updates = 0
    for rows in collector:
        steps += rows.numel()
        learner.explored(rows.numel())
        buffer.extend(rows.reshape(-1))
        if steps >= options["learning_starts"]:
            for _ in range(options["updates"]):
                batch = buffer.sample()
                learner.update(batch)
                if options["prioritized"]:
                    buffer.update_tensordict_priority(batch)
            updates += options["updates"]
            collector.update_policy_weights_()
        if not run.goes_on(learner.act, steps, updates):
            break
    run.finish(steps, updates)
    collector.shutdown()


def _buffer(options: Mapping[str, Any]) -> Any:
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

    common = {"storage": LazyTensorStorage(options["buffer_size"]), "batch_size": options["batch_size"]}
    if options["prioritized"]:
        return TensorDictPrioritizedReplayBuffer(alpha=options["alpha"], beta=options["beta"], **common)
    return TensorDictReplayBuffer(**common)


class _DQN:
    """Double or single, with a target that is copied, or moves by a share, every so many updates."""

    def __init__(self, options: Mapping[str, Any], env: Any) -> None:
        import torch
        from tensordict.nn import TensorDictSequential
        from torchrl.modules import MLP, EGreedyModule, QValueActor
        from torchrl.objectives import DQNLoss, SoftUpdate

        self._options = options
        net = MLP(
            in_features=env.observation_spec["observation"].shape[-1],
            out_features=env.action_spec.space.n,
            num_cells=options["hidden_sizes"],
            activation_class=torch.nn.ReLU,
        )
        self._actor = QValueActor(net, spec=env.action_spec, action_space="categorical")
        first, last, steps = options["epsilon"]
        self._greed = EGreedyModule(env.action_spec, eps_init=first, eps_end=last, annealing_num_steps=steps)
        self.exploring = TensorDictSequential(self._actor, self._greed)
        self._loss = DQNLoss(
            self._actor, loss_function=options["loss"], delay_value=True, double_dqn=options["is_double"]
        )
        self._loss.make_value_estimator(gamma=options["gamma"])
        self._target = SoftUpdate(self._loss, tau=options["tau"])
        self._adam = torch.optim.Adam(self._loss.parameters(), lr=options["learning_rate"], fused=True)
        self._num_updates = 0

    def explored(self, steps: int) -> None:
        """Exploration goes on with the steps."""
        self._greed.step(steps)

    def update(self, batch: Any) -> None:
        """One gradient step."""
        import torch

        loss = self._loss(batch)["loss"]
        self._adam.zero_grad()
        loss.backward()
        if self._options["max_grad_norm"]:
            torch.nn.utils.clip_grad_norm_(self._loss.parameters(), self._options["max_grad_norm"])
        self._adam.step()
        self._num_updates += 1
        if self._num_updates % self._options["target_update_interval"] == 0:
            self._target.step()

    def act(self, obs: Any) -> Any:
        """The greedy policy."""
        return _greedily(self._actor, obs)


class _SAC:
    """With two critics."""

    def __init__(self, options: Mapping[str, Any], env: Any) -> None:
        import torch
        from tensordict.nn import InteractionType, TensorDictModule
        from torchrl.modules import MLP, NormalParamExtractor, ProbabilisticActor, TanhNormal, ValueOperator
        from torchrl.objectives import SACLoss, SoftUpdate

        size = env.action_spec.shape[-1]
        cells = {"num_cells": options["hidden_sizes"], "activation_class": torch.nn.ReLU}
        net = torch.nn.Sequential(
            MLP(in_features=env.observation_spec["observation"].shape[-1], out_features=2 * size, **cells),
            NormalParamExtractor(),
        )
        self.exploring = self._actor = ProbabilisticActor(
            TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
            in_keys=["loc", "scale"],
            spec=env.action_spec,
            distribution_class=TanhNormal,
            distribution_kwargs={"low": env.action_spec.space.low, "high": env.action_spec.space.high},
            default_interaction_type=InteractionType.RANDOM,
        )
        num_inputs = env.observation_spec["observation"].shape[-1] + size
        critic = ValueOperator(MLP(in_features=num_inputs, out_features=1, **cells), in_keys=["action", "observation"])
        self._loss = SACLoss(
            self._actor,
            critic,
            num_qvalue_nets=2,
            loss_function="l2",
            alpha_init=options["temperature"],
            fixed_alpha=not options["learns_temperature"],
            action_spec=env.action_spec,
        )
        self._loss.make_value_estimator(gamma=options["gamma"])
        self._target = SoftUpdate(self._loss, tau=options["tau"])
        rates = {"actor_network_params": "actor_learning_rate", "qvalue_network_params": "learning_rate"}
        groups = [
            {"params": list(getattr(self._loss, part).flatten_keys().values()), "lr": options[rate]}
            for part, rate in rates.items()
        ]
        self._losses = ["loss_actor", "loss_qvalue"]
        if options["learns_temperature"]:
            groups.append({"params": [self._loss.log_alpha], "lr": options["temperature_learning_rate"]})
            self._losses.append("loss_alpha")
        self._adam = torch.optim.Adam(groups, fused=True)

    def explored(self, steps: int) -> None:
        """Exploration is the policy's own."""

    def update(self, batch: Any) -> None:
        """One gradient step of all."""
        losses = self._loss(batch)
        self._adam.zero_grad()
        sum(losses[name] for name in self._losses).backward()
        self._adam.step()
        self._target.step()

    def act(self, obs: Any) -> Any:
        """The greedy policy."""
        return _greedily(self._actor, obs)


def _greedily(actor: Callable[[Any], Any], obs: Any) -> Any:
    import torch
    from tensordict import TensorDict
    from torchrl.envs import ExplorationType, set_exploration_type

    seen = TensorDict({"observation": torch.as_tensor(obs, dtype=torch.float32)}, batch_size=[len(obs)])
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        return actor(seen)["action"].numpy()


def _best(config: RunConfig) -> PeerSettings:
    tuned = published("torchrl", TUNED, config)
    total, source = tuned.pop("total_steps"), tuned.pop("source")
    return PeerSettings(
        config.algorithm.name, 1, config.stop.max_steps or total, total // EVALUATIONS, tuned, f"{REPOSITORY}/{source}"
    )


def _equal(config: RunConfig) -> PeerSettings:
    algorithm, replay = config.algorithm, config.replay
    num_envs = config.actor.num_actors * config.actor.num_envs
    collect = num_envs * replay.fragment_length
    options = {
        "collect": collect,
        "updates": max(1, round(collect * replay.samples_per_insert / rows_of_update(config))),
        **replay_and_network(config),
        **(_equal_dqn(config) if algorithm.name == "dqn" else sac_options(config)),
    }
    every = steps_of_updates(config, config.evaluation.every_updates)
    source = "the preset's, with as many steps at a time as its fragments have; exploration is TorchRL's own"
    return PeerSettings(algorithm.name, num_envs, config.stop.max_steps or EQUAL_STEPS, every, options, source)


def _equal_dqn(config: RunConfig) -> dict[str, Any]:
    return {
        "loss": "smooth_l1",
        "is_double": config.value_of("algorithm.double"),
        "tau": config.value_of("algorithm.tau"),
        "target_update_interval": config.value_of("algorithm.target_update_interval"),
        "max_grad_norm": config.value_of("algorithm.max_grad_norm"),
        "epsilon": [1.0, 0.05, EXPLORING_STEPS],
    }
