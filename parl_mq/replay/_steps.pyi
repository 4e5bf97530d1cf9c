"""Values of steps: checked against their limits, and written into the rows of single transitions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy.typing as npt

Array = npt.NDArray[Any]

LARGEST_FLOAT32: Final[float]

class Limits:
    """Which values a column may hold."""

    name: str

    def __init__(self, name: str, low: Sequence[float], high: Sequence[float]) -> None:
        """Limits of a column.

        Args:
            name: of the column.
            low: smallest values: one for all elements, or one for each, in C order.
            high: largest values, included, likewise.
        """

    def check(self, array: Array) -> None:
        """Looks over rows.

        Args:
            array: [R, ...] of numbers; each row must be contiguous.

        Raises:
            ValueError: an element is NaN or outside; the message says which.
        """

class StepWriter:
    """Writes steps into rows, of a fragment or of transitions that take two rows each.

    Values are taken as `parl_mq.replay.values.checked` does. Those that have the column's dtype are copied at once.
    """

    def __init__(
        self,
        observations: Mapping[str, Array],
        steps: Mapping[str, Array],
        limits: Iterable[Limits],
        *,
        is_fragment: bool = False,
    ) -> None:
        """A writer into C-contiguous arrays.

        Args:
            observations: by name; [2 N, ...], where row 2 i belongs to step i and row 2 i + 1 to the observation after
                it, or of a fragment [T + 1, ...].
            steps: the other columns, by name.
            limits: of some of them.
            is_fragment: see above.

        Raises:
            ValueError: there are too many.
        """

    def put(self, obs: tuple[object, ...], step: tuple[object, ...], next_obs: tuple[object, ...]) -> None:
        """Writes the only transition.

        Args:
            obs: a value for each observation: an array, NumPy scalar, Python number or list.
            step: one for each other column.
            next_obs: as `obs`.

        Raises:
            ValueError: a value does not fit its column or lies outside its limits; some were written then.
        """

    def put_all(self, obs: tuple[object, ...], step: tuple[object, ...], next_obs: tuple[object, ...]) -> None:
        """Writes all N transitions, each value with a leading axis.

        Raises:
            ValueError: as `put`.
        """

    def put_fragment(self, obs: tuple[object, ...], step: tuple[object, ...]) -> None:
        """Writes T + 1 observations and T steps, with leading axes; the last row's other columns stay as they are.

        Raises:
            ValueError: as `put`.
        """
