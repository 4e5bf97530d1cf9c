"""`parl-mq bench train`: what it prints where, and its exit codes; recorded runs stand for trained ones."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from parl_mq.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE
from tests.cli.command import run_command
from tests.observe.recorded import RISING, record_ended


@pytest.fixture(autouse=True)
def terminations() -> Iterator[None]:
    """The command takes SIGTERM for itself, and here it runs in the process of the tests."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        path = tmp_path / "runs" / "bench" / "cartpole-dqn" / f"parl_mq-seed{seed}"
        record_ended(path, RISING, f"seed={seed}", first_env_step_s=1.0)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_tables_go_to_stderr_and_json_to_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, "bench", "train", "cartpole-dqn", "--seeds", "2", "--json") == EXIT_OK
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["bench"] == "train"
    assert {"torch", "gymnasium", "precision", "parl_mq"} <= report["machine"].keys()
    assert {row["measure"] for row in report["results"]} >= {"time to target", "environment steps to target"}
    assert "reached by 2 of 2 runs; return 490 (95 % band 490 to 490); median time to target 3.5 s" in err
    assert "drawn: runs/bench/cartpole-dqn/comparison.png" in err


def test_its_runs_are_those_that_runs_compares(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, "runs", "--json") == EXIT_OK
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    assert group["num_runs"] == 2


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--against", "nosuch"], "--against nosuch: unknown; there are sb3, tianshou"),
        (["--set", "replay.kind=uniform"], "holds a run of other settings"),
        (["--set", "replay.knd=uniform"], "replay.knd"),
        (["--plot", "picture.doc"], "must end in"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    options: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, "bench", "train", "cartpole-dqn", "--seeds", "3", *options) == EXIT_USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert "of 3" not in err


@pytest.mark.usefixtures("folder")
def test_ctrl_c_ends_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("parl_mq.bench.train.run_to_end", interrupted)
    assert run_command(monkeypatch, "bench", "train", "cartpole-dqn", "--seeds", "1") == EXIT_INTERRUPTED
