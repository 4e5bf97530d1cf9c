"""What all published presets have in common."""

import pytest

from parl_mq.config.loader import load_config, preset_names
from parl_mq.config.models import EvaluationConfig

UNEQUAL = {"every_updates"}
"""An update of one preset is worth many of another's."""


@pytest.mark.parametrize("name", preset_names())
def test_one_rule_judges_all_presets(name: str) -> None:
    judged = load_config(name, environ={}).evaluation
    assert judged.model_dump(exclude=UNEQUAL) == EvaluationConfig().model_dump(exclude=UNEQUAL)
    assert judged.num_episodes >= 20
