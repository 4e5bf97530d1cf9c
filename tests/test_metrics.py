"""The list of metrics is consistent."""

import pytest

from parl_mq.metrics import METRICS, is_known, metric_of


def test_names_are_unique() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_only_counters_are_called_totals(metric: object) -> None:
    known = metric_of(metric.name)  # type: ignore[attr-defined]  # parametrize forgets the type
    assert known is metric
    assert (known.kind == "counter") == known.name.endswith("_total")


def test_unknown_names_are_unknown() -> None:
    assert is_known("updates_total")
    assert not is_known("updates")
    with pytest.raises(KeyError):
        metric_of("updates")
