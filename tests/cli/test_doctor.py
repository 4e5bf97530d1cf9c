"""`parl-mq doctor`: output and exit codes."""

import json
import subprocess
import sys

import pytest

from parl_mq.cli.doctor import SOMETHING_WRONG
from parl_mq.errors import EXIT_OK, EXIT_USAGE
from tests.cli.command import run_command


def test_healthy_machine_ends_with_0(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(monkeypatch, "doctor", "cartpole-dqn") == EXIT_OK
    assert "nothing is wrong with cartpole-dqn on this machine\n" in capsys.readouterr().out


def test_a_fault_ends_with_1_and_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(monkeypatch, "doctor", "--json", "--set", "node.device=cuda:4096") == SOMETHING_WRONG
    shown = json.loads(capsys.readouterr().out)
    assert not shown["healthy"]
    assert [finding["about"] for finding in shown["findings"] if finding["verdict"] == "fault"] == ["device"]


def test_without_a_run_only_the_machine_can_be_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, "doctor", "--set", "replay.alpha=0.5") == EXIT_USAGE
    assert "node.*" in capsys.readouterr().err


@pytest.mark.parametrize("source", [[], ["cartpole-dqn"]])
def test_it_loads_no_torch(source: list[str]) -> None:
    script = (
        "import sys\nfrom parl_mq.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nprint('torch' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, "doctor", *source], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1] == "False"
