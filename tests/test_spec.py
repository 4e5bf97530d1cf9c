"""What is told of an environment's spaces."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from parl_mq.spec import MAX_BOUNDS, spec_of
from parl_mq.wire.codec import encode
from tests.services.builders import spec_offer


class _Env(gymnasium.Env):
    def __init__(self, observation_space: gymnasium.Space, action_space: gymnasium.Space | None = None) -> None:
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)


def _box(shape: tuple[int, ...], dtype: type) -> spaces.Box:
    """Its bounds differ from element to element."""
    low = np.arange(np.prod(shape)).reshape(shape) % 100
    return spaces.Box(low.astype(dtype), (low + 100).astype(dtype), shape, dtype)


def test_an_image_with_bounds_of_each_channel_can_be_told():
    spec = spec_of(_Env(_box((3, 128, 128), np.float32)))
    assert (spec.spaces["obs"].low, spec.spaces["obs"].high) == ((-np.inf,), (np.inf,))
    assert encode(spec_offer(spec))


def test_bounds_that_can_be_told_are():
    assert len(spec_of(_Env(_box((MAX_BOUNDS,), np.float32))).spaces["obs"].low) == MAX_BOUNDS


@pytest.mark.parametrize("place", ["obs", "action"])
def test_bounds_that_are_needed_and_cannot_be_told_are_refused(place):
    large = _box((MAX_BOUNDS + 1,), np.int16 if place == "obs" else np.float32)
    env = _Env(large) if place == "obs" else _Env(spaces.Discrete(2), large)
    with pytest.raises(ValueError, match=f"{place}: its bounds differ over 4,097 elements"):
        spec_of(env)
