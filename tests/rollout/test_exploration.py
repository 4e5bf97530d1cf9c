from __future__ import annotations

import numpy as np
import pytest

from parl_mq.rollout.exploration import ladder_places


@pytest.mark.parametrize(("num_actors", "num_envs"), [(1, 1), (1, 2), (2, 1), (8, 1), (1, 8), (3, 5), (8, 32)])
def test_all_actors_together_stand_on_every_place_once(num_actors: int, num_envs: int) -> None:
    places = np.concatenate([ladder_places(actor, num_actors, num_envs) for actor in range(num_actors)])
    np.testing.assert_allclose(np.sort(places), np.linspace(0, 1, num_actors * num_envs))


def test_each_actor_gets_its_share_of_the_whole_ladder() -> None:
    for actor in range(4):
        places = ladder_places(actor, 4, 16)
        assert places.min() < 0.05
        assert places.max() > 0.95
        assert places.mean() == pytest.approx(0.5, abs=0.03)


def test_an_actor_beyond_the_ladder_shares_places_and_a_returning_one_keeps_them() -> None:
    np.testing.assert_array_equal(ladder_places(6, 4, 3), ladder_places(2, 4, 3))


@pytest.mark.parametrize("arguments", [(-1, 1, 1), (0, 0, 1), (0, 1, 0)])
def test_impossible_ladders_are_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="no ladder"):
        ladder_places(*arguments)
