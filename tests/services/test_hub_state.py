"""What the hub decides, without a network; `now` is whatever the test says."""

import itertools
from typing import get_args

import numpy as np
import pytest
from pydantic import ValidationError

from parl_mq.errors import EXIT_CONFIG, EXIT_TEMPORARY, WireError
from parl_mq.metrics import METRICS
from parl_mq.replay.senders import digest_of
from parl_mq.services.books import ACTOR_COUNTERS
from parl_mq.services.hub_state import HubState
from parl_mq.services.run_memory import RunMemory
from parl_mq.spec import WeightsVersion
from parl_mq.wire.codec import encode
from parl_mq.wire.messages import (
    EpisodesFinished,
    EvaluationFinished,
    Goodbye,
    GroupEnded,
    GroupFormed,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    HelloHeld,
    HelloRefused,
    LearnerReady,
    OpenTable,
    Ping,
    Pong,
    ProbeRequest,
    Role,
    RunProgress,
    RunState,
    SayHello,
    SenderAccounts,
    SpecOffer,
    StatusRequest,
    Stop,
    StopRequest,
    TableOpened,
    TableRefused,
    ToHub,
    Welcome,
)
from tests.services.builders import OTHER_SPEC, SPEC, hello, small_config, spec_offer
from tests.wire.examples import MESSAGES

FIGURES = {metric.name: 1.0 for metric in METRICS if metric.label is None}
TO_HUB = get_args(get_args(ToHub)[0])


def hub_state(*overrides, before=None, started_at=0.0):
    return HubState(
        small_config(*overrides),
        run_id="run",
        weights_endpoint="ipc:///weights",
        started_at=started_at,
        before=before or RunMemory(),
    )


def join(state, role, name=None, now=0.0, **fields):
    """A node joins under its own name as routing id; returns that."""
    message = hello(role, name, **fields)
    peer = message.name.encode()
    state.handle(peer, message, now)
    return peer


def beat(state, peer, now=0.0, *, condition="stepping", **counters):
    return state.handle(peer, Heartbeat(sequence=0, progress=0, state=condition, counters=counters), now)


def evaluated(state, returns, *, version=None, updates=10, now=0.0):
    report = EvaluationFinished(
        version=(1, next(_COUNTERS)) if version is None else version,
        updates=updates,
        returns=returns,
        lengths=[1] * len(returns),
        duration_s=0.1,
    )
    return state.handle(b"evaluator-0", report, now)


def evaluated_by(state, returns):
    """A fresh evaluator joins and reports."""
    join(state, "evaluator")
    return evaluated(state, returns)


_COUNTERS = itertools.count(1000)  # of versions: none is evaluated twice


def of_kind(outgoing, kind):
    return [(peer, message) for peer, message in outgoing if isinstance(message, kind)]


def stopped(outgoing):
    return {peer for peer, _ in of_kind(outgoing, Stop)}


@pytest.fixture
def crew():
    """A run in which every node has joined."""
    state = hub_state()
    for role in ("supervisor", "replay", "learner", "actor", "evaluator"):
        join(state, role)
    return state


# Joining


def test_welcome_brings_the_config_without_what_is_local():
    (_, welcome), (_, run_state) = hub_state("node.device=cpu").handle(b"a", hello("actor"), 0.0)
    assert isinstance(welcome, Welcome)
    assert "node" not in welcome.config
    assert welcome.config["algorithm"]["batch_size"] == 8
    assert (welcome.run_id, welcome.weights_endpoint, welcome.incarnation) == ("run", "ipc:///weights", 1)
    assert run_state == RunState(columns=None, spaces={}, digest=None, replay_endpoints=[])


@pytest.mark.parametrize(
    ("fields", "reason"), [({"protocol": 99}, "protocol 99"), ({"run_id": "another"}, "run another")]
)
def test_a_node_of_another_version_or_run_is_refused(fields, reason):
    [(_, refused)] = hub_state().handle(b"a", hello("actor", **fields), 0.0)
    assert isinstance(refused, HelloRefused)
    assert reason in refused.reason
    assert refused.exit_code == EXIT_CONFIG


def test_index_is_the_number_in_the_name_where_it_is_free():
    state = hub_state()
    indices = [
        state.handle(name.encode(), hello("actor", name), 0.0)[0][1].index
        for name in ("actor-2", "actor-0", "box.2", "box", "actor-99999")
    ]
    assert indices == [2, 0, 1, 3, 4]


def test_indices_count_for_each_role_alone():
    state = hub_state()
    assert [state.handle(role.encode(), hello(role), 0.0)[0][1].index for role in ("actor", "learner")] == [0, 0]


def test_learners_of_one_machine_are_counted_apart_from_those_of_others():
    def index_of(state, name, host, epoch=1):
        told = state.handle(name.encode(), hello("learner", name, epoch=epoch).model_copy(update={"host": host}), 0.0)
        return next(message.host_index for _, message in told if isinstance(message, Welcome))

    state = hub_state("learner.num_learners=4")
    joined = (("learner-a-1", "a"), ("learner-b-1", "b"), ("learner-a-2", "a"), ("learner-b-2", "b"))
    assert [index_of(state, name, host) for name, host in joined] == [0, 0, 1, 1]
    assert index_of(state, "learner-b-2", "b") == 1
    state.handle(b"learner-a-1", Goodbye(error="killed"), 1.0)
    assert index_of(state, "learner-a-2", "a") == 1
    state = hub_state("learner.num_learners=4", before=state.memory(2.0))
    assert index_of(state, "learner-a-3", "a") == 0  # of the place that is free
    assert index_of(state, "learner-a-1", "a", epoch=2) == 2


def test_a_reconnected_node_keeps_its_index_and_is_known_by_its_new_route():
    state = hub_state()
    join(state, "actor", "actor-5")
    (peer, welcome), *_ = state.handle(b"new", hello("actor", "actor-5"), 1.0)
    assert (peer, welcome.index) == (b"new", 5)
    assert [type(message) for _, message in beat(state, b"new")] == [HeartbeatSeen]
    assert beat(state, b"actor-5") == [(b"actor-5", SayHello())]


def test_a_newer_process_takes_over_the_name_and_its_totals_are_added():
    state = hub_state()
    old = join(state, "actor", epoch=1)
    beat(state, old, env_steps_total=10)
    [(peer, held), _] = state.handle(b"new", hello("actor", epoch=2), 1.0)
    assert (peer, type(held)) == (b"new", HelloHeld)
    assert isinstance(state.note_unreachable(old, 1.0)[0][1], Welcome)
    beat(state, b"new", env_steps_total=3)
    assert state.figures()["env_steps_total"] == 13


