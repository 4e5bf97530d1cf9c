"""What happened between two looks at a run."""

import pytest

from parl_mq.observe.events import events_between, failure_in_words
from tests.observe.statuses import node, status


@pytest.mark.parametrize(
    ("before", "after", "event"),
    [
        (None, node(), "actor-0 has joined from box"),
        (node(), node(starts=2), "actor-0 was started again (process 2)"),
        (node(), node(health="silent"), "actor-0 gives no sign of life"),
        (node(health="silent"), node(), "actor-0 is well again"),
        (node(), node(health="away"), "actor-0 has not been heard of since the hub's own start"),
        (node(), node(health="left"), "actor-0 has left in order"),
        (node(), node(health="failed"), "actor-0 has failed"),
    ],
)
def test_what_becomes_of_a_node_is_said(before, after, event):
    assert events_between(status(nodes=[] if before is None else [before]), status(nodes=[after])) == [event]


def test_environments_that_broke_are_said():
    before, after = (node(figures={"environment_faults_total": number}) for number in (1.0, 3.0))
    told = "actor-0: its environments broke 2 times, and were made anew; its log says why"
    assert events_between(status(nodes=[before]), status(nodes=[after])) == [told]


def test_nothing_is_said_of_what_stays():
    assert events_between(status(nodes=[node()]), status(nodes=[node(state="waiting")])) == []


def test_phases_evaluations_and_losses_are_said():
    before = status(figures={"eval_return": 10.0, "best_eval_return": 10.0})
    after = status(
        phase="stopping",
        stop_reason="the target return 475 is reached",
        figures={"eval_return": 480.0, "best_eval_return": 480.0, "lost_updates_total": 12.0},
    )
    assert events_between(before, after) == [
        "the run is stopping: the target return 475 is reached",
        "evaluation 480 (the best so far)",
        "12 updates went with a learner that had not saved them",
    ]


def test_a_worse_evaluation_is_not_called_the_best():
    before, after = status(), status(figures={"eval_return": 5.0, "best_eval_return": 10.0})
    assert events_between(before, after) == ["evaluation 5"]


def test_a_failed_run_says_why_in_a_line():
    assert events_between(status(), status(error="replay-0 cannot open\nmore")) == [
        "the run has failed: replay-0 cannot open more"
    ]


@pytest.mark.parametrize(("restart", "words"), [(None, "a died"), (2, "a died; restarted (2)")])
def test_a_failure_is_one_line(restart, words):
    assert failure_in_words({"node": "a", "how": "died", "restart": restart}) == words
