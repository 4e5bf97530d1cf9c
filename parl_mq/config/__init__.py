"""Settings of a run: typed models, and the loader that layers defaults, file, environment and flags."""

from parl_mq.config.loader import load_config as load_config
from parl_mq.config.models import RunConfig as RunConfig
