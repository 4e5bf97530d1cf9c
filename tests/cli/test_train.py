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
from parl_mq.config.devices import Devices, TorchBuild
from parl_mq.config.models import RunConfig
from parl_mq.errors import (
    EXIT_CONFIG,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    ConfigError,
    MemoryRefused,
    PeerTimeout,
)
from parl_mq.services.early_start import EarlyStart
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.run_memory import RunMemory
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
        self.refuses_at_once = False
        self.place: tuple[str | None, str | None] = (None, None)

    def train(
        self,
        config: RunConfig,
        *,
        run_dir: Path | None,
        resume: bool,
        on_progress: Callable[[RunProgress], None],
        on_event: Callable[[str], None],
        started_at: float,
        bind: str | None,
        advertise: str | None,
        early: EarlyStart,
    ) -> FakeResult:
        assert started_at <= time.monotonic()
        self.place = (bind, advertise)
        self.config, self.run_dir, self.resumes = config, run_dir, resume
        if self.error is not None and self.refuses_at_once:
            raise self.error
        on_progress(RunProgress(phase="training", nodes=[("actor-0", "stepping", None)], figures={"loss": 1.0}))
        on_event("replay-0 died (signal 9); restarted (1)")
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
    others = ["--run-dir", str(tmp_path / "run"), "--stop-at-return", "100"]
    assert _main(monkeypatch, "train", "cartpole-dqn", *numbers, *others) == 0
    assert fake_run.run_dir == tmp_path / "run"
    config = fake_run.config
    assert config is not None
    assert (config.actor.num_actors, config.learner.num_learners, config.seed) == (3, 1, 5)
    assert (config.stop.max_steps, config.stop.max_seconds) == (1000, 1.5)
    assert (config.stop.target_return, config.stop.at_target) == (100.0, True)


@pytest.mark.parametrize(("said", "num_learners"), [("2", 2), ("auto", 4)])
def test_learners_are_a_number_or_one_for_each_gpu(
    said: str, num_learners: int, fake_run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Devices, "here", lambda: Devices(TorchBuild("2.13.0", "12.8", None), 4))
    assert _main(monkeypatch, "train", "cartpole-dqn", "--learners", said) == 0
    assert fake_run.config is not None
    assert fake_run.config.learner.num_learners == num_learners


def test_other_words_for_a_number_of_learners_are_refused(
    fake_run: FakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main(monkeypatch, "train", "cartpole-dqn", "--learners", "many") == 2
    assert "--learners many" in capsys.readouterr().err


def test_deterministic_is_a_setting_too(fake_run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _main(monkeypatch, "train", "cartpole-dqn", "--deterministic", "--set", "stop.max_updates=9") == 0
    assert fake_run.config is not None
    assert fake_run.config.deterministic


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--seed", "3", "--set", "seed=4"], ["--seed 3", "--set seed=4"]),
        (["--actors", "3", "--set", "actor.num_actors=2"], ["--actors 3", "--set actor.num_actors=2"]),
        (["--learners", "1", "--set", "learner={num_learners=2}"], ["--learners 1", "num_learners"]),
        (["--max-steps", "9", "--set", "stop.max_steps=8"], ["--max-steps 9", "stop.max_steps=8"]),
        (["--max-seconds", "9", "--set", "stop.max_seconds=none"], ["--max-seconds 9", "stop.max_seconds=none"]),
        (["--stop-at-return", "9", "--set", "stop.target_return=8"], ["--stop-at-return 9", "stop.target_return=8"]),
        (["--stop-at-return", "9", "--set", "stop.at_target=false"], ["--stop-at-return", "stop.at_target=false"]),
        (["--set", "seed=3", "--set", "seed=4"], ["--set seed=3", "--set seed=4"]),
    ],
)
def test_flags_that_contradict_each_other_are_refused(
    fake_run: FakeRun,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    named: list[str],
) -> None:
    assert _main(monkeypatch, "train", "cartpole-dqn", *flags) == EXIT_USAGE
    told = capsys.readouterr().err
    assert all(name in told for name in named)
    assert fake_run.config is None


