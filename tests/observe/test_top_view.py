"""The picture of a run that goes on."""

import io

import pytest
from rich.console import Console

from parl_mq.config.loader import load_config
from parl_mq.observe.top_view import Watcher
from tests.observe.statuses import node, status

ACTOR = {"env_steps_total": 1_000.0, "cpu_seconds_total": 5.0, "rss_bytes": 250e6}
LATER = {"env_steps_total": 5_000.0, "cpu_seconds_total": 6.0, "rss_bytes": 250e6}
FAILURE = {"time_s": 7.0, "node": "learner-0", "how": "died (signal 9)", "restart": 1, "told": ""}


@pytest.fixture
def watcher():
    return Watcher(load_config("cartpole-dqn", environ={}))


def drawn(watcher, note="", height=1_000):
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as captured:
        console.print(watcher.render(note, height=height))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 80
    return lines


def line_with(lines, word):
    return next(line for line in lines if word in line)


def test_rates_are_those_between_two_looks(watcher):
    watcher.see(status(nodes=[node(figures=ACTOR)]), [])
    assert "steps/s" not in line_with(drawn(watcher), "actor-0")
    watcher.see(status(wall_s=14.0, nodes=[node(figures=LATER)]), [])
    assert line_with(drawn(watcher), "actor-0").split() == [
        "actor-0", "healthy", "1k", "steps/s", "25%", "250M", "stepping",
    ]  # fmt: skip


def test_a_new_process_has_no_rate_of_the_old_one(watcher):
    watcher.see(status(nodes=[node(figures=LATER)]), [])
    watcher.see(status(wall_s=14.0, nodes=[node(figures=ACTOR, starts=2)]), [])
    assert "steps/s" not in line_with(drawn(watcher), "healthy")


def test_a_replay_node_shows_what_goes_in_and_out(watcher):
    before, after = ({"inserted_rows_total": x, "drawn_rows_total": 8 * x} for x in (100.0, 500.0))
    watcher.see(status(nodes=[node("replay-0", "replay", figures=before)]), [])
    watcher.see(status(wall_s=12.0, nodes=[node("replay-0", "replay", figures=after)]), [])
    lines = drawn(watcher)
    assert "200 in/s" in line_with(lines, "healthy")
    assert "1.6k out/s" in lines[lines.index(line_with(lines, "healthy")) + 1]


@pytest.mark.parametrize("silent_s", [3.0, 59.0, 12_345.0, 900_000.0])
def test_a_long_silence_leaves_the_names_whole(watcher, silent_s):
    figures = {"inserted_rows_total": 123_456.0, "drawn_rows_total": 1_234_567.0, **LATER}
    away = node("actor-10", health="silent", silent_s=silent_s, figures=ACTOR)
    for wall_s in (10.0, 11.0):
        watcher.see(status(wall_s=wall_s, nodes=[away, node("evaluator-0", "evaluator", figures=figures)]), [])
    lines = drawn(watcher)
    assert line_with(lines, "silent").startswith("actor-10 ")
    assert line_with(lines, "healthy").startswith("evaluator-0 ")


def test_nodes_keep_their_places(watcher):
    waiting = node("actor-1", waiting_for="the learner to draw", waiting_s=3.0, state="waiting")
    watcher.see(status(nodes=[node(), waiting, node("actor-2", health="silent", silent_s=9.0)]), [])
    lines = [line for line in drawn(watcher) if line.startswith("actor")]
    assert [line.split()[0] for line in lines] == ["actor-0", "actor-1", "actor-2"]
    assert "the learner to draw (3 s)" in lines[1]
    assert "silent 9.0 s" in lines[2]


def test_what_a_node_waits_for_can_be_read_whatever_stands_beside_it(watcher):
    long, rates = (
        "guest.a-machine-with-a-name-of-many-parts.example.org:17",
        ("inserted_rows_total", "drawn_rows_total"),
    )
    for wall_s, size in ((10.0, 1.0), (11.0, 123_456.0)):
        figures = {**dict.fromkeys(rates, size), "cpu_seconds_total": 2.5 * wall_s, "rss_bytes": 123e6}
        waiting = node("replay-0", "replay", figures=figures, waiting_for="the learner to draw", waiting_s=12.0)
        named = node(long, health="silent", silent_s=55.0, waiting_for="the replay node to take rows", waiting_s=3.0)
        watcher.see(status(wall_s=wall_s, nodes=[waiting, named]), [])
    words = [line[-26:].strip() for line in drawn(watcher)]
    assert "the learner to draw (12 s)" in words
    assert "the replay node to take rows (3 s)" in " ".join(words)
    assert long in "".join(line[:20].partition("  ")[0].strip() for line in drawn(watcher))


def test_events_stand_below_with_the_newest_first(watcher):
    watcher.see(status(nodes=[node()]), [FAILURE])
    watcher.see(status(wall_s=12.0, nodes=[node(starts=2)]), [FAILURE])
    lines = drawn(watcher)
    at = lines.index(line_with(lines, "last events"))
    assert "12 s  actor-0 was started again" in lines[at + 1]
    assert "7 s  learner-0 died (signal 9); restarted (1)" in lines[at + 2]


def test_a_low_terminal_shows_whom_it_has_room_for(watcher):
    nodes = [node(f"actor-{index}") for index in range(100)]
    watcher.see(status(nodes=[*nodes, node("learner-0", "learner", health="failed")]), [])
    lines = drawn(watcher, height=24)
    assert len(lines) <= 24
    assert "failed" in line_with(lines, "learner-0")
    assert line_with(lines, "and ").split()[2] == "more"


def test_a_run_that_has_not_begun_is_its_note(watcher):
    assert drawn(watcher, "the run has not begun") == ["the run has not begun"]


def test_the_note_says_how_old_the_picture_is(watcher):
    watcher.see(status(), [])
    assert drawn(watcher, "the hub does not answer; as of 9 s ago")[1] == "the hub does not answer; as of 9 s ago"
