"""Where each environment stands on the run's exploration ladder (Ape-X, Horgan et al. 2018, section 4)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def ladder_places(actor_index: int, num_actors: int, num_envs: int) -> npt.NDArray[np.float64]:
    """Places of an actor's environments, from 0 (explores most) to 1.

    The N = num_actors * num_envs environments of a run stand at i / (N - 1). Environment j of actor a has i =
    j * num_actors + a, so that each actor gets its share of the whole ladder. A place depends on the index alone: an
    actor that comes back has the same ones, and actors beyond `num_actors` take the places of index mod num_actors.

    Args:
        actor_index: a >= 0.
        num_actors: length of the ladder in actors, from the run's settings.
        num_envs: M.

    Returns:
        [M]; 0 where N is 1.

    Raises:
        ValueError: an argument is out of range.
    """
    if actor_index < 0 or num_actors < 1 or num_envs < 1:
        raise ValueError(f"no ladder for actor {actor_index} of {num_actors} with {num_envs} environments")
    ranks = np.arange(num_envs) * num_actors + actor_index % num_actors
    return ranks / max(num_actors * num_envs - 1, 1)
