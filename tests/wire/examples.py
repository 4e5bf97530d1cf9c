"""One example of each message, with its arrays, and the golden files made of them.

`python -m tests.wire.examples` writes the files anew: only for a change of the wire format that is meant.
"""

import struct
from pathlib import Path

import numpy as np

from parl_mq.fragments import FragmentBatch
from parl_mq.spec import TableSpec
from parl_mq.wire.codec import encode
from parl_mq.wire.fragments import arrays_of
from parl_mq.wire.messages import (
    Attach,
    Attached,
    AttachRefused,
    ChunkWanted,
    Credit,
    EpisodesFinished,
    EvaluationFinished,
    Goodbye,
    GroupEnded,
    GroupFormed,
    GroupWaiting,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    HelloHeld,
    HelloRefused,
    InsertFragments,
    InsertRefused,
    KeysAllowed,
    LearnerReady,
    NodeReport,
    OpenTable,
    Ping,
    Pong,
    ProbeReply,
    ProbeRequest,
    ReplayCounts,
    RunCounts,
    RunProgress,
    RunState,
    RunStatus,
    RunSums,
    SampleRefused,
    SampleReply,
    SampleRequest,
    SampleWaiting,
    SayHello,
    SenderAccounts,
    SpecOffer,
    StatusRequest,
    Stop,
    StopRequest,
    TableOpened,
    TableRefused,
    UpdatePriorities,
    UpdateRefused,
    VersionGone,
    WeightsAnnounced,
    WeightsChunk,
    WeightsWanted,
    Welcome,
)

GOLDEN = Path(__file__).parent / "golden"

SPEC = TableSpec.of({"obs": ((2, 3), "uint8"), "action": ((), "int64"), "noise": ((2,), "float32")})
EPOCH = 1_700_000_000_000_000_000


def fragments(with_priorities=True):
    """Two fragments, [context 1, live 2, overlap 1, closing] and [live 1, closing]; the second ends an episode."""
    rows = 7
    terminated = np.zeros(rows, bool)
    terminated[5] = True
    return FragmentBatch(
        columns={
            "obs": np.arange(rows * 6, dtype=np.uint8).reshape(rows, 2, 3),
            "action": np.arange(rows, dtype=np.int64),
            "reward": np.arange(rows, dtype=np.float32),
            "terminated": terminated,
            "truncated": np.zeros(rows, bool),
            "noise": np.arange(rows * 2, dtype=np.float32).reshape(rows, 2),
        },
        lengths=np.array([2, 1], np.int32),
        num_context=np.array([1, 0], np.int32),
        num_overlap=np.array([1, 0], np.int32),
        starts_episode=np.array([True, False]),
        priorities=np.array([0.5, 0.25, 0.0]) if with_priorities else None,
        versions=np.array([[1, 7], [1, 8]], np.uint32),
    )


_columns, _spaces = SPEC.to_wire()
_spaces = {"obs": ("Box", [0.0], [255.0]), "action": ("Discrete", [0.0], [3.0])}
_updates = {"keys": np.array([3, 2**63 + 5], np.uint64), "magnitudes": np.array([0.5, 2.0])}

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"