# Two processes of one name


def test_the_old_process_is_asked_and_keeps_its_name_when_it_answers():
    state = hub_state()
    old = join(state, "actor", epoch=1)
    assert of_kind(state.handle(b"new", hello("actor", epoch=2), 1.0), Ping) == [(old, Ping())]
    [(peer, refused)] = state.handle(old, Pong(), 1.1)
    assert (peer, refused.exit_code) == (b"new", EXIT_TEMPORARY)
    assert "actor-0 is in the run already, as process 1 on here" in refused.reason
    assert state.handle(old, Pong(), 1.2) == []


def test_a_name_is_free_at_once_when_the_old_process_has_left():
    state = hub_state()
    state.handle(join(state, "actor", epoch=1), Goodbye(), 1.0)
    assert isinstance(state.handle(b"new", hello("actor", epoch=2), 1.0)[0][1], Welcome)


def test_an_unanswered_process_is_asked_every_second_and_loses_its_name_after_the_busy_limit():
    state = hub_state("node.busy_limit_s=3")
    old = join(state, "actor", epoch=1)
    state.handle(b"new", hello("actor", epoch=2), 0.25)
    asked, welcomed = [], []
    for number in range(2, 20):
        outgoing = state.tick(number / 4)
        asked += [number / 4 for peer, _ in of_kind(outgoing, Ping) if peer == old]
        welcomed += [number / 4 for peer, _ in of_kind(outgoing, Welcome) if peer == b"new"]
    assert (asked, welcomed) == ([1.25, 2.25], [3.0])


def test_of_two_that_claim_a_name_the_later_one_waits_for_it():
    state = hub_state()
    old = join(state, "actor", epoch=1)
    state.handle(b"second", hello("actor", epoch=2), 0.0)
    outgoing = state.handle(b"third", hello("actor", epoch=3), 0.1)
    assert [peer for peer, _ in of_kind(outgoing, HelloRefused)] == [b"second"]
    assert state.note_unreachable(old, 0.2)[0][0] == b"third"


def test_a_process_that_was_superseded_is_told_so():
    state = hub_state()
    old = join(state, "actor", epoch=1)
    state.handle(b"new", hello("actor", epoch=2), 0.0)
    state.note_unreachable(old, 0.0)
    [(_, refused)] = state.handle(b"again", hello("actor", epoch=1), 1.0)
    assert (refused.reason, refused.exit_code) == ("a newer actor-0 has joined the run", EXIT_TEMPORARY)


def test_a_node_whose_clock_was_set_back_is_a_newer_process_all_the_same():
    state = hub_state()
    old = join(state, "actor", epoch=1_000)
    state.handle(b"new", hello("actor", epoch=10), 1.0)
    [(_, welcome), *_] = state.note_unreachable(old, 1.0)
    assert (welcome.epoch, welcome.incarnation) == (1_001, 2)
    [(_, again), *_] = hub_state(before=state.memory(2.0)).handle(b"x", hello("actor", epoch=10), 3.0)
    assert (again.epoch, again.incarnation) == (1_001, 2)  # another hub knows it again
    [(_, refused)] = state.handle(b"old", hello("actor", epoch=1_000), 3.0)
    assert (type(refused), refused.exit_code) == (HelloRefused, EXIT_TEMPORARY)
    assert of_kind(state.handle(b"new", hello("actor", epoch=10), 3.0), Welcome)


def test_a_hello_that_says_nothing_new_is_not_written_down():
    state = hub_state()
    assert [(state.handle(b"a", hello("actor"), 0.0)[0][1].index, state.take_settled()) for _ in range(3)] == [
        (0, True),
        (0, False),
        (0, False),
    ]


def test_no_epoch_that_a_node_may_say_is_too_late_for_the_next_one():
    state = hub_state()
    state.handle(join(state, "actor", epoch=2**62 - 1), Goodbye(), 0.0)
    [(_, welcome), *_] = state.handle(b"new", hello("actor", epoch=1), 1.0)
    assert welcome.epoch == 2**62


def test_a_route_is_one_nodes_whatever_names_it_says():
    state = hub_state()
    for peer in (b"one", b"two"):
        for name in ("lab.1", "lab.2", "lab.1"):
            state.handle(peer, hello("actor", name), 0.0)
    assert [node.health for node in state.status(0.0).nodes] == ["healthy", "away"]
    state.handle(b"two", Goodbye(), 0.0)
    assert [node.health for node in state.status(0.0).nodes] == ["left", "away"]


def test_a_name_belongs_to_one_role():
    state = hub_state()
    join(state, "actor", "one")
    [(_, refused)] = state.handle(b"x", hello("learner", "one", epoch=2), 1.0)
    assert "joined as actor" in refused.reason


def test_each_group_of_learners_gets_the_next_generation_and_a_reconnect_none():
    state = hub_state(before=RunMemory(generation=4))
    generations = []
    for peer, epoch in ((b"1", 1), (b"2", 1), (b"3", 2)):
        state.handle(peer, hello("learner", epoch=epoch), 0.0)
        state.note_unreachable(b"2", 0.0)  # a process of this name that was there is gone
        told = state.handle(peer, LearnerReady(generation=0, updates=0, device="cpu"), 0.0)
        generations += [message.generation for _, message in told if isinstance(message, GroupFormed)]
        assert state.take_settled()  # nobody hears of a generation that another hub would give again
        assert state.memory(0.0).generation == generations[-1]
    assert generations == [5, 5, 6]


def test_no_group_begins_once_the_run_ends():
    state = hub_state()
    peer = join(state, "learner")
    state.stop("enough", 0.0)
    assert state.handle(peer, LearnerReady(generation=0, updates=0, device="cpu"), 0.0) == []
    assert not [message for _, message in state.tick(1.0) if isinstance(message, GroupFormed)]


def test_a_learner_that_says_goodbye_ends_its_group():
    state = hub_state("learner.num_learners=2")
    for name in ("learner-0", "learner-1"):
        peer = join(state, "learner", name)
        state.handle(peer, LearnerReady(generation=0, updates=0, device="cpu"), 0.0)
    told = state.handle(b"learner-1", Goodbye(error="out of memory"), 1.0)
    assert (b"learner-0", GroupEnded(generation=1, reason="learner-1 has failed")) in told


