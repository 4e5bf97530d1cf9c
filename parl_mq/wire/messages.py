"""Every message of the system, grouped by socket, with one union per receiver.

A message is the header; arrays travel in the slab behind it. Where a message carries arrays, its docstring lists
them by name, shape and dtype. Fields are added with a default, never reordered or reused.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
)

PROTOCOL_VERSION: Final = 2
MAIN_TABLE: Final = "main"
"""The table that a run's actors fill."""
CHUNK_BYTES: Final = 256 * 1024
"""Weights travel in chunks of this size, so that a large network never blocks heartbeats."""

Role = Literal["hub", "replay", "learner", "actor", "evaluator", "supervisor"]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.:-]+$")]
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal acts upon, but for tab and line feed."""


def _shown(text: str) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


Text = Annotated[str, Field(max_length=2000), AfterValidator(_shown)]
"""What people are shown; control characters in it are replaced."""
PublicKey = Annotated[str, Field(min_length=40, max_length=40)]
"""A CURVE key, Z85."""
Epoch = Annotated[int, Field(ge=0, lt=2**63)]
Sequence = Annotated[int, Field(ge=0, lt=2**63)]
Rows = Annotated[int, Field(ge=0, le=2**50)]
"""Live rows of one stream."""
Figure = Annotated[float, Field(ge=-1e300, le=1e300, allow_inf_nan=False)]
"""What a node has measured: the sum over all that a message or a run can hold is finite too."""
FigureName = Annotated[str, Field(max_length=200)]
MAX_FIGURES: Final = 500
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Version = tuple[Annotated[int, Field(ge=0, lt=2**32)], Annotated[int, Field(ge=0, lt=2**32)]]
ColumnRow = tuple[Annotated[str, Field(max_length=200)], list[PositiveInt], Annotated[str, Field(max_length=16)]]
SpaceRow = tuple[Annotated[str, Field(max_length=32)], list[float], list[float]]
Spaces = Annotated[dict[str, SpaceRow], Field(max_length=256)]
Columns = Annotated[list[ColumnRow], Field(max_length=256)]
Store = tuple[Annotated[str, Field(max_length=255)], Annotated[int, Field(ge=1, lt=2**16)]]


class Message(BaseModel):
    """Base of all messages: immutable, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# Control: every node <-> hub


class Hello(Message):
    """Node -> hub: I am here; also after a reconnect, and as the answer to SayHello.

    Attributes:
        epoch: tells this process from others of its name; the clock's time at its start, by which nothing is ordered.
        run_id: None at the first Hello; afterwards the run that this node belongs to.
        data_endpoint: where a replay node has bound its data socket; None for other roles.
        public_endpoint: the same for other machines, where it has another one for them.
        data_key: that the node proves at the endpoint for other machines; None: nothing there is encrypted.
    """

    kind: Literal["hello"] = "hello"
    protocol: int
    role: Role
    name: Name
    epoch: Annotated[int, Field(ge=0, lt=2**62)]
    pid: PositiveInt
    host: Annotated[Text, Field(max_length=255)]
    run_id: Name | None = None
    data_endpoint: Text | None = None
    public_endpoint: Text | None = None
    data_key: PublicKey | None = None


class SpecOffer(Message):
    """Node that has built the environment -> hub: the table's columns. The hub fixes the first one of a run."""

    kind: Literal["spec_offer"] = "spec_offer"
    columns: Columns
    spaces: Spaces
    digest: Text


class TableOpened(Message):
    """Replay -> hub: the table is ready to be filled.

    Attributes:
        num_bytes: memory that the table takes.
        num_rows: physical rows, dead ones included.
    """

    kind: Literal["table_opened"] = "table_opened"
    table: Name
    num_bytes: NonNegativeInt
    num_rows: NonNegativeInt


class TableRefused(Message):
    """Replay -> hub: the table cannot be opened here; the run ends with this reason."""

    kind: Literal["table_refused"] = "table_refused"
    table: Name
    reason: Text


class Heartbeat(Message):
    """Node -> hub, once a second: I am healthy.

    Attributes:
        progress: grows whenever the node's work loop got something done.
        state: one word for the progress view, such as `stepping`, `updating`, `waiting`.
        waiting_for: what is waited for, in words, or None.
        counters: name of a metric -> its value since the process started (see parl_mq.metrics).
    """

    kind: Literal["heartbeat"] = "heartbeat"
    sequence: Sequence
    progress: NonNegativeInt
    state: Text
    waiting_for: Text | None = None
    counters: dict[FigureName, Figure] = Field(default_factory=dict, max_length=MAX_FIGURES)