MESSAGES = [
    (Hello(protocol=1, role="actor", name="actor-0", epoch=EPOCH, pid=4242, host="worker"), {}),
    (SpecOffer(columns=_columns, spaces=_spaces, digest=SPEC.digest), {}),
    (TableOpened(table="main", num_bytes=1 << 20, num_rows=1030), {}),
    (TableRefused(table="main", reason="3 GiB needed, 1 GiB there"), {}),
    (Heartbeat(sequence=3, progress=9, state="stepping", counters={"env_steps_total": 64.0}), {}),
    (EpisodesFinished(returns=[12.5, -1.0], lengths=[12, 3], env_steps=640), {}),
    (EvaluationFinished(version=(1, 7), updates=500, returns=[475.0], lengths=[475], duration_s=0.5), {}),
    (StopRequest(reason="Ctrl-C", interrupted=True), {}),
    (Goodbye(counters={"updates_total": 10.0}), {}),
    (
        Welcome(
            run_id="a1b2c3",
            index=2,
            config={"seed": 1, "environment": {"id": "CartPole-v1", "kwargs": {}}},
            generation=0,
            incarnation=1,
            weights_endpoint="ipc:///run/hub.weights",
            heartbeat_s=1.0,
            host_index=1,
        ),
        {},
    ),
    (SenderAccounts(ring_id="r1", accounts=[("actor-0", EPOCH, 448)], found=[("0" * 32, EPOCH, 64)]), {}),
    (LearnerReady(generation=1, updates=200, device="cpu", store=("127.0.0.1", 5001), reason="learner-1 is gone"), {}),
    (Pong(), {}),
    (StatusRequest(), {}),
    (ProbeRequest(), {}),
    (
        ProbeReply(
            run_id="a1b2c3",
            protocol=1,
            version="0.1.0",
            time_s=1_700_000_000.5,
            endpoints={"weights": "tcp://10.0.0.1:29701"},
            server_keys={"tcp://10.0.0.1:29701": KEY},
        ),
        {},
    ),
    (KeysAllowed(keys=[(KEY, "actor.guest", "actor")]), {}),
    (HelloHeld(reason="actor-0 may still be there"), {}),
    (Ping(), {}),
    (
        RunStatus(
            run_id="a1b2c3",
            preset="cartpole-dqn",
            env_id="CartPole-v1",
            algorithm="dqn",
            phase="training",
            wall_s=12.5,
            nodes=[
                NodeReport(
                    name="actor-0",
                    role="actor",
                    health="healthy",
                    state="waiting",
                    waiting_for="the replay node",
                    waiting_s=0.25,
                    silent_s=0.5,
                    starts=2,
                    pid=4242,
                    host="worker",
                    figures={"cpu_seconds_total": 1.5},
                )
            ],
            figures={"env_steps_total": 640.0},
            books={"sent": 448},
            target_return=475.0,
        ),
        {},
    ),
    (HelloRefused(reason="this is run a1b2c3", exit_code=78), {}),
    (SayHello(), {}),
    (RunState(columns=_columns, spaces=_spaces, digest=SPEC.digest, replay_endpoints=["tcp://127.0.0.1:5000"]), {}),
    (OpenTable(table="main", columns=_columns, spaces=_spaces, digest=SPEC.digest), {}),
    (GroupFormed(generation=2, rank=1, names=["learner-0", "learner-1"], store=("127.0.0.1", 5001)), {}),
    (GroupWaiting(reason="1 of 2 are here"), {}),
    (GroupEnded(generation=2, reason="learner-0 has left"), {}),
    (HeartbeatSeen(sequence=3), {}),
    (Stop(reason="target reached", is_final=True), {}),
    (
        RunProgress(
            phase="training",
            nodes=[("actor-0", "stepping", None)],
            figures={"eval_return": 9.5},
            pulses={"actor-0": (4242, 0.25, 7)},
        ),
        {},
    ),
    (WeightsWanted(newer_than=(1, 7), min_updates=500, keep=True), {}),
    (WeightsAnnounced(version=(1, 8), updates=600, num_bytes=300_000, digest="ab" * 32), {}),
    (ChunkWanted(version=(1, 8), chunk=1), {}),
    (WeightsChunk(version=(1, 8), chunk=1), {"bytes": np.arange(100, dtype=np.uint8)}),
    (VersionGone(version=(1, 8)), {}),
    (
        Attach(
            protocol=1, run_id="a1b2c3", role="actor", name="actor-0", epoch=EPOCH, table="main", digest=SPEC.digest
        ),
        {},
    ),
    (
        Attached(
            ring_id="r1", last_sequence=6, counted_rows=448, counted_bytes=9000, credit_rows=2048, credit_bytes=1 << 26
        ),
        {},
    ),
    (AttachRefused(reason="other columns", exit_code=78), {}),
    (InsertFragments(sequence=7, table="main"), arrays_of(fragments())),
    (Credit(last_sequence=7, credit_rows=2112, credit_bytes=1 << 26), {}),
    (InsertRefused(sequence=7, reason="field obs: missing"), {}),
    (SampleRequest(request_id=1, table="main", batch_size=256), _updates),
    (
        SampleReply(request_id=1, num_live=1000, total_priority=37.25, num_inserted=64, num_drawn=512),
        {"obs": np.ones((2, 2, 3), np.uint8), "keys": _updates["keys"], "probabilities": np.array([0.5, 0.25])},
    ),
    (RunCounts(table="main", sums=RunSums(before=10, inserted=64, drawn=512, arrived_here=70)), {}),
    (ReplayCounts(num_live=1000, total_priority=37.25, num_before=10, num_inserted=64, num_drawn=512), {}),
    (SampleWaiting(reason="replay 10/1000 rows"), {}),
    (SampleRefused(request_id=1, reason="a batch of 100000 rows"), {}),
    (UpdatePriorities(table="main"), _updates),
    (UpdateRefused(reason="field magnitudes: nan"), {}),
]


def golden_path(message):
    return GOLDEN / f"{message.kind}.bin"


def golden_bytes(message, arrays):
    """The frames one after the other, each behind its length as a little-endian uint32."""
    return b"".join(struct.pack("<I", len(frame)) + bytes(frame) for frame in encode(message, arrays))


def golden_frames(packed):
    frames = []
    while packed:
        (length,) = struct.unpack_from("<I", packed)
        frames.append(packed[4 : 4 + length])
        packed = packed[4 + length :]
    return frames


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for each, its_arrays in MESSAGES:
        golden_path(each).write_bytes(golden_bytes(each, its_arrays))
