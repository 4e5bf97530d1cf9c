"""Every supported observation space becomes rows of float32."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from parl_mq.model.encoder import ObservationEncoder
from parl_mq.spec import TableSpec, spec_of


class _Env(gymnasium.Env):
    def __init__(self, observation_space: gymnasium.Space) -> None:
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(2)


def _encoder(space: gymnasium.Space) -> ObservationEncoder:
    return ObservationEncoder(spec_of(_Env(space)))


def test_float_box_passes_without_a_copy() -> None:
    obs = np.arange(6, dtype=np.float32).reshape(3, 2)
    features = _encoder(spaces.Box(-np.inf, np.inf, (2,), np.float32)).encode(obs)
    assert np.shares_memory(features, obs)
    np.testing.assert_array_equal(features, obs)


def test_float64_and_many_dimensions_are_flattened_to_float32() -> None:
    encoder = _encoder(spaces.Box(-1, 1, (2, 3), np.float64))
    features = encoder.encode(np.arange(12, dtype=np.float64).reshape(2, 2, 3))
    assert (features.dtype, encoder.num_features) == (np.float32, 6)
    np.testing.assert_array_equal(features, np.arange(12).reshape(2, 6))


def test_bounded_integers_are_scaled_to_one() -> None:
    features = _encoder(spaces.Box(0, 255, (3,), np.uint8)).encode(np.array([[0, 51, 255]], np.uint8))
    np.testing.assert_allclose(features, [[0.0, 0.2, 1.0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (-np.inf, np.inf, np.int64),
        (0, np.inf, np.int64),
        (-np.inf, 10, np.int32),
        (0, 2**64 - 1, np.uint64),
        (0, 2**31 - 1, np.int32),
    ],
)
def test_integers_without_bounds_are_taken_as_they_are(low: float, high: float, dtype: type) -> None:
    features = _encoder(spaces.Box(low, high, (2,), dtype)).encode(np.array([[0, 1], [5, 10]], dtype))
    np.testing.assert_array_equal(features, [[0, 1], [5, 10]])


def test_a_depth_image_of_16_bits_is_scaled() -> None:
    features = _encoder(spaces.Box(0, 65_535, (2,), np.uint16)).encode(np.array([[0, 65_535]], np.uint16))
    np.testing.assert_array_equal(features, [[0, 1]])


def test_bounds_of_each_element_are_its_own() -> None:
    space = spaces.Box(np.array([-2, 0]), np.array([2, 10]), (2,), np.int16)
    np.testing.assert_allclose(_encoder(space).encode(np.array([[-2, 5], [1, 10]], np.int16)), [[0, 0.5], [0.75, 1]])


def test_box_of_one_value_is_not_divided_by_zero() -> None:
    np.testing.assert_array_equal(_encoder(spaces.Box(3, 3, (1,), np.int8)).encode(np.array([[3]], np.int8)), [[0.0]])


def test_discrete_becomes_a_unit_vector_from_its_start() -> None:
    features = _encoder(spaces.Discrete(3, start=-1)).encode(np.array([-1, 1, 0]))
    np.testing.assert_array_equal(features, [[1, 0, 0], [0, 0, 1], [0, 1, 0]])


@pytest.mark.parametrize("value", [-2, 2])
def test_discrete_value_outside_its_space_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="outside its space"):
        _encoder(spaces.Discrete(3, start=-1)).encode(np.array([value]))


def test_multi_discrete_becomes_unit_vectors_side_by_side() -> None:
    features = _encoder(spaces.MultiDiscrete([2, 3])).encode(np.array([[0, 2], [1, 0]]))
    np.testing.assert_array_equal(features, [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0]])


def test_multi_binary_is_taken_as_it_is() -> None:
    features = _encoder(spaces.MultiBinary(3)).encode(np.array([[1, 0, 1]], np.int8))
    np.testing.assert_array_equal(features, [[1, 0, 1]])


def test_dict_is_joined_in_the_specs_order() -> None:
    encoder = _encoder(
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Dict({"x": spaces.Box(-1, 1, (2,), np.float32)})})
    )
    obs = {"b": np.array([1, 0]), "a/x": np.array([[0.5, 0.25], [1, -1]], np.float32)}
    np.testing.assert_array_equal(encoder.encode(obs), [[0.5, 0.25, 0, 1], [1, -1, 1, 0]])


def test_stacked_frames_share_the_bounds_of_one() -> None:
    spec = spec_of(_Env(spaces.Box(np.array([0, 10]), np.array([4, 20]), (2,), np.int16)))
    obs = np.array([[[0, 10], [4, 20], [2, 15]]], np.int16)
    features = ObservationEncoder(spec.stacked(3)).encode(obs)
    np.testing.assert_array_equal(features, [[0, 0, 1, 1, 0.5, 0.5]])


def test_columns_without_a_space_are_taken_as_they_are() -> None:
    spec = TableSpec.of({"obs": ((2,), np.int32), "action": ((), np.int64)})
    np.testing.assert_array_equal(ObservationEncoder(spec).encode(np.array([[7, -7]], np.int32)), [[7, -7]])


def test_given_memory_is_filled_from_read_only_observations() -> None:
    encoder = _encoder(spaces.Box(-1, 1, (2,), np.float32))
    obs = np.ones((3, 2), np.float32)
    obs.flags.writeable = False
    out = np.zeros((3, 2), np.float32)
    assert encoder.encode(obs, out=out) is out
    np.testing.assert_array_equal(out, 1)


@pytest.mark.parametrize("shape", [(4, 3), (4,), (2, 2, 2)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="obs ''"):
        _encoder(spaces.Box(-1, 1, (2,), np.float32)).encode(np.zeros(shape, np.float32))


def test_missing_key_is_named() -> None:
    with pytest.raises(ValueError, match="'a'"):
        _encoder(spaces.Dict({"a": spaces.Discrete(2)})).encode({"b": np.array([1])})