def ready(state, peer, *, updates=0, generation=0, now=0.0):
    return state.handle(peer, LearnerReady(generation=generation, updates=updates, device="cpu"), now)


def test_a_second_learner_is_refused_beside_the_one_of_the_run_and_may_come_once_that_has_left():
    state = hub_state()
    ready(state, join(state, "learner"))
    [(_, refused)] = state.handle(b"other", hello("learner", "learner.9"), 1.0)
    assert (type(refused), refused.exit_code) == (HelloRefused, EXIT_TEMPORARY)
    assert "has its learner.num_learners = 1 already, learner-0 (process 1 on here)" in refused.reason
    assert "--name learner-0" in refused.reason
    state.handle(b"learner-0", Goodbye(), 2.0)
    assert isinstance(state.handle(b"other", hello("learner", "learner.9"), 3.0)[0][1], Welcome)
    [(_, refused)] = state.handle(b"learner-0", hello("learner"), 4.0)
    assert "learner.9" in refused.reason


def test_a_learner_that_has_found_none_of_the_run_s_updates_does_not_lead_it_on_from_nothing():
    state = hub_state()
    ready(state, join(state, "learner"))
    beat(state, b"learner-0", updates_total=1_000)
    state.handle(b"learner-0", Goodbye(counters={"updates_total": 1_000}), 1.0)
    other = join(state, "learner", "learner.9", now=2.0)
    [(peer, refused)] = ready(state, other, now=2.0)
    assert (peer, refused.exit_code) == (other, EXIT_CONFIG)
    assert "has made 1,000 updates, and learner.9 has found none of them" in refused.reason
    assert of_kind(ready(state, other, updates=900, now=3.0), GroupFormed)


def test_the_same_learner_may_begin_anew_where_it_died_before_its_first_checkpoint():
    state = hub_state()
    ready(state, join(state, "learner"))
    beat(state, b"learner-0", updates_total=10)
    state.handle(b"learner-0", Goodbye(error="killed"), 1.0)
    assert of_kind(ready(state, join(state, "learner", epoch=2, now=2.0), now=2.0), GroupFormed)


@pytest.mark.parametrize("size", [1, 2])
def test_a_hub_that_was_started_again_knows_the_group_that_learns(size):
    names = [f"learner-{index}" for index in range(size)]
    overrides = ("actor.num_actors=1", f"learner.num_learners={size}")
    before = hub_state(*overrides)
    for name in names:
        ready(before, join(before, "learner", name))
    state = hub_state(*overrides, before=before.memory(1.0))
    assert state.memory(1.0).group == tuple(names)
    for name in ("learner-7", "learner-8")[: 2 * (size - 1)]:
        assert not of_kind(ready(state, join(state, "learner", name, now=1.0), now=1.0), GroupFormed)
    told = state.handle(b"again", hello("learner", "learner-0", epoch=2), 2.0)
    assert not of_kind(told, GroupFormed)
    told = ready(state, b"again", updates=3, now=2.0) + state.tick(2.1)
    assert bool(of_kind(told, GroupFormed)) == (size == 1)
    if size == 2:  # the other one has what they have learned
        state.handle(b"other", hello("learner", "learner-1"), 2.2)
        assert of_kind(ready(state, b"other", updates=9, generation=1, now=2.3), GroupFormed)


def test_no_group_is_at_work_when_a_run_is_resumed():
    before = hub_state()
    ready(before, join(before, "learner"))
    state = hub_state(before=before.memory(1.0), started_at=50.0)
    assert of_kind(ready(state, join(state, "learner", "learner.9", now=51.0), now=51.0), GroupFormed)


def test_who_is_left_of_a_group_that_broke_keeps_the_updates_when_the_run_ends():
    state = hub_state("learner.num_learners=2")
    join(state, "actor")
    for name in ("learner-0", "learner-1"):
        ready(state, join(state, "learner", name))
    ready(state, b"learner-1", generation=1, updates=9)  # learner-0 is lost
    told = state.stop("enough", 1.0)
    [(peer, formed)] = of_kind(told, GroupFormed)
    assert (peer, formed.names) == (b"learner-1", ["learner-1"])
    told = state.handle(b"actor-0", Goodbye(), 1.1)
    assert b"learner-1" in stopped(told)
    assert ready(state, b"learner-1", generation=2, now=1.2) == []  # no group begins any more


def test_a_learner_whose_key_is_revoked_ends_its_group_by_its_name():
    state = hub_state("learner.num_learners=2")
    for name in ("learner-0", "learner-1"):
        ready(state, join(state, "learner", name))
    told = state.expel(lambda peer: peer == b"learner-1", 1.0)
    reason = "learner-1 may not take part any more: its key was revoked"
    assert told == [(b"learner-0", GroupEnded(generation=1, reason=reason))]


def test_no_actor_joins_a_run_in_lock_step_beside_those_that_it_counts_on():
    state = hub_state("deterministic=true", "stop.max_updates=9", "actor.num_actors=1")
    join(state, "actor")
    [(_, refused)] = state.handle(b"more", hello("actor", "actor-1"), 1.0)
    assert refused.exit_code == EXIT_CONFIG
    assert "actor.num_actors = 1 already, actor-0, which go in lock step" in refused.reason
    assert isinstance(hub_state().handle(b"more", hello("actor", "actor-1"), 1.0)[0][1], Welcome)


def test_the_target_does_not_end_a_run_in_lock_step():
    state = hub_state("deterministic=true", "stop.max_updates=9", "stop.target_return=1")
    assert stopped(evaluated_by(state, [5.0])) == set()
    assert state.time_to_target_s is not None


def test_a_stranger_is_asked_to_say_hello_and_changes_nothing():
    state = hub_state()
    request = StopRequest(reason="because")
    assert state.handle(b"stranger", request, 0.0) == [(b"stranger", SayHello())]
    assert state.phase == "starting"


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("actor", StopRequest(reason="because")),
        ("actor", TableOpened(table="main", num_bytes=1, num_rows=1)),
        ("learner", EpisodesFinished(returns=[1.0], lengths=[1], env_steps=1)),
        ("actor", EvaluationFinished(version=(1, 1), updates=1, returns=[9.0], lengths=[1], duration_s=0)),
        ("learner", TableRefused(table="main", reason="no room")),
    ],
)
def test_a_role_sends_only_its_own_messages(role, message):
    state = hub_state()
    peer = join(state, role)
    with pytest.raises(WireError, match=f"joined as {role}"):
        state.handle(peer, message, 0.0)
    assert (state.phase, state.error, state.tally.take_evaluations()) == ("starting", None, [])


