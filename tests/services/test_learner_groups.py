"""When a group of learners begins and ends, and what each is told; times are the test's own."""

from __future__ import annotations

import pytest

from parl_mq.errors import EXIT_CONFIG
from parl_mq.services.learner_groups import LearnerGroups
from parl_mq.services.roster import Roster
from parl_mq.wire.messages import GroupEnded, GroupFormed, GroupWaiting, LearnerReady
from tests.services.builders import hello

LIMIT_S = 10.0


class Run:
    """A roster and the groups of its learners; messages by the receiver's name."""

    def __init__(self, size=2, generation=0, members=()):
        self.roster = Roster()
        self.groups = LearnerGroups(self.roster, size, generation, LIMIT_S, members=members)

    def join(self, name, *, epoch=1, now=0.0, host="here"):
        message = hello("learner", name, epoch=epoch).model_copy(update={"host": host})
        node, old = self.roster.greet(f"{name}/{epoch}".encode(), message, now)
        gone = self.groups.note_gone(name, "was started again") if old is not None else []
        return self._by_name(gone), node

    def ready(self, name, *, generation=0, updates=0, device="cpu", now=0.0, reason="", address="127.0.0.1"):
        if self.roster.named(name) is None:
            self.join(name, now=now)
        node = self.roster.named(name)
        node.heard_at = now
        port = 5000 + node.index
        message = LearnerReady(
            generation=generation, updates=updates, device=device, store=(address, port), reason=reason
        )
        return self._by_name(self.groups.note_ready(node, message, now))

    def tick(self, now):
        return self._by_name(self.groups.tick(now))

    @staticmethod
    def _by_name(messages):
        return {node.name: message for node, message in messages}


def _formed(run, **updates):
    told = {}
    for name in ("learner-0", "learner-1"):
        told.update(run.ready(name, updates=updates.get(name.replace("-", "_"), 0)))
    return told


def test_a_group_forms_when_the_last_learner_is_ready_and_each_hears_of_its_rank():
    run = Run(generation=4)
    assert run.ready("learner-1") == {
        "learner-1": GroupWaiting(reason="the group of learners to be complete: 1 of 2 are here")
    }
    told = run.ready("learner-0")
    assert {name: message.rank for name, message in told.items()} == {"learner-0": 0, "learner-1": 1}
    for message in told.values():
        assert (message.generation, message.names) == (5, ["learner-0", "learner-1"])
        assert message.store == ("127.0.0.1", 5000)  # of rank 0
        assert message.backend == "gloo"


def test_one_learner_is_a_group_of_its_own_at_once():
    told = Run(size=1).ready("learner-0")
    assert told["learner-0"].names == ["learner-0"]


@pytest.mark.parametrize(
    ("updates", "source"), [({"learner_0": 5, "learner_1": 9}, 1), ({"learner_0": 9, "learner_1": 9}, 0)]
)
def test_all_begin_with_the_state_that_has_the_most_updates(updates, source):
    told = _formed(Run(), **updates)
    assert {message.source for message in told.values()} == {source}


def test_one_who_reports_again_ends_the_group_and_the_others_hear_its_reason():
    run = Run()
    _formed(run)
    told = run.ready("learner-0", generation=1, updates=7, reason="learner-1 stopped")
    assert told["learner-1"] == GroupEnded(generation=1, reason="learner-0 has left it: learner-1 stopped")
    assert told["learner-0"].reason.endswith("1 of 2 are here; missing: learner-1")
    told = run.ready("learner-1", generation=1, updates=6)
    assert {name: (message.generation, message.source) for name, message in told.items()} == {
        "learner-0": (2, 0),
        "learner-1": (2, 0),
    }


def test_a_learner_that_is_started_again_ends_the_group_by_its_name():
    run = Run()
    _formed(run)
    told, _ = run.join("learner-1", epoch=2)
    assert told == {"learner-0": GroupEnded(generation=1, reason="learner-1 was started again")}
    waiting = run.ready("learner-0", generation=1)["learner-0"]
    assert waiting.reason.endswith("1 of 2 are here; missing: learner-1 was started again")
    assert set(run.ready("learner-1")) == {"learner-0", "learner-1"}


