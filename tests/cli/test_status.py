"""`parl-mq status` and `parl-mq wire dump`: what they print, of a hub that is there and of one that is not."""

import asyncio
import json
import os
import threading
import time

import pytest

from parl_mq.errors import EXIT_CONFIG, EXIT_NOT_ALLOWED, EXIT_OK, EXIT_USAGE
from parl_mq.net.capture import Capture
from parl_mq.net.zmq_channel import Network
from parl_mq.services.hub import Hub, HubOptions
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.runtime import StopSignal
from parl_mq.wire.codec import encode
from parl_mq.wire.messages import Heartbeat, Welcome
from tests.cli.command import run_command
from tests.observe.statuses import node, status
from tests.services.builders import hello, small_config, soon

FAILURE = {
    "time_s": 12.34,
    "node": "actor-0",
    "how": "ended with code 70",
    "restart": 1,
    "told": 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: joint 7',
}


@pytest.fixture
def directory(tmp_path):
    return RunDirectory.create(tmp_path / "run", small_config())


@pytest.fixture
def hub_at_work(directory, tmp_path_factory):
    """A hub in another thread, with an actor that waits; ended by what this gives."""
    endpoint = f"ipc://{tmp_path_factory.mktemp('s')}/hub"
    ready, end = threading.Event(), threading.Event()

    async def serve():
        network = Network()
        hub = Hub(network, endpoint, HubOptions(small_config(), directory.path, time.monotonic()), StopSignal())
        serving = asyncio.create_task(hub.run())
        actor = network.connect(endpoint)
        await actor.send(encode(hello("actor")))
        await soon(actor.receive_many())
        beat = Heartbeat(sequence=1, progress=1, state="waiting", waiting_for="the replay node: 0/10 rows")
        await actor.send(encode(beat))
        await soon(actor.receive_many())
        ready.set()
        await asyncio.to_thread(end.wait)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        network.close(linger_s=0)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(20)

    def stop():
        end.set()
        thread.join()

    yield stop
    stop()


def shown(monkeypatch, capsys, *arguments):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command(monkeypatch, "status", *arguments) == EXIT_OK
    return capsys.readouterr().out


def test_a_run_that_is_going_on_is_asked(directory, hub_at_work, monkeypatch, capsys):
    directory.append_failure(FAILURE)
    out = shown(monkeypatch, capsys, str(directory.path))
    assert "the hub says this" in out
    assert "the replay node: 0/10 rows" in out.replace("\n", " ").replace("  ", " ")
    assert "rows: 0 sent = 0 acknowledged + 0 abandoned + 0 under way" in out
    assert "12.3 s: actor-0 ended with code 70; restarted (1)" in out
    assert "ValueError: joint 7" in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_has_nodes_books_and_failures(directory, hub_at_work, monkeypatch, capsys):
    directory.append_failure(FAILURE)
    told = json.loads(shown(monkeypatch, capsys, str(directory.path), "--json"))
    assert (told["source"], told["has_ended"], told["phase"]) == ("hub", False, "starting")
    [node] = told["nodes"]
    assert (node["name"], node["health"], node["waiting_for"]) == ("actor-0", "healthy", "the replay node: 0/10 rows")
    assert told["books"]["sent"] == 0
    assert told["failures"] == [FAILURE]


def test_of_a_hub_that_is_gone_the_last_known_state_is_shown(directory, hub_at_work, monkeypatch, capsys):
    path = directory.path / "status.json"
    deadline = time.monotonic() + 20
    while not (path.exists() and '"actor-0"' in path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)  # the hub writes once a second, in another thread
    hub_at_work()
    out = shown(monkeypatch, capsys, str(directory.path))
    assert "the hub does not answer; as of" in out
    assert "actor-0" in out


def left_by_a_dead_hub(directory, **changes):
    """What a hub wrote a minute before it was killed."""
    directory.write_status(status(**changes).model_dump(mode="json", exclude={"kind"}))
    an_age_ago = time.time() - 60
    os.utime(directory.path / "status.json", (an_age_ago, an_age_ago))


BOOKS = {"sent": 10, "acknowledged": 10, "abandoned": 0, "under_way": 0, "stored": 12, "lost": 0}


def test_a_run_whose_processes_were_killed_is_presumed_dead(directory, monkeypatch, capsys):
    left_by_a_dead_hub(directory, books=BOOKS, nodes=[node(waiting_for="the replay node")])
    with directory.held():
        assert "the hub does not answer; as of 60 s ago" in shown(monkeypatch, capsys, str(directory.path))
    out = shown(monkeypatch, capsys, str(directory.path))
    assert "presumed dead since" in out
    assert f"`parl-mq train {directory.config} --run-dir {directory.path} --resume`" in out
    assert "replay nodes told theirs later than the actors did" in out
    told = json.loads(shown(monkeypatch, capsys, str(directory.path), "--json"))
    assert told["is_dead"]
    assert [(one["health"], one["waiting_for"]) for one in told["nodes"]] == [("failed", None)]