class EpisodesFinished(Message):
    """Actor -> hub: episodes that ended; raw returns of the exploring policy.

    Attributes:
        returns: undiscounted sum of rewards of each episode.
        lengths: steps of each.
        env_steps: steps that this actor had taken when it sent this.
    """

    kind: Literal["episodes_finished"] = "episodes_finished"
    returns: list[Figure] = Field(max_length=10_000)
    lengths: list[PositiveInt] = Field(max_length=10_000)
    env_steps: NonNegativeInt


class EvaluationFinished(Message):
    """Evaluator -> hub: full greedy episodes with one version of the weights.

    Attributes:
        updates: learner updates in that version.
        duration_s: seconds that the evaluation took.
    """

    kind: Literal["evaluation_finished"] = "evaluation_finished"
    version: Version
    updates: NonNegativeInt
    returns: list[Figure] = Field(min_length=1, max_length=10_000)
    lengths: list[PositiveInt] = Field(min_length=1, max_length=10_000)
    duration_s: NonNegativeFloat


class StopRequest(Message):
    """Supervisor -> hub: end the run in order, for this reason.

    Attributes:
        interrupted: everybody has little time, and nothing is evaluated any more.
        error_code: the run failed, and this is its exit code; None where it did not.
        lost: nodes that have ended without a Goodbye: nobody need wait for them.
    """

    kind: Literal["stop_request"] = "stop_request"
    reason: Text
    interrupted: bool = False
    error_code: int | None = None
    lost: list[Name] = Field(default_factory=list, max_length=10_000)


class Goodbye(Message):
    """Node -> hub: the last message, with the final counters; answered by HeartbeatSeen.

    Attributes:
        error: None after an orderly stop, else what ended the node.
        sequence: counted together with the heartbeats.
    """

    kind: Literal["goodbye"] = "goodbye"
    counters: dict[FigureName, Figure] = Field(default_factory=dict, max_length=MAX_FIGURES)
    error: Text | None = None
    sequence: Sequence = 0


class SenderAccounts(Message):
    """Replay -> hub: what is stored here, stream by stream.

    Attributes:
        ring_id: of the ring that the counts are about: those of another one are gone with it.
        accounts: name and epoch of an actor's process, and the live rows of it that were stored. A stream that is not
            mentioned has not changed since it was.
        found: the same of streams that an earlier process of the node has stored, of whose names the ring keeps a
            digest (parl_mq.replay.senders.digest_of, hexadecimal).
    """

    kind: Literal["sender_accounts"] = "sender_accounts"
    ring_id: Text
    accounts: list[tuple[Name, Epoch, Rows]] = Field(max_length=10_000)
    found: list[tuple[Digest, Epoch, Rows]] = Field(default_factory=list, max_length=10_000)


class LearnerReady(Message):
    """Learner -> hub, every second until it is in a group: it can begin, and what it brings along.

    Attributes:
        generation: of the last group that it was in, which is over with this; 0: it was in none.
        updates: those in the state that it holds; the group goes on from the state that has the most.
        device: that it computes on, such as `cpu` or `cuda:1`.
        store: host and port where it would let the group meet; None where no group needs that.
        reason: why its last group is over, for people.
    """

    kind: Literal["learner_ready"] = "learner_ready"
    generation: NonNegativeInt
    updates: NonNegativeInt
    device: Annotated[str, Field(max_length=32)]
    store: Store | None = None
    reason: Text = ""


class Pong(Message):
    """Node -> hub: the answer to Ping."""

    kind: Literal["pong"] = "pong"


class StatusRequest(Message):
    """Anyone -> hub, without a Hello: how is the run? Changes nothing."""

    kind: Literal["status_request"] = "status_request"


class ProbeRequest(Message):
    """Anyone -> hub, without a Hello: who are you, and where is everything? Changes nothing."""

    kind: Literal["probe"] = "probe"


