"""What `bench tree` reports, without judging any speed."""

import json

import pytest

from parl_mq.bench import tree
from parl_mq.bench.peers import open_peers
from parl_mq.bench.report import BenchReport, Contender, Result, time_interleaved
from parl_mq.bench.tree_peers import PEERS
from parl_mq.errors import ConfigError
from parl_mq.replay._sum_tree import available_kernels


class SteppedClock:
    """A clock that only work moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_contenders_take_turns_in_turn_and_only_the_second_run_of_each_counts():
    clock, order = SteppedClock(), []

    def chunk(name, durations):
        def work():
            order.append(name)
            clock.now += durations.pop(0)

        return work

    contenders = [
        Contender("draw", "a", {}, chunk("a", [9.0, 1.0, 9.0, 3.0, 9.0, 2.0]), 1000),
        Contender("draw", "b", {"batch": 2}, chunk("b", [9.0, 4.0, 9.0, 4.0, 9.0, 4.0]), 2000),
    ]
    results = time_interleaved(contenders, 3, clock)
    assert "".join(order) == "aabbbbaaaabb"
    assert results == [
        Result("draw", "a", "ns/item", {}, 2e6, 1e6, 3e6),
        Result("draw", "b", "ns/item", {"batch": 2}, 2e6, 2e6, 2e6),
    ]


def test_a_report_ends_as_one_line_of_json_with_the_documented_keys():
    result = Result("draw", "parl_mq", "ns/item", {"leaves": 8}, 2.0, 1.0, 3.0)
    line = BenchReport("tree", {"cores": 2}, (result,)).to_json()
    assert "\n" not in line
    assert json.loads(line) == {
        "bench": "tree",
        "machine": {"cores": 2},
        "results": [
            {
                "measure": "draw",
                "system": "parl_mq",
                "unit": "ns/item",
                "params": {"leaves": 8},
                "median": 2.0,
                "min": 1.0,
                "max": 3.0,
            }
        ],
    }


def test_a_quick_run_measures_draw_and_update_on_every_kernel():
    report = tree.run(quick=True)
    measured = {(r.measure, r.system, r.params["kernel"]) for r in report.results}
    assert measured == {(m, "parl_mq", k) for m in ("draw", "update") for k in available_kernels()}
    assert all(r.params["leaves"] == 2**20 and r.params["batch"] == 256 for r in report.results)
    assert all(0 < r.min <= r.median <= r.max for r in report.results)
    assert len(report.rows()) == len(report.results)


def test_the_study_covers_every_arity_size_and_batch():
    report = tree.study_arity((2, 8), (100, 1000), (16,))
    covered = {(r.params["arity"], r.params["leaves"], r.params["batch"]) for r in report.results}
    assert covered == {(arity, leaves, 16) for arity in (2, 8) for leaves in (100, 1000)}


def test_an_unknown_peer_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="--against nosuch: unknown; there are tianshou, torchrl, cpprb, rllib"):
        open_peers(["nosuch"], PEERS)


def test_a_peer_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cpprb", None)
    with pytest.raises(ConfigError, match=r"--against cpprb: .* `pip install cpprb`"):
        open_peers(["cpprb"], PEERS)
