"""Putting units in their place and taking them away, with a service manager that only writes down what it is told."""

import json
import re
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from parl_mq.config.loader import load_config
from parl_mq.errors import CodedError, ConfigError
from parl_mq.net.curve import new_key_pair
from parl_mq.services import installing
from parl_mq.services.installing import (
    Manager,
    attached_actors,
    check,
    examine,
    install,
    left_over,
    place_of_package,
    uninstall,
)
from parl_mq.services.units import Installation, LocalRun, Places, all_names

ENVIRON = {"USER": "nobody-here"}
PAIR = new_key_pair()


class Told:
    """Commands that were run; the one that `refuses` names fails."""

    def __init__(self, refuses=None):
        self.commands = []
        self._refuses = refuses

    def __call__(self, command):
        self.commands.append(" ".join(command))
        if self._refuses in command:
            raise CodedError("no", 69)
        return ""


@pytest.fixture
def places(tmp_path):
    return Places(tmp_path / "units", tmp_path / "settings", tmp_path / "runs")


def local(places, *settings, flavour="user"):
    config = load_config("cartpole-dqn", overrides=list(settings), environ={})
    return Installation(LocalRun("cartpole", config), flavour, Path(sys.executable), places)


def join_file(tmp_path, **values):
    path = tmp_path / "lab.json"
    whole = {"hub": "tcp://h:1", "server_key": new_key_pair().public, "name": "lab", "role": "actor"}
    said = {**whole, "public": PAIR.public, "secret": PAIR.secret, **values}
    path.write_text(json.dumps({key: value for key, value in said.items() if value is not None}))
    return path


def program(tmp_path, text, name="python"):
    """An interpreter that does nothing but this."""
    path = tmp_path / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


def notes_of(installation):
    return [f"{finding.about}: {finding.what}" for finding in examine(installation, ENVIRON)]


def test_units_and_settings_are_written_and_enabled(places):
    told = Told()
    files = install(local(places), Manager("user", told), ENVIRON)
    assert {path.name for path in files} == {"cartpole.toml", *all_names()}
    assert all(path.is_file() for path in files)
    assert told.commands == ["systemctl --user daemon-reload", "systemctl --user enable parl-mq.target"]
    assert load_config(places.settings / "cartpole.toml", environ={}).environment.id == "CartPole-v1"


def test_the_settings_that_are_written_have_those_of_the_machine_too(places, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = ("node.device=cuda", "node.tensorboard=false", "node.ring_directory=rings")
    install(local(places, *settings), Manager("user", Told()), ENVIRON)
    node = load_config(places.settings / "cartpole.toml", environ={}).node
    assert (node.device, node.tensorboard, node.ring_directory) == ("cuda", False, tmp_path / "rings")


def test_system_services_get_a_user_first(tmp_path, places, monkeypatch):
    told = Told()
    monkeypatch.setattr(installing, "place_of_package", lambda python: Path("/opt/parl-mq"))
    of_system = Places(places.units, places.settings, places.runs, tmp_path / "sysusers")
    install(Installation(local(places).what, "system", Path("/bin/sh"), of_system), Manager("system", told), ENVIRON)
    users = tmp_path / "sysusers" / "parl-mq.conf"
    assert "u parl-mq " in users.read_text()
    assert told.commands == [f"systemd-sysusers {users}", "systemctl daemon-reload", "systemctl enable parl-mq.target"]


def test_a_join_file_is_kept_secret(tmp_path, places):
    attached = Installation(attached_actors(join_file(tmp_path), 2), "user", Path(sys.executable), places)
    install(attached, Manager("user", Told()), ENVIRON)
    copy = places.settings / "lab.json"
    assert copy.stat().st_mode & 0o777 == 0o600
    assert json.loads(copy.read_text())["secret"] == PAIR.secret


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"role": "learner"}, "joins as learner"),
        ({"name": "a b"}, r"name: .*join-token"),
        ({"hub": "ipc://x"}, "hub: "),
        ({"secret": None}, "no secret key.*`parl-mq keys new`.*without --public"),
        ({"secret": new_key_pair().secret}, "does not belong"),
    ],
)
def test_a_join_file_that_no_actor_can_use_is_refused(tmp_path, values, told):
    with pytest.raises(ConfigError, match=rf"lab\.json.*{told}") as refused:
        attached_actors(join_file(tmp_path, **values), 1)
    assert str(values.get("secret")) not in str(refused.value)