def test_a_silent_learner_ends_the_group_by_its_name_and_is_in_none_until_it_is_heard():
    run = Run()
    _formed(run)
    run.roster.named("learner-0").heard_at = LIMIT_S
    assert run.tick(LIMIT_S) == {}
    told = run.tick(LIMIT_S + 1)
    ended = GroupEnded(generation=1, reason="learner-1 has given no sign of life for 11 s")
    assert told == {"learner-0": ended, "learner-1": ended}  # it may wake up
    run.ready("learner-0", generation=1, now=LIMIT_S + 1)
    assert run.tick(LIMIT_S + 2) == {}
    assert set(run.ready("learner-1", generation=1, now=LIMIT_S + 3)) == {"learner-0", "learner-1"}


@pytest.mark.parametrize(
    ("name", "generation", "is_told"),
    [
        ("learner-1", 2, False),
        ("learner-1", 1, True),
        ("learner-0", 2, True),
        ("learner-0", 1, True),
        ("learner-1", 0, False),
        ("learner-1", 1e300, False),
    ],
)
def test_who_is_in_a_group_that_is_over_is_told_so(name, generation, is_told):
    run = Run(generation=1)
    for other in ("learner-1", "learner-2"):
        run.ready(other)
    run.join("learner-0")
    told = run.groups.note_at_work(run.roster.named(name), generation)
    assert [message.generation for _, message in told] == ([generation] if is_told else [])


def test_no_group_forms_with_a_learner_that_was_ready_and_has_fallen_silent():
    run = Run()
    run.ready("learner-0", now=0.0)
    told = run.ready("learner-1", now=LIMIT_S + 1)
    assert set(told) == {"learner-1"}
    assert isinstance(told["learner-1"], GroupWaiting)


def test_one_learner_alone_may_be_silent_for_any_time():
    run = Run(size=1)
    run.ready("learner-0")
    assert run.tick(10 * LIMIT_S) == {}


def test_who_has_not_heard_of_its_group_hears_of_it_again():
    run = Run()
    first = _formed(run)
    assert run.ready("learner-1") == {"learner-1": first["learner-1"]}


def test_one_too_many_waits_and_takes_the_place_of_one_that_is_lost():
    run = Run()
    _formed(run)
    told = run.ready("learner-2")
    assert told["learner-2"].reason == "a place in the group of 2: learner-0, learner-1 are at work"
    run.groups.note_gone("learner-0", "has left")
    told = run.ready("learner-1", generation=1)
    assert {name: message.rank for name, message in told.items() if isinstance(message, GroupFormed)} == {
        "learner-1": 0,
        "learner-2": 1,
    }


def test_a_hub_that_was_started_again_forms_no_second_group_beside_the_one_at_work():
    run = Run(generation=3, members=("learner-0", "learner-1"))
    for name in ("learner-2", "learner-3"):  # they are heard first
        assert isinstance(run.ready(name)[name], GroupWaiting)
    for name in ("learner-0", "learner-1"):
        run.join(name)
    told = run.ready("learner-0", generation=3, updates=9, reason="learner-1 stopped")
    assert isinstance(told["learner-1"], GroupEnded)
    assert (told["learner-0"].generation, told["learner-0"].source) == (4, 0)


def test_the_learners_with_the_most_updates_are_in_the_next_group():
    run = Run(size=1, generation=1, members=("learner-3",))
    run.join("learner-3")
    for name, updates in (("learner-0", 0), ("learner-1", 7), ("learner-2", 7)):
        run.ready(name, updates=updates)
    assert set(run._by_name(run.groups.note_gone("learner-3", "has left"))) == set()
    assert set(run.tick(1.0)) == {"learner-1"}


