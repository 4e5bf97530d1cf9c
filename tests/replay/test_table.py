from __future__ import annotations

import numpy as np
import pytest

from parl_mq.replay.table import Table, TableSettings

from .fragments import SPEC, counter_fragment


def make_table(capacity: int, **settings: object) -> Table:
    merged = {"name": "test", "alpha": 1.0, "eps": 0.0, "gamma": 0.9, **settings}
    return Table(TableSettings(capacity=capacity, **merged), SPEC, directory=None, rng=np.random.default_rng(0))


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_n_step_windows_end_with_the_episode(ending: str) -> None:
    table = make_table(100, n_step=3, fragment_length=5)
    for episode in range(2):
        table.insert(
            counter_fragment(1000 * episode, 5, terminated=ending == "terminated", truncated=ending == "truncated")
        )
    draw = table.draw(2000)
    obs, next_obs = draw.columns["obs"][:, 0], draw.columns["next_obs"][:, 0]
    first = (obs % 1000).astype(int)
    rewards = np.array([5.23, 7.94, 10.65, 8.50, 5.00], np.float32)
    np.testing.assert_allclose(draw.columns["reward"], rewards[first], rtol=1e-6)
    np.testing.assert_array_equal(next_obs, obs - first + np.array([3, 4, 5, 5, 5])[first])
    discounts = [0.729, 0.729, 0, 0, 0] if ending == "terminated" else [0.729, 0.729, 0.729, 0.81, 0.9]
    np.testing.assert_allclose(draw.columns["discount"], np.array(discounts, np.float32)[first], rtol=1e-6)
    assert set(obs) == {0, 1, 2, 3, 4, 1000, 1001, 1002, 1003, 1004}
