"""Which processes count as hung; `now` is whatever the test says."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from parl_mq.services.health import START_S, Watch
from parl_mq.services.processes import Child
from parl_mq.wire.messages import RunProgress

LIMIT_S = 10.0


def child(name, *, pid=7, started_at=0.0):
    role = "supervisor" if name == "zygote" else "actor"
    return Child(name, role, SimpleNamespace(pid=pid, returncode=None), Path("log"), started_at=started_at)


def news(silent_s=0.0, *, pid=7, progress=1):
    return RunProgress(phase="training", nodes=[], figures={}, pulses={"actor-0": (pid, silent_s, progress)})


def looks(watch, children, first, last, *, note=None):
    """Looks four times a second; the hub speaks as often, if there is a `note` for a time."""
    hung = []
    for quarter in range(round(first * 4), round(last * 4) + 1):
        if note is not None:
            watch.note(note(quarter / 4), quarter / 4)
        hung += [(quarter / 4, each.name) for each, _ in watch.hung(children, quarter / 4)]
    return hung


def test_a_node_hangs_when_its_heartbeats_have_stopped_for_longer_than_the_limit():
    hung = looks(Watch(LIMIT_S), [child("actor-0")], 1, 12, note=lambda now: news(now - 1))
    assert hung[0] == (11.25, "actor-0")


def test_a_node_that_beats_does_not_hang():
    assert looks(Watch(LIMIT_S), [child("actor-0")], 1, 100, note=lambda now: news()) == []


def test_a_node_that_never_joined_has_longer():
    hung = looks(Watch(LIMIT_S), [child("actor-1", started_at=1.0)], 1, 40, note=lambda now: news())
    assert hung[0] == (1 + START_S + 0.25, "actor-1")


def test_heartbeats_of_an_earlier_process_are_not_those_of_this_one():
    watch = Watch(LIMIT_S)
    restarted = child("actor-0", pid=8, started_at=20.0)
    assert looks(watch, [restarted], 20, 25, note=lambda now: news(19.0)) == []


def test_a_hub_that_says_nothing_hangs_and_nobody_else_is_judged_meanwhile():
    watch = Watch(LIMIT_S)
    children = [child("hub"), child("actor-0")]
    assert looks(watch, children, 1, 2, note=lambda now: news()) == []
    hung = looks(watch, children, 2.25, 13)
    assert hung[0] == (12.25, "hub")
    assert {name for _, name in hung} == {"hub"}


def test_after_the_hub_was_away_nodes_have_time_to_come_back():
    watch = Watch(LIMIT_S)
    waiting = [child("actor-1", started_at=1.0)]
    looks(watch, waiting, 1, 2, note=lambda now: news())
    looks(watch, waiting, 2.25, 60)
    assert looks(watch, waiting, 60.25, 80, note=lambda now: news()) == []


def test_nobody_hangs_because_the_supervisor_itself_was_away():
    watch = Watch(LIMIT_S)
    children = [child("hub"), child("actor-0")]
    looks(watch, children, 1, 2, note=lambda now: news())
    assert watch.hung(children, 100.0) == []
    assert looks(watch, children, 100, 105) == []


@pytest.mark.parametrize(("pid", "progress", "expected"), [(7, 1, True), (7, 0, False), (8, 1, False)])
def test_progress_is_that_of_the_same_process(pid, progress, expected):
    watch = Watch(LIMIT_S)
    watch.note(news(pid=pid, progress=progress), 1.0)
    assert watch.has_progress(child("actor-0")) is expected


def test_a_zygote_has_progress_once_it_has_forked_and_a_hub_once_it_has_spoken():
    watch = Watch(LIMIT_S)
    assert not watch.has_progress(child("zygote"))
    assert not watch.has_progress(child("hub", started_at=1.0))
    watch.note_fork(7)
    watch.note(news(), 2.0)
    assert watch.has_progress(child("zygote"))
    assert watch.has_progress(child("hub", started_at=1.0))
