"""What `train` makes of its options, and of a run's end. The run itself is a fake that checks what it is given."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import parl_mq
from parl_mq.cli import main
from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_UNAVAILABLE, PeerTimeout
from parl_mq.wire.messages import RunProgress

SUMMARY = {"preset": "cartpole-dqn", "target_return": 475.0, "reached": True, "time_to_target_s": 7.5, "env_steps": 9}


@dataclass(frozen=True)
class FakeResult:
    exit_code: int = 0
    summary: dict[str, Any] = field(default_factory=lambda: dict(SUMMARY))


class FakeRun:
    """Stands for parl_mq.api: tells its progress once, and ends as it was told to."""

    def __init__(self) -> None:
        self.result = FakeResult()
        self.error: BaseException | None = None
        self.config: RunConfig | None = None
        self.run_dir: Path | None = None
        self.resumes = False

    def train(
        self,
        config: RunConfig,
        *,
        run_dir: Path | None,
        resume: bool,
        on_progress: Callable[[RunProgress], None],
        started_at: float,
    ) -> FakeResult:
        assert started_at <= time.monotonic()
        self.config, self.run_dir, self.resumes = config, run_dir, resume
        on_progress(RunProgress(phase="training", nodes=[("actor-0", "stepping", None)], figures={"loss": 1.0}))
        if self.error is not None:
            raise self.error
        return self.result


@pytest.fixture
def fake_run(monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    run, module = FakeRun(), ModuleType("parl_mq.api")
    module.train = run.train  # type: ignore[attr-defined]  # a module made here
    monkeypatch.setitem(sys.modules, "parl_mq.api", module)
    monkeypatch.setattr(parl_mq, "api", module, raising=False)
    return run


def _main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    monkeypatch.setattr(sys, "argv", ["parl-mq", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_options_become_settings(fake_run: FakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    numbers = ["--actors", "3", "--learners", "1", "--seed", "5", "--max-steps", "1000", "--max-seconds", "1.5"]
    others = ["--run-dir", str(tmp_path / "run"), "--set", "stop.at_target=false", "--stop-at-return", "100"]
    assert _main(monkeypatch, "train", "cartpole-dqn", *numbers, *others) == 0
    assert fake_run.run_dir == tmp_path / "run"
    config = fake_run.config
    assert config is not None
    assert (config.actor.num_actors, config.learner.num_learners, config.seed) == (3, 1, 5)
    assert (config.stop.max_steps, config.stop.max_seconds) == (1000, 1.5)
    assert (config.stop.target_return, config.stop.at_target) == (100.0, True)


def test_options_that_are_not_given_change_nothing(fake_run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _main(monkeypatch, "train", "cartpole-dqn") == 0
    assert fake_run.config == parl_mq.load_config("cartpole-dqn", environ={})
    assert fake_run.run_dir is None
    assert not fake_run.resumes


def test_run_directory_may_come_from_the_environment(fake_run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARL_MQ_RUN_DIR", "/somewhere/run")
    _main(monkeypatch, "train", "cartpole-dqn")
    assert fake_run.run_dir == Path("/somewhere/run")


@pytest.mark.usefixtures("fake_run")
def test_json_is_the_last_line_of_stdout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _main(monkeypatch, "train", "cartpole-dqn", "--json")
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1]) == SUMMARY
    assert "training" in err
    assert "reached 475 after 7.5 s" in err


@pytest.mark.usefixtures("fake_run")
def test_people_read_stderr_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _main(monkeypatch, "train", "cartpole-dqn")
    assert capsys.readouterr().out == ""


def test_result_decides_the_exit_code(fake_run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_run.result = FakeResult(exit_code=EXIT_INTERRUPTED)
    assert _main(monkeypatch, "train", "cartpole-dqn") == EXIT_INTERRUPTED


@pytest.mark.parametrize(
    ("error", "code", "has_traceback"),
    [
        (PeerTimeout("the hub at X did not answer"), EXIT_UNAVAILABLE, False),
        (ZeroDivisionError("a defect"), EXIT_INTERNAL, True),
        (KeyboardInterrupt(), EXIT_INTERRUPTED, False),
    ],
)
def test_error_ends_with_its_code(
    fake_run: FakeRun,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    has_traceback: bool,
) -> None:
    fake_run.error = error
    assert _main(monkeypatch, "train", "cartpole-dqn") == code
    told = capsys.readouterr().err
    assert str(error) in told
    assert ("Traceback" in told) == has_traceback
