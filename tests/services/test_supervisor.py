"""The supervisor's parts that need no run."""

import pytest

from parl_mq.config.models import NodeConfig
from parl_mq.errors import ConfigError
from parl_mq.services.supervisor import runtime_folder


def test_the_folder_for_sockets_is_private_and_goes_with_the_block(tmp_path_factory):
    with runtime_folder(NodeConfig()) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "hub").write_text("")
    assert not folder.exists()


def test_a_folder_for_sockets_that_cannot_be_made_names_its_setting(tmp_path):
    with (
        pytest.raises(ConfigError, match=r"node\.runtime_directory = .*missing: .*No such file"),
        runtime_folder(NodeConfig(runtime_directory=tmp_path / "missing")),
    ):
        pass


def test_a_folder_whose_path_is_too_long_for_sockets_is_refused_and_removed(tmp_path):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with pytest.raises(ConfigError, match="107"), runtime_folder(NodeConfig(runtime_directory=deep)):
        pass
    assert list(deep.iterdir()) == []
