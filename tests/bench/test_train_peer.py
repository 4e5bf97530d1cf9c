"""How a peer's training is judged and recorded, and what peers are given; no peer is needed for that."""

from __future__ import annotations

import sys
import tomllib
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from parl_mq.bench import train_peers_rllib, train_peers_sb3, train_peers_tianshou, train_peers_torchrl
from parl_mq.bench.train_peer import PeerRun, PeerSettings, steps_of_updates
from parl_mq.bench.train_peers import peer_settings
from parl_mq.bench.train_runs import read_training
from parl_mq.config.loader import load_config
from parl_mq.errors import ConfigError
from parl_mq.observe.files import CHECKPOINTS, CONFIG
from parl_mq.observe.runs import read_run
from parl_mq.rollout.environments import make_vector
from parl_mq.rollout.evaluation import Evaluator
from parl_mq.services.run_directory import RunDirectory


class Clock:
    """Goes on by hand, and by itself with each reading."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


def push_right(obs):
    return np.ones(len(obs), np.int64)


def lean(obs):
    """Balances CartPole for long."""
    return (obs[:, 2] + 0.5 * obs[:, 3] > 0).astype(np.int64)


@pytest.fixture
def make_run(tmp_path):
    def make(*overrides: str, total_steps: int = 1_000, limit_s: float = 1e6) -> tuple[PeerRun, Path]:
        config = load_config("cartpole-dqn", overrides=["evaluation.num_episodes=3", *overrides], environ={})
        settings = PeerSettings("dqn", 4, total_steps, 100, {"learning_rate": 0.5}, "nowhere")
        (tmp_path / CHECKPOINTS).mkdir()
        (tmp_path / CONFIG).write_text(settings.recorded(config, "peer (best)", limit_s))
        judge = Evaluator(partial(make_vector, config.environment), num_episodes=3, seed=config.evaluation.seed)
        directory = RunDirectory(tmp_path)
        run = PeerRun(directory, config, settings, judge, started_at=90.0, limit_s=limit_s, clock=Clock())
        return run, tmp_path

    return make


def test_a_peers_run_reads_as_a_run_of_parl_mq(make_run):
    run, path = make_run("stop.target_return=100", "seed=7")
    run.begin()
    assert run.goes_on(push_right, 50, 5)  # not due yet
    assert run.goes_on(push_right, 100, 10)
    assert not run.goes_on(lean, 200, 20)
    run.finish(200, 20)
    read = read_run(path, now=0.0)
    assert (read.state, read.reached, read.seed, read.env_steps, read.updates) == ("done", True, 7, 200, 20)
    assert read.preset == "cartpole-dqn, peer (best)"
    assert read.eval_return is not None
    assert read.eval_return >= 100


def test_set_up_and_evaluations_are_no_training_time(make_run):
    run, path = make_run("stop.target_return=100")
    run.begin()  # at 100.5, 10.5 s after the start
    run.goes_on(push_right, 100, 10)
    run.goes_on(lean, 200, 20)
    run.finish(200, 20)
    training = read_training(read_run(path, now=0.0))
    summary = RunDirectory(path).read_summary()
    assert summary is not None
    assert summary["first_env_step_s"] == 10.5
    assert summary["evaluation_s"] == 2 * 0.5  # the clock is read once at the start of each and once at its end
    assert training.to_target_s == summary["time_to_target_s"]
    assert training.training_s == training.to_target_s - 10.5 - 1.0
    assert training.steps_to_target == 200
    assert training.updates_per_s == pytest.approx(20 / (summary["wall_s"] - 10.5 - 1.0))


def test_without_its_target_a_run_ends_with_its_steps_or_its_time(make_run):
    run, _ = make_run(total_steps=300)
    run.begin()
    assert run.goes_on(push_right, 299, 1)
    assert not run.goes_on(push_right, 300, 1)


def test_time_ends_a_run(make_run):
    run, path = make_run(limit_s=11.5)
    run.begin()  # 10.5 s
    assert run.goes_on(push_right, 1, 0)  # 11 s
    assert not run.goes_on(push_right, 2, 0)  # 11.5 s
    run.finish(2, 0)
    assert read_training(read_run(path, now=0.0)).to_target_s == np.inf


def test_updates_are_counted_in_steps_of_the_preset():
    assert steps_of_updates(load_config("cartpole-dqn", environ={}), 200) == 200 * 256 / 8
    assert steps_of_updates(load_config("halfcheetah-sac", environ={}), 10_000) == 10_000


def test_a_peer_draws_what_all_learners_of_the_preset_draw():
    several = [
        load_config("cartpole-dqn", overrides=["learner.num_learners=2", f"learner.batches={batches}"], environ={})
        for batches in ("split", "each")
    ]
    assert [steps_of_updates(config, 200) for config in several] == [200 * 256 / 8, 200 * 512 / 8]
    sb3 = [train_peers_sb3.settings_of(config, "equal").options for config in several]
    assert [(options["batch_size"], options["train_freq"]) for options in sb3] == [(256, 1), (512, 1)]
    assert [options["gradient_steps"] for options in sb3] == [2, 1]
    tianshou = [train_peers_tianshou.settings_of(config, "equal").options for config in several]
    assert [(o["batch_size"], o["updates_per_step"]) for o in tianshou] == [(256, 1 / 32), (512, 1 / 64)]
    torchrl = [train_peers_torchrl.settings_of(config, "equal").options for config in several]
    assert [(options["batch_size"], options["updates"]) for options in torchrl] == [(256, 32), (512, 16)]
    rllib = [train_peers_rllib.settings_of(config, "equal").options["training"] for config in several]
    assert [options["train_batch_size_per_learner"] for options in rllib] == [256, 512]


PRESETS = ("cartpole-dqn", "lunarlander-dqn", "pendulum-sac", "halfcheetah-sac")
KNOWN = [
    *((peer, kind, preset) for peer in ("sb3", "tianshou") for kind in ("equal", "best") for preset in PRESETS),
    *((peer, "equal", preset) for peer in ("rllib", "torchrl") for preset in PRESETS),
    *(("torchrl", "best", preset) for preset in ("cartpole-dqn", "halfcheetah-sac")),
    *(("rllib", "best", preset) for preset in ("cartpole-dqn", "pendulum-sac")),
]


@pytest.mark.parametrize(("peer", "kind", "preset"), KNOWN)
def test_what_peers_are_measured_at_is_recorded_in_full(peer, kind, preset):
    config = load_config(preset, environ={})
    settings = peer_settings(peer, config, kind)
    recorded = tomllib.loads(settings.recorded(config, "label", 90.0))
    assert recorded["environment"]["id"] == config.environment.id
    assert (recorded["stop"]["max_steps"], recorded["stop"]["max_seconds"]) == (settings.total_steps, 90.0)
    assert recorded["algorithm"] == {"name": config.algorithm.name, **settings.options}
    assert recorded["source"]


def make_vec_env(env_id, n_envs, *, seed, env_kwargs=None):
    """As SB3's: what it makes by name is ready to be drawn unless it is told otherwise."""
    del seed
    by_name = partial(gymnasium.make, env_id, render_mode="rgb_array")
    make = partial(by_name if isinstance(env_id, str) else env_id, **(env_kwargs or {}))
    return SimpleNamespace(envs=[make() for _ in range(n_envs)])


