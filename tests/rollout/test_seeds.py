from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from parl_mq.config.models import EnvironmentConfig
from parl_mq.rollout.environments import make_vector
from parl_mq.rollout.seeds import ROLES, environment_seeds, random_stream
from parl_mq.rollout.stepper import Stepper


def test_no_two_environments_of_a_run_share_a_seed() -> None:
    seeds = [
        seed
        for role, index in product(ROLES, (*range(20), 9_999, 2**18 - 1))
        for seed in environment_seeds(7, role, index, 4096)
    ]
    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= 0
    assert max(seeds) < 2**32


def test_seeds_depend_on_the_runs_seed_and_the_attempt_alone() -> None:
    first = environment_seeds(1, "actor", 3, 8)
    assert environment_seeds(1, "actor", 3, 8) == first
    assert environment_seeds(1, "actor", 3, 4) == first[:4]
    assert not set(environment_seeds(2, "actor", 3, 8)) & set(first)
    assert not set(environment_seeds(1, "actor", 3, 8, attempt=1)) & set(first)


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_first_observations_differ_between_all_environments_and_repeat_with_the_seed(vectorization: str) -> None:
    def first_observations(run_seed: int) -> np.ndarray:
        firsts = []
        for index in range(4):
            envs = make_vector(EnvironmentConfig(id="CartPole-v1"), 4, vectorization)  # type: ignore[arg-type]
            firsts.append(Stepper(envs).reset(environment_seeds(run_seed, "actor", index, 4))[0].copy())
        return np.concatenate(firsts)

    first = first_observations(1)
    assert len(np.unique(first, axis=0)) == 16
    np.testing.assert_array_equal(first_observations(1), first)
    assert not (first_observations(2) == first).any()


def test_random_streams_differ_between_nodes_and_repeat() -> None:
    nodes = [(seed, role, index) for seed in (1, 2) for role in ROLES for index in range(4)]
    firsts = {random_stream(*node).integers(2**63) for node in nodes}
    assert len(firsts) == len(nodes)
    assert random_stream(1, "actor", 0).integers(2**63) in firsts
    assert random_stream(1, "actor", 0, attempt=1).integers(2**63) not in firsts


@pytest.mark.parametrize(("role", "index", "num_envs"), [("actor", -1, 1), ("actor", 2**18, 1), ("actor", 0, 4097)])
def test_what_would_share_a_seed_is_refused(role: str, index: int, num_envs: int) -> None:
    with pytest.raises(ValueError, match="no seeds"):
        environment_seeds(1, role, index, num_envs)


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(ValueError, match="'hub'"):
        random_stream(1, "hub", 0)
