"""`parl-mq services`: what is rendered, and what it says that cannot work."""

import pytest

from parl_mq.errors import EXIT_CONFIG, EXIT_OK, EXIT_USAGE
from parl_mq.net.curve import new_key_pair
from parl_mq.services.attachment import invite
from parl_mq.services.keyring import Keyring
from parl_mq.services.units import all_names
from tests.cli.command import run_command


def test_units_are_written_to_a_folder(monkeypatch, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ("cartpole-dqn", "--user", "--actors", "3", "--name", "first", "--output", str(out))
    assert run_command(monkeypatch, "services", "render", *arguments) == EXIT_OK
    assert {path.name for path in out.iterdir()} == {"first.toml", *all_names()}
    assert "parl-mq-actor@2.service" in (out / "parl-mq.target").read_text()
    assert "num_actors = 3" in (out / "first.toml").read_text()
    assert "enable-linger" in capsys.readouterr().err


def test_units_are_printed_with_the_places_where_they_belong(monkeypatch, capsys):
    assert run_command(monkeypatch, "services", "render", "cartpole-dqn", "--python", "/bin/sh") == EXIT_OK
    out = capsys.readouterr().out
    assert "# /etc/systemd/system/parl-mq-hub.service\n" in out
    assert "ExecStart=/bin/sh -P -m parl_mq hub " in out


def test_the_secret_of_a_join_file_is_not_printed(monkeypatch, tmp_path, capsys):
    join = tmp_path / "lab.json"
    pair = new_key_pair()
    invite(
        Keyring.open_or_make(tmp_path / "keys"), join, hub="tcp://h:1", run_id=None, name="lab", role="actor", pair=pair
    )
    assert run_command(monkeypatch, "services", "render", "--join", str(join), "--actors", "2") == EXIT_OK
    out = capsys.readouterr().out
    assert "--name lab.%i" in out
    assert pair.secret not in out


def test_settings_of_an_earlier_installation_install_the_same_once_more(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    out, again, settings = tmp_path / "out", tmp_path / "again", tmp_path / "config/parl-mq"
    said = ("--set", "node.device=cuda", "--set", "node.tensorboard=false", "--set", "node.ring_directory=rings")
    arguments = ("services", "render", "--user", "--output")
    monkeypatch.chdir(tmp_path)
    assert run_command(monkeypatch, *arguments, str(out), "cartpole-dqn", "--name", "other", *said) == EXIT_OK
    settings.mkdir(parents=True)
    (settings / "other.toml").write_bytes((out / "other.toml").read_bytes())
    monkeypatch.chdir(settings)
    assert run_command(monkeypatch, *arguments, str(again), "other.toml") == EXIT_OK
    assert {path.name: path.read_text() for path in again.iterdir()} == {
        path.name: path.read_text() for path in out.iterdir()
    }


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), EXIT_USAGE, "name a preset or a file"),
        (("cartpole-dqn", "--join", "x"), EXIT_USAGE, "come from its hub"),
        (("--join", "x", "--name", "lab"), EXIT_USAGE, "leave out --name"),
        (("cartpole-dqn", "--name", "a/b"), EXIT_USAGE, "--name a/b"),
        (("--join", "/nowhere/x"), EXIT_CONFIG, "/nowhere/x"),
        (("cartpole-dqn", "--set", "replay.nodse=1"), EXIT_USAGE, "replay.nodes"),
    ],
)
def test_what_cannot_be_rendered_is_said(monkeypatch, capsys, arguments, code, words):
    assert run_command(monkeypatch, "services", "render", *arguments) == code
    assert words in capsys.readouterr().err


def test_install_refuses_import_paths(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    arguments = ("cartpole-dqn", "--user", "--set", "environment.id=corridor:Corridor-v0")
    assert run_command(monkeypatch, "services", "install", *arguments) == EXIT_CONFIG
    assert "import path" in capsys.readouterr().err
    assert not (tmp_path / "config").exists()