# What is settled


def test_the_first_spec_settles_the_table_and_every_replay_node_opens_it():
    state = hub_state()
    replay, actor = join(state, "replay"), join(state, "actor")
    outgoing = state.handle(actor, spec_offer(), 0.0)
    assert [peer for peer, _ in of_kind(outgoing, OpenTable)] == [replay]
    assert {peer for peer, message in of_kind(outgoing, RunState) if message.digest == SPEC.digest} == {replay, actor}


def test_a_replay_node_that_joins_later_opens_the_table_at_once():
    state = hub_state()
    state.handle(join(state, "actor"), spec_offer(), 0.0)
    outgoing = state.handle(b"r", hello("replay"), 1.0)
    assert [message.digest for _, message in of_kind(outgoing, OpenTable)] == [SPEC.digest]


def test_the_same_spec_again_changes_nothing():
    state = hub_state()
    actor = join(state, "actor")
    state.handle(actor, spec_offer(), 0.0)
    assert state.handle(actor, spec_offer(), 0.0) == []


def test_a_node_with_other_columns_is_refused_by_their_names():
    state = hub_state()
    state.handle(join(state, "actor"), spec_offer(), 0.0)
    other = join(state, "actor", "actor-1")
    [(peer, refused)] = state.handle(other, spec_offer(OTHER_SPEC), 0.0)
    assert (peer, refused.exit_code) == (other, EXIT_CONFIG)
    assert "columns obs differ" in refused.reason


@pytest.mark.parametrize(
    "fields", [{"digest": "0" * 64}, {"columns": [("obs", [4], "object")]}, {"columns": [("obs", [4], "float32")]}]
)
def test_a_spec_that_contradicts_itself_is_not_taken(fields):
    state = hub_state()
    actor = join(state, "actor")
    with pytest.raises(WireError, match="actor-0 offers columns"):
        state.handle(actor, spec_offer().model_copy(update=fields), 0.0)
    assert of_kind(state.handle(actor, spec_offer(), 0.0), RunState)


def test_replay_endpoints_are_told_once_tables_are_open_by_index():
    state = hub_state("replay.nodes=2")
    state.handle(join(state, "actor"), spec_offer(), 0.0)
    for index in (1, 0):
        peer = join(state, "replay", f"replay-{index}", data_endpoint=f"ipc:///{index}")
        outgoing = state.handle(peer, TableOpened(table="main", num_bytes=1, num_rows=1), 0.0)
    assert {tuple(message.replay_endpoints) for _, message in outgoing} == {("ipc:///0", "ipc:///1")}


def test_a_refused_table_ends_the_run_with_its_reason(crew):
    outgoing = crew.handle(b"replay-0", TableRefused(table="main", reason="9 GiB needed"), 0.0)
    assert crew.error == ("replay-0 cannot open the table: 9 GiB needed", EXIT_CONFIG)
    assert stopped(outgoing) == {b"actor-0", b"evaluator-0"}


# Figures


def test_totals_are_summed_over_nodes_and_gauges_taken_from_the_first_learner_and_replay():
    state = hub_state()
    for name in ("actor-0", "actor-1"):
        beat(state, join(state, "actor", name), env_steps_total=5, weights_version=9)
    beat(state, join(state, "learner"), condition="updating", loss=0.5, updates_total=3)
    figures = state.figures()
    assert (figures["env_steps_total"], figures["loss"], figures["updates_total"]) == (10, 0.5, 3)
    assert "weights_version" not in figures


def test_policy_lag_is_what_an_actors_weights_lack_and_that_of_a_run_the_mean():
    state = hub_state()
    actors = [join(state, "actor", f"actor-{index}") for index in range(3)]
    state.note_weights(WeightsVersion(2, 8), 400)
    beat(state, actors[0], weights_generation=2, weights_version=7, weights_updates=350)
    beat(state, actors[1], weights_generation=2, weights_version=5, weights_updates=250)
    beat(state, actors[2], weights_generation=1, weights_version=9, weights_updates=900)
    told = {node.name: node.figures.get("policy_lag") for node in state.node_figures(0.0)}
    assert told == {"actor-0": 50.0, "actor-1": 150.0, "actor-2": None}
    assert state.figures()["policy_lag"] == 100.0


def test_figures_of_nodes_say_how_they_are_and_leave_out_who_has_left():
    state = hub_state()
    join(state, "learner", now=0.0)
    gone = join(state, "actor", now=0.0)
    beat(state, b"learner-0", now=1.0, updates_total=7)
    state.handle(gone, Goodbye(sequence=1), 1.0)
    (node,) = state.node_figures(2.0)
    assert (node.name, node.role, node.figures["updates_total"]) == ("learner-0", "learner", 7)
    assert (node.figures["node_up"], node.figures["node_silent_seconds"]) == (1.0, 1.0)
    assert state.node_figures(100.0)[0].figures["node_up"] == 0.0


def test_memory_of_a_run_is_the_sum_over_its_processes():
    state = hub_state()
    for role in ("learner", "replay"):
        beat(state, join(state, role), rss_anon_bytes=10.0)
    assert state.figures()["rss_anon_bytes"] == 20.0


def test_rates_are_those_of_the_last_seconds():
    state = hub_state()
    actor = join(state, "actor")
    for second in range(20):
        beat(state, actor, env_steps_total=100 * second)
        state.tick(float(second))
    beat(state, actor, env_steps_total=1900 + 1000)
    state.tick(20.0)
    assert state.figures()["env_steps_per_s"] == pytest.approx((2900 - 1500) / 5)


def test_train_return_is_absent_until_an_episode_ends():
    state = hub_state()
    actor = join(state, "actor")
    assert "train_return" not in state.figures()
    state.handle(actor, EpisodesFinished(returns=[1.0, 3.0], lengths=[1, 1], env_steps=2), 0.0)
    assert (state.figures()["train_return"], state.figures()["episodes_total"]) == (2.0, 2)


def test_progress_goes_to_supervisors_alone(crew):
    assert [peer for peer, message in crew.tick(0.0) if isinstance(message, RunProgress)] == [b"supervisor-0"]


