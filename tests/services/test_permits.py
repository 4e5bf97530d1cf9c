"""Who may say what: each key for its name, its role, and that role's messages alone."""

from typing import get_args

import pytest

from parl_mq.net.conduct import Budget, Pace
from parl_mq.net.curve import Verdict, new_key_pair
from parl_mq.services.keyring import Grant
from parl_mq.services.permits import LOCAL_ALONE, MAX_NAMES, MAY_SEND, NEWCOMER_S, Permits, ToldKeys
from parl_mq.wire.messages import KeysAllowed, StatusRequest, StopRequest, ToHub, ToReplay, Weights
from tests.services.builders import attach, hello
from tests.wire.examples import MESSAGES

ROLES = ["actor", "learner", "evaluator", "replay", "host"]
KEYS = {role: new_key_pair().public for role in ROLES}
STRANGER = new_key_pair().public
GRANTS = {key: Grant(name=f"far-{role}", role=role, public=key) for role, key in KEYS.items()}
permits = Permits(GRANTS.get)
TO_SERVERS = [each for union in (ToHub, Weights, ToReplay) for each in get_args(get_args(union)[0])]


def test_it_is_settled_for_every_message_to_a_server_which_keys_are_good_for_it():
    settled = LOCAL_ALONE.union(*MAY_SEND.values())
    assert {each.__name__ for each in TO_SERVERS} == {each.__name__ for each in settled}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("message", [one for one, _ in MESSAGES if type(one) in TO_SERVERS], ids=lambda one: one.kind)
def test_a_key_is_good_for_the_messages_of_its_role_alone(role, message):
    reason = permits.why_not(KEYS[role], message)
    if message.kind == "weights_wanted" and role == "actor":
        assert "may not have weights kept for it" in reason
        assert permits.why_not(KEYS[role], message.model_copy(update={"keep": False})) is None
    elif type(message) not in MAY_SEND[role]:
        assert f"far-{role} may not send {type(message).__name__}: its key is for the role {role}" == reason
    elif message.kind not in ("hello", "attach"):
        assert reason is None


def test_no_key_ends_a_run_and_whoever_has_none_is_of_this_machine():
    assert "may not send StopRequest" in permits.why_not(KEYS["actor"], StopRequest(reason="mine"))
    assert permits.why_not(None, StopRequest(reason="mine")) is None


def test_a_key_that_is_not_allowed_is_good_for_nothing():
    for key in (STRANGER, ""):
        assert permits.why_not(key, StatusRequest()) == "its key is not allowed any more"


@pytest.mark.parametrize("first", [hello, attach])
def test_a_node_joins_in_the_role_and_by_the_name_of_its_key(first):
    key = KEYS["actor"]
    assert permits.why_not(key, first("actor", "far-actor")) is None
    assert permits.why_not(key, first("actor", "far-actor.2")) is None
    assert "its key is for the role actor" in permits.why_not(key, first("learner", "far-actor"))
    for other in ("far-actor2", "actor-0", "far"):
        assert "is not for" in permits.why_not(key, first("actor", other))


@pytest.mark.parametrize("first", [hello, attach])
def test_a_key_has_a_number_of_nodes_and_those_that_it_has_had_may_come_again(first):
    known = [f"far-actor.{number}" for number in range(MAX_NAMES)]
    full, key = Permits(GRANTS.get, lambda: ["far-actors", "actor-0", *known]), KEYS["actor"]
    assert full.why_not(key, first("actor", "far-actor.7")) is None
    told = full.why_not(key, first("actor", "far-actor.new"))
    assert told.startswith(f"the key of far-actor has had {MAX_NAMES} nodes in this run")
    assert "far-actor.new is none of them" in told
    assert Permits(GRANTS.get, lambda: known[1:]).why_not(key, first("actor", "far-actor.new")) is None


def test_only_a_replay_node_offers_an_endpoint_and_guards_it_with_its_own_key():
    place = {"data_endpoint": "tcp://10.0.0.2:5000"}
    assert "no replay node" in permits.why_not(KEYS["actor"], hello("actor", "far-actor", **place))
    key, name = KEYS["replay"], "far-replay"
    assert permits.why_not(key, hello("replay", name, **place, data_key=key)) is None
    assert "with its own key" in permits.why_not(key, hello("replay", name, **place, data_key=STRANGER))
    assert "with its own key" in permits.why_not(key, hello("replay", name, **place))
    for endpoint in ("ipc:///etc/passwd", "http://10.0.0.2", "tcp://10.0.0.2"):
        assert permits.why_not(key, hello("replay", name, data_endpoint=endpoint, data_key=key)) is not None


def test_a_key_that_the_hub_has_not_told_of_is_early_at_first_and_refused_later():
    now = [0.0]
    told = ToldKeys(lambda: now[0])
    now[0] = 2 * NEWCOMER_S
    assert told.admit(STRANGER) is Verdict.LATER  # as long as the hub is away
    told.take(KeysAllowed(keys=[]))
    assert told.admit(STRANGER) is Verdict.LATER
    now[0] = 3 * NEWCOMER_S
    assert told.admit(STRANGER) is Verdict.DENIED
    told.take(KeysAllowed(keys=[(STRANGER, "far", "actor")]))
    assert told.admit(STRANGER) is Verdict.WELCOME
    assert told.grant_of(STRANGER).name == "far"
    told.take(KeysAllowed(keys=[]))
    assert told.admit(STRANGER) is Verdict.DENIED


def test_a_budget_is_each_peers_own_and_comes_back_with_time():
    budget = Budget(Pace(per_s=2.0, burst=3))
    assert [budget.spend(b"a", 1, 0.0) for _ in range(4)] == [True, True, True, False]
    assert budget.spend(b"b", 1, 0.0)
    assert [budget.spend(b"a", 1, 0.5) for _ in range(2)] == [True, False]
    assert [budget.spend(b"a", 1, 99.0) for _ in range(4)] == [True, True, True, False]
