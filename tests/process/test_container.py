"""The system services under a systemd that is the first process of a container: users, sandbox, credentials' places."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.process.user_manager import SETTINGS, UNITS
from tests.systemd_tools import need

ROOT: Final = Path(__file__).parents[2]
HOMES: Final = (Path("/home"), Path("/root"), Path("/run/user"))
RESULT: Final = Path("var/tmp/found.json")
BOOT_S: Final = 1_500
TEST_UNITS: Final = {
    "container-test.target": "[Unit]\nRequires=sysinit.target systemd-journald.service container-test.service\n",
    "container-test.service": (
        "[Unit]\nAfter=sysinit.target systemd-journald.service\n[Service]\nType=oneshot\nTimeoutStartSec=infinity\n"
        f"WorkingDirectory={ROOT}\nExecStart={sys.executable} -m tests.process.in_container /{RESULT}\n"
    ),
}


def _places() -> list[Path]:
    """Folders without which this interpreter and its packages are not whole."""
    paths = {Path(sys.base_prefix), Path(sys.prefix), ROOT, *map(Path, site.getsitepackages())}
    paths |= {Path(path) for path in sys.path if path.endswith("site-packages")}
    return sorted(path.resolve() for path in paths if path.is_dir())


@contextmanager
def _copied_root(folder: Path) -> Iterator[Path]:
    """This machine's files, over which a container may write; it goes with the block."""
    mounts: list[Path] = []

    def mount(place: Path, *words: str) -> None:
        place.mkdir(exist_ok=True)
        done = subprocess.run(["mount", *words, str(place)], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"nothing can be mounted on this machine: {done.stderr.strip()}")
        mounts.append(place)

    try:
        mount(folder / "upper", "-t", "tmpfs", "tmpfs")
        for name in ("files", "work"):
            (folder / "upper" / name).mkdir()
        layers = f"lowerdir=/,upperdir={folder}/upper/files,workdir={folder}/upper/work"
        mount(folder / "root", "-t", "overlay", "overlay", "-o", layers)
        yield folder / "root"
    finally:
        for place in reversed(mounts):
            subprocess.run(["umount", str(place)], check=True)


def _prepare(root: Path) -> None:
    """Puts units, settings and the test's own service where the container's systemd finds them."""
    units, settings = root / "etc/systemd/system", root / "etc/parl-mq"
    flags = [word for text in (*SETTINGS, "stop.at_target=false") for word in ("--set", text)]
    command = [sys.executable, "-m", "parl_mq", "services", "render", "cartpole-dqn", "--name", "run"]
    subprocess.run([*command, "--output", str(units), *flags], check=True, cwd=ROOT)
    users = root / "etc/sysusers.d"
    for folder, name in ((settings, "run.toml"), (users, "parl-mq.conf")):
        folder.mkdir(exist_ok=True)
        (units / name).rename(folder / name)
    hidden = " ".join(str(path) for path in _places() if any(path.is_relative_to(home) for home in HOMES))
    for name in {unit.replace("@0", "@") for unit in UNITS.values()}:
        drop_in = units / f"{name}.d"
        drop_in.mkdir()
        seen = f"ProtectHome=tmpfs\nBindReadOnlyPaths={hidden}\n" if hidden else ""
        (drop_in / "test.conf").write_text(f"[Service]\nWatchdogSec=5\nTimeoutAbortSec=2\nRestartSec=0.2\n{seen}")
    for name, text in TEST_UNITS.items():
        (units / name).write_text(text)


def _booted(root: Path) -> dict[str, Any]:
    binds = [f"--bind-ro={path}" for path in _places()]
    boot = ["--register=no", "--keep-unit", "--private-network", "--quiet", *binds]
    done = subprocess.run(
        ["systemd-nspawn", "-D", str(root), *boot, "-b", "systemd.unit=container-test.target"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=BOOT_S,
    )
    result = root / RESULT
    if not result.exists():
        pytest.skip(f"no container boots on this machine: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return dict(json.loads(result.read_text()))


@pytest.mark.slow
@pytest.mark.timeout(BOOT_S + 100)
def test_system_services_are_shut_off_and_come_back(tmp_path: Path) -> None:
    need("systemd-nspawn")
    if os.geteuid() != 0:
        pytest.skip("a container is booted by root")
    with _copied_root(tmp_path) as root:
        _prepare(root)
        found = _booted(root)
    assert "error" not in found, f"{found.get('error')}\n{found.get('journal')}"
    shut = {"user": "parl-mq", "no_new_privileges": "1", "seccomp": "2", "caps": "0000000000000000"}
    assert found["services"] == dict.fromkeys(UNITS, shut)
    assert found["run_mode"] == "0o700"
    assert len(found["rings"]) == 1
    assert found["states"] == dict.fromkeys(UNITS, "active")
    assert found["listening"] == dict.fromkeys(UNITS, "active")
    assert found["attachment"] == "tcp://127.0.0.1:29700"
    assert found["keys"] == ["lock", "server.json"]
    assert found["left"] == []
    assert found["stop_s"] < 30