def test_phases_follow_the_first_step_and_the_first_update(crew):
    phases = [crew.phase]
    beat(crew, b"actor-0", 7.0, env_steps_total=1)
    phases.append(crew.phase)
    beat(crew, b"learner-0", condition="updating", updates_total=1)
    phases.append(crew.phase)
    assert phases == ["starting", "filling", "training"]
    assert crew.first_step_s == 7.0


def test_a_resumed_run_goes_on_counting():
    first = hub_state()
    beat(first, join(first, "actor", epoch=1), env_steps_total=50)
    beat(first, join(first, "learner"), condition="updating", updates_total=7)
    evaluated_by(first, [1.0])
    state = hub_state(before=first.memory(100.0), started_at=1000.0)
    assert state.phase == "starting"
    beat(state, join(state, "actor", epoch=2), 1001.0, env_steps_total=5)
    memory = state.memory(1002.0)
    assert (memory.env_steps, memory.updates, memory.num_evaluations, memory.wall_s) == (55, 7, 1, 102.0)
    assert state.handle(b"a", hello("actor", epoch=2), 1002.0)[0][1].incarnation == 2


# A hub that was away


@pytest.fixture
def away():
    """What a hub remembers that was killed in the middle of a run."""
    state = hub_state(started_at=5.0)
    for role in ("replay", "learner", "actor", "evaluator"):
        join(state, role, now=6.0, data_endpoint="ipc:///r" if role == "replay" else None)
    state.handle(b"actor-0", spec_offer(), 6.0)
    state.handle(b"replay-0", TableOpened(table="main", num_bytes=1, num_rows=1), 6.0)
    beat(state, b"actor-0", 7.0, env_steps_total=10, sent_rows_total=10, acknowledged_rows_total=8)
    beat(state, b"learner-0", 8.0, condition="updating", updates_total=4)
    return state.memory(9.0)


def test_a_hub_that_was_away_goes_on_where_it_was(away):
    state = hub_state(before=away, started_at=5.0)
    assert (state.phase, state.first_step_s, state.wall_s(10.0)) == ("training", 2.0, 5.0)
    assert (state.figures()["env_steps_total"], state.tally.num_updates) == (10, 4)
    assert {node.health for node in state.status(9.0).nodes} == {"away"}
    welcome, run_state = (message for _, message in state.handle(b"x", hello("learner", run_id="run"), 9.0)[:2])
    assert (welcome.generation, welcome.incarnation) == (0, 1)
    assert (run_state.digest, run_state.replay_endpoints) == (SPEC.digest, ["ipc:///r"])
    beat(state, b"x", 9.0, condition="updating", updates_total=5)
    assert (state.tally.num_updates, state.figures()["lost_updates_total"]) == (5, 0)


def test_a_node_that_came_back_to_the_hub_counts_on(away):
    state = hub_state(before=away, started_at=5.0)
    state.handle(b"x", hello("actor", run_id="run"), 9.0)
    beat(state, b"x", 9.0, env_steps_total=12, sent_rows_total=12, acknowledged_rows_total=12)
    assert state.figures()["env_steps_total"] == 12
    assert (state.rows().sent, state.rows().acknowledged) == (12, 12)


def test_an_end_that_had_begun_goes_on_and_waits_for_those_who_are_away(away):
    state = hub_state(before=away, started_at=5.0)
    state.stop("enough", 9.0)
    again = hub_state(before=state.memory(9.5), started_at=5.0)
    assert (again.phase, again.stop_reason) == ("stopping", "enough")
    again.tick(9.6)
    assert stopped(again.handle(b"l", hello("learner", run_id="run"), 9.7)) == set()
    assert stopped(again.handle(b"a", hello("actor", run_id="run"), 9.8)) == {b"a"}
    assert stopped(again.handle(b"a", Goodbye(), 9.9)) == {b"l"}


def test_an_evaluation_that_is_told_twice_counts_once(away):
    state = hub_state(before=away, started_at=5.0)
    for _ in range(2):
        state.handle(b"e", hello("evaluator", run_id="run"), 9.0)
        report = EvaluationFinished(version=(1, 1), updates=1, returns=[1.0], lengths=[1], duration_s=0)
        state.handle(b"e", report, 9.0)
        state = hub_state(before=state.memory(9.0), started_at=5.0)
    assert state.tally.num_evaluations == 1


def test_a_learner_that_went_back_to_its_checkpoint_has_lost_the_updates_since(crew):
    beat(crew, b"learner-0", condition="updating", updates_total=100)
    crew.handle(b"new", hello("learner", epoch=2), 1.0)
    crew.note_unreachable(b"learner-0", 1.0)
    assert crew.tally.num_updates == 100
    beat(crew, b"new", updates_total=70)
    assert (crew.tally.num_updates, crew.figures()["lost_updates_total"]) == (70, 30)


def test_updates_are_those_of_the_group_at_work_whatever_the_first_of_an_earlier_one_still_says():
    state = hub_state("learner.num_learners=2", "learner.silence_limit_s=10", "stop.max_updates=2000")
    for name in ("learner-0", "learner-1", "learner-2"):
        ready(state, join(state, "learner", name))
    beat(state, b"learner-0", updates_total=500, skipped_updates_total=5, learner_group=1)
    for peer in (b"learner-1", b"learner-2"):
        beat(state, peer, now=10.0)
    for second in range(1, 12):
        state.tick(float(second))
    ready(state, b"learner-1", generation=1, updates=500, now=11.0)
    beat(state, b"learner-1", now=12.0, updates_total=600, skipped_updates_total=6, learner_group=2)
    told = beat(state, b"learner-0", now=13.0, updates_total=500, skipped_updates_total=5, learner_group=1)
    assert [(peer, ended.generation) for peer, ended in of_kind(told, GroupEnded)] == [(b"learner-0", 1)]
    assert (state.tally.num_updates, state.tally.num_lost_updates) == (600, 0)
    assert state.figures()["skipped_updates_total"] == 6
    state.handle(b"learner-0", Goodbye(counters={"updates_total": 500}), 14.0)
    assert state.tally.num_updates == 600


def test_skipped_updates_are_those_of_the_state_that_is_learned_on(crew):
    beat(crew, b"learner-0", updates_total=100, skipped_updates_total=5)
    crew.handle(b"new", hello("learner", epoch=2), 1.0)
    crew.note_unreachable(b"learner-0", 1.0)
    beat(crew, b"new", updates_total=100, skipped_updates_total=5)  # its checkpoint holds them
    assert crew.figures()["skipped_updates_total"] == 5
    resumed = hub_state(before=crew.memory(2.0), started_at=50.0)
    peer = join(resumed, "learner", epoch=3)
    beat(resumed, peer, updates_total=100)
    assert resumed.tally.sum("skipped_updates_total") == 5
    beat(resumed, peer, updates_total=101, skipped_updates_total=6)
    assert resumed.figures()["skipped_updates_total"] == 6


