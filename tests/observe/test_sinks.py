"""Where figures go beside the run's record."""

import os
import sys
import threading
from types import SimpleNamespace

import pytest

from parl_mq.config.loader import load_config
from parl_mq.errors import ConfigError, PeerTimeout
from parl_mq.observe import sinks
from parl_mq.observe.sinks import make_sinks, tagged


def _config(*overrides):
    return load_config("cartpole-dqn", overrides=list(overrides), environ={})


class _Failure(Exception):
    """What the package raises."""


def test_tags_name_the_group_and_the_label():
    figures = {"loss": 1.0, "of another version": 3.0, 'replay_priority_rows{le="0.1"}': 2.0}
    assert tagged(figures) == {"learner/loss": 1.0, "replay/replay_priority_rows/0.1": 2.0}


def test_tensorboard_is_written_unless_it_is_switched_off(tmp_path):
    assert make_sinks(_config("node.tensorboard=false"), tmp_path, "r") == []
    (sink,) = make_sinks(_config(), tmp_path, "r")
    assert list(tmp_path.iterdir()) == []
    sink.write(1.0, 5, {"learner/loss": 1.0})
    assert [path.parent.name for path in tmp_path.rglob("events.*")] == ["tensorboard"]


def test_a_missing_package_is_named_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[wandb\]'?") as caught:
        make_sinks(_config("node.wandb_project=mine"), tmp_path, "r")
    assert caught.value.keys == ("node.wandb_project",)


def test_weights_and_biases_gets_the_runs_settings_and_figures(tmp_path, monkeypatch):
    begun, logged, finished = [], [], []

    def init(**arguments):
        begun.append(arguments)
        return SimpleNamespace(log=logged.append, finish=lambda: finished.append(True))

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Error=_Failure))
    _, sink = make_sinks(_config("node.wandb_project=mine"), tmp_path, "r7")
    sink.write(2.0, 300, {"learner/loss": 0.5})
    sink.close()
    assert (begun[0]["project"], begun[0]["id"], begun[0]["resume"]) == ("mine", "r7", "allow")
    assert begun[0]["config"]["environment"]["id"] == "CartPole-v1"
    assert "node" not in begun[0]["config"]
    assert logged == [{"env_steps": 300, "wall_time": 2.0, "learner/loss": 0.5}]
    assert finished == [True]


def test_a_run_that_cannot_be_begun_there_is_told_as_a_wrong_setting(tmp_path, monkeypatch):
    def init(**arguments):
        raise _Failure("no such project")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Error=_Failure))
    with pytest.raises(ConfigError, match="no such project"):
        make_sinks(_config("node.wandb_project=mine"), tmp_path, "r")


def test_a_service_that_does_not_answer_holds_up_neither_the_beginning_nor_the_end(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(sinks, "WANDB_S", 0.01)
    monkeypatch.delenv("WANDB_FINISH_TIMEOUT", raising=False)
    never = threading.Event()
    package = SimpleNamespace(init=lambda **_: SimpleNamespace(finish=never.wait), Error=_Failure)
    monkeypatch.setitem(sys.modules, "wandb", package)
    _, sink = make_sinks(_config("node.wandb_project=mine"), tmp_path, "r")
    assert os.environ["WANDB_FINISH_TIMEOUT"] == "10"
    sink.close()
    assert "`wandb sync` sends them" in caplog.text
    package.init = lambda **_: never.wait()
    with pytest.raises(PeerTimeout, match=r"node\.wandb_project = 'mine': .* no run within 0\.01 s"):
        make_sinks(_config("node.wandb_project=mine"), tmp_path, "r")
    never.set()