@pytest.mark.parametrize(
    ("option", "meant"), [("--lr", "algorithm.learning_rate"), ("--buffer-size=9", "replay.buffer_size")]
)
def test_a_setting_that_is_no_option_is_answered_with_its_key(
    option: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main(monkeypatch, "train", "cartpole-dqn", option, "9") == EXIT_USAGE
    assert f"did you mean --set {meant}=VALUE?" in capsys.readouterr().err


def test_one_flag_does_not_contradict_itself(
    fake_run: FakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main(monkeypatch, "train", "cartpole-dqn", "--max-seconds", "nan") == EXIT_USAGE
    assert "stop.max_seconds: input should be a finite number" in capsys.readouterr().err
    assert fake_run.config is None


def test_flags_that_agree_are_taken(fake_run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _main(monkeypatch, "train", "cartpole-dqn", "--stop-at-return", "9", "--set", "stop.target_return=9") == 0
    assert fake_run.config is not None
    assert fake_run.config.stop.target_return == 9


@pytest.mark.parametrize(
    ("flags", "environ", "code"),
    [
        (["--set", "replay.shards=2"], {}, EXIT_USAGE),
        (["--set", "algorithm.gamma=0.9"], {}, EXIT_CONFIG),
        ([], {"PARL_MQ_REPLAY__SHARDS": "2"}, EXIT_CONFIG),
    ],
)
def test_a_fault_found_at_the_start_says_where_its_settings_come_from(
    fake_run: FakeRun,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    environ: dict[str, str],
    code: int,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    fake_run.error = MemoryRefused("too much").about("replay.buffer_size", "replay.shards")
    assert _main(monkeypatch, "train", "cartpole-dqn", *flags) == code
    told = capsys.readouterr().err
    assert "replay.buffer_size = 10000 (preset cartpole-dqn:" in told
    place = flags[1] if "replay.shards=2" in flags else "PARL_MQ_REPLAY__SHARDS" if environ else "default"
    assert place in told


@pytest.mark.parametrize(("is_flag", "code"), [(True, EXIT_USAGE), (False, EXIT_CONFIG)])
def test_a_wrong_run_directory_is_blamed_on_where_it_was_said(
    fake_run: FakeRun,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_flag: bool,
    code: int,
) -> None:
    fake_run.error = ConfigError("r is there").about("run_dir")
    if not is_flag:
        monkeypatch.setenv("PARL_MQ_RUN_DIR", "r")
    assert _main(monkeypatch, "train", "cartpole-dqn", *(["--run-dir", "r"] if is_flag else [])) == code
    assert f"{'--run-dir r' if is_flag else 'PARL_MQ_RUN_DIR'}: r is there" in capsys.readouterr().err


def _run_to_resume(folder: Path, memory: RunMemory) -> Path:
    directory = RunDirectory.create(folder / "run", parl_mq.load_config("cartpole-dqn", environ={}))
    directory.write_memory(memory)
    return directory.path


def test_a_run_that_is_refused_does_not_go_on(
    fake_run: FakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = _run_to_resume(tmp_path, RunMemory(updates=7))
    fake_run.refuses_at_once = True
    fake_run.error = ConfigError("other settings")
    assert _main(monkeypatch, "train", "cartpole-dqn", "--run-dir", str(run), "--resume") == EXIT_CONFIG
    assert "going on" not in capsys.readouterr().err


@pytest.mark.usefixtures("fake_run")
def test_a_resumed_run_says_once_where_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = _run_to_resume(tmp_path, RunMemory(updates=7, totals={"env_steps_total": 1234.0}))
    _main(monkeypatch, "train", "cartpole-dqn", "--run-dir", str(run), "--resume")
    told = capsys.readouterr().err
    assert told.count("going on after 1,234 environment steps and 7 updates") == 1
    assert "reached 475 after 7.5 s" in told
    assert "earlier" not in told


@pytest.mark.usefixtures("fake_run")
def test_a_target_that_an_earlier_start_reached_is_not_shown_as_new(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = _run_to_resume(tmp_path, RunMemory(time_to_target_s=7.5))
    _main(monkeypatch, "train", "cartpole-dqn", "--run-dir", str(run), "--resume")
    assert "had reached 475 after 7.5 s, in an earlier start" in capsys.readouterr().err


def test_a_place_for_other_machines_is_handed_on(monkeypatch: pytest.MonkeyPatch, fake_run: FakeRun) -> None:
    assert _main(monkeypatch, "train", "cartpole-dqn", "--bind", "tcp://0.0.0.0", "--advertise", "box") == 0
    assert fake_run.place == ("tcp://0.0.0.0", "box")


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


def test_a_default_run_directory_that_cannot_be_made_is_no_flags_fault(
    fake_run: FakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_run.error = ConfigError("run directory runs/x cannot be made").about("run_dir")
    assert _main(monkeypatch, "train", "cartpole-dqn") == EXIT_CONFIG
    assert "parl-mq: run directory runs/x cannot be made" in capsys.readouterr().err