def test_nobody_is_silent_while_the_hub_itself_is_away(crew):
    crew.tick(1.0)
    crew.tick(9.0)
    [(_, progress)] = crew.tick(9.25)
    assert all(silent_s <= 1.25 for _, silent_s, _ in progress.pulses.values())


# The actors' rows


def test_rows_of_an_actor_and_of_a_replay_node_are_laid_side_by_side(crew):
    counters = {"sent_rows_total": 10.0, "acknowledged_rows_total": 7.0, "abandoned_rows_total": 3.0}
    crew.handle(b"actor-0", Goodbye(counters=counters), 1.0)
    crew.handle(b"replay-0", SenderAccounts(ring_id="r", accounts=[("actor-0", 1, 7)]), 1.0)
    assert crew.rows().is_balanced
    assert crew.figures()["stored_rows"] == 7


def test_an_actor_that_was_killed_has_sent_what_is_stored_and_abandoned_the_rest(crew):
    beat(crew, b"actor-0", sent_rows_total=10, acknowledged_rows_total=5)
    crew.handle(b"new", hello("actor", epoch=2), 1.0)
    crew.note_unreachable(b"actor-0", 1.0)
    crew.handle(b"replay-0", SenderAccounts(ring_id="r", accounts=[("actor-0", 1, 7)]), 1.0)
    rows = crew.rows()
    assert (rows.sent, rows.acknowledged, rows.abandoned, rows.stored) == (10, 7, 3, 7)


# Evaluations


def test_the_first_evaluation_at_the_target_ends_the_run_without_another(crew):
    evaluated(crew, [100.0, 500.0], now=5.0)
    assert (crew.phase, crew.time_to_target_s) == ("starting", None)
    outgoing = evaluated(crew, [475.0, 475.0], now=6.0)
    assert crew.time_to_target_s == 6.0
    assert stopped(outgoing) == {b"actor-0"}
    crew.handle(b"actor-0", Goodbye(), 6.1)
    assert stopped(crew.handle(b"learner-0", Goodbye(), 6.2)) == {b"evaluator-0"}


def test_an_evaluation_that_was_under_way_beside_the_one_that_ends_the_run_does_not_become_its_result(crew):
    evaluated(crew, [475.0], now=6.0)
    evaluated(crew, [20.0], now=6.2)
    assert (crew.tally.eval_return, crew.tally.num_evaluations) == (475.0, 1)


def test_a_run_may_go_on_after_its_target():
    state = hub_state("stop.at_target=false")
    join(state, "evaluator")
    evaluated(state, [500.0], now=5.0)
    evaluated(state, [500.0], now=9.0)
    assert (state.phase, state.time_to_target_s) == ("starting", 5.0)


def test_the_best_of_equal_evaluations_is_the_last(crew):
    for mean in (1.0, 3.0, 2.0, 3.0):
        evaluated(crew, [mean])
    assert [evaluation.is_best for evaluation in crew.tally.take_evaluations()] == [True, True, False, True]
    assert (crew.tally.eval_return, crew.tally.best_eval_return) == (3.0, 3.0)


def test_a_resumed_run_has_a_best_to_beat():
    state = hub_state(before=RunMemory(best_eval_return=5.0, eval_return=4.0, num_evaluations=2))
    join(state, "evaluator")
    evaluated(state, [4.5])
    assert not state.tally.take_evaluations()[0].is_best
    assert (state.tally.best_eval_return, state.tally.num_evaluations) == (5.0, 3)


# The end


def test_an_end_in_order_goes_role_by_role_as_each_says_goodbye(crew):
    crew.note_weights(WeightsVersion(1, 7))
    steps = [stopped(crew.stop("enough", 0.0))]
    steps.append(stopped(crew.handle(b"actor-0", Goodbye(), 1.0)))
    assert stopped(crew.handle(b"learner-0", Goodbye(), 2.0)) == set()
    assert crew.awaits_final_evaluation
    steps.append(stopped(evaluated(crew, [1.0], version=(1, 7), now=3.0)))
    steps.append(stopped(crew.handle(b"evaluator-0", Goodbye(), 4.0)))
    assert steps == [{b"actor-0"}, {b"learner-0"}, {b"evaluator-0"}, {b"replay-0"}]
    [(_, seen), (peer, progress)] = crew.handle(b"replay-0", Goodbye(sequence=9), 5.0)
    assert seen == HeartbeatSeen(sequence=9)
    assert (peer, progress.phase) == (b"supervisor-0", "done")
    assert (crew.stop_reason, crew.was_interrupted) == ("enough", False)


def test_the_final_evaluation_is_over_only_with_the_last_weights(crew):
    crew.note_weights(WeightsVersion(1, 7))
    crew.stop("enough", 0.0)
    for peer in (b"actor-0", b"learner-0"):
        crew.handle(peer, Goodbye(), 1.0)
    assert stopped(evaluated(crew, [1.0], version=(1, 6), now=2.0)) == set()
    assert stopped(evaluated(crew, [1.0], version=(1, 7), now=3.0)) == {b"evaluator-0"}


@pytest.mark.parametrize("missing", ["evaluator", "weights"])
def test_without_evaluator_or_weights_there_is_no_final_evaluation(missing):
    state = hub_state()
    for role in ("replay", "learner") if missing == "evaluator" else ("replay", "learner", "evaluator"):
        join(state, role)
    if missing != "weights":
        state.note_weights(WeightsVersion(1, 7))
    state.stop("enough", 0.0)
    next_role = b"replay-0" if missing == "evaluator" else b"evaluator-0"
    assert stopped(state.handle(b"learner-0", Goodbye(), 1.0)) == {next_role}


@pytest.mark.parametrize("is_resumed", [False, True])
def test_the_end_of_a_run_that_is_over_before_its_evaluator_is_there_waits_for_it(is_resumed):
    state = hub_state()
    if is_resumed:
        join(state, "evaluator")
        state = hub_state(before=state.memory(1.0), started_at=-1.0)
    for role in ("supervisor", "replay", "learner"):
        join(state, role)
    state.note_weights(WeightsVersion(1, 7))
    state.stop("enough", 0.0)
    assert stopped(state.handle(b"learner-0", Goodbye(), 1.0)) == set()
    assert stopped(state.handle(b"evaluator-0", hello("evaluator", epoch=2), 2.0)) == set()
    assert state.awaits_final_evaluation
    assert stopped(evaluated(state, [1.0], version=(1, 7), now=3.0)) == {b"evaluator-0"}


