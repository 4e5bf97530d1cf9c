"""Powers, priorities and importance weights against exact arithmetic."""

from __future__ import annotations

import threading
from decimal import Decimal, localcontext

import numpy as np
import numpy.typing as npt
import pytest

from parl_mq.replay._priorities import Priorities, _powers, importance_weights
from parl_mq.replay._sum_tree import LARGEST_VALUE, available_kernels
from parl_mq.replay.refusals import PrioritiesRefused
from tests.marks import slow

SUBNORMAL = 5e-324
EXPONENTS = (0.0, 1e-3, 0.4, 0.5, 0.6, 0.999, 1.0)


def many_values() -> npt.NDArray[np.float64]:
    """Over the whole range, closely around 1, and the edges."""
    rng = np.random.default_rng(0)
    return np.concatenate(
        [
            10.0 ** rng.uniform(-300, 290, 400),
            10.0 ** rng.uniform(-323, -307, 200),
            rng.exponential(size=300),
            1 + rng.uniform(-1e-3, 1e-3, 100),
            np.nextafter([0.5, 1.0, 2.0, 2**0.5, 0.5**0.5], 0),
            [0.5, 1.0, 2.0, 2**0.5, 0.5**0.5, SUBNORMAL, 2.0**-1022, LARGEST_VALUE],
        ]
    )


@pytest.mark.parametrize("exponent", [0.6, *map(slow, sorted({*EXPONENTS} - {0.6}))])
def test_powers_are_exact_to_two_thirds_of_the_last_place(exponent: float) -> None:
    values = many_values()
    powers = _powers(values, exponent, available_kernels()[0])
    with localcontext() as context:
        context.prec = 40
        for value, power in zip(values.tolist(), powers.tolist(), strict=True):
            exact = Decimal(value) ** Decimal(exponent)
            assert abs(Decimal(power) - exact) <= Decimal("0.65") * Decimal(float(np.spacing(power))), value


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_kernels_agree_on_powers_to_the_bit(exponent: float) -> None:
    values = np.append(many_values(), 0.0)
    for size in (1, 3, 8, 17, len(values)):
        expected = _powers(values[-size:].copy(), exponent, "portable")
        for kernel in available_kernels():
            np.testing.assert_array_equal(_powers(values[-size:].copy(), exponent, kernel), expected)


def test_the_powers_1_and_0_are_the_number_itself_and_1() -> None:
    values = many_values()
    np.testing.assert_array_equal(_powers(values, 1.0, "portable"), values)
    np.testing.assert_array_equal(_powers(values, 0.0, "portable"), 1.0)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_what_has_no_magnitude_and_no_eps_has_no_priority(alpha: float) -> None:
    priorities = Priorities(alpha=alpha, eps=0.0).of(np.array([0.0, 1.0, -0.0, SUBNORMAL]))
    assert (priorities[[0, 2]] == 0).all()
    assert (priorities[[1, 3]] > 0).all()
    assert (Priorities(alpha=alpha, eps=1e-6).of(np.zeros(3)) > 0).all()


def test_priorities_are_the_power_of_magnitude_and_eps() -> None:
    magnitudes = np.random.default_rng(1).exponential(size=1000)
    np.testing.assert_allclose(
        Priorities(alpha=0.6, eps=0.01).of(magnitudes), (magnitudes + 0.01) ** 0.6, rtol=4e-16, atol=0
    )
    huge = Priorities(alpha=1.0, eps=0.0).of(np.array([1e308, LARGEST_VALUE]))
    assert huge.tolist() == [LARGEST_VALUE, LARGEST_VALUE]
    assert Priorities(alpha=0.6, eps=0.0, is_uniform=True).of(magnitudes).tolist() == [1.0] * 1000


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0, -SUBNORMAL])
def test_a_magnitude_that_is_none_is_named_and_all_are_counted(bad: float) -> None:
    rule = Priorities(alpha=0.6, eps=0.0)
    with pytest.raises(PrioritiesRefused, match="at index 1 is not finite and >= 0; none of the 4 was") as refused:
        rule.check(np.array([1.0, bad, 2.0, bad]), 4)
    assert refused.value.num_refused == 2


@pytest.mark.parametrize(
    "magnitudes", [np.zeros(3, np.float32), np.zeros((3, 1)), np.zeros(2), np.zeros(3, complex), [0.0, 0.0, 0.0]]
)
def test_magnitudes_must_be_a_row_of_float64(magnitudes: npt.NDArray[np.float64]) -> None:
    with pytest.raises(PrioritiesRefused, match=r"must be float64 \(3,\)") as refused:
        Priorities(alpha=0.6, eps=0.0).check(magnitudes, 3)
    assert refused.value.num_refused == 0


def test_rows_of_probability_0_do_not_count() -> None:
    for beta in (0.0, 0.4, 1.0):
        np.testing.assert_array_equal(importance_weights(np.array([0.0, 0.5, 0.5]), beta), [0, 1, 1])
        np.testing.assert_array_equal(importance_weights(np.zeros(2), beta), [0, 0])
    assert importance_weights(np.empty(0), 0.4).size == 0


@pytest.mark.parametrize("size", [1, 7, 255, 256, 257, 5000])
def test_weights_of_every_batch_size_are_those_of_the_definition(size: int) -> None:
    probabilities = np.random.default_rng(size).random(size) ** 4 + 1e-12
    for beta in (0.3, 1.0):
        by_definition = (1e6 * probabilities) ** -beta
        expected = by_definition / by_definition.max()
        np.testing.assert_allclose(importance_weights(probabilities, beta), expected, rtol=2e-7)
    np.testing.assert_array_equal(
        importance_weights(probabilities[::-1], 1.0), importance_weights(probabilities, 1.0)[::-1]
    )


@pytest.mark.parametrize("beta", [np.nan, -0.1, 1.0000001, np.inf])
def test_a_beta_outside_0_to_1_is_refused(beta: float) -> None:
    with pytest.raises(ValueError, match=r"beta is .*: it must lie in \[0, 1\]"):
        importance_weights(np.array([0.5]), beta)


@pytest.mark.parametrize("probability", [np.nan, -0.1, 1.1, np.inf])
def test_a_probability_that_is_none_is_named(probability: float) -> None:
    with pytest.raises(ValueError, match=r"probabilities\[1\] is"):
        importance_weights(np.array([0.5, probability]), 0.4)


def test_probabilities_must_be_a_row_of_float64() -> None:
    for other in (np.ones(2, np.float32), np.ones((2, 1)), [1.0]):
        with pytest.raises(ValueError, match="they must be float64"):
            importance_weights(other, 0.4)  # type: ignore[arg-type]


def test_a_thread_that_flushes_subnormals_gets_the_same() -> None:
    torch = pytest.importorskip("torch")
    values, rule = many_values(), Priorities(alpha=0.9, eps=0.0)
    expected = rule.of(values), importance_weights(values / LARGEST_VALUE, 0.9)
    found = []

    def flushing() -> None:
        assert torch.set_flush_denormal(True)
        found.extend([rule.of(values), importance_weights(values / LARGEST_VALUE, 0.9)])

    thread = threading.Thread(target=flushing)
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0], expected[0])