class Welcome(Message):
    """Hub -> node: all that the node needs to work.

    Attributes:
        index: this node's index among its role, the same after a reconnect.
        host_index: the same among those of its role on its machine; of two that are there, no two have one.
        config: the run's resolved configuration, without the section `node`.
        generation: of the newest group of learners, for a learner; 0 for other roles.
        incarnation: starts of a node of this name, this one included; random streams depend on it.
        weights_endpoint: the hub's weights socket.
        epoch: of this process from now on, later than that of any earlier one of its name; None: that of its Hello.
    """

    kind: Literal["welcome"] = "welcome"
    run_id: Name
    index: NonNegativeInt
    config: dict[str, Any]
    generation: NonNegativeInt
    incarnation: PositiveInt
    weights_endpoint: Text
    heartbeat_s: Annotated[float, Field(gt=0)]
    epoch: Epoch | None = None
    host_index: NonNegativeInt = 0


class HelloRefused(Message):
    """Hub -> node: you may not join; end with this exit code."""

    kind: Literal["hello_refused"] = "hello_refused"
    reason: Text
    exit_code: int


class HelloHeld(Message):
    """Hub -> node: you may join once it is clear that the old process of your name is gone; your Hello is kept."""

    kind: Literal["hello_held"] = "hello_held"
    reason: Text


class Ping(Message):
    """Hub -> node: are you still there? Another process says that it has your name."""

    kind: Literal["ping"] = "ping"


class SayHello(Message):
    """Server -> client: I do not know this route (any more): say Hello, or Attach, again."""

    kind: Literal["say_hello"] = "say_hello"


class RunState(Message):
    """Hub -> every node, at its Hello and at each change: what has been settled so far.

    Attributes:
        columns: the table's columns, or None while no node has offered a spec.
        spaces: of the columns that hold observations and actions.
        replay_endpoints: data sockets of the replay nodes whose table is open, by index, as this node is to reach them.
        server_keys: endpoint -> the key that is proved there, of those that are encrypted.
    """

    kind: Literal["run_state"] = "run_state"
    columns: Columns | None
    spaces: Spaces
    digest: Text | None
    replay_endpoints: list[Text] = Field(max_length=256)
    server_keys: dict[Text, PublicKey] = Field(default_factory=dict, max_length=256)


class ProbeReply(Message):
    """Hub -> whoever asked.

    Attributes:
        protocol: that it speaks.
        version: of its parl_mq.
        time_s: its wall clock, seconds since 1970.
        endpoints: name -> endpoint of the other sockets, as the asker is to reach them.
        server_keys: endpoint -> the key that is proved there, of those that are encrypted.
    """

    kind: Literal["probe_reply"] = "probe_reply"
    run_id: Name
    protocol: int
    version: Text
    time_s: FiniteFloat
    endpoints: dict[Text, Text] = Field(max_length=1_000)
    server_keys: dict[Text, PublicKey] = Field(default_factory=dict, max_length=1_000)


class KeysAllowed(Message):
    """Hub -> replay, at its Hello and at each change: whose connections you may take.

    Attributes:
        keys: key, name and role of each.
    """

    kind: Literal["keys_allowed"] = "keys_allowed"
    keys: list[tuple[PublicKey, Name, Role]] = Field(max_length=10_000)


class OpenTable(Message):
    """Hub -> replay: make the table ready (its settings stand in the run's config)."""

    kind: Literal["open_table"] = "open_table"
    table: Name
    columns: Columns
    spaces: Spaces
    digest: Text


class GroupFormed(Message):
    """Hub -> each learner of a new group: begin.

    Attributes:
        generation: of the group, and of the weights that it publishes; grows by one with each group of the run.
        rank: this learner's place; rank 0 publishes weights and saves checkpoints.
        names: of the learners, by rank.
        source: rank whose state all of them begin with.
        backend: through which they average.
        store: where they meet; None for a group of one.
    """

    kind: Literal["group_formed"] = "group_formed"
    generation: PositiveInt
    rank: NonNegativeInt
    names: list[Name] = Field(min_length=1, max_length=64)
    source: NonNegativeInt = 0
    backend: Literal["gloo", "nccl"] = "gloo"
    store: Store | None = None


class GroupWaiting(Message):
    """Hub -> learner that is ready: there is no place for it yet, and why."""

    kind: Literal["group_waiting"] = "group_waiting"
    reason: Text


class GroupEnded(Message):
    """Hub -> learner: this group is over, for this reason; say that you are ready for the next one."""

    kind: Literal["group_ended"] = "group_ended"
    generation: PositiveInt
    reason: Text


class HeartbeatSeen(Message):
    """Hub -> node: the answer to a heartbeat, so that a node notices a hub that is gone."""

    kind: Literal["heartbeat_seen"] = "heartbeat_seen"
    sequence: Sequence


