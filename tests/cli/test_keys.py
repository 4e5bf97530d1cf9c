"""`parl-mq keys` and `join-token`: what they print, and who can read what they write."""

import json
import stat

import pytest

from parl_mq.errors import EXIT_CONFIG, EXIT_NOT_ALLOWED, EXIT_OK, EXIT_USAGE
from parl_mq.services.attachment import Attachment
from parl_mq.services.join_file import read_join_file
from tests.cli.command import run_command


@pytest.fixture
def parl_mq(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: run_command(monkeypatch, *arguments)


def test_a_key_is_made_allowed_listed_and_revoked(parl_mq, tmp_path, capsys):
    keys = ("--keys", "keys")
    assert parl_mq("keys", "new", "own.key") == EXIT_OK
    public = capsys.readouterr().out.strip()
    assert stat.S_IMODE((tmp_path / "own.key").stat().st_mode) == 0o600
    assert parl_mq("keys", "allow", "far", "actor", "--public", public, *keys) == EXIT_OK
    assert parl_mq("keys", "list", "--json", *keys) == EXIT_OK
    server, far = json.loads(capsys.readouterr().out)
    assert (server["name"], far) == ("server", {"name": "far", "role": "actor", "public": public})
    assert parl_mq("keys", "revoke", "far", *keys) == EXIT_OK
    assert parl_mq("keys", "revoke", "far", *keys) == EXIT_CONFIG
    assert "there are: none" in capsys.readouterr().err
    assert parl_mq("keys", "new", "own.key") == EXIT_CONFIG


@pytest.mark.parametrize("command", [("list",), ("revoke", "far"), ("allow", "a b", "actor", "--public", "x")])
@pytest.mark.parametrize("where", [("--run-dir", "."), ("--keys", "keys")])
def test_a_command_that_lets_nobody_in_makes_no_keys(parl_mq, tmp_path, capsys, command, where):
    assert parl_mq("keys", *command, *where) == (EXIT_USAGE if "allow" in command else EXIT_CONFIG)
    assert ("name: " if "allow" in command else "keys holds no keys") in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_join_token_is_one_file_and_the_command_for_it_is_told(parl_mq, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    Attachment(hub="tcp://10.0.0.1:29700", run_id="abc").write(tmp_path / "run")
    assert parl_mq("join-token", "actor", "--run-dir", "run", "--name", "lab", "--output", "lab.join") == EXIT_OK
    assert "parl-mq actor --join lab.join" in capsys.readouterr().err
    join = read_join_file(tmp_path / "lab.join")
    assert (join.hub, join.run_id, join.name, join.role) == ("tcp://10.0.0.1:29700", "abc", "lab", "actor")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["join-token", "actor"], EXIT_USAGE, "say which hub"),
        (["join-token", "actor", "--hub", "tcp://*:1", "--keys", "keys"], EXIT_USAGE, "--hub: 'tcp://*:1' names no"),
        (["join-token", "actor", "--hub", "ipc://x", "--keys", "keys"], EXIT_USAGE, "--hub: the hub of a join file"),
        (["join-token", "actor", "--hub", "tcp://h:1", "--keys", "keys", "--name", "a b"], EXIT_USAGE, "name: "),
        (["join-token", "actor", "--hub", "tcp://h:1", "--keys", "keys", "--public", "x"], EXIT_USAGE, "public: "),
        (["join-token", "actor", "--hub", "tcp://h:1", "--keys", "keys", "--output", "no/x"], EXIT_CONFIG, "no/x"),
        (["join-token", "actor", "--run-dir", "nowhere"], EXIT_CONFIG, "lets no other machine in"),
        (["keys", "list"], EXIT_USAGE, "say whose keys"),
        (["keys", "allow", "far", "actor", "--public", "short", "--keys", "keys"], EXIT_USAGE, "Z85"),
        (["keys", "allow", "a b", "actor", "--public", "x", "--keys", "keys"], EXIT_USAGE, "name"),
        (["actor"], EXIT_USAGE, "--hub ENDPOINT or --join FILE"),
        (["actor", "--join", "nothing"], EXIT_CONFIG, "nothing cannot be read"),
        (["train", "cartpole-dqn", "--bind", "tcp://0.0.0.0"], EXIT_USAGE, "--advertise HOST"),
        (["train", "cartpole-dqn", "--bind", "ipc://x"], EXIT_USAGE, "tcp://HOST"),
        (
            ["hub", "--bind", "tcp://0.0.0.0:1", "--config", "cartpole-dqn", "--run-dir", "r"],
            EXIT_USAGE,
            "--advertise",
        ),
        (["hub", "--bind", "tcp://h:1", "--bind", "tcp://h:2", "--config", "x", "--run-dir", "r"], EXIT_USAGE, "twice"),
        (["replay", "--hub", "ipc://x", "--bind", "tcp://192.0.2.1:5"], EXIT_USAGE, "needs keys"),
        (["doctor", "--hub", "tcp://h:1", "--join", "x"], EXIT_USAGE, "--hub ENDPOINT or --join FILE"),
        (["doctor", "--hub", "h"], EXIT_USAGE, "--hub: endpoint 'h'"),
    ],
)
def test_what_cannot_be_is_told(parl_mq, capsys, arguments, code, told):
    assert parl_mq(*arguments) == code
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("role", "told"),
    [
        ("actor", "parl-mq actor --join 'my lab.join'\n"),
        ("learner", "parl-mq learner --join 'my lab.join' --run-dir DIR\n"),
        ("replay", "parl-mq replay --join 'my lab.join' --bind tcp://ADDRESS:PORT\n"),
    ],
)
def test_the_command_that_is_told_has_all_that_a_node_of_its_role_needs(parl_mq, capsys, role, told):
    token = ["join-token", role, "--hub", "tcp://h:1", "--keys", "keys", "--output", "my lab.join"]
    assert parl_mq(*token) == EXIT_OK
    assert told in capsys.readouterr().err


def test_a_file_for_another_role_is_refused(parl_mq, capsys):
    assert parl_mq("join-token", "actor", "--hub", "tcp://h:1", "--keys", "keys", "--output", "a.join") == EXIT_OK
    assert parl_mq("evaluator", "--join", "a.join") == EXIT_NOT_ALLOWED
    assert "start `parl-mq actor`" in capsys.readouterr().err
