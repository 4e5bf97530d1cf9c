"""The hub's half of the weights plane and the fetch itself, without a network."""

import tracemalloc

import gymnasium
import numpy as np
import pytest

from parl_mq.config.models import AlgorithmConfig
from parl_mq.errors import WireError
from parl_mq.services import weights_store
from parl_mq.services.weights_exchange import (
    MAX_SNAPSHOT_BYTES,
    SLACK_BYTES,
    WINDOW,
    Fetch,
    announcement,
    chunk_frames,
    most_bytes_of_weights,
)
from parl_mq.services.weights_store import FETCH_LEASE_S, MAX_EVALUATING, WeightsStore
from parl_mq.spec import WeightsVersion, spec_of
from parl_mq.wire.codec import Decoder
from parl_mq.wire.messages import (
    CHUNK_BYTES,
    ChunkWanted,
    VersionGone,
    Weights,
    WeightsAnnounced,
    WeightsChunk,
    WeightsWanted,
)
from tests.services.builders import decoded, small_config, snapshot

LEARNER, ACTOR, EVALUATOR = b"learner", b"actor", b"evaluator"
SEVERAL_CHUNKS = 9 * CHUNK_BYTES + 17


class Hub:
    """A store whose replies are read."""

    def __init__(self):
        self.store = WeightsStore()

    def handle(self, peer, message, arrays=None, now=0.0):
        return self.read(self.store.handle(peer, message, arrays or {}, now))

    def read(self, replies):
        return [(peer, message) for peer, message, _ in decoded(replies, Weights)]

    def chunk(self, peer, wanted, now=0.0):
        [(_, message, arrays)] = decoded(self.store.handle(peer, wanted, {}, now), Weights)
        return message, arrays

    def receive(self, version, peer=LEARNER, now=0.0):
        """The learner hands a version over; returns what goes to the others."""
        replies = self.handle(peer, announcement(version), now=now)
        others = [reply for reply in replies if reply[0] != peer]
        while wanted := [message for _, message in replies if isinstance(message, ChunkWanted)]:
            replies = []
            for want in wanted:
                message, arrays = answer(version, want)
                replies += self.handle(peer, message, arrays, now)
            others += [reply for reply in replies if reply[0] != peer]
        return others


def answer(version, wanted):
    return Decoder(Weights)([memoryview(frame) for frame in chunk_frames(wanted, [version])])


# Fetch


@pytest.mark.parametrize("num_bytes", [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, SEVERAL_CHUNKS])
def test_a_fetch_of_any_size_gives_the_version_back(num_bytes):
    version = snapshot(1, 2, num_bytes=num_bytes)
    fetch = Fetch(announcement(version))
    wanted = fetch.first()
    while wanted:
        wanted += fetch.take(*answer(version, wanted.pop(0)))
    assert fetch.is_complete
    assert fetch.snapshot() == version


def test_no_more_chunks_than_the_window_are_under_way():
    version = snapshot(1, 2, num_bytes=SEVERAL_CHUNKS)
    fetch = Fetch(announcement(version))
    wanted = fetch.first()
    assert len(wanted) == WINDOW
    assert [want.chunk for want in fetch.take(*answer(version, wanted[0]))] == [WINDOW]


def test_after_a_reconnect_what_is_missing_of_the_window_is_asked_for_again():
    version = snapshot(1, 2, num_bytes=SEVERAL_CHUNKS)
    fetch = Fetch(announcement(version))
    fetch.take(*answer(version, fetch.first()[1]))
    assert [want.chunk for want in fetch.again()] == [0, 2, 3, 4]


def test_a_damaged_version_is_refused():
    version = snapshot(1, 2)
    fetch = Fetch(announcement(version))
    [wanted] = fetch.first()
    chunk, arrays = answer(version, wanted)
    fetch.take(chunk, {"bytes": arrays["bytes"] ^ 1})
    with pytest.raises(WireError, match="digest"):
        fetch.snapshot()


@pytest.mark.parametrize(
    "arrays",
    [{}, {"bytes": np.zeros(99, np.uint8)}, {"bytes": np.zeros(100, np.int8)}, {"bytes": np.zeros((10, 10), np.uint8)}],
    ids=["missing", "short", "other type", "other shape"],
)
def test_a_chunk_that_is_not_as_agreed_is_refused(arrays):
    fetch = Fetch(announcement(snapshot(1, 2, num_bytes=100)))
    with pytest.raises(WireError):
        fetch.take(WeightsChunk(version=(1, 2), chunk=0), arrays)
    assert not fetch.is_complete


def test_a_chunk_past_the_end_is_refused():
    fetch = Fetch(announcement(snapshot(1, 2, num_bytes=100)))
    with pytest.raises(WireError, match="chunk 1 "):
        fetch.take(WeightsChunk(version=(1, 2), chunk=1), {"bytes": np.zeros(0, np.uint8)})


def test_nothing_is_allocated_for_a_version_that_is_too_large():
    offer = WeightsAnnounced(version=(1, 0), updates=0, num_bytes=MAX_SNAPSHOT_BYTES + 1, digest="")
    with pytest.raises(WireError, match="at most"):
        Fetch(offer)


