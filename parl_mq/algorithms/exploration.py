"""The exploration ladder of Ape-X (Horgan et al. 2018, section 4); torch-free."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def ladder_epsilons(places: npt.NDArray[np.float64], *, epsilon: float, alpha: float) -> npt.NDArray[np.float64]:
    """epsilon^(1 + alpha * place): the share of random actions at each place.

    Args:
        places: [M] in [0, 1]; i / (N - 1) for environment i of N, 0 where N is 1.
        epsilon: at place 0, in [0, 1].
        alpha: >= 0; with 0 all places explore alike.

    Raises:
        ValueError: a place is outside [0, 1].
    """
    if not np.all((places >= 0) & (places <= 1)):
        raise ValueError(f"places on the exploration ladder must lie in [0, 1]; got {places}")
    epsilons: npt.NDArray[np.float64] = epsilon ** (1 + alpha * places)
    return epsilons


def ladder_between(places: npt.NDArray[np.float64], *, first: float, last: float) -> npt.NDArray[np.float64]:
    """[M] values that go evenly from `first` at place 0 to `last` at place 1."""
    return first + (last - first) * places
