"""The supervisor's parts that need no run."""

import signal
from types import SimpleNamespace

import pytest

from parl_mq.config.models import NodeConfig
from parl_mq.errors import ConfigError
from parl_mq.services.supervisor import LOG_TAIL_LINES, Child, runtime_folder


def child(tmp_path, returncode, log=None):
    path = tmp_path / "actor-0.log"
    if log is not None:
        path.write_text(log)
    return Child("actor-0", "actor", SimpleNamespace(returncode=returncode), path)


@pytest.mark.parametrize(
    ("returncode", "how"), [(78, "with code 78"), (-9, "by signal SIGKILL"), (-signal.SIGSEGV, "by signal SIGSEGV")]
)
def test_a_nodes_end_is_told_with_the_end_of_its_log(tmp_path, returncode, how):
    lines = [f"line {number}" for number in range(100)]
    told = child(tmp_path, returncode, "\n".join(lines)).end_in_words().splitlines()
    assert told[0].startswith(f"actor-0 ended {how}; the end of ")
    assert [line.strip() for line in told[1:]] == lines[-LOG_TAIL_LINES:]


@pytest.mark.parametrize("log", [None, ""])
def test_a_node_that_wrote_nothing_is_told_of_as_well(tmp_path, log):
    assert child(tmp_path, 1, log).end_in_words().endswith("actor-0.log: nothing was written")


def test_a_node_that_has_ended_gets_no_signal(tmp_path):
    child(tmp_path, 0).send_signal(signal.SIGKILL)  # the process here has no such method


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