def test_a_fetch_takes_the_memory_of_what_has_arrived_and_not_of_what_was_announced():
    offer = WeightsAnnounced(version=(1, 0), updates=0, num_bytes=MAX_SNAPSHOT_BYTES, digest="")
    tracemalloc.start()
    fetch = Fetch(offer)
    assert len(fetch.first()) == WINDOW
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_chunk_that_was_not_asked_for_is_refused():
    version = snapshot(1, 2, num_bytes=2 * WINDOW * CHUNK_BYTES)
    for chunk in (WINDOW, 2 * WINDOW):
        fetch = Fetch(announcement(version))
        fetch.first()
        with pytest.raises(WireError, match=f"chunk {chunk} "):
            fetch.take(*answer(version, ChunkWanted(version=(1, 2), chunk=chunk)))


def test_a_runs_network_bounds_its_weights():
    config = small_config()
    spec = spec_of(gymnasium.make("CartPole-v1"))
    parameters = config.algorithm.num_parameters(spec)
    assert 4 * parameters < most_bytes_of_weights(config, spec) == SLACK_BYTES + 16 * parameters < 2**21
    untold = config.model_copy(update={"algorithm": AlgorithmConfig(name="mine")})
    assert most_bytes_of_weights(untold, spec) == MAX_SNAPSHOT_BYTES


# The store


def test_versions_that_others_hold_on_to_are_bounded(monkeypatch):
    monkeypatch.setattr(weights_store, "OLDER_BYTES", 1_000)
    hub = Hub()
    for counter in range(40):
        hub.receive(snapshot(1, counter))
        hub.handle(b"%d" % counter, WeightsWanted())
    assert [counter for counter in range(39) if hub.store.get(WeightsVersion(1, counter))] == list(range(23, 39))


def test_versions_that_are_kept_for_evaluators_which_report_nothing_are_bounded():
    hub = Hub()
    for counter in range(100):
        hub.receive(snapshot(1, counter), now=1e6 * counter)
        hub.handle(b"%d" % counter, WeightsWanted(keep=True), now=1e6 * counter)
    assert len(hub.store._all()) <= MAX_EVALUATING + 1
    assert hub.store.get(WeightsVersion(1, 98)) is not None


def test_connections_that_come_and_go_take_no_memory_and_who_waits_longest_is_answered(monkeypatch):
    monkeypatch.setattr(weights_store, "MAX_PEERS", 10)
    hub, never = Hub(), WeightsWanted(newer_than=(9, 0))
    for number in range(30):
        hub.handle(b"%d" % number, never)
    assert len(hub.store._wants) == 10
    hub.receive(snapshot(1, 0))
    told = [hub.handle(b"%d" % number, never) for number in range(100, 130)]
    assert [peer for replies in told for peer, _ in replies] == [
        b"%d" % number for number in (*range(20, 30), *range(100, 120))
    ]
    assert len(hub.store._fetching) == 10


def test_a_want_is_held_until_there_is_a_version():
    hub, version = Hub(), snapshot(1, 0)
    assert hub.handle(ACTOR, WeightsWanted()) == []
    assert hub.receive(version) == [(ACTOR, announcement(version))]


def test_a_want_is_held_until_there_is_a_newer_version():
    hub = Hub()
    hub.receive(snapshot(1, 3))
    assert hub.handle(ACTOR, WeightsWanted(newer_than=(1, 3))) == []
    assert hub.receive(snapshot(1, 4)) == [(ACTOR, announcement(snapshot(1, 4)))]


def test_versions_in_between_are_skipped():
    hub = Hub()
    for counter in range(5):
        hub.receive(snapshot(1, counter))
    assert hub.handle(ACTOR, WeightsWanted(newer_than=(1, 0))) == [(ACTOR, announcement(snapshot(1, 4)))]


def test_each_want_is_answered_once():
    hub = Hub()
    hub.handle(ACTOR, WeightsWanted())
    hub.receive(snapshot(1, 0))
    assert hub.receive(snapshot(1, 1)) == []


def test_a_restarted_learner_is_never_older():
    hub = Hub()
    hub.receive(snapshot(1, 900))
    hub.receive(snapshot(2, 0), b"new learner")
    assert hub.store.newest == snapshot(2, 0)


def test_an_older_generation_is_not_taken():
    hub = Hub()
    hub.receive(snapshot(2, 0))
    assert hub.handle(b"old learner", announcement(snapshot(1, 900))) == []


def test_the_learner_is_told_when_its_version_is_there_whole():
    hub, version = Hub(), snapshot(1, 3)
    [(_, wanted)] = hub.handle(LEARNER, announcement(version))
    assert hub.handle(LEARNER, *answer(version, wanted)) == [(LEARNER, WeightsWanted(newer_than=(1, 3)))]