def test_when_the_run_ends_one_that_is_left_goes_on_alone_with_its_updates():
    run = Run(size=3)
    for name in ("learner-0", "learner-1", "learner-2"):
        run.ready(name)
    run.groups.note_gone("learner-0", "was started again")
    run.ready("learner-1", generation=1, updates=6)
    run.ready("learner-2", generation=1, updates=7)
    told = run._by_name(run.groups.wind_up(1.0))
    assert {name: (message.rank, message.names) for name, message in told.items()} == {"learner-2": (0, ["learner-2"])}


def _with_a_spare():
    """learner-1 is lost; learner-0 is told so, and has the updates that learner-2 lacks."""
    run = Run()
    _formed(run)
    run.ready("learner-2")
    run.groups.wind_up(1.0)
    told = run._by_name(run.groups.note_gone("learner-1", "died"))
    assert set(told) == {"learner-0"}
    return run


def test_no_spare_goes_on_before_those_of_the_last_group_have_reported():
    run = _with_a_spare()
    assert isinstance(run.ready("learner-2", now=1.0)["learner-2"], GroupWaiting)
    told = run.ready("learner-0", generation=1, updates=2000, now=1.5)
    assert told["learner-0"].names == ["learner-0"]


def test_nobody_goes_on_from_what_it_had_before_it_took_up_the_state_of_its_group():
    run = Run()
    _formed(run, learner_0=2000)
    told = run.ready("learner-1", generation=1, reason="learner-0 stopped while it took up the common state")
    assert isinstance(told["learner-0"], GroupEnded)
    assert run._by_name(run.groups.wind_up(1.0)) == {}
    assert run.ready("learner-0", generation=1, updates=2000, now=1.5)["learner-0"].names == ["learner-0"]


@pytest.mark.parametrize("how", ["gone", "silent", "started again"])
def test_a_spare_goes_on_when_those_of_the_last_group_do_not_report(how):
    run, now = _with_a_spare(), 1.0
    if how == "gone":
        run.groups.note_gone("learner-0", "has left")
    elif how == "silent":
        now = LIMIT_S + 1.0
    else:
        run.join("learner-0", epoch=2, now=1.0)
    assert run.ready("learner-2", now=now)["learner-2"].names == ["learner-2"]


def test_a_learner_elsewhere_is_refused_where_one_listens_for_its_own_machine_alone():
    run = Run()
    run.join("learner-0", host="here")
    run.join("learner-1", host="there")
    run.ready("learner-1", address="192.0.2.7")
    told = run.ready("learner-0", address="::1")
    assert told["learner-1"].exit_code == EXIT_CONFIG
    assert "learner-1 on there cannot share updates with learner-0, which joined the hub at" in told["learner-1"].reason
    assert "here, and so listens" in told["learner-1"].reason
    assert isinstance(told["learner-0"], GroupWaiting)


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7", "a name that nobody has"])
def test_learners_whose_addresses_others_reach_meet_across_machines(address):
    run = Run()
    for name in ("learner-0", "learner-1"):
        run.join(name, host=name)
        told = run.ready(name, address=address)
    assert {type(message) for message in told.values()} == {GroupFormed}


@pytest.mark.parametrize(
    ("devices", "hosts", "backend"),
    [
        (("cuda:0", "cuda:1"), ("one", "one"), "nccl"),
        (("cuda:0", "cuda:0"), ("one", "two"), "nccl"),
        (("cuda:0", "cuda:0"), ("one", "one"), "gloo"),
        (("cuda:0", "cpu"), ("one", "one"), "gloo"),
    ],
)
def test_nccl_is_taken_where_each_has_a_gpu_of_its_own(devices, hosts, backend, caplog):
    run = Run()
    for index, (device, host) in enumerate(zip(devices, hosts, strict=True)):
        run.join(f"learner-{index}", host=host)
        told = run.ready(f"learner-{index}", device=device, address="192.0.2.7")
    assert {message.backend for message in told.values()} == {backend}
    shares = devices[0] == devices[1] and len(set(hosts)) == 1
    assert ("learners share a GPU" in caplog.text) == shares