def test_top_ends_where_all_processes_have_died(directory, monkeypatch, capsys):
    left_by_a_dead_hub(directory, books=BOOKS)
    assert run_command(monkeypatch, "top", str(directory.path)) == EXIT_OK
    assert "presumed dead since" in capsys.readouterr().out


def test_a_failed_run_says_why(directory, monkeypatch, capsys):
    left_by_a_dead_hub(
        directory, books=BOOKS, error="actor-0 ended; the end of its log:\n  line\n  ValueError: joint 7"
    )
    out = shown(monkeypatch, capsys, str(directory.path))
    assert "failed: actor-0 ended; the end of its log: ValueError: joint 7" in out


def test_a_run_without_a_word_of_its_hub_has_not_begun(directory, monkeypatch, capsys):
    assert run_command(monkeypatch, "status", str(directory.path)) == EXIT_OK
    assert "has not begun" in capsys.readouterr().err


def test_what_is_no_run_directory_is_named(tmp_path, monkeypatch, capsys):
    assert run_command(monkeypatch, "status", str(tmp_path)) == EXIT_CONFIG
    assert f"{tmp_path} is no run directory" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "top", "play", "runs"])
def test_a_directory_that_is_not_there_is_a_slip_of_whoever_named_it(command, tmp_path, monkeypatch, capsys):
    assert run_command(monkeypatch, command, str(tmp_path / "nowhere")) == EXIT_USAGE
    assert f"{tmp_path / 'nowhere'}: there is no such directory" in capsys.readouterr().err


def test_a_damaged_record_is_named(directory, monkeypatch, capsys):
    (directory.path / "status.json").write_text("{")
    assert run_command(monkeypatch, "status", str(directory.path)) == EXIT_CONFIG
    assert f"{directory.path} holds a damaged file" in capsys.readouterr().err


def test_a_record_that_this_user_may_not_read_is_said_to_be_so(directory, monkeypatch, capsys):
    def refuse(_):
        raise PermissionError

    monkeypatch.setattr(RunDirectory, "read_status", refuse)
    assert run_command(monkeypatch, "status", str(directory.path)) == EXIT_NOT_ALLOWED
    assert "cannot be read by this user" in capsys.readouterr().err


def test_captured_messages_are_one_line_each(tmp_path, monkeypatch, capsys):
    capture = Capture(tmp_path / "c", lambda: 0.5)
    capture.note(encode(hello("actor")), sent=True, endpoint="ipc:///x/hub")
    beat = Heartbeat(sequence=1, progress=1, state="stepping")
    capture.note(encode(beat), sent=False, endpoint="ipc:///x/hub", peer=b"\x01\x02")
    capture.note([b"\xff"], sent=False, endpoint="ipc:///x/hub")
    capture.close()
    assert run_command(monkeypatch, "wire", "dump", str(tmp_path / "c")) == EXIT_OK
    first, second, third = capsys.readouterr().out.splitlines()
    assert "-> hub hello protocol=2 role='actor' name='actor-0'" in first
    assert "<- hub 0102 heartbeat sequence=1" in second
    assert "unreadable" in third
    assert (
        run_command(monkeypatch, "wire", "dump", str(tmp_path / "c"), "--kind", Welcome.model_fields["kind"].default)
        == 0
    )
    assert capsys.readouterr().out == ""


def test_a_damaged_capture_is_told_as_far_as_it_is_whole(tmp_path, monkeypatch, capsys):
    for moment_s in (0.5, 1e30):
        capture = Capture(tmp_path / "c", lambda: moment_s)  # noqa: B023  (called within the round)
        capture.note(encode(hello("actor")), sent=True, endpoint="ipc:///x/hub")
        capture.close()
    assert run_command(monkeypatch, "wire", "dump", str(tmp_path / "c")) == EXIT_CONFIG
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 1
    assert told.err == f"parl-mq: {tmp_path / 'c'} is damaged: message 2: time is 1e+30, slab_bytes 0\n"


def test_top_prints_plain_pictures_where_stdout_is_no_terminal(directory, hub_at_work, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command(monkeypatch, "top", str(directory.path), "--every", "0.1", "--count", "2") == EXIT_OK
    out = capsys.readouterr().out
    assert out.count("cartpole-dqn  CartPole-v1") == 2
    assert "the replay node: 0/10 rows" in out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_top_ends_with_the_run(directory, monkeypatch, capsys):
    directory.write_summary({"interrupted": False, "error": None})
    assert run_command(monkeypatch, "top", str(directory.path)) == EXIT_OK
    assert "has not begun" in capsys.readouterr().out


def test_top_needs_no_algorithm_that_is_found_elsewhere_alone(directory, monkeypatch, capsys):
    text = directory.config.read_text().replace('name = "dqn"', 'name = "their:Dueling"\nown = 1')
    directory.config.write_text(text)
    directory.write_summary({"interrupted": False, "error": None})
    assert run_command(monkeypatch, "top", str(directory.path)) == EXIT_OK
    assert "has not begun" in capsys.readouterr().out
    directory.config.write_text(text.replace("[replay]", "[replya]"))
    assert run_command(monkeypatch, "top", str(directory.path)) == EXIT_CONFIG
    assert "config.toml is damaged" in capsys.readouterr().err
