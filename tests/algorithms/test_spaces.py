"""Actions keep the environment's scale everywhere but inside the networks."""

import numpy as np
import pytest

from parl_mq.algorithms.registry import settings_model
from parl_mq.algorithms.spaces import BoxActions, DiscreteActions
from parl_mq.errors import ConfigError
from parl_mq.spec import Space, TableSpec

BOX_ALGORITHMS = ["sac", "td3", "ddpg"]


def _spec(space: Space, shape: tuple[int, ...] = (2,), dtype: str = "float32") -> TableSpec:
    columns = TableSpec.of({"obs": ((3,), "float32"), "action": (shape, dtype)}).columns
    return TableSpec(columns, {"action": space})


def _box(low: tuple[float, ...], high: tuple[float, ...], **kwargs: object) -> TableSpec:
    return _spec(Space("Box", low, high), **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (4,), (2, 2)])
def test_units_are_the_shares_of_each_elements_own_bounds(shape: tuple[int, ...], dtype: str) -> None:
    size = int(np.prod(shape))
    low, high = (-2.0, -1.0, 0.0, 10.0)[:size], (6.0, 0.5, 0.25, 12.0)[:size]
    actions = BoxActions.of(_box(low, high, shape=shape, dtype=dtype), algorithm="x")
    units = np.stack([np.full(size, unit, np.float32) for unit in (-1.0, -0.5, 0.0, 1.0)])
    taken = actions.from_units(units)
    assert (taken.shape, taken.dtype) == ((4, *shape), dtype)
    expected = np.array(low) + (units.astype(np.float64) + 1) / 2 * (np.array(high) - np.array(low))
    np.testing.assert_allclose(taken.reshape(4, size), expected, rtol=1e-2 if dtype == "float16" else 1e-6)
    np.testing.assert_allclose(actions.to_units(taken), units, atol=1e-2 if dtype == "float16" else 1e-6)


def test_one_bound_may_stand_for_all_elements() -> None:
    actions = BoxActions.of(_box((-2.0,), (6.0,), shape=(3,)), algorithm="x")
    assert actions.from_units(np.zeros((1, 3), np.float32)).tolist() == [[2.0, 2.0, 2.0]]


def test_actions_never_leave_the_box() -> None:
    rng = np.random.default_rng(0)
    low = rng.normal(size=50).astype(np.float32)
    high = low + rng.uniform(0.01, 3, 50).astype(np.float32)
    actions = BoxActions.of(_box(tuple(low.tolist()), tuple(high.tolist()), shape=(50,)), algorithm="x")
    for unit in (-1.0, 1.0, -7.0, 7.0, np.float32(1 - 6e-8)):
        taken = actions.from_units(np.full((1, 50), unit, np.float32))
        assert np.all((taken >= low) & (taken <= high))


def test_huge_bounds_do_not_overflow() -> None:
    largest = float(np.finfo(np.float32).max)
    actions = BoxActions.of(_box((-largest,), (largest,)), algorithm="x")
    assert np.isfinite(actions.from_units(np.array([[1.0, -0.5]], np.float32))).all()
    assert np.isfinite(actions.log_scale)


def test_random_units_are_uniform() -> None:
    actions = BoxActions.of(_box((-2.0,), (6.0,)), algorithm="x")
    units = actions.random_units(50_000, np.random.default_rng(0))
    assert units.shape == (50_000, 2)
    assert units.min() >= -1
    assert units.max() <= 1
    np.testing.assert_allclose(units.mean(0), 0, atol=4 * np.sqrt(1 / 3 / 50_000))
    np.testing.assert_allclose(units.var(0), 1 / 3, atol=0.01)


@pytest.mark.parametrize("name", BOX_ALGORITHMS)
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (_spec(Space("Discrete", (0.0,), (3.0,)), (), "int64"), "Discrete"),
        (_box((-1.0, -np.inf), (1.0, 1.0)), r"element 1 lies in \[-inf, 1.0\]"),
        (_box((-1.0,), (np.inf,)), r"element 0 lies in \[-1.0, inf\]"),
        (_box((0.5,), (0.5,)), "low < high"),
        (_box((0.0,), (9.0,), dtype="int32"), "int32"),
        (TableSpec.of({"obs": ((3,), "float32"), "action": ((2,), "float32")}), "unknown"),
        (
            TableSpec.of({"obs": ((3,), "float32"), "action/a": ((2,), "float32"), "action/b": ((2,), "float32")}),
            "action/a",
        ),
    ],
)
def test_other_action_spaces_are_refused_with_their_fault(name: str, spec: TableSpec, said: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} needs one Box action of floats with finite bounds.*{said}"):
        settings_model(name)(name=name).check_spaces(spec)


def test_boxes_are_no_discrete_actions() -> None:
    with pytest.raises(ConfigError, match="dqn needs one Discrete action"):
        DiscreteActions.of(_box((-1.0,), (1.0,)), algorithm="dqn")
