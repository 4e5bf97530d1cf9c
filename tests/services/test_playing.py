"""A run's policy plays: which weights, how many episodes, and what is filmed."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from parl_mq import __version__
from parl_mq.config.loader import load_config
from parl_mq.errors import EnvironmentFault, RecordError, SnapshotError, UsageError
from parl_mq.learn.checkpoint import Checkpoint, save
from parl_mq.model.weights import unpack
from parl_mq.rollout.building import build_evaluator
from parl_mq.services import playing
from parl_mq.services.playing import choose, film, play, show
from parl_mq.services.run_directory import RunDirectory
from tests.services.policies import run_with_policies


@pytest.fixture(autouse=True)
def plain_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the tests computes as it did before."""
    monkeypatch.setattr(playing, "prepare_training_thread", lambda _: None)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return run_with_policies(tmp_path / "run")


@pytest.mark.parametrize(("which", "updates", "folder"), [("best", 20, "best"), ("newest", 50, "updates-000000000050")])
def test_checkpoint_is_the_one_that_was_asked_for(run: RunDirectory, which: str, updates: int, folder: str) -> None:
    chosen = choose(run.path, which)  # type: ignore[arg-type]
    assert (chosen.checkpoint.updates, chosen.path.name, chosen.damaged) == (updates, folder, ())


def test_performance_repeats_the_runs_evaluation(run: RunDirectory) -> None:
    config = load_config(run.config, environ={})
    chosen = choose(run.path, "best")
    evaluator, policy = build_evaluator(config)
    policy.load_weights(unpack(chosen.checkpoint.weights))
    evaluation = evaluator.evaluate(policy)
    assert evaluation is not None
    played = play(chosen, num_episodes=3, seed=77)
    np.testing.assert_array_equal(played.evaluation.returns, evaluation.returns)
    assert play(chosen, num_episodes=3, seed=78).evaluation.returns.tolist() != evaluation.returns.tolist()


def test_performance_in_plain_values(run: RunDirectory) -> None:
    played = play(choose(run.path, "best"), num_episodes=4, seed=1)
    shown = played.to_json()
    assert shown["num_episodes"] == len(shown["returns"]) == len(shown["lengths"]) == 4
    assert shown["min_return"] == min(shown["returns"]) <= shown["mean_return"] <= max(shown["returns"])
    assert (shown["updates"], shown["seed"], shown["video"]) == (20, 1, None)


def test_film_shows_each_step_and_the_start_of_each_episode(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    path = tmp_path / "play.gif"
    played = film(choose(run.path, "best"), path, num_episodes=2, seed=5)
    assert played.film == path
    with Image.open(path) as gif:
        milliseconds = []
        for index in range(gif.n_frames):
            gif.seek(index)
            milliseconds.append(gif.info["duration"])
    num_pictures = played.evaluation.lengths.sum() + 2  # at 50 a second, of which every other one is kept
    assert len(played.evaluation.lengths) == 2
    assert sum(milliseconds[:-1]) == pytest.approx(num_pictures * 20, abs=60)


@pytest.mark.parametrize(("picture", "told"), [(film, "as rgb_array"), (show, "as human")])
def test_environment_without_pictures_says_which_it_has(tmp_path: Path, picture: object, told: str) -> None:
    run = run_with_policies(tmp_path / "run", "environment.id=tests.environments:Counter-v0")
    path = (tmp_path / "play.gif",) if picture is film else ()
    with pytest.raises(EnvironmentFault, match=f"{told}; its render modes: none"):
        picture(choose(run.path, "best"), *path, num_episodes=1, seed=1)  # type: ignore[operator]
    assert not (tmp_path / "play.gif").exists()


def test_run_without_the_checkpoint_says_what_it_has(run: RunDirectory) -> None:
    (run.checkpoints / "best").unlink()
    with pytest.raises(RecordError, match="no best checkpoint: no evaluation has ended; try --checkpoint newest"):
        choose(run.path, "best")
    (run.checkpoints / "updates-000000000050" / "state.json").unlink()
    with pytest.raises(RecordError, match=r"no whole checkpoint\n.*state\.json"):
        choose(run.path, "newest")


def test_damaged_checkpoint_is_passed_over_and_told(run: RunDirectory) -> None:
    save(run.checkpoints, Checkpoint(60, b"weights"), keep=3)
    (run.checkpoints / "updates-000000000060" / "weights.safetensors").write_bytes(b"other")
    chosen = choose(run.path, "newest")
    assert chosen.checkpoint.updates == 50
    assert "updates-000000000060" in str(chosen.damaged[0])


def test_damaged_best_is_refused(run: RunDirectory) -> None:
    (run.checkpoints / "best" / "weights.safetensors").write_bytes(b"other")
    with pytest.raises(SnapshotError, match="is damaged"):
        choose(run.path, "best")


def test_weights_of_another_network_are_refused(run: RunDirectory) -> None:
    run.config.write_text(run.config.read_text().replace("    64,\n", "    32,\n"))
    with pytest.raises(SnapshotError, match="made with other settings"):
        play(choose(run.path, "best"), num_episodes=1, seed=1)


def test_settings_of_another_version_are_told(run: RunDirectory) -> None:
    run.config.write_text('flavour = "new"\n' + run.config.read_text())
    run.write_summary({"version": "9.9"})
    with pytest.raises(RecordError, match=r"made by parl_mq 9\.9, and this is .*\n.*config\.toml:1: flavour"):
        choose(run.path, "best")


@pytest.mark.parametrize("summary", [None, {"version": __version__}])
def test_settings_that_cannot_be_used_are_no_other_versions_for_that(
    run: RunDirectory, summary: dict[str, str] | None
) -> None:
    run.config.write_text(run.config.read_text().replace('name = "dqn"', 'name = "no_such_module:MINE"'))
    if summary is not None:
        run.write_summary(summary)
    with pytest.raises(RecordError, match=r"cannot be used here\n.*no_such_module") as refused:
        choose(run.path, "best")
    assert "was made by" not in str(refused.value)


def test_an_evaluation_is_repeated_with_the_arithmetic_of_an_evaluator(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(playing, "prepare_training_thread", asked.append)
    run.config.write_text(run.config.read_text().replace("threads = 1", "threads = 3"))
    play(choose(run.path, "best"), num_episodes=1, seed=1)
    assert asked == [3]


def test_foreign_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is no run directory"):
        choose(tmp_path, "best")
    with pytest.raises(UsageError, match="no such directory"):
        choose(tmp_path / "nowhere", "best")
