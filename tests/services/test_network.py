"""Captures of a node's messages."""

from types import SimpleNamespace

import pytest

from parl_mq.config.models import NodeConfig
from parl_mq.errors import ConfigError
from parl_mq.services.network import network_of


def test_the_folder_of_captures_is_made_where_it_is_not_there(tmp_path):
    folder = tmp_path / "new" / "captures"
    options = SimpleNamespace(join=None, name="actor-0", node=NodeConfig(capture_directory=folder))
    network_of(options).close()
    assert [path.name for path in folder.iterdir()] == ["actor-0.capture"]


def test_a_file_in_the_place_of_the_folder_is_refused_by_the_settings_name(tmp_path):
    path = tmp_path / "captures"
    path.write_text("")
    options = SimpleNamespace(join=None, name="actor-0", node=NodeConfig(capture_directory=path))
    with pytest.raises(ConfigError, match=r"node\.capture_directory = .*captures: no file can be made there"):
        network_of(options)
