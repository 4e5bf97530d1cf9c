"""`parl-mq env check`: output and exit codes."""

import json

import pytest

from parl_mq.cli.env import UNSUPPORTED
from parl_mq.errors import EXIT_OK, EXIT_USAGE
from tests.cli.command import run_command


def test_supported_environment_ends_with_0(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(monkeypatch, "env", "check", "CartPole-v1") == EXIT_OK
    assert "CartPole-v1 is supported\n" in capsys.readouterr().out


def test_unsupported_environment_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, "env", "check", "tests.environments:Unsupported-v0", "--json") == UNSUPPORTED
    shown = json.loads(capsys.readouterr().out)
    assert not shown["supported"]
    assert "Text is not supported" in shown["why_not"][0]


def test_settings_reach_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "environment.kwargs.length=7", "--set", "environment.max_episode_steps=5"]
    assert run_command(monkeypatch, "env", "check", "tests.environments:Counter-v0", "--json", *settings) == EXIT_OK
    found = {finding["about"]: finding["what"] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert found["time limit"] == "5 steps"
    assert found["rewards"] == "1 to 5 seen"


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("replay.alpha=1", "environment.* and no other"),
        ("environment.kwarg.x=1", "no such setting"),
        ("environment.frame_stack=0", "environment.frame_stack"),
        ("x", "key.path=value"),
    ],
)
def test_wrong_setting_is_told(
    setting: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, "env", "check", "CartPole-v1", "--set", setting) == EXIT_USAGE
    out, err = capsys.readouterr()
    assert told in err
    assert out == ""
