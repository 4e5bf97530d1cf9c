"""The page of figures, as prometheus-client itself reads it."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from parl_mq.metrics import METRICS, labelled
from parl_mq.observe.prometheus import NodeFigures, page

INFO = {"run_id": "r1", "preset": 'a "quoted"\\ name\nand more'}


def _read(text):
    """Name -> (kind, {labels -> value}); the parser leaves `_total` out of a counter's name."""
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    assert all(family.documentation for family in families)
    return {
        sample.name: (family.type, {tuple(sorted(each.labels.items())): each.value for each in family.samples})
        for family in families
        for sample in family.samples
    }


def _of(node, role, **more):
    return tuple(sorted({"node": node, "role": role, **more}.items()))


def test_every_metric_of_the_registry_is_read_back_with_its_kind_and_value():
    keys = [labelled(metric.name, **{metric.label: "0.1"}) if metric.label else metric.name for metric in METRICS]
    figures = {key: 1.5 + number for number, key in enumerate(keys)}
    found = _read(page(INFO, {}, [NodeFigures("actor-0", "actor", figures)]))
    for metric, key in zip(METRICS, keys, strict=True):
        kind, samples = found[f"parl_mq_{metric.name}"]
        labels = _of("actor-0", "actor", **({metric.label: "0.1"} if metric.label else {}))
        assert (kind, samples) == (metric.kind, {labels: figures[key]})


def test_labels_with_quotes_and_line_ends_survive():
    _, samples = _read(page(INFO, {}, []))["parl_mq_run_info"]
    assert samples == {tuple(sorted(INFO.items())): 1.0}


def test_what_a_node_tells_is_not_told_by_the_hub_again():
    nodes = [NodeFigures(f"actor-{i}", "actor", {"env_steps_total": 10.0 + i}) for i in range(2)]
    found = _read(page(INFO, {"env_steps_total": 21.0, "eval_return": 3.0}, nodes))
    _, steps = found["parl_mq_env_steps_total"]
    assert steps == {_of("actor-0", "actor"): 10.0, _of("actor-1", "actor"): 11.0}
    assert found["parl_mq_eval_return"] == ("gauge", {_of("hub", "hub"): 3.0})


def test_totals_of_nodes_do_not_move_to_the_hub_while_no_node_is_there():
    found = _read(page(INFO, {"env_steps_total": 21.0, "updates_total": 3.0, "episodes_total": 2.0}, []))
    assert found.keys() == {"parl_mq_run_info", "parl_mq_episodes_total"}


def test_figures_that_no_registry_knows_are_left_out():
    found = _read(
        page(
            INFO,
            {"nonsense": 1.0},
            [NodeFigures("a", "actor", {"other": 2.0, 'loss{x="1': 2.0, 'loss{x="1"}': 2.0, "loss": 3.0})],
        )
    )
    assert found.keys() == {"parl_mq_run_info", "parl_mq_loss"}


@pytest.mark.parametrize("value", [0.0, 1e-300, 123456789012.0, -0.5])
def test_values_are_exact(value):
    _, samples = _read(page(INFO, {}, [NodeFigures("a", "learner", {"loss": value})]))["parl_mq_loss"]
    assert list(samples.values()) == [value]
