"""The list of metrics is consistent."""

import pytest

from parl_mq.metrics import METRICS, is_known, labelled, metric_of, parted


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


def test_a_labelled_key_is_read_back() -> None:
    key = labelled("replay_priority_rows", le="+Inf")
    assert is_known(key)
    assert parted(key) == ("replay_priority_rows", {"le": "+Inf"})
    assert parted("loss") == ("loss", {})


@pytest.mark.parametrize("key", ['loss{le="1"}', 'replay_priority_rows{x="1"}', "replay_priority_rows{", "", "a b"])
def test_what_is_no_key_is_unknown(key: str) -> None:
    assert not is_known(key)