def test_an_evaluator_that_comes_when_nothing_is_judged_any_more_is_told_so():
    state = hub_state()
    join(state, "supervisor")
    state.stop("Ctrl-C", 0.0, interrupted=True)
    assert stopped(state.handle(b"evaluator-0", hello("evaluator"), 0.1)) == {b"evaluator-0"}


def test_an_end_does_not_wait_for_an_evaluator_that_is_gone(crew):
    crew.note_weights(WeightsVersion(1, 7))
    crew.stop("enough", 0.0)
    crew.handle(b"evaluator-0", Goodbye(error="its disk is full"), 0.5)
    crew.handle(b"actor-0", Goodbye(), 1.0)
    assert stopped(crew.handle(b"learner-0", Goodbye(), 2.0)) == {b"replay-0"}


def test_a_lost_goodbye_costs_no_more_than_the_deadline(crew):
    crew.stop("enough", 0.0)
    assert stopped(crew.tick(4.9)) == set()
    assert stopped(crew.tick(5.0)) == {b"learner-0"}


def test_an_interruption_is_over_within_7_s_even_if_nobody_answers(crew):
    outgoing = crew.stop("Ctrl-C", 0.0, interrupted=True)
    assert stopped(outgoing) == {b"actor-0", b"evaluator-0"}
    seen = [(now, stopped(crew.tick(now))) for now in (2.4, 2.5, 4.9, 5.0, 6.9)]
    assert seen == [(2.4, set()), (2.5, {b"learner-0"}), (4.9, set()), (5.0, {b"replay-0"}), (6.9, set())]
    crew.tick(7.0)
    assert crew.phase == "done"


def test_an_interruption_hurries_an_end_that_is_under_way(crew):
    crew.note_weights(WeightsVersion(1, 7))
    crew.stop("enough", 0.0)
    outgoing = crew.handle(b"supervisor-0", StopRequest(reason="Ctrl-C", interrupted=True), 1.0)
    assert stopped(outgoing) == {b"actor-0", b"evaluator-0"}
    assert crew.was_interrupted
    assert crew.stop("again", 2.0, interrupted=True) == []
    for now in (3.5, 6.0, 8.0):
        crew.tick(now)
    assert (crew.phase, crew.awaits_final_evaluation) == ("done", False)


@pytest.mark.parametrize("end", ["its own", "interrupted", "failed"])
def test_only_a_run_that_is_done_tells_its_nodes_so(crew, end):
    crew.note_weights(WeightsVersion(1, 7))
    if end == "failed":
        told = crew.fail("the cause", 70, 0.0)
    else:
        told = crew.stop("because", 0.0, interrupted=end == "interrupted", final_evaluation=False)
    for now in range(1, 30):
        told += crew.tick(float(now))
    stops = of_kind(told, Stop)
    assert {b"replay-0", b"learner-0", b"actor-0"} <= {peer for peer, _ in stops}
    assert {stop.is_final for _, stop in stops} == {end == "its own"}


def test_nobody_waits_for_nodes_that_are_lost(crew):
    request = StopRequest(
        reason="learner-0 ended by signal SIGKILL", error_code=70, interrupted=True, lost=["learner-0"]
    )
    crew.handle(b"supervisor-0", request, 0.0)
    assert crew.error == ("learner-0 ended by signal SIGKILL", 70)
    assert {node.name: node.health for node in crew.status(0.1).nodes}["learner-0"] == "failed"
    crew.handle(b"actor-0", Goodbye(), 0.1)
    assert stopped(crew.handle(b"evaluator-0", Goodbye(), 0.2)) == {b"replay-0"}


def test_the_first_error_is_kept(crew):
    crew.fail("the cause", 70, 0.0)
    crew.fail("a consequence", 78, 1.0)
    assert crew.error == ("the cause", 70)


def test_a_node_that_failed_is_gone_and_the_run_goes_on(crew):
    crew.handle(b"actor-0", Goodbye(error="joint 7 broke", counters={"env_steps_total": 5}), 1.0)
    assert (crew.phase, crew.error) == ("starting", None)
    crew.stop("enough", 2.0)
    assert stopped(crew.tick(2.1)) == set()
    assert crew.figures()["env_steps_total"] == 5


@pytest.mark.parametrize(
    ("setting", "reason"), [("stop.max_steps=100", "100 environment steps"), ("stop.max_seconds=30", "30 s are over")]
)
def test_limits_end_the_run(setting, reason):
    state = hub_state(setting)
    actor = join(state, "actor")
    beat(state, actor, env_steps_total=99)
    state.tick(29.9)
    assert state.phase == "filling"
    beat(state, actor, 30.0, env_steps_total=100)
    state.tick(30.0)
    assert state.phase == "stopping"
    assert reason in state.stop_reason


def test_a_node_that_joins_while_the_run_ends_is_told_to_stop(crew):
    crew.stop("enough", 0.0)
    assert stopped(crew.handle(b"late", hello("actor", "actor-9"), 1.0)) == {b"late"}


def test_a_replay_node_that_comes_back_while_the_run_ends_stays_until_its_turn(crew):
    crew.handle(b"actor-0", spec_offer(), 0.0)
    crew.stop("enough", 0.0)
    crew.handle(b"successor", hello("replay", "replay-0", epoch=2), 1.0)
    outgoing = crew.note_unreachable(b"replay-0", 1.0)
    assert stopped(outgoing) == set()
    assert of_kind(outgoing, OpenTable)
    crew.handle(b"actor-0", Goodbye(), 2.0)
    crew.handle(b"learner-0", Goodbye(), 3.0)
    assert stopped(crew.handle(b"evaluator-0", Goodbye(), 4.0)) == {b"successor"}


