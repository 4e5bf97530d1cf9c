"""Folders of sockets: whose owner lives stays, whose owner is dead goes."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parl_mq.services import socket_folders
from parl_mq.services.socket_folders import PREFIX, left_over, own_folder, remove_left_over

OWNER = """
import sys
from pathlib import Path
from parl_mq.services.socket_folders import own_folder
with own_folder(Path(sys.argv[1])) as folder:
    (folder / "hub").write_text("")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path: Path):
    """A process that has a folder, and the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_a_folder_is_private_and_goes_with_the_block(tmp_path: Path) -> None:
    with own_folder(tmp_path) as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "hub").write_text("")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_when_the_next_begins(owner, tmp_path: Path) -> None:
    process, folder = owner
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    assert left_over(tmp_path) == [folder]
    with own_folder(tmp_path) as own:
        assert list(tmp_path.iterdir()) == [own]


def test_folder_of_a_living_process_stays(owner, tmp_path: Path) -> None:
    _, folder = owner
    assert left_over(tmp_path) == []
    remove_left_over(tmp_path)
    with own_folder(tmp_path):
        assert (folder / "hub").exists()


def test_what_has_another_name_stays(tmp_path: Path) -> None:
    (tmp_path / "parl-mq-other").mkdir()
    (tmp_path / f"{PREFIX}file").write_text("")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.iterdir())
    remove_left_over(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_folders_of_other_users_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{PREFIX}theirs").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert left_over(tmp_path) == []


def test_a_folder_that_another_took_for_left_over_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a folder's making and its lock, a command that cleans up may come first."""
    first: list[str] = []

    def make(**place: object) -> str:
        made = tmp_path / f"{PREFIX}{len(first)}"
        made.mkdir(mode=0o700)
        if not first:
            made.rmdir()
        first.append(str(made))
        return str(made)

    monkeypatch.setattr(socket_folders.tempfile, "mkdtemp", make)
    with own_folder(tmp_path) as folder:
        assert folder.name == f"{PREFIX}1"


def test_a_lock_on_what_has_been_removed_does_not_count(tmp_path: Path) -> None:
    folder = tmp_path / f"{PREFIX}x"
    folder.mkdir()
    number = os.open(folder, os.O_RDONLY)
    folder.rmdir()
    folder.mkdir()
    assert not socket_folders._lock(folder, number)
    fcntl.flock(number, fcntl.LOCK_UN)
    os.close(number)