class Stop(Message):
    """Hub -> node: finish what is under way, say Goodbye and end with code 0.

    Attributes:
        reason: for people.
        is_final: the run is done; what is kept only for its resumption may go.
    """

    kind: Literal["stop"] = "stop"
    reason: Text
    is_final: bool = False


class RunProgress(Message):
    """Hub -> supervisor, twice a second: the figures of the progress view and of the final result.

    Attributes:
        phase: `starting`, `filling`, `training`, `stopping` or `done`.
        nodes: one (name, state, waiting_for) for each node, as many as a message has room for.
        figures: name -> value, see parl_mq.metrics; absent while unknown, never NaN.
        error: what made the run fail, or None.
        trouble: what people should see to while the run goes on, or None.
        pulses: node -> its process id, seconds since its last heartbeat, and the progress that it told of.
    """

    kind: Literal["run_progress"] = "run_progress"
    phase: Text
    nodes: list[tuple[Text, Text, Text | None]] = Field(max_length=10_000)
    figures: dict[str, FiniteFloat] = Field(max_length=MAX_FIGURES)
    reached: bool = False
    error: Text | None = None
    trouble: Text | None = None
    pulses: dict[Name, tuple[PositiveInt, NonNegativeFloat, NonNegativeInt]] = Field(
        default_factory=dict, max_length=10_000
    )


class NodeReport(NamedTuple):
    """One node in a RunStatus.

    Attributes:
        health: `healthy`, `silent` (no heartbeat, but nobody says that it has ended), `away` (the hub has not heard of
            it since its own start), `left` (in order), or `failed`.
        state: one word of the node's own.
        waiting_for: what it waits for, in words, or None.
        waiting_s: seconds since it began to wait for that.
        silent_s: seconds since its last heartbeat.
        starts: processes of this name so far.
        figures: what its newest heartbeat told, see parl_mq.metrics.
    """

    name: Name
    role: Role
    health: Literal["healthy", "silent", "away", "left", "failed"]
    state: Text
    waiting_for: Text | None
    waiting_s: NonNegativeFloat
    silent_s: NonNegativeFloat
    starts: PositiveInt
    pid: PositiveInt
    host: Text
    figures: dict[str, FiniteFloat] = {}  # noqa: RUF012 - nobody changes it


class RunStatus(Message):
    """Hub -> whoever asked: how the run is.

    Attributes:
        figures: name -> value, see parl_mq.metrics.
        nodes: those that came first, as many as a message has room for; where that is not all, without their figures.
        books: what became of the actors' rows: `sent`, `acknowledged`, `abandoned`, `under_way`, `stored`, `lost`.
    """

    kind: Literal["run_status"] = "run_status"
    run_id: Name
    preset: Text
    env_id: Text
    algorithm: Text
    phase: Text
    wall_s: NonNegativeFloat
    nodes: list[NodeReport] = Field(max_length=10_000)
    figures: dict[str, FiniteFloat] = Field(max_length=MAX_FIGURES)
    books: dict[Name, NonNegativeInt] = Field(max_length=20)
    target_return: FiniteFloat | None = None
    stop_reason: Text = ""
    error: Text | None = None


# Weights: learner, actor, evaluator <-> hub
# Both hand-overs, learner -> hub and hub -> actor, use the same three messages: whoever has the weights announces
# a version, whoever wants it asks for its chunks one by one.


class WeightsWanted(Message):
    """Actor, evaluator -> hub: tell me of a version newer than this; held until there is one.

    Attributes:
        newer_than: the version in hand, or None for any.
        min_updates: only a version with at least this many learner updates will do.
        keep: the hub keeps the version until its evaluation is reported; only for an evaluator.
    """

    kind: Literal["weights_wanted"] = "weights_wanted"
    newer_than: Version | None = None
    min_updates: NonNegativeInt = 0
    keep: bool = False


class WeightsAnnounced(Message):
    """Learner -> hub, hub -> actor and evaluator: this version is here, ask for its chunks.

    Attributes:
        updates: learner updates in this version.
        num_bytes: of the whole snapshot; it has ceil(num_bytes / CHUNK_BYTES) chunks.
        digest: SHA-256 of the snapshot, hexadecimal.
    """

    kind: Literal["weights_announced"] = "weights_announced"
    version: Version
    updates: NonNegativeInt
    num_bytes: PositiveInt
    digest: Text


