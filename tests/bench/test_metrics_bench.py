"""What `bench metrics` runs, and what it makes of it; no speed is judged."""

import pytest

from parl_mq.bench.metrics import run
from parl_mq.bench.watched_run import Observed


class Machine:
    """Makes a hundred updates a second, and with metrics a few less."""

    def __init__(self):
        self.ran = []

    def __call__(self, config, names):
        self.ran.append((config.node.tensorboard, config.node.metrics_port is not None))
        updates = 100.0 - self.ran[-1][0] - len(self.ran) / 100
        return Observed(3.0, 1.0, 1.0, 1.0, updates, {"learner-0": 0.5}, {}, {})


def test_runs_with_and_without_metrics_take_turns_and_their_ratio_has_a_band():
    machine = Machine()
    results = run(3, machine).results
    assert machine.ran == [(is_on, is_on) for is_on in (True, False, False, True, True, False)]
    ratio, cost = (each for each in results if each.unit == "%")
    assert ratio.median == pytest.approx(99.0, abs=0.1)
    assert ratio.min < ratio.median < ratio.max
    assert cost.median == pytest.approx(100 / 0.99, abs=0.1)
    assert ratio.measure == "updates with over without: interquartile mean, 95 % band"
    assert ratio.params == {"pairs": 3}