def test_what_is_no_join_file_is_refused(tmp_path):
    (tmp_path / "x").write_text("[]")
    with pytest.raises(ConfigError, match="join-token"):
        attached_actors(tmp_path / "x", 1)


def test_another_installation_replaces_the_units_that_it_does_not_have(tmp_path, places):
    install(local(places), Manager("user", Told()), ENVIRON)
    attached = Installation(attached_actors(join_file(tmp_path), 2), "user", Path(sys.executable), places)
    install(attached, Manager("user", Told()), ENVIRON)
    assert sorted(path.name for path in places.units.iterdir()) == ["parl-mq-actor@.service", "parl-mq.target"]


@pytest.mark.parametrize("refuses", ["daemon-reload", "enable"])
def test_nothing_stays_where_the_manager_refuses(places, refuses):
    with pytest.raises(CodedError):
        install(local(places), Manager("user", Told(refuses)), ENVIRON)
    assert list(places.units.iterdir()) == []
    assert list(places.settings.iterdir()) == []


def test_what_was_there_is_there_again_where_the_manager_refuses(places):
    install(local(places, "seed=1"), Manager("user", Told()), ENVIRON)
    before = {path: path.read_text() for path in [*places.units.iterdir(), *places.settings.iterdir()]}
    with pytest.raises(CodedError):
        install(local(places, "actor.num_actors=3", "seed=2"), Manager("user", Told("enable")), ENVIRON)
    assert {path: path.read_text() for path in before} == before


def test_uninstalling_stops_and_removes_units_alone(places):
    told = Told()
    install(local(places), Manager("user", Told()), ENVIRON)
    (places.units / "other.service").write_text("[Service]\n")
    assert len(uninstall(places, Manager("user", told))) == len(all_names())
    assert [path.name for path in places.units.iterdir()] == ["other.service"]
    assert (places.settings / "cartpole.toml").exists()
    assert told.commands[0] == "systemctl --user disable --now parl-mq.target"


def drop_in(places, unit, text):
    path = places.units / f"{unit}.d" / "override.conf"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_drop_ins_with_the_command_line_of_another_installation_are_named(places):
    install(local(places), Manager("user", Told()), ENVIRON)
    commands = {
        unit: re.search("^ExecStart=(.*)$", (places.units / unit).read_text(), re.MULTILINE)[1]
        for unit in all_names()[:-1]
    }
    for unit in ("parl-mq-hub.service", "parl-mq-replay@.service"):
        drop_in(places, unit, f"[Service]\nExecStart=\nExecStart={commands[unit]} --bind tcp://192.0.2.1:29700\n")
    drop_in(places, "parl-mq-learner@0.service", "[Service]\nExecStart=\nExecStart=/bin/true\n")
    drop_in(places, "parl-mq-actor@.service", "[Service]\nMemoryMax=1G\n")
    of_learner = "parl-mq-learner@0.service: "
    (note,) = [note for note in notes_of(local(places)) if "ExecStart" in note]
    assert note.startswith(of_learner)
    assert "systemctl --user revert parl-mq-learner@0.service" in note
    other = Installation(LocalRun("cart", local(places).what.config), "user", Path(sys.executable), places)
    assert len([note for note in notes_of(other) if "ExecStart" in note]) == 3


def test_drop_ins_that_outlast_their_units_are_named(places):
    install(local(places), Manager("user", Told()), ENVIRON)
    path = drop_in(places, "parl-mq-hub.service", "[Service]\nMemoryMax=1G\n")
    uninstall(places, Manager("user", Told()))
    (note,) = left_over(places, "system")
    assert (note.about, path.exists()) == ("parl-mq-hub.service", True)
    assert note.what.startswith(f"{path} stays")
    assert "`systemctl revert parl-mq-hub.service`" in note.what


def test_units_that_somebody_else_wrote_are_left_alone(places):
    places.units.mkdir()
    (places.units / "parl-mq.target").write_text("[Unit]\n")
    told = Told()
    assert uninstall(places, Manager("user", told)) == []
    assert told.commands == []
    assert (places.units / "parl-mq.target").exists()


def test_import_paths_are_refused_before_anything_is_written(places):
    with pytest.raises(ConfigError, match=r"corridor:Corridor-v0.*entry point"):
        install(local(places, "environment.id=corridor:Corridor-v0"), Manager("user", Told()), ENVIRON)
    assert not places.units.exists()


