"""The nodes as services: a manager of their own starts them, they outlive what befalls them, and stop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.process.user_manager import MANAGERS, NAMESPACE, UNITS
from tests.systemd_tools import need, need_namespaces

ROOT: Final = Path(__file__).parents[2]
STOP_S: Final = 10.0
"""Within this time everything is to have stopped, on a machine that has nothing else to do."""
ALL_ACTIVE: Final = dict.fromkeys(UNITS, "active")


def _played(scenario: str, folder: Path, timeout_s: float) -> dict[str, Any]:
    need("systemctl")
    need_namespaces(NAMESPACE)
    if not any(path.exists() for path in MANAGERS):
        pytest.skip(f"systemd is none of {', '.join(map(str, MANAGERS))}")
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-m", "tests.process.user_manager", scenario, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout_s,
    )
    logs = "".join(f"\n{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(folder.glob("*.log")))
    assert done.returncode == 0, done.stderr + logs
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_services_train_come_back_and_stop(tmp_path: Path) -> None:
    result = _played("short", tmp_path, 500)
    assert result["states"] == ALL_ACTIVE
    assert result["left"] == []
    assert result["rows"]["balanced"]
    assert result["rows"]["lost"] == 0
    assert result["stop_s"] < 3 * STOP_S


@pytest.mark.timeout(600)
def test_commands_of_the_guide_work(tmp_path: Path) -> None:
    result = _played("document", tmp_path, 500)
    assert len(result["shown"]) == 5
    assert "CartPole-v1" in result["shown"][2]
    assert result["left"] == []
    assert result["units"] == []


@pytest.mark.slow
@pytest.mark.timeout(3_000)
def test_every_role_comes_back_and_the_run_reaches_its_target(tmp_path: Path) -> None:
    result = _played("whole", tmp_path, 2_900)
    assert result["states"] == ALL_ACTIVE
    assert min(result["restarts"].values()) >= 2
    assert result["left"] == []
    assert result["stop_s"] < 3 * STOP_S
    assert result["summary"]["reached"]
    assert result["at_the_end"] == dict.fromkeys(UNITS, "inactive")