def test_offers_during_a_fetch_wait_and_only_the_newest_is_fetched_next():
    hub, versions = Hub(), [snapshot(1, counter) for counter in range(3)]
    [(_, wanted)] = hub.handle(LEARNER, announcement(versions[0]))
    for later in versions[1:]:
        assert hub.handle(LEARNER, announcement(later)) == []
    replies = [message for _, message in hub.handle(LEARNER, *answer(versions[0], wanted))]
    assert replies == [WeightsWanted(newer_than=(1, 0)), ChunkWanted(version=(1, 2), chunk=0)]


def test_a_version_gone_at_the_learner_gives_way_to_the_newest():
    hub = Hub()
    hub.handle(LEARNER, announcement(snapshot(1, 0)))
    hub.handle(LEARNER, announcement(snapshot(1, 1)))
    [(_, wanted)] = hub.handle(LEARNER, VersionGone(version=(1, 0)))
    assert wanted == ChunkWanted(version=(1, 1), chunk=0)


def test_a_chunk_that_comes_too_late_does_no_harm():
    hub, old, new = Hub(), snapshot(1, 0), snapshot(1, 1)
    [(_, wanted)] = hub.handle(LEARNER, announcement(old))
    hub.handle(LEARNER, announcement(new))
    hub.handle(LEARNER, VersionGone(version=(1, 0)))
    assert hub.handle(LEARNER, *answer(old, wanted)) == []
    hub.handle(LEARNER, *answer(new, ChunkWanted(version=(1, 1), chunk=0)))
    assert hub.store.newest == new


@pytest.mark.parametrize("damage", ["digest", "size"])
def test_after_a_bad_version_the_next_one_is_taken(damage):
    hub, bad = Hub(), snapshot(1, 0)
    [(_, wanted)] = hub.handle(LEARNER, announcement(bad))
    chunk, arrays = answer(bad, wanted)
    broken = {"bytes": arrays["bytes"] ^ 1 if damage == "digest" else arrays["bytes"][:-1]}
    with pytest.raises(WireError):
        hub.handle(LEARNER, chunk, broken)
    assert hub.store.newest is None
    hub.receive(snapshot(1, 1))
    assert hub.store.newest == snapshot(1, 1)


def test_a_new_learner_is_heard_while_a_dead_one_owes_chunks():
    hub = Hub()
    hub.handle(LEARNER, announcement(snapshot(1, 0, num_bytes=SEVERAL_CHUNKS)))
    hub.receive(snapshot(2, 0), b"new learner")
    assert hub.store.newest == snapshot(2, 0)


def test_a_version_under_fetch_is_kept_and_dropped_after_its_lease():
    hub, old = Hub(), snapshot(1, 0)
    hub.receive(old)
    hub.handle(ACTOR, WeightsWanted(), now=0.0)
    hub.receive(snapshot(1, 1), now=1.0)
    wanted = ChunkWanted(version=(1, 0), chunk=0)
    assert hub.chunk(ACTOR, wanted, now=10.0)[1]["bytes"].tobytes() == old.payload
    hub.receive(snapshot(1, 2), now=10.0 + FETCH_LEASE_S - 1)
    assert hub.store.get(old.version) == old
    hub.receive(snapshot(1, 3), now=10.0 + FETCH_LEASE_S)
    assert hub.chunk(ACTOR, wanted, now=100.0)[0] == VersionGone(version=(1, 0))


def test_a_version_under_evaluation_is_kept_until_its_report():
    hub, judged = Hub(), snapshot(1, 0)
    hub.receive(judged)
    hub.handle(EVALUATOR, WeightsWanted(keep=True), now=0.0)
    hub.receive(snapshot(1, 1), now=1000.0)
    assert hub.store.get(judged.version) == judged
    hub.store.release(judged.version)
    hub.receive(snapshot(1, 2), now=2000.0)
    assert hub.store.get(judged.version) is None


def test_no_version_is_kept_that_nobody_needs():
    hub = Hub()
    for counter in range(5):
        hub.receive(snapshot(1, counter))
    assert [counter for counter in range(5) if hub.store.get(snapshot(1, counter).version)] == [4]


def test_a_want_for_updates_waits_for_so_many():
    hub = Hub()
    hub.handle(EVALUATOR, WeightsWanted(min_updates=500))
    assert hub.receive(snapshot(1, 1, updates=499)) == []
    assert hub.receive(snapshot(1, 2, updates=500)) == [(EVALUATOR, announcement(snapshot(1, 2, updates=500)))]


def test_at_the_end_the_newest_version_will_do():
    hub, last = Hub(), snapshot(1, 1, updates=499)
    hub.receive(last)
    hub.handle(EVALUATOR, WeightsWanted(newer_than=(1, 0), min_updates=500))
    assert hub.read(hub.store.serve_final(0.0)) == [(EVALUATOR, announcement(last))]


def test_at_the_end_a_version_that_was_judged_is_not_judged_again():
    hub = Hub()
    hub.receive(snapshot(1, 1, updates=499))
    hub.handle(EVALUATOR, WeightsWanted(newer_than=(1, 1), min_updates=500))
    assert hub.store.serve_final(0.0) == []