class ChunkWanted(Message):
    """Whoever fetches -> whoever announced: send this chunk."""

    kind: Literal["chunk_wanted"] = "chunk_wanted"
    version: Version
    chunk: NonNegativeInt


class WeightsChunk(Message):
    """The answer to ChunkWanted. Arrays: bytes [<= CHUNK_BYTES] uint8."""

    kind: Literal["weights_chunk"] = "weights_chunk"
    version: Version
    chunk: NonNegativeInt


class VersionGone(Message):
    """The answer to ChunkWanted for a version that is no longer kept: ask for a newer one."""

    kind: Literal["version_gone"] = "version_gone"
    version: Version


# Data: actor, learner <-> replay


class Attach(Message):
    """Actor, learner -> replay: opens each connection, and answers SayHello."""

    kind: Literal["attach"] = "attach"
    protocol: int
    run_id: Name
    role: Role
    name: Name
    epoch: Epoch
    table: Name
    digest: Text


class Attached(Message):
    """Replay -> actor, learner: you may send.

    Attributes:
        ring_id: changes when the ring was made anew: rows acknowledged by another ring are not here.
        last_sequence: the last contiguous sequence number of this (name, epoch), or None.
        counted_rows: live rows of this epoch up to `last_sequence`, as this replay node counts them: from 0 at each
            start of it. Credit is on the same count, and the sender shifts it to its own.
        counted_bytes: the same in bytes of columns.
        credit_rows: live rows that this epoch may have sent in all, absolute; 0 for a learner.
        credit_bytes: the same in bytes of columns.
        version: as Credit has it: credit without it would be for steps that are not this actor's turn.
    """

    kind: Literal["attached"] = "attached"
    ring_id: Text
    last_sequence: Sequence | None
    counted_rows: NonNegativeInt
    counted_bytes: NonNegativeInt
    credit_rows: NonNegativeInt
    credit_bytes: NonNegativeInt
    version: NonNegativeInt | None = None


class AttachRefused(Message):
    """Replay -> actor, learner: you may not send; end with this exit code."""

    kind: Literal["attach_refused"] = "attach_refused"
    reason: Text
    exit_code: int


class InsertFragments(Message):
    """Actor -> replay: store these fragments (parl_mq.fragments.FragmentBatch).

    Arrays: each of the table's columns [R, *shape]; fragment.lengths, fragment.num_context, fragment.num_overlap
    [F] int32; fragment.starts_episode [F] bool; fragment.versions [F, 2] uint32; optionally fragment.priorities
    [num_live] float64.

    Attributes:
        sequence: grows by one per message of this (name, epoch) to this replay node.
    """

    kind: Literal["insert"] = "insert"
    sequence: Sequence
    table: Name


class Credit(Message):
    """Replay -> actor: acknowledgement and credit; may come without anything new to acknowledge.

    All rows of messages up to `last_sequence` can be sampled. Credit is absolute, on the count that Attached began:
    repeats do no harm.

    Attributes:
        last_sequence: the last contiguous sequence number stored, or None.
        waiting_for: why there is no more credit, in words, or None.
        version: in lock step, counter of the weights with which the actor goes on; None: with the newest it has.
    """

    kind: Literal["credit"] = "credit"
    last_sequence: Sequence | None
    credit_rows: NonNegativeInt
    credit_bytes: NonNegativeInt
    waiting_for: Text | None = None
    version: NonNegativeInt | None = None


class InsertRefused(Message):
    """Replay -> actor: nothing of this message was stored, and sending it again will not help."""

    kind: Literal["insert_refused"] = "insert_refused"
    sequence: Sequence
    reason: Text


class RunSums(NamedTuple):
    """How far the run's replay nodes have come, as a learner knows: sums over all but the node that is told of them.

    Attributes:
        before: live rows inserted before the first draw.
        inserted: those since.
        drawn: rows drawn, and asked for.
        arrived_here: rows of the node itself that had been inserted when the sums were made.
    """

    before: NonNegativeInt
    inserted: NonNegativeInt
    drawn: NonNegativeInt
    arrived_here: NonNegativeInt


class RunCounts(Message):
    """Learner -> replay, where a run has several replay nodes: what the others have, whenever that changes.

    Comes every 20 ms at most; requests bring the same.
    """

    kind: Literal["run_counts"] = "run_counts"
    table: Name
    sums: RunSums


