"""Statistics over runs against known values and NumPy references."""

import numpy as np
import pytest

from parl_mq.observe.statistics import bootstrap_band, interquartile_mean, on_common_axis


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        ([7.0], 7.0),
        ([1.0, 2.0, 9.0], 4.0),
        ([0.0, 1.0, 3.0, 100.0], 2.0),
        ([8.0, 1.0, 7.0, 2.0, 6.0, 3.0, 5.0, 4.0], 4.5),
        ([1.0, 2.0, 3.0, 4.0, 50.0], 3.0),
    ],
)
def test_interquartile_mean_leaves_out_a_quarter_at_each_end(scores: list[float], mean: float) -> None:
    assert interquartile_mean(scores) == mean


def test_interquartile_mean_takes_each_point_by_itself() -> None:
    scores = np.random.default_rng(1).normal(size=(11, 5))
    by_hand = [np.sort(scores[:, point])[2:9].mean() for point in range(5)]
    np.testing.assert_allclose(interquartile_mean(scores), by_hand)


def test_no_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        interquartile_mean([])
    with pytest.raises(ValueError, match="every stratum"):
        bootstrap_band([np.ones((2, 1)), np.ones((0, 1))], np.random.default_rng(1))


def test_equal_runs_have_no_band() -> None:
    band = bootstrap_band([np.full((4, 3), 2.5)], np.random.default_rng(1))
    np.testing.assert_array_equal(band.low, [2.5] * 3)
    np.testing.assert_array_equal(band.high, [2.5] * 3)


def test_band_of_two_runs_spans_both() -> None:
    """Of two runs a resample takes the lower one twice in one case of four, likewise the higher one."""
    band = bootstrap_band([np.array([[0.0], [10.0]])], np.random.default_rng(1))
    assert (band.low.item(), band.high.item()) == (0.0, 10.0)


def test_band_of_a_mean_is_as_wide_as_its_standard_error_says() -> None:
    """Without the trimmed ends, the mean of the middle half of n normal scores has a variance of about 1.2 / n."""
    scores = np.random.default_rng(3).normal(size=(400, 1))
    band = bootstrap_band([scores], np.random.default_rng(4))
    half_width = (band.high - band.low).item() / 2
    assert half_width == pytest.approx(1.96 * np.sqrt(1.2 / 400), rel=0.2)
    assert band.low.item() < interquartile_mean(scores).item() < band.high.item()


def test_band_of_more_confidence_is_wider() -> None:
    scores = [np.random.default_rng(5).normal(size=(20, 1))]
    narrow = bootstrap_band(scores, np.random.default_rng(6), confidence=0.5)
    wide = bootstrap_band(scores, np.random.default_rng(6), confidence=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_runs_are_drawn_within_their_stratum_alone() -> None:
    """Strata without spread leave none to the band, however far they lie apart."""
    band = bootstrap_band([np.zeros((3, 1)), np.full((5, 1), 8.0)], np.random.default_rng(1))
    assert band.low == band.high == interquartile_mean([0.0] * 3 + [8.0] * 5)


def test_same_runs_are_drawn_at_all_points() -> None:
    scores = np.random.default_rng(7).normal(size=(5, 1))
    band = bootstrap_band([np.hstack([scores, scores + 3])], np.random.default_rng(8))
    np.testing.assert_allclose(band.low[1] - band.low[0], 3)
    np.testing.assert_allclose(band.high[1] - band.high[0], 3)


def test_equal_generators_give_equal_bands() -> None:
    scores = [np.random.default_rng(5).normal(size=(6, 4))]
    first, second = (bootstrap_band(scores, np.random.default_rng(9)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_curves_keep_their_last_value_on_the_common_axis() -> None:
    short = (np.array([0.0, 2.0]), np.array([0.0, 4.0]))
    late = (np.array([1.0, 4.0]), np.array([10.0, 40.0]))
    axis, values = on_common_axis([short, late], num_points=4)
    np.testing.assert_array_equal(axis, [1, 2, 3, 4])
    np.testing.assert_allclose(values, [[2, 4, 4, 4], [10, 20, 30, 40]])


def test_curve_of_one_point_is_flat() -> None:
    axis, values = on_common_axis([(np.array([5.0]), np.array([7.0]))], num_points=3)
    np.testing.assert_array_equal(axis, [5, 5, 5])
    np.testing.assert_array_equal(values, [[7, 7, 7]])


@pytest.mark.parametrize("curves", [[], [(np.zeros(0), np.zeros(0))]])
def test_empty_curves_are_refused(curves: list[tuple[np.ndarray, np.ndarray]]) -> None:
    with pytest.raises(ValueError, match="empty"):
        on_common_axis(curves)
