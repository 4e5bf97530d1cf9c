"""Seeds and random streams: one for every environment and every node, all derived from the run's seed."""

from __future__ import annotations

from typing import Final

import numpy as np

ROLES: Final = {"actor": 0, "evaluator": 1, "learner": 2, "replay": 3}
ENV_BITS: Final = 12
"""An actor has at most 2^12 environments, which the settings ensure."""
INDEX_BITS: Final = 18
"""A role has at most 2^18 nodes. Role, index and environment together fill 32 bits."""


def environment_seeds(run_seed: int, role: str, index: int, num_envs: int, *, attempt: int = 0) -> list[int]:
    """Seeds of a node's environments, in [0, 2^32), which old random generators take too.

    No two environments of a run share one: the seed is a one-to-one map of (role, index, environment), by a multiplier
    and an offset that come from the run's seed. Words of a SeedSequence alone would collide among 10^5 environments.

    Args:
        run_seed: of the run; other runs get other seeds.
        role: a key of ROLES.
        index: of the node among its role.
        num_envs: M.
        attempt: grows when the environments are made again, so that they do not repeat what they have shown.

    Returns:
        M seeds.

    Raises:
        ValueError: an argument is outside its range.
    """
    if not (0 <= index < 1 << INDEX_BITS and 1 <= num_envs <= 1 << ENV_BITS):
        raise ValueError(f"no seeds for index {index} with {num_envs} environments: at most 2^18 nodes of 2^12 each")
    multiplier, offset = np.random.SeedSequence(run_seed, spawn_key=(attempt,)).generate_state(2).tolist()
    first = (_role_number(role) << INDEX_BITS | index) << ENV_BITS
    # An odd multiplier is invertible modulo 2^32.
    return [((first + env) * (multiplier | 1) + offset) % 2**32 for env in range(num_envs)]


def random_stream(run_seed: int, role: str, index: int, *, attempt: int = 0) -> np.random.Generator:
    """The random generator of one node, such as an actor's exploration; independent of all the others."""
    return np.random.default_rng(np.random.SeedSequence(run_seed, spawn_key=(attempt, _role_number(role), index)))


def _role_number(role: str) -> int:
    try:
        return ROLES[role]
    except KeyError:
        raise ValueError(f"role {role!r} has no seeds; those that have are {sorted(ROLES)}") from None