class ReplayCounts(Message):
    """Replay -> learner, where a run has several replay nodes: how far this one is, whenever that changes.

    Comes every 20 ms at most; replies bring the same.

    Attributes:
        num_live: live rows.
        total_priority: sum of all p_i^alpha.
        num_before: live rows accepted before the run's first draw.
        num_inserted: those since.
        num_drawn: rows drawn.
    """

    kind: Literal["replay_counts"] = "replay_counts"
    num_live: NonNegativeInt
    total_priority: NonNegativeFloat
    num_before: NonNegativeInt
    num_inserted: NonNegativeInt
    num_drawn: NonNegativeInt


class SampleRequest(Message):
    """Learner -> replay: send me so many batches; held back until the limiter allows them.

    One message for several spares both ends most of what a message costs beside its rows.

    Arrays, optional, priority updates that ride along: keys [U] uint64, magnitudes [U] float64.

    Attributes:
        request_id: echoed by the replies; unique per learner process.
        batch_size: B >= 1.
        num_batches: wanted in all, in one reply or several.
        rows: False: keys and probabilities will do, as the learner has the table mapped.
        run: of a learner that has several replay nodes, and has found itself that the draw is due.
    """

    kind: Literal["sample"] = "sample"
    request_id: Sequence
    table: Name
    batch_size: PositiveInt
    num_batches: Annotated[int, Field(ge=1, le=64)] = 1
    rows: bool = True
    run: RunSums | None = None


class SampleReply(Message):
    """Replay -> learner: the next batches of a request, n of them.

    Arrays: those of parl_mq.replay.table.Draw, [n B, ...] each, one batch after the other; without rows only keys [n B]
    uint64 and probabilities [n B] float64.

    Attributes:
        num_live: N, live rows of the table at the draw.
        total_priority: sum of all p_i^alpha at the draw.
        num_inserted: live rows accepted since the first draw.
        num_drawn: rows drawn since then, these batches included.
        held_s: seconds for which the limiter held the request.
        num_batches: n.
        ends_round: in lock step, the last batch before more rows come: the learner publishes after it.
    """

    kind: Literal["sample_reply"] = "sample_reply"
    request_id: Sequence
    num_live: NonNegativeInt
    total_priority: NonNegativeFloat
    num_inserted: NonNegativeInt
    num_drawn: NonNegativeInt
    held_s: NonNegativeFloat = 0.0
    num_batches: PositiveInt = 1
    ends_round: bool = False


class SampleWaiting(Message):
    """Replay -> learner, at most once a second: your requests are held, and why."""

    kind: Literal["sample_waiting"] = "sample_waiting"
    reason: Text


class SampleRefused(Message):
    """Replay -> learner: this request can never be met."""

    kind: Literal["sample_refused"] = "sample_refused"
    request_id: Sequence
    reason: Text


class UpdatePriorities(Message):
    """Learner -> replay: new magnitudes, when no request is due to carry them.

    Arrays: keys [U] uint64, magnitudes [U] float64.
    """

    kind: Literal["update_priorities"] = "update_priorities"
    table: Name


class UpdateRefused(Message):
    """Replay -> learner: none of these priorities was applied."""

    kind: Literal["update_refused"] = "update_refused"
    reason: Text


ToHub = Annotated[
    Hello
    | SpecOffer
    | TableOpened
    | TableRefused
    | Heartbeat
    | EpisodesFinished
    | EvaluationFinished
    | StopRequest
    | Goodbye
    | SenderAccounts
    | LearnerReady
    | Pong
    | StatusRequest
    | ProbeRequest,
    Field(discriminator="kind"),
]
FromHub = Annotated[
    Welcome
    | HelloRefused
    | HelloHeld
    | SayHello
    | Ping
    | RunState
    | OpenTable
    | GroupFormed
    | GroupWaiting
    | GroupEnded
    | HeartbeatSeen
    | Stop
    | RunProgress
    | RunStatus
    | ProbeReply
    | KeysAllowed,
    Field(discriminator="kind"),
]
Weights = Annotated[
    WeightsWanted | WeightsAnnounced | ChunkWanted | WeightsChunk | VersionGone,
    Field(discriminator="kind"),
]
ToReplay = Annotated[
    Attach | InsertFragments | SampleRequest | UpdatePriorities | RunCounts,
    Field(discriminator="kind"),
]
FromReplay = Annotated[
    Attached
    | AttachRefused
    | SayHello
    | Credit
    | InsertRefused
    | SampleReply
    | ReplayCounts
    | SampleWaiting
    | SampleRefused
    | UpdateRefused,
    Field(discriminator="kind"),
]
