"""What is written to Reverb, by a writer that checks it; the server itself takes part where it is installed."""

from dataclasses import replace

import numpy as np
import pytest

from parl_mq.bench.reverb_peer import writer_of
from parl_mq.bench.workloads import ATARI, HALF_CHEETAH


class Writer:
    """Keeps the last `stack + 1` steps, as `num_keep_alive_refs` says, and the items made of them."""

    def __init__(self, stack):
        self._steps, self._kept = [], stack + 1
        self.items = []

    def append(self, step):
        self._steps = [*self._steps, step][-self._kept :]

    @property
    def history(self):
        return {name: np.stack([step[name] for step in self._steps]) for name in self._steps[-1]}

    def create_item(self, table, priority, trajectory):
        assert (table, priority) == ("main", 1.0)
        self.items.append(trajectory)

    def flush(self, block_until_num_items):
        assert block_until_num_items > 0


@pytest.mark.parametrize("workload", [HALF_CHEETAH, replace(ATARI, obs_shape=(2, 2))], ids=["vectors", "frames"])
def test_an_item_is_a_transition_whose_next_observation_comes_one_step_later(workload):
    writer = Writer(workload.stack)
    write = writer_of(writer, workload)
    counts = [write() for _ in range(workload.stack + 3)]
    assert counts == [0] * workload.stack + [1] * 3
    steps = workload.steps(1024)
    observations = [steps.frames[at : at + workload.stack].reshape(workload.stacked_shape) for at in range(4)]
    for at, item in enumerate(writer.items):
        np.testing.assert_array_equal(item["obs"], observations[at])
        np.testing.assert_array_equal(item["next_obs"], observations[at + 1])
        np.testing.assert_array_equal(item["action"], steps.action[at + workload.stack - 1])
        assert item["reward"] == steps.reward[at + workload.stack - 1]
