"""`parl-mq play`: options, output, exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parl_mq.errors import EXIT_CONFIG, EXIT_OK, EXIT_USAGE
from parl_mq.services import playing
from parl_mq.services.early_start import ONE_THREAD
from tests.cli.command import run_command
from tests.services.policies import run_with_policies


@pytest.fixture(autouse=True)
def plain_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the tests computes as it did before."""
    monkeypatch.setattr(playing, "prepare_training_thread", lambda _: None)
    for name in ONE_THREAD:
        monkeypatch.setenv(name, "7")


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    return str(run_with_policies(tmp_path / "run").path)


def test_people_read_how_it_did(
    run_dir: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, "play", run_dir) == EXIT_OK
    out, _ = capsys.readouterr()
    assert "best-000000000020, 20 updates" in out
    assert "3, seed 77" in out
    assert "on average" in out


def test_options_decide_what_is_played(
    run_dir: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--episodes", "5", "--seed", "9", "--checkpoint", "newest", "--json"]
    assert run_command(monkeypatch, "play", run_dir, *options) == EXIT_OK
    shown = json.loads(capsys.readouterr().out)
    assert (shown["num_episodes"], shown["seed"], shown["updates"]) == (5, 9, 50)


def test_film_has_one_episode_unless_told_otherwise(
    run_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "play.gif"
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert run_command(monkeypatch, "play", run_dir, "--video", str(path), "--json") == EXIT_OK
    shown = json.loads(capsys.readouterr().out)
    assert (shown["num_episodes"], shown["video"]) == (1, str(path))
    assert path.read_bytes().startswith(b"GIF8")


def test_window_needs_a_display(
    run_dir: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    assert run_command(monkeypatch, "play", run_dir, "--render") == EXIT_USAGE
    assert "there is no display here" in capsys.readouterr().err


def test_window_shows_one_episode(
    run_dir: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert run_command(monkeypatch, "play", run_dir, "--render", "--json") == EXIT_OK
    assert json.loads(capsys.readouterr().out)["num_episodes"] == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--video", "play.gif", "--render"], "exclude each other"),
        (["--video", "play.avi"], "must end in .gif or .mp4"),
        (["--episodes", "0"], "--episodes"),
        (["--checkpoint", "last"], "--checkpoint"),
    ],
)
def test_wrong_options_are_told(
    run_dir: str,
    options: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(monkeypatch, "play", run_dir, *options) == EXIT_USAGE
    out, err = capsys.readouterr()
    assert told in err
    assert out == ""


@pytest.mark.parametrize(("folder", "code"), [(".", EXIT_CONFIG), ("nowhere", EXIT_USAGE)])
def test_other_directories_are_told_apart(
    folder: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(monkeypatch, "play", folder) == code
    assert capsys.readouterr().err.startswith(f"parl-mq: {folder}")


def test_libraries_compute_in_one_thread_as_an_evaluators_do(
    run_dir: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, "play", run_dir) == EXIT_OK
    assert {name: os.environ[name] for name in ONE_THREAD} == ONE_THREAD


def test_numpy_is_not_loaded_before_its_threads_are_set(run_dir: str) -> None:
    script = (
        "import sys, os\n"
        "class Finder:\n"
        "    def find_spec(name, *_):\n"
        "        if name == 'numpy': sys.exit(0 if os.environ.get('OPENBLAS_NUM_THREADS') == '1' else 9)\n"
        "sys.meta_path.insert(0, Finder)\n"
        f"sys.argv[1:] = ['play', {run_dir!r}]\n"
        "from parl_mq.cli import main; main()"
    )
    environ = {name: value for name, value in os.environ.items() if name not in ONE_THREAD}
    assert subprocess.run([sys.executable, "-c", script], env=environ, check=False).returncode == 0
