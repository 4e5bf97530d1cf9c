"""`parl-mq plan`, and the numbers of processes that `train` takes from it; the runs are made up but for one test."""

import json
import subprocess
import sys

import pytest

from parl_mq import api
from parl_mq.bench import profiling
from parl_mq.bench.watched_run import OTHERS, Observed
from parl_mq.errors import EXIT_OK, EXIT_USAGE
from tests.cli.command import run_command


class Enough(Exception):
    """Training would begin here."""


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """The settings of the runs that were watched; profiles are kept in a folder of the test's own."""
    watched = []

    def watch(config, *, names, seconds, cores=None):
        watched.append(config)
        shares = dict.fromkeys(names, 0.5)
        return Observed(seconds, 100.0, 100.0, 800.0, 3.0, {**shares, "replay-0": 0.1, OTHERS: 0.0}, shares, {})

    monkeypatch.setattr(profiling, "watch", watch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return watched


@pytest.fixture
def trained(monkeypatch):
    """The settings that `train` begins with."""
    begun = []

    def train(config, **_):
        begun.append(config)
        raise Enough

    monkeypatch.setattr(api, "train", train)
    return begun


def begin_training(monkeypatch, *arguments):
    run_command(monkeypatch, "train", "cartpole-dqn", *arguments)


def test_tables_go_to_stderr_and_one_line_of_json_to_stdout(runs, monkeypatch, capsys, tmp_path):
    picture = tmp_path / "plan.svg"
    arguments = ("--cores", "1", "--json", "--exhaustive", "--plot", str(picture), "--batch-size", "64")
    assert run_command(monkeypatch, "plan", "cartpole-dqn", *arguments) == EXIT_OK
    shown = capsys.readouterr()
    made = json.loads(shown.out)
    assert made["plan"] == "cartpole-dqn"
    assert made["profile"]["cores"] == 1
    assert {"choice", "splits", "one_more_core", "one_more_machine", "measured", "share_of_best_measured"} <= set(made)
    assert [cost["batch_size"] for cost in made["profile"]["learners"]] == [256, 64]
    assert "the bottleneck is" in shown.err
    assert "% of the best split's rate" in shown.err
    assert picture.stat().st_size > 0


@pytest.mark.parametrize(
    "arguments", [["--cores", "0"], ["--plot", "plan.doc"], ["--seconds", "0.1"], ["--set", "x=1"]]
)
def test_options_that_cannot_be_end_with_the_usage_code_before_anything_runs(runs, monkeypatch, arguments):
    assert run_command(monkeypatch, "plan", "cartpole-dqn", *arguments) == EXIT_USAGE
    assert runs == []


def test_training_measures_once_says_what_it_takes_and_why(runs, trained, monkeypatch, capsys):
    for _ in range(2):
        begin_training(monkeypatch, "--actors", "auto", "--learners", "auto")
    num_runs = len(runs)
    said = capsys.readouterr().err
    assert said.count("measuring 1 actor\n") == 1
    assert said.count("steps/s are to be expected, limited by") == 2
    assert "measured earlier" in said
    begin_training(monkeypatch, "--actors", "auto", "--seed", "3")
    assert len(runs) == num_runs
    assert trained[0] == trained[1]
    assert trained[2].seed == 3


def test_a_number_beside_auto_stays(runs, trained, monkeypatch):
    begin_training(monkeypatch, "--actors", "3", "--learners", "auto")
    assert trained[0].actor.num_actors == 3


def test_without_auto_nothing_is_measured(runs, trained, monkeypatch):
    begin_training(monkeypatch, "--actors", "2")
    assert runs == []
    assert trained[0].actor.num_actors == 2


@pytest.mark.parametrize("arguments", [["--actors", "many"], ["--learners", "1.5"]])
def test_what_is_neither_a_number_nor_auto_is_refused(arguments, monkeypatch, capsys):
    assert run_command(monkeypatch, "train", "cartpole-dqn", *arguments) == EXIT_USAGE
    assert f"{' '.join(arguments)}: must be a whole number, or auto" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_plan_of_the_real_system_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PARL_MQ_NODE__RING_DIRECTORY", str(tmp_path / "rings"))
    monkeypatch.setenv("PARL_MQ_NODE__RUNTIME_DIRECTORY", "/tmp")
    (tmp_path / "rings").mkdir()
    command = [sys.executable, "-m", "parl_mq", "plan", "cartpole-dqn", "--cores", "1", "--seconds", "1", "--json"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=390)
    assert ended.returncode == EXIT_OK, ended.stderr
    made = json.loads(ended.stdout)
    assert made["choice"]["num_actors"] >= 1
    assert all(cost["cpu_s_per_step"] > 0 for cost in made["profile"]["actors"])
    assert made["profile"]["replay"]["cpu_s_per_insert"] > 0
    assert made["profile"]["replay"]["cpu_s_per_draw"] > 0
    assert list((tmp_path / "rings").iterdir()) == []
    assert len(list((tmp_path / "cache" / "parl_mq").rglob("*.json"))) == 1
