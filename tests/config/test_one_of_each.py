"""Settings that stand for several nodes of a role which this version runs one of."""

from __future__ import annotations

import pytest

from parl_mq.config import load_config
from parl_mq.errors import UsageError


@pytest.mark.parametrize("setting", ["learner.num_learners=2"])
def test_more_than_one_is_refused_rather_than_ignored(setting: str) -> None:
    with pytest.raises(UsageError, match="2 is more than the one that this version can run"):
        load_config("cartpole-dqn", overrides=[setting], environ={})