@pytest.mark.parametrize("is_installed", [False, True], ids=["stand-in", "sb3"])
def test_sb3_steps_environments_that_nobody_draws(is_installed, monkeypatch):
    if is_installed:
        pytest.importorskip("stable_baselines3")
    else:
        name = "stable_baselines3.common.env_util"
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(make_vec_env=make_vec_env))
    config = load_config("cartpole-dqn", overrides=["environment.kwargs.sutton_barto_reward=true"], environ={})
    envs = train_peers_sb3._environments(config, 2).envs
    assert [env.unwrapped.render_mode for env in envs] == [None, None]
    assert [env.unwrapped._sutton_barto_reward for env in envs] == [True, True]


def test_equal_settings_of_sb3_make_as_many_updates_and_move_the_target_as_far():
    config = load_config("lunarlander-dqn", environ={})
    settings = train_peers_sb3.settings_of(config, "equal")
    options = settings.options
    assert (settings.num_envs, options["train_freq"], options["gradient_steps"]) == (32, 1, 2)
    assert options["target_update_interval"] == 32  # once for each step of all environments
    assert 1 - options["tau"] == pytest.approx((1 - 0.01) ** 2)
    assert options["n_steps"] == 3
    assert "without prioritized replay and double targets" in settings.source


def test_equal_settings_of_sb3_where_updates_are_rarer_than_steps():
    config = load_config("cartpole-dqn", overrides=["actor.num_envs=4"], environ={})
    options = train_peers_sb3.settings_of(config, "equal").options
    assert (options["train_freq"], options["gradient_steps"]) == (8, 1)  # 4 * 8 steps for an update
    assert options["tau"] == pytest.approx(0.02)


