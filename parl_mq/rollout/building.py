"""Builds an actor's collector and an evaluator from a run's settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final

from parl_mq.algorithms.base import Policy
from parl_mq.algorithms.registry import load_algorithm
from parl_mq.config.models import RunConfig
from parl_mq.rollout.assembler import FragmentAssembler, FragmentShape
from parl_mq.rollout.collector import Collector, Pace
from parl_mq.rollout.environments import AnyVectorEnv, close_unused, make_single, make_vector
from parl_mq.rollout.evaluation import MAX_ENVS, Evaluator
from parl_mq.rollout.exploration import ladder_places
from parl_mq.rollout.frames import FrameStack
from parl_mq.rollout.seeds import environment_seeds, random_stream
from parl_mq.rollout.stepper import Stepper
from parl_mq.spec import TableSpec, spec_of

MESSAGE_SHARE: Final = 4
"""A message leaves at a quarter of an actor's largest one: often enough to be fresh, large enough to be cheap."""


def table_spec(config: RunConfig) -> TableSpec:
    """What the rows of the run's table hold: the environment's columns and the algorithm's extra ones.

    Raises:
        EnvironmentFault: the environment cannot be made.
    """
    env = make_single(config.environment)
    try:
        return spec_of(env).extended(config.algorithm.extra_columns())
    finally:
        close_unused(env)


def build_collector(config: RunConfig, index: int, *, clock: Callable[[], float], attempt: int = 0) -> Collector:
    """The collector of actor `index`; it needs weights before it can step.

    Args:
        config: of the run.
        index: of the actor among the actors.
        clock: seconds, monotonic.
        attempt: grows each time the environments are made again, which gives them other seeds.

    Raises:
        EnvironmentFault: the environments cannot be made.
        ConfigError: the algorithm cannot act in them.
    """
    environment, actor, replay = config.environment, config.actor, config.replay
    stepper = Stepper(make_vector(environment, actor.num_envs, actor.vectorization))
    spec = stepper.spec.extended(config.algorithm.extra_columns())
    policy = load_algorithm(config.algorithm.name).make_policy(
        config.algorithm,
        spec.stacked(environment.frame_stack),
        ladder_places(index, actor.num_actors, actor.num_envs),
    )
    shape = FragmentShape(replay.fragment_length, config.algorithm.n_step, environment.frame_stack)
    return Collector(
        stepper,
        policy,
        FragmentAssembler(spec, actor.num_envs, shape),
        frames=FrameStack(spec.observation_names, environment.frame_stack),
        pace=Pace(
            max(config.largest_insert // MESSAGE_SHARE, 1), inf if config.deterministic else replay.fragment_wait_s
        ),
        seeds=environment_seeds(config.seed, "actor", index, actor.num_envs, attempt=attempt),
        rng=random_stream(config.seed, "actor", index, attempt=attempt),
        clock=clock,
    )


def build_evaluator(config: RunConfig, make_one: Callable[[], AnyVectorEnv] | None = None) -> tuple[Evaluator, Policy]:
    """The evaluator of a run, and a policy that it can play once weights are loaded.

    Args:
        config: of the run.
        make_one: makes a vector of one environment that plays all episodes in turn; None: as many play at once as may.

    Raises:
        EnvironmentFault: the environments cannot be made.
        ConfigError: the algorithm cannot act in them.
    """
    depth = config.environment.frame_stack
    evaluator = Evaluator(
        partial(make_vector, config.environment) if make_one is None else lambda num_envs: make_one(),
        max_envs=MAX_ENVS if make_one is None else 1,
        num_episodes=config.evaluation.num_episodes,
        seed=config.evaluation.seed,
        frame_stack=depth,
    )
    spec = evaluator.spec.extended(config.algorithm.extra_columns())
    policy = load_algorithm(config.algorithm.name).make_policy(
        config.algorithm, spec.stacked(depth), ladder_places(0, 1, evaluator.num_envs)
    )
    return evaluator, policy
