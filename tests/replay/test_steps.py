from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parl_mq.replay._steps import LARGEST_FLOAT32, Limits, StepWriter

DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


def columns(num_rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"obs": np.zeros((num_rows, 3), np.float32)}, {
        "action": np.zeros(num_rows, np.int64),
        "reward": np.zeros(num_rows, np.float32),
    }


class TestLimits:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_the_first_element_outside_is_named(self, dtype: str) -> None:
        limits = Limits("x", [0.0], [1.0])
        values = np.zeros((4, 2), dtype)
        values[1:] = 1
        limits.check(values)
        if dtype != "bool":
            values[2:, 1] = 2
            with pytest.raises(ValueError, match=r"x\[2, 1\] is 2(\.0)?: it must lie in \[0, 1\]"):
                limits.check(values)

    def test_each_element_may_have_its_own(self) -> None:
        limits = Limits("x", [0.0, 10.0], [1.0, 20.0])
        limits.check(np.array([[0.0, 20.0], [1.0, 10.0]]))
        with pytest.raises(ValueError, match=r"x\[1, 1\] is 9.0: it must lie in \[10, 20\]"):
            limits.check(np.array([[0.0, 20.0], [1.0, 9.0]]))
        with pytest.raises(ValueError, match="x has 3 elements: its limits are for 2"):
            limits.check(np.zeros((1, 3)))

    def test_one_limit_goes_with_many(self) -> None:
        limits = Limits("x", [0.0], [1.0, 2.0])
        limits.check(np.array([[1.0, 2.0]]))
        with pytest.raises(ValueError, match=r"x\[0\] is 2.0"):
            limits.check(np.array([[2.0, 2.0]]))

    def test_rows_may_lie_apart_and_there_may_be_none(self) -> None:
        limits = Limits("x", [0.0], [1.0])
        values = np.array([0.5, 9.0, 1.0, 9.0])
        limits.check(values[::2])
        limits.check(values[:0])
        with pytest.raises(ValueError, match=r"x\[1\] is 9"):
            limits.check(values[::3])

    def test_nan_lies_nowhere(self) -> None:
        with pytest.raises(ValueError, match=r"x\[1\] is nan"):
            Limits("x", [-np.inf], [np.inf]).check(np.array([np.inf, np.nan]))
        with pytest.raises(ValueError, match="x is inf: it must be a finite float32"):
            Limits("x", [-LARGEST_FLOAT32], [LARGEST_FLOAT32]).check(np.array([np.inf], np.float32))


class TestStepWriter:
    @pytest.mark.parametrize("size", [1, 2, 5])
    def test_transitions_take_two_rows_each(self, size: int) -> None:
        observations, steps = columns(2 * size)
        writer = StepWriter(observations, steps, [])
        obs, next_obs = np.random.default_rng(0).random((2, size, 3), np.float32)
        writer.put_all((obs,), (np.arange(size), [1.5] * size), (next_obs.tolist(),))
        np.testing.assert_array_equal(observations["obs"][::2], obs)
        np.testing.assert_array_equal(observations["obs"][1::2], next_obs)
        np.testing.assert_array_equal(steps["action"], np.stack([np.arange(size), np.zeros(size)], 1).ravel())
        np.testing.assert_array_equal(steps["reward"], np.tile([1.5, 0], size))

    def test_a_fragment_has_one_observation_more_than_steps(self) -> None:
        observations, steps = columns(5)
        writer = StepWriter(observations, steps, [Limits("reward", [0.0], [9.0])], is_fragment=True)
        steps["reward"][-1] = -1.0  # the last row's, which nobody reads
        obs = np.arange(30, dtype=np.float32).reshape(5, 6)[:, ::2]
        writer.put_fragment((obs,), (np.arange(4), np.arange(4.0)))
        np.testing.assert_array_equal(observations["obs"], obs)
        np.testing.assert_array_equal(steps["reward"], [0, 1, 2, 3, -1])
        with pytest.raises(ValueError, match=r"obs has shape \(4, 3\): it must be \(5, 3\)"):
            writer.put_fragment((obs[:4],), (np.arange(4), np.arange(4.0)))

    @pytest.mark.parametrize("action", [3, np.int64(3), np.array(3), -(2**63), 2**63 - 1])
    def test_numbers_are_written_as_they_are(self, action: Any) -> None:
        observations, steps = columns(2)
        StepWriter(observations, steps, []).put(([1, 2, 3.5],), (action, np.float64(0.25)), (np.ones(3, np.float32),))
        assert steps["action"][0] == action
        assert steps["reward"][0] == 0.25
        assert observations["obs"].tolist() == [[1, 2, 3.5], [1, 1, 1]]

    @pytest.mark.parametrize("action", [2**63, 1.0, True, "1", None])
    def test_what_is_no_number_of_the_column_is_refused(self, action: Any) -> None:
        observations, steps = columns(2)
        with pytest.raises(ValueError, match="action is"):
            StepWriter(observations, steps, []).put((np.ones(3, np.float32),), (action, 0.5), (np.ones(3, np.float32),))

    @pytest.mark.parametrize(("action", "told"), [(300, "300"), (-1, "-1"), ([7, 256], "256")])
    def test_a_whole_number_that_is_too_large_is_refused_not_wrapped(self, action: Any, told: str) -> None:
        shape = (2,) if isinstance(action, list) else ()
        writer = StepWriter({"obs": np.zeros(2)}, {"action": np.zeros((2, *shape), np.uint8)}, [])
        with pytest.raises(ValueError, match=rf"action is {told}: a uint8 lies in \[0, 255\]"):
            writer.put((0.0,), (action,), (0.0,))

    def test_a_call_for_other_rows_is_refused(self) -> None:
        one, pair, fragment = (StepWriter(*columns(2 * n), [], is_fragment=n == 3) for n in (1, 2, 3))
        obs, step = (np.ones(3, np.float32),), (1, 2.0)
        for call in (
            lambda: pair.put(obs, step, obs),
            lambda: fragment.put(obs, step, obs),
            lambda: fragment.put_all(obs, step, obs),
            lambda: one.put_fragment(obs, step),
        ):
            with pytest.raises(ValueError, match="the arrays are for"):
                call()
        with pytest.raises(ValueError, match="there must be a value for each of"):
            one.put(obs, (1,), obs)
