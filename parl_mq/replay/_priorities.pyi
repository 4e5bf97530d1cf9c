"""Priorities from magnitudes, and importance weights from probabilities."""

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]

class Priorities:
    """How a table's priorities come from magnitudes: (magnitude + eps)^alpha, applied here and nowhere else.

    Magnitudes above 1e290 count as that. Where magnitude + eps is 0 the priority is 0, at alpha = 0 too. The power has
    an error below 0.65 units in the last place and is the same to the bit on every processor.
    """

    def __init__(self, *, alpha: float, eps: float, is_uniform: bool = False) -> None:
        """A rule.

        Args:
            alpha: in [0, 1].
            eps: >= 0.
            is_uniform: every priority is 1.
        """

    def of(self, magnitudes: Float64s) -> Float64s:
        """[B] priorities.

        Args:
            magnitudes: [B], finite and >= 0.

        Raises:
            PrioritiesRefused: they are not.
        """

    def check(self, magnitudes: Float64s, num_expected: int) -> None:
        """Refuses what `of` would.

        Raises:
            PrioritiesRefused: also where their number is not that expected. It says how many of them are no magnitudes.
        """

def importance_weights(probabilities: Float64s, beta: float) -> npt.NDArray[np.float32]:
    """Weights (N P(i))^-beta over the batch's largest one (Schaul et al. 2016, section 3.4), in which N cancels out.

    The largest of the batch, not of the whole table: that one needs a tree of minima, and would scale a whole batch
    down because of one row that is hardly ever drawn.

    Args:
        probabilities: [B], each in [0, 1]; 0 marks a row that must not count.
        beta: in [0, 1]; 0 corrects nothing: all weights are 1.

    Returns:
        [B] in (0, 1], and 0 where the probability is 0.

    Raises:
        ValueError: beta or a probability is NaN or out of range.
    """

def _powers(values: Float64s, exponent: float, kernel: str) -> Float64s:
    """value^exponent by one of `available_kernels`, for tests."""
