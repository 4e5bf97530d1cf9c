"""The exploration ladder is Ape-X's."""

import numpy as np
import pytest

from parl_mq.algorithms.exploration import ladder_epsilons


@pytest.mark.parametrize(
    ("num_places", "expected"),
    [
        (1, [0.4]),
        (2, [0.4, 0.4**8]),
        (8, [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.0016384, 0.00065536]),
    ],
)
def test_epsilons_are_those_of_the_paper(num_places: int, expected: list[float]) -> None:
    places = np.arange(num_places) / max(num_places - 1, 1)
    np.testing.assert_allclose(ladder_epsilons(places, epsilon=0.4, alpha=7.0), expected, rtol=1e-12)


def test_alpha_of_zero_explores_alike_everywhere() -> None:
    np.testing.assert_array_equal(ladder_epsilons(np.array([0.0, 0.5, 1.0]), epsilon=0.3, alpha=0.0), 0.3)


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_never_and_always_are_possible(epsilon: float) -> None:
    np.testing.assert_array_equal(ladder_epsilons(np.array([0.0, 1.0]), epsilon=epsilon, alpha=7.0), epsilon)


@pytest.mark.parametrize("place", [-0.01, 1.01, np.nan])
def test_places_off_the_ladder_are_refused(place: float) -> None:
    with pytest.raises(ValueError, match="must lie in"):
        ladder_epsilons(np.array([0.5, place]), epsilon=0.4, alpha=7.0)
