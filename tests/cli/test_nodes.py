"""What node commands make of their options."""

import importlib
import os
import re
import socket
from pathlib import Path

import pytest

from parl_mq.cli import nodes
from parl_mq.config.devices import Devices, TorchBuild
from parl_mq.errors import EXIT_INTERRUPTED, ConfigError, UsageError
from parl_mq.services import keyring
from tests.cli.command import run_command


def test_node_alone_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARL_MQ_NODE__DEVICE", "cpu")
    options = nodes._node("learner", "ipc:///x", "l", ["node.threads=2"], None)
    assert (options.hub, options.name, options.node.device, options.node.threads) == ("ipc:///x", "l", "cpu", 2)


def test_supervised_node_takes_flags_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARL_MQ_NODE__DEVICE", "cpu")
    options = nodes._node("learner", "ipc:///x", "l", ["node.threads=2"], 7)
    assert (options.node.device, options.node.threads, options.lifeline_fd) == ("auto", 2, 7)


@pytest.mark.parametrize("host", ["box", "box.example.org", "ünïcode_host", "h" * 80])
def test_name_of_its_own_may_be_sent(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    name = nodes._node("actor", "ipc:///x", None, None, 7).name
    assert name.startswith("actor.")
    assert re.fullmatch(r"[a-zA-Z0-9_.:-]{1,64}", name)


def test_a_learner_on_a_device_that_is_not_there_is_refused_before_it_looks_for_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Devices, "here", lambda: Devices(TorchBuild("2.13.0", "12.8", None), 1))
    with pytest.raises(ConfigError, match=r"cuda:9 cannot be used: .*; there is: cpu, cuda:0;"):
        nodes.learner(tmp_path, hub="ipc:///x", settings=["node.device=cuda:9"])


@pytest.mark.parametrize("role", ["actor", "evaluator"])
def test_gpus_are_hidden_from_those_who_act(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.import_module(f"parl_mq.nodes.{role}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(entry, "run_service", lambda options, service: 0)
    assert entry.main(nodes._node(role, "ipc:///x", None, None, 7)) == 0
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_settings_of_the_run_are_refused() -> None:
    with pytest.raises(UsageError, match="node"):
        nodes._node("actor", "ipc:///x", None, ["seed=3"], None)


def test_keys_that_the_hub_has_made_are_read_where_nothing_may_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keys_of_server() -> str:
        found = nodes._keyring(["tcp://192.0.2.1:5"], None, tmp_path, None, is_insecure=False)
        assert found is not None
        return found.pair.public

    def refuse(*_: object, **__: object) -> None:
        raise OSError("Read-only file system")

    made = keys_of_server()
    for name in ("mkdir", "open"):
        monkeypatch.setattr(keyring.os, name, refuse)
    assert keys_of_server() == made


@pytest.mark.parametrize("place", ["parl_mq.cli.let_readers_leave", "parl_mq.config.loader.preset_names"])
def test_ctrl_c_while_a_command_gets_ready_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupted)
    assert run_command(monkeypatch, "presets") == EXIT_INTERRUPTED
    assert capsys.readouterr().err == "parl-mq: interrupted\n"