def test_equal_settings_of_tianshou_have_the_presets_ratio_and_replay():
    settings = train_peers_tianshou.settings_of(load_config("cartpole-dqn", environ={}), "equal")
    assert settings.options["collect"] == 64
    assert settings.num_envs == 16  # the most that divide 64 and leave an episode of 500 steps room in 10,000 rows
    assert "16 environments" in settings.source
    assert settings.options["updates_per_step"] == 1 / 32
    assert settings.options["prioritized"]
    assert settings.options["target_update_freq"] == 50  # tau 0.02 at every update


def test_published_epsilons_of_tianshou_fall_as_its_scripts_let_them():
    cartpole, lander = (
        train_peers_tianshou.settings_of(load_config(preset, environ={}), "best").options
        for preset in ("cartpole-dqn", "lunarlander-dqn")
    )
    at = train_peers_tianshou._epsilon_at
    steps = (0, 10_000, 30_000, 50_000, 200_000)
    assert [at(cartpole, step) for step in steps] == pytest.approx([0.1, 0.1, 0.055, 0.01, 0.01])
    assert [at(lander, step) for step in (0, 100_000, 10**7)] == pytest.approx([0.73, 0.73 * (1 - 5e-6) ** 1e5, 0.01])


@pytest.mark.parametrize(("preset", "steps"), [("cartpole-dqn", 64 * 10), ("lunarlander-dqn", 128 * 16)])
def test_published_settings_of_tianshou_begin_with_a_batch_of_each_environment_by_the_policy(preset, steps):
    options = train_peers_tianshou.settings_of(load_config(preset, environ={}), "best").options
    assert (options["learning_starts"], options["starts_at_random"]) == (steps, False)


def test_where_tianshou_publishes_many_more_steps_than_it_takes_it_is_not_judged_all_the_time():
    every = {
        preset: train_peers_tianshou.settings_of(load_config(preset, environ={}), "best").evaluate_every
        for preset in PRESETS
    }
    assert every == {
        "cartpole-dqn": 5_000,
        "lunarlander-dqn": 10_000,
        "pendulum-sac": 6_000,
        "halfcheetah-sac": 10_000,
    }


def test_equal_settings_of_rllib_have_the_presets_ratio_and_replay_and_move_the_target_as_far():
    training = train_peers_rllib.settings_of(load_config("lunarlander-dqn", environ={}), "equal").options["training"]
    assert training["training_intensity"] == 16
    assert training["replay_buffer_config"]["type"] == "PrioritizedEpisodeReplayBuffer"
    assert training["target_network_update_freq"] == 32
    assert 1 - training["tau"] == pytest.approx((1 - 0.01) ** 2)


def test_equal_settings_of_torchrl_have_the_presets_ratio_and_collect_as_its_fragments_do():
    settings = train_peers_torchrl.settings_of(load_config("cartpole-dqn", environ={}), "equal")
    assert (settings.num_envs, settings.options["collect"], settings.options["updates"]) == (64, 64 * 16, 32)
    assert (settings.options["n_step"], settings.options["prioritized"], settings.options["tau"]) == (10, True, 0.02)


def test_a_fixed_temperature_stays_in_rllib():
    training = train_peers_rllib.settings_of(load_config("halfcheetah-sac", environ={}), "equal").options["training"]
    assert (training["initial_alpha"], training["alpha_lr"]) == (0.2, 0)


def test_what_a_peer_lacks_is_refused():
    with pytest.raises(ConfigError, match="rllib: it has no td3"):
        peer_settings("rllib", load_config("pendulum-td3", environ={}), "equal")
    with pytest.raises(ConfigError, match="no published settings of dqn on LunarLander"):
        peer_settings("rllib", load_config("lunarlander-dqn", environ={}), "best")
    with pytest.raises(ConfigError, match="sac-discrete"):
        peer_settings("sb3", load_config("cartpole-sac", environ={}), "equal")
    with pytest.raises(ConfigError, match="no published settings of td3 on LunarLanderContinuous"):
        peer_settings("sb3", load_config("lunarlandercontinuous-td3", environ={}), "best")


@pytest.mark.parametrize(
    "setting", ["environment.id=corridor:Corridor-v0", "environment.frame_stack=4", "environment.max_episode_steps=50"]
)
def test_an_environment_that_peers_cannot_make_is_refused(setting):
    with pytest.raises(ConfigError, match=f"--against sb3: {setting} cannot be said to it"):
        peer_settings("sb3", load_config("cartpole-dqn", overrides=[setting], environ={}), "equal")