def test_what_its_ring_holds_of_an_actor_that_has_left_completes_the_books(crew):
    counters = {"sent_rows_total": 10.0, "acknowledged_rows_total": 10.0}
    crew.handle(b"replay-0", SenderAccounts(ring_id="r", accounts=[("actor-0", 1, 6)]), 0.0)
    crew.stop("enough", 0.0)
    crew.handle(b"actor-0", Goodbye(counters=counters), 1.0)
    crew.handle(b"successor", hello("replay", "replay-0", epoch=2), 2.0)
    crew.note_unreachable(b"replay-0", 2.0)
    assert not crew.rows().is_balanced
    found = [(digest_of("actor-0").hex(), 1, 10), (digest_of("stranger").hex(), 1, 5)]
    crew.handle(b"successor", SenderAccounts(ring_id="r", accounts=[], found=found), 3.0)
    assert (crew.rows().stored, crew.rows().lost, crew.rows().is_balanced) == (10, 0, True)


def test_a_replay_node_beyond_those_of_the_settings_is_refused_with_the_names_that_there_are():
    state = hub_state("replay.nodes=2")
    for name in ("replay-0", "replay-1"):
        join(state, "replay", name)
    [(_, refused)] = state.handle(b"third", hello("replay", "replay-2"), 0.0)
    assert (type(refused), refused.exit_code) == (HelloRefused, EXIT_CONFIG)
    assert "replay.nodes = 2 already, replay-0, replay-1" in refused.reason
    assert of_kind(state.handle(b"again", hello("replay", "replay-1", epoch=2), 100.0), HelloRefused) == []


def test_live_rows_are_those_of_all_replay_nodes_and_the_fill_is_their_mean():
    state = hub_state("replay.nodes=2")
    for name, live in (("replay-0", 10), ("replay-1", 40)):
        beat(state, join(state, "replay", name), replay_live_rows=live, replay_fill=live / 50)
    assert (state.figures()["replay_live_rows"], state.figures()["replay_fill"]) == (50, 0.5)


def test_whatever_a_node_counts_the_figures_of_a_run_can_be_told():
    state = hub_state()
    join(state, "supervisor", "supervisor")
    actors = [join(state, "actor", f"actor-{index}") for index in range(3)]
    for actor in actors:
        beat(state, actor, env_steps_total=1e300, **{f"x{index}_total": 1.0 for index in range(400)})
        state.handle(actor, EpisodesFinished(returns=[1e300] * 1_000, lengths=[1] * 1_000, env_steps=1), 0.0)
    [(_, progress)] = state.progress(0.0)
    assert progress.figures["env_steps_total"] == 3 * 2**50
    assert progress.figures["train_return"] == 1e300
    assert not [name for name in progress.figures if name.startswith("x")]
    with pytest.raises(ValidationError):
        EpisodesFinished(returns=[1.7e308], lengths=[1], env_steps=1)


def test_nothing_that_an_actor_counts_keeps_the_hub_from_telling_of_the_run():
    state, rng = hub_state(), np.random.default_rng(1)
    join(state, "supervisor", "supervisor")
    names = ["env_steps_total", *ACTOR_COUNTERS, "inserted_rows_total", "drawn_rows_total", "updates_total"]
    values = [-1e300, -5.0, 0.0, 0.5, 7.0, 2e19, 1e300]
    for now in range(60):
        peer = join(state, "actor", f"lab.{now % 3}", now=float(now))
        counters = {name: float(rng.choice(values)) for name in names}
        message = Goodbye(counters=counters) if now % 4 == 3 else None
        state.handle(peer, message or Heartbeat(sequence=0, progress=0, state="", counters=counters), float(now))
        for told in (state.status(float(now)), *(each for _, each in state.tick(now + 1e-9))):
            encode(told)


def test_of_more_nodes_than_a_message_can_tell_of_it_tells_of_the_first():
    state = hub_state()
    join(state, "supervisor", "supervisor")
    for number in range(1_000):
        peer = join(state, "actor", f"lab.{number}")
        waits = Heartbeat(sequence=0, progress=0, state="x" * 2000, waiting_for="y" * 2000, counters=dict(FIGURES))
        state.handle(peer, waits, 0.0)
    [(_, progress)] = state.progress(0.0)
    for told in (progress, state.status(0.0)):
        assert 200 < len(told.nodes) < 1_000
        assert told.nodes[0][0] == "lab.0"
        encode(told)


def test_rows_are_told_of_the_processes_that_the_hub_has_let_in_alone(crew):
    accounts = [("actor-0", 1, 7), *(("actor-0", epoch, 7) for epoch in range(2, 900)), ("nobody", 1, 7)]
    crew.handle(b"replay-0", SenderAccounts(ring_id="r", accounts=accounts), 1.0)
    assert crew.rows().stored == 7
    assert len(crew.tally.to_memory()["books"]["streams"]) == 1


def test_figures_with_labels_are_those_of_replay_nodes(crew):
    for peer in (b"actor-0", b"replay-0"):
        beat(crew, peer, **{'replay_priority_rows{le="1"}': 3.0})
    assert [node.name for node in crew.status(0.0).nodes if node.figures] == ["replay-0"]


def test_a_learner_whose_key_is_revoked_is_named_to_the_others_of_its_group():
    state = hub_state("learner.num_learners=2")
    peers = [join(state, "learner", f"learner-{index}") for index in range(2)]
    for peer in peers:
        state.handle(peer, LearnerReady(generation=0, updates=0, device="cpu"), 0.0)
    [(peer, ended)] = state.expel(lambda peer: peer == peers[1], 1.0)
    assert (peer, type(ended)) == (peers[0], GroupEnded)
    assert "learner-1 may not take part any more" in ended.reason
    assert state.take_settled()


@pytest.mark.parametrize("message", [one for one, _ in MESSAGES if type(one) in TO_HUB], ids=lambda one: one.kind)
@pytest.mark.parametrize("role", get_args(Role))
def test_a_role_says_only_what_is_its_own(role, message):
    if isinstance(message, Hello | ProbeRequest | StatusRequest):
        return  # these come from whoever connects
    state = hub_state()
    peer = join(state, role)
    own = {
        SpecOffer: {"supervisor", "actor", "evaluator"},
        TableOpened: {"replay"},
        TableRefused: {"replay"},
        SenderAccounts: {"replay"},
        EpisodesFinished: {"actor"},
        EvaluationFinished: {"evaluator"},
        LearnerReady: {"learner"},
        StopRequest: {"supervisor"},
    }
    if role in own.get(type(message), {role}):
        state.handle(peer, spec_offer() if isinstance(message, SpecOffer) else message, 0.0)
    else:
        with pytest.raises(WireError, match=f"may not send {type(message).__name__}: it joined as {role}"):
            state.handle(peer, message, 0.0)