def test_an_interpreter_that_is_none_is_refused(places):
    installation = Installation(local(places).what, "user", Path("/nowhere/python"), places)
    with pytest.raises(ConfigError, match="--python"):
        check(installation, ENVIRON)


def test_an_interpreter_says_itself_where_its_package_lies(tmp_path, monkeypatch):
    package = tmp_path / "other/parl_mq"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "variable"))  # which a service does not have
    words = f'[ -z "$PYTHONPATH" ] && exec {sys.executable} -c "import sys; sys.path[0] = \'{package.parent}\'; $3"'
    assert place_of_package(program(tmp_path, words)) == package


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("echo No module named parl_mq >&2; exit 1", "cannot import parl_mq: No module named parl_mq"),
        ("echo hello", "cannot import parl_mq: hello"),
        ("exit 3", "cannot import parl_mq: it says nothing"),
        ("exec sleep 5", r"has not said within 0\.1 s"),
    ],
)
def test_an_interpreter_without_the_package_is_refused(places, tmp_path, monkeypatch, text, told):
    monkeypatch.setattr(installing, "ASK_S", 0.1 if "sleep" in text else 60)
    installation = Installation(local(places).what, "user", program(tmp_path, text), places)
    with pytest.raises(ConfigError, match=f"interpreter: .*python {told}.* --python"):
        check(installation, ENVIRON)


@pytest.mark.parametrize(("place", "is_seen"), [("/home/me/parl_mq", False), ("/opt/parl_mq", True)])
def test_system_services_must_see_the_package_of_the_interpreter_that_is_named(places, monkeypatch, place, is_seen):
    monkeypatch.setattr(installing, "place_of_package", lambda python: Path(place))
    installation = Installation(local(places).what, "system", Path("/bin/sh"), places)
    assert any("system services cannot see" in note for note in notes_of(installation)) is not is_seen


@pytest.mark.parametrize("home", ["/home/me", "/root", "/run/user/1000", "/tmp"])
def test_system_services_see_no_interpreter_in_a_home(places, home):
    installation = Installation(local(places).what, "system", Path(f"{home}/venv/bin/python"), places)
    told = [finding.what for finding in examine(installation, ENVIRON) if finding.about == "interpreter"]
    assert any("which system services cannot see" in what for what in told)


@pytest.mark.parametrize("name", ["ring_directory", "capture_directory", "keys_directory"])
@pytest.mark.parametrize("folder", ["/home/me/x", "/var/tmp/x"])
def test_folders_that_system_services_do_not_see_are_refused_by_name(places, name, folder):
    installation = Installation(local(places, f"node.{name}={folder}").what, "system", Path("/bin/sh"), places)
    (fault,) = [finding for finding in examine(installation, ENVIRON) if finding.about == f"node.{name}"]
    assert fault.verdict == "fault"
    assert "take a folder elsewhere" in fault.what


def test_settings_that_system_services_can_have_are_told_with_what_is_still_to_do(places):
    settings = (
        "node.ring_directory=/my rings",
        "node.wandb_project=mine",
        "node.metrics_port=0",
        "node.metrics_host=::",
    )
    installation = Installation(local(places, *settings).what, "system", Path("/bin/sh"), places)
    told = {finding.about: finding.what for finding in examine(installation, ENVIRON) if finding.verdict == "note"}
    assert "`install -d -o parl-mq -g parl-mq -m 700 '/my rings'`" in told["node.ring_directory"]
    assert "WANDB_API_KEY" in told["node.wandb_project"]
    assert told["node.metrics_host"] == "the hub may speak to other machines for it"


def test_a_manager_that_is_missing_or_never_ends_is_told_in_a_line(places, monkeypatch):
    with pytest.raises(CodedError, match="`/nowhere/systemctl` cannot be run: No such file"):
        installing._run(["/nowhere/systemctl"])
    monkeypatch.setattr(installing, "MANAGER_S", 0.01)
    with pytest.raises(CodedError, match=r"`sleep 5` has not ended within 0\.01 s"):
        installing._run(["sleep", "5"])


def test_the_manager_has_longer_than_all_units_that_stop_one_after_the_other(places):
    texts = [entry.read_text() for entry in files("parl_mq.systemd").iterdir() if entry.name.endswith(".service")]
    limits = [int(re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)[1]) for text in texts]
    assert sum(limits) < installing.MANAGER_S


def test_users_are_told_that_services_end_when_they_log_out(places):
    notes = [finding for finding in examine(local(places), ENVIRON) if finding.verdict == "note"]
    assert any("enable-linger" in note.what for note in notes)
