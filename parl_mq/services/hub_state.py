"""What the hub knows and decides: who is here, what is settled, how far the run is, when and how it ends.

Pure and synchronous: each method takes the time, changes state and returns the messages to send. Who is here is kept by
`roster.py`, who of two has a name by `claims.py`, the order of the end by `ending.py`, the figures by `tally.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, assert_never

from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_CONFIG, EXIT_TEMPORARY, WireError
from parl_mq.net.channel import PeerId
from parl_mq.observe.prometheus import NodeFigures
from parl_mq.services.addresses import Addresses
from parl_mq.services.books import RowCounts
from parl_mq.services.claims import Claims, superseded
from parl_mq.services.ending import FINAL_EVALUATION, EndSequence, Stage
from parl_mq.services.learner_groups import LearnerGroups
from parl_mq.services.roster import Node, Roster
from parl_mq.services.run_memory import RunMemory
from parl_mq.services.tally import Tally
from parl_mq.spec import TableSpec, WeightsVersion
from parl_mq.wire.codec import MAX_HEADER_BYTES, fitting
from parl_mq.wire.messages import (
    MAIN_TABLE,
    MAX_FIGURES,
    PROTOCOL_VERSION,
    EpisodesFinished,
    EvaluationFinished,
    Goodbye,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    HelloRefused,
    LearnerReady,
    Message,
    OpenTable,
    Pong,
    Role,
    RunProgress,
    RunState,
    RunStatus,
    SayHello,
    SenderAccounts,
    SpecOffer,
    StatusRequest,
    Stop,
    StopRequest,
    TableOpened,
    TableRefused,
    Welcome,
)

HEARTBEAT_S: Final = 0.5
NODES_BYTES: Final = MAX_HEADER_BYTES // 2
"""What a message says of nodes may take so much of it; figures are the most of the rest, and take less."""
PULSE: Final = (2**32, 0.0, 2**64 - 1)
"""No node's pulse takes more room."""
OWN_ABSENCE_S: Final = 1.0
"""Between two ticks; a hub that was away for longer has heard nobody, and that is nobody's fault."""

_SENDERS: Final[Mapping[type[Message], frozenset[Role]]] = {
    SpecOffer: frozenset({"supervisor", "actor", "evaluator"}),
    TableOpened: frozenset({"replay"}),
    TableRefused: frozenset({"replay"}),
    SenderAccounts: frozenset({"replay"}),
    EpisodesFinished: frozenset({"actor"}),
    LearnerReady: frozenset({"learner"}),
    EvaluationFinished: frozenset({"evaluator"}),
    StopRequest: frozenset({"supervisor"}),
}
"""Who may send what; everything else anybody may."""

Outgoing = tuple[PeerId, Message]


class HubState:
    """All that the hub decides.

    Attributes:
        run_id: of the run.
        phase: `starting`, `filling`, `training`, `stopping` or `done`.
        tally: figures and evaluations.
        error: what made the run fail, with its exit code, or None.
        trouble: what people should see to while the run goes on, or None.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        run_id: str,
        weights_endpoint: str,
        started_at: float,
        before: RunMemory,
        now: float | None = None,
        addresses: Addresses | None = None,
    ) -> None:
        """Begins a run, or goes on with it.

        Args:
            config: of the run.
            run_id: of the run.
            weights_endpoint: of the hub's other socket.
            started_at: monotonic time at which the command started, s.
            before: what an earlier hub of the run remembered.
            now: the time; None: that of the start.
            addresses: where nodes find each other; None: all of them are on this machine.
        """
        self._addresses = addresses or Addresses(weights_endpoint)
        now = started_at if now is None else now
        was_here = bool(before.run_id) and before.started_at == started_at
        self.phase = before.phase if was_here else "starting"
        self.stop_reason = ""
        self.error: tuple[str, int] | None = None
        self.trouble: str | None = None
        self.was_interrupted = False
        self.time_to_target_s = before.time_to_target_s
        self.first_step_s = before.first_step_s if was_here else None
        self._config = config
        self.run_id = run_id
        self._weights_endpoint = weights_endpoint
        self._started_at = started_at
        self._before = before
        self._wall_before_s = before.wall_before_s if was_here else before.wall_s
        self._roster = Roster(Node.from_json(values, now=now, has_left=not was_here) for values in before.nodes)
        self._claims = Claims(self._roster, config.node.busy_limit_s)
        self.tally = Tally(before, self._roster)
        if not was_here:
            self.tally.books.cut_all()
        self._spec = None if before.spec is None else SpecOffer.model_validate(before.spec)
        self._groups = LearnerGroups(
            self._roster,
            config.learner.num_learners,
            before.generation,
            config.learner.silence_limit_s,
            members=before.group if was_here else (),
        )
        self._end: EndSequence | None = None
        self._stopped_roles: set[Role] = set()
        self._newest: WeightsVersion | None = None
        self._newest_updates = 0
        self._ticked_at = now
        self._has_settled = True
        if was_here and before.stop is not None:
            self._end_again(before.stop, now)

    # Messages of the nodes

    def handle(self, peer: PeerId, message: Message, now: float) -> list[Outgoing]:
        """Takes one message of the control plane.

        Raises:
            WireError: a node of this role may not send it, or it contradicts itself. Nothing has changed.
        """
        if isinstance(message, Hello):
            return self._greet(peer, message, now)
        if isinstance(message, StatusRequest):
            return [(peer, self.status(now))]
        node = self._roster.at(peer)
        if node is None:
            return [(peer, SayHello())]
        node.heard_at = now
        if node.role not in _SENDERS.get(type(message), frozenset({node.role})):
            raise WireError(f"{node.hello.name} may not send {type(message).__name__}: it joined as {node.role}")
        known: Any = message
        match known:
            case SpecOffer():
                return self._settle_spec(node, known)
            case TableOpened():
                return self._note_open_table(node)
            case TableRefused():
                return self.fail(f"{node.hello.name} cannot open the table: {known.reason}", EXIT_CONFIG, now)
            case Heartbeat():
                return self._note_heartbeat(node, known, now)
            case EpisodesFinished():
                self.tally.note_episodes(known)
                return []
            case EvaluationFinished():
                return self._note_evaluation(known, now)
            case StopRequest():
                return self._end_on_request(known, now)
            case Goodbye():
                return self._note_goodbye(node, known, now)
            case SenderAccounts():
                accounts = [each for each in known.accounts if self._roster.has_given(*each[:2])]
                self.tally.books.note_accounts(node.name, known.ring_id, accounts, known.found)
                return []
            case LearnerReady():
                return self._note_ready(node, known, now)
            case Pong():
                return self._claims.keep(node)
            case _:
                assert_never(known)

    def take_settled(self) -> bool:
        """Whether something has changed that must be remembered before anybody hears of it; False the next time."""
        settled, self._has_settled = self._has_settled, False
        return settled

    def note_unreachable(self, peer: PeerId, now: float) -> list[Outgoing]:
        """A message could not be sent because there is no such route: whoever claims its node's name may have it."""
        node = self._roster.at(peer)
        claim = None if node is None else self._claims.give_up(node.name)
        return [] if claim is None else self._welcome(claim.peer, claim.hello, now)

    def _greet(self, peer: PeerId, hello: Hello, now: float) -> list[Outgoing]:
        if refusal := self._why_not(hello):
            return [(peer, refusal)]
        if self._claims.is_contested(hello, now):
            return self._claims.hold(peer, hello, now)
        return self._welcome(peer, hello, now)

    def _settle_claims(self, now: float) -> list[Outgoing]:
        free, outgoing = self._claims.settle(now)
        for claim in free:
            outgoing += self._welcome(claim.peer, claim.hello, now)
        return outgoing

    def _welcome(self, peer: PeerId, hello: Hello, now: float) -> list[Outgoing]:
        before = self._roster.named(hello.name)
        is_new = before is None or before.hello.epoch != hello.epoch
        remembered = None if before is None else (before.hello, before.has_left)
        node, old = self._roster.greet(peer, hello, now)
        if old is not None:
            self.tally.note_replaced(old)
        told = self._note_learner_gone(hello.name, "was started again") if old is not None else []
        self._has_settled = self._has_settled or remembered != (node.hello, node.has_left)
        welcome = Welcome(
            run_id=self.run_id,
            index=node.index,
            config=self._config.model_dump(mode="json", exclude={"node"}),
            generation=self._groups.generation if hello.role == "learner" else 0,
            incarnation=node.starts,
            weights_endpoint=self._addresses.weights_for(peer),
            heartbeat_s=HEARTBEAT_S,
            epoch=node.epoch,
            host_index=node.host_index,
        )
        stop = self._stop_if_ending(node, is_new=is_new)
        return [(peer, welcome), (peer, self.run_state(peer)), *self._open_table(node), *stop, *told]

    def _why_not(self, hello: Hello) -> HelloRefused | None:
        if hello.protocol != PROTOCOL_VERSION:
            reason = f"{hello.name} speaks protocol {hello.protocol}, this run speaks {PROTOCOL_VERSION}"
            return HelloRefused(reason=f"{reason}; install the same version on both machines", exit_code=EXIT_CONFIG)
        if hello.run_id not in (None, self.run_id):
            reason = f"{hello.name} belongs to run {hello.run_id}, this is run {self.run_id}"
            return HelloRefused(reason=reason, exit_code=EXIT_CONFIG)
        known = self._roster.named(hello.name)
        if known is None and (too_many := self._why_no_more(hello.role)):
            return HelloRefused(reason=too_many, exit_code=EXIT_CONFIG)
        if (known is None or known.has_left) and hello.role == "learner" and (other := self._other_lone_learner(hello)):
            return HelloRefused(reason=other, exit_code=EXIT_TEMPORARY)
        if known is not None and known.role != hello.role:
            reason = f"the name {hello.name} belongs to a node that joined as {known.role}; take another with --name"
            return HelloRefused(reason=reason, exit_code=EXIT_CONFIG)
        if known is not None and hello.epoch in known.epochs[:-1]:
            return superseded(hello.name)
        return None

    def _why_no_more(self, role: Role) -> str | None:
        """Nodes whose number is fixed: replay nodes, and the actors of a run in lock step."""
        fixed = {"replay": ("replay.nodes", self._config.replay.nodes)}
        if self._config.deterministic:
            fixed["actor"] = ("actor.num_actors", self._config.actor.num_actors)
        names = [node.name for node in self._roster if node.role == role]
        if role not in fixed or len(names) < fixed[role][1]:
            return None
        in_step = ", which go in lock step" if role == "actor" else ""
        return (
            f"this run has its {fixed[role][0]} = {len(names)} already, {', '.join(names)}{in_step}; to take the place "
            "of one that is gone, start with --name and its name"
        )

    def _other_lone_learner(self, hello: Hello) -> str | None:
        """Why a learner may not join beside the one that a run of one has: it would go on with other weights."""
        others = [node for node in self._roster.living() if node.role == "learner" and node.name != hello.name]
        if self._config.learner.num_learners > 1 or not others:
            return None
        one = others[0]
        return (
            f"this run has its learner.num_learners = 1 already, {one.name} (process {one.hello.pid} on "
            f"{one.hello.host}); stop that one first, or take its place when it is gone with --name {one.name}"
        )

    def _settle_spec(self, node: Node, offer: SpecOffer) -> list[Outgoing]:
        if self._spec is not None:
            if offer.digest == self._spec.digest or node.peer is None:
                return []
            return [(node.peer, _other_columns(node, offer, self._spec))]
        try:
            digest = TableSpec.from_wire(offer.columns, offer.spaces).digest
        except ValueError as error:
            raise WireError(f"{node.hello.name} offers columns of which no table can be made: {error}") from error
        if digest != offer.digest:
            raise WireError(f"{node.hello.name} offers columns whose digest is {digest}, not {offer.digest}")
        self._spec, self._has_settled = offer, True
        replays = [node for node in self._roster.living() if node.role == "replay"]
        return [out for node in replays for out in self._open_table(node)] + self._tell_run_state()

    def _open_table(self, node: Node) -> list[Outgoing]:
        if node.role != "replay" or node.peer is None or self._spec is None:
            return []
        spec = self._spec
        opening = OpenTable(table=MAIN_TABLE, columns=spec.columns, spaces=spec.spaces, digest=spec.digest)
        return [(node.peer, opening)]

    def _note_open_table(self, node: Node) -> list[Outgoing]:
        node.has_table = True
        return self._tell_run_state()

    def run_state(self, peer: PeerId) -> RunState:
        """What has been settled so far, as whoever is connected by this route is to know it."""
        replays = sorted(
            (node for node in self._roster.living() if node.role == "replay" and node.has_table),
            key=lambda node: node.index,
        )
        endpoints, server_keys = self._addresses.replays_for(peer, (node.hello for node in replays))
        return RunState(
            columns=None if self._spec is None else self._spec.columns,
            spaces={} if self._spec is None else self._spec.spaces,
            digest=None if self._spec is None else self._spec.digest,
            replay_endpoints=endpoints,
            server_keys=server_keys,
        )

    def _note_heartbeat(self, node: Node, beat: Heartbeat, now: float) -> list[Outgoing]:
        seen: list[Outgoing] = [] if node.peer is None else [(node.peer, HeartbeatSeen(sequence=beat.sequence))]
        if node.has_left:
            return seen
        node.note_beat(
            progress=beat.progress, state=beat.state, waiting_for=beat.waiting_for, counters=beat.counters, now=now
        )
        self._note_lag(node)
        self._count(node)
        if node.role == "learner":
            seen += self._grouped(self._groups.note_at_work(node, node.counters.get("learner_group", 0.0)))
        if self.first_step_s is None and beat.counters.get("env_steps_total", 0) > 0:
            self.first_step_s = now - self._started_at
        return [*seen, *self._advance(now)]

    def _count(self, node: Node) -> None:
        self.tally.note_counters(node, leads=self._groups.is_led_by(node.name))

    def _note_lag(self, node: Node) -> None:
        """How many updates the weights that an actor acts with lack; unknown across generations."""
        told = node.counters
        if self._newest is not None and told.get("weights_generation") == self._newest.generation:
            told["policy_lag"] = max(0.0, self._newest_updates - told.get("weights_updates", 0.0))

    def _note_ready(self, node: Node, ready: LearnerReady, now: float) -> list[Outgoing]:
        if "learner" in self._stopped_roles:
            return []  # no group begins any more
        if node.peer is not None and self._lacks_the_run(node, ready):
            reason = (
                f"this run has made {self.tally.num_updates:,.0f} updates, and {node.name} has found none of them; "
                "give it the run's --run-dir, or begin anew in the place of an earlier learner with --name and its name"
            )
            return [(node.peer, HelloRefused(reason=reason, exit_code=EXIT_CONFIG))]
        return self._grouped(self._groups.note_ready(node, ready, now))

    def _lacks_the_run(self, node: Node, ready: LearnerReady) -> bool:
        """Whether a learner of a new name would lead a run on from nothing that has come further."""
        is_alone = not any(other.role == "learner" and other is not node for other in self._roster.living())
        return is_alone and node.starts == 1 and ready.updates == 0 and self.tally.num_updates > 0

    def _note_learner_gone(self, name: str, how: str) -> list[Outgoing]:
        return self._grouped(self._groups.note_gone(name, how))

    def _grouped(self, messages: list[tuple[Node, Message]]) -> list[Outgoing]:
        """By route; a generation that has been given is remembered before anybody hears of it."""
        self._has_settled = self._has_settled or bool(messages)
        return [(node.peer, message) for node, message in messages if node.peer is not None]

    def _end_on_request(self, request: StopRequest, now: float) -> list[Outgoing]:
        outgoing: list[Outgoing] = []
        for name in request.lost:
            if (node := self._roster.named(name)) is not None and not node.has_left:
                outgoing += self._lose(node, "died while the run ended")
        if request.error_code is not None:
            return outgoing + self.fail(request.reason, request.error_code, now)
        return outgoing + self.stop(request.reason, now, interrupted=request.interrupted)

    def _lose(self, node: Node, how: str) -> list[Outgoing]:
        """A node that says nothing of its end."""
        node.has_left, node.state, node.waiting_for = True, "failed", None
        self.tally.note_gone(node, in_order=False)
        self._has_settled = True
        return self._note_learner_gone(node.name, how)

    def _note_goodbye(self, node: Node, goodbye: Goodbye, now: float) -> list[Outgoing]:
        """A node that ended of an error may come back; whether the run can go on without it, its supervisor says."""
        seen: list[Outgoing] = [] if node.peer is None else [(node.peer, HeartbeatSeen(sequence=goodbye.sequence))]
        if not node.has_left:
            node.has_left = self._has_settled = True
            node.note_counters(goodbye.counters)
            self._count(node)
            self.tally.note_gone(node, in_order=goodbye.error is None)
            node.state, node.waiting_for = "ended" if goodbye.error is None else "failed", None
            seen += self._note_learner_gone(node.name, "has failed" if goodbye.error else "has left")
        return [*seen, *self._move_on(now)]

    def _note_evaluation(self, report: EvaluationFinished, now: float) -> list[Outgoing]:
        if self._end is not None and self._end.is_decided:
            return []
        target = self._config.stop.target_return
        evaluation = self.tally.note_evaluation(report, target, self.wall_s(now))
        if evaluation is None:
            return []
        self._has_settled = True
        if self.phase == "stopping":
            return self._move_on(now)
        if not evaluation.reaches_target:
            return []
        if self.time_to_target_s is None:
            self.time_to_target_s = evaluation.wall_s
        if self._config.stop.at_target and not self._config.deterministic:  # which would end anywhere
            return self.stop(f"the target return {target:g} is reached", now, final_evaluation=False)
        return []

    # The run's course

    def tick(self, now: float) -> list[Outgoing]:
        """To be called a few times a second: limits in time, deadlines of the stop sequence, progress."""
        if now - self._ticked_at > OWN_ABSENCE_S:
            self._roster.excuse(now - self._ticked_at)
        self._ticked_at = now
        self.tally.note_time(now)
        seconds = self._config.stop.max_seconds
        outgoing = self._settle_claims(now)
        if self.phase not in ("stopping", "done"):
            outgoing += self._grouped(self._groups.tick(now))
        if seconds is not None and now - self._started_at >= seconds:
            outgoing += self.stop(f"{seconds:g} s are over", now)
        if self.phase == "stopping":
            outgoing += self._move_on(now)
        return outgoing + self.progress(now)

    def progress(self, now: float) -> list[Outgoing]:
        """The figures for every supervisor."""
        workers = fitting(self._roster.workers(), NODES_BYTES, lambda node: (*node.told, node.name, PULSE))
        message = RunProgress(
            phase=self.phase,
            nodes=[node.told for node in workers],
            figures=self.figures(),
            reached=self.time_to_target_s is not None,
            error=None if self.error is None else self.error[0],
            trouble=None if self.trouble is None else self.trouble[:2000],
            pulses={
                node.name: (node.hello.pid, max(0.0, now - node.heard_at), node.progress)
                for node in workers
                if node.peer is not None and not node.has_left
            },
        )
        supervisors = [node for node in self._roster.living() if node.role == "supervisor"]
        return [(node.peer, message) for node in supervisors if node.peer is not None]

    def status(self, now: float) -> RunStatus:
        """The run for people. Of very many nodes it leaves the figures out, and then the last of them."""
        reports = [node.report(now) for node in self._roster.workers()]
        if len(fitting(reports, NODES_BYTES)) < len(reports):
            reports = fitting([report._replace(figures={}) for report in reports], NODES_BYTES)
        return RunStatus(
            run_id=self.run_id,
            preset=self._config.preset,
            env_id=self._config.environment.id,
            algorithm=self._config.algorithm.name,
            phase=self.phase,
            wall_s=max(0.0, self.wall_s(now)),
            nodes=reports,
            figures=self.figures(),
            books={name: max(0, count) for name, count in self.rows().to_json().items()},
            target_return=self._config.stop.target_return,
            stop_reason=self.stop_reason,
            error=None if self.error is None else self.error[0][:2000],
        )

    def _advance(self, now: float) -> list[Outgoing]:
        steps = self.tally.sum("env_steps_total")
        if self.phase == "starting" and steps > 0:
            self.phase = "filling"
        if self.phase == "filling" and self._has_updated:
            self.phase = "training"
        limits = self._config.stop
        if limits.max_steps is not None and steps >= limits.max_steps:
            return self.stop(f"{limits.max_steps} environment steps are done", now)
        if limits.max_updates is not None and self.tally.num_updates >= limits.max_updates:
            return self.stop(f"{limits.max_updates} updates are done", now)
        return []

    def fail(self, reason: str, exit_code: int, now: float) -> list[Outgoing]:
        """The run cannot go on; everything is stopped in order and the reason kept."""
        if self.error is None:
            self.error = (reason, exit_code)
        return self.stop(reason, now, interrupted=True)

    def stop(
        self, reason: str, now: float, *, interrupted: bool = False, final_evaluation: bool = True
    ) -> list[Outgoing]:
        """Begins the end of the run: actors first, then learners, evaluators, replay nodes.

        An interruption also hurries an end that has begun in order.

        Args:
            reason: for people.
            now: the time.
            interrupted: everybody has little time, and nothing is evaluated any more.
            final_evaluation: the evaluator judges the last weights before it stops.
        """
        if self.phase == "done" or (self.phase == "stopping" and not (interrupted and not self.was_interrupted)):
            return []
        self.phase, self.stop_reason, self.was_interrupted = "stopping", reason, interrupted
        self._end = EndSequence(now, interrupted=interrupted, final_evaluation=final_evaluation)
        alone = self._grouped(self._groups.wind_up(now))
        return alone + self._begin_stage(self._end.stage, now)

    def _end_again(self, stop: Mapping[str, Any], now: float) -> None:
        """Goes on with an end that an earlier hub had begun, from its first stage; nodes hear of it when they join."""
        self.phase, self.stop_reason, self.was_interrupted = "stopping", stop["reason"], stop["interrupted"]
        self.error = None if stop["error"] is None else (stop["error"][0], stop["error"][1])
        self._end = EndSequence(now, interrupted=self.was_interrupted, final_evaluation=True)
        self._groups.wind_up(now)
        if (stage := self._end.stage) is not None:
            self._stopped_roles |= stage.roles

    def note_weights(self, newest: WeightsVersion, updates: int = 0) -> None:
        """A version has arrived whole, with so many updates."""
        self._newest, self._newest_updates = newest, updates

    def _begin_stage(self, stage: Stage | None, now: float) -> list[Outgoing]:
        self._has_settled = True
        if stage is None:
            self.phase = "done"
            self.tally.books.cut_all()  # nobody will say any more what became of rows
            return self.progress(now)
        self._stopped_roles |= stage.roles
        stop = self._stop_message
        told = [node.peer for node in self._roster.living() if node.role in stage.roles and node.peer is not None]
        return [*((peer, stop) for peer in told), *self._move_on(now)]

    def _move_on(self, now: float) -> list[Outgoing]:
        """Begins the next stage if this one is over or overdue."""
        if self.phase != "stopping" or self._end is None or (stage := self._end.stage) is None:
            return []
        if not (self._end.is_overdue(now) or self._is_over(stage)):
            return []
        return self._begin_stage(self._end.next(now), now)

    def _is_over(self, stage: Stage) -> bool:
        living = self._roster.living()
        if stage is FINAL_EVALUATION:
            is_judged = self._newest is None or self.tally.is_judged(self._newest)
            return is_judged or not self._has_judge(living)
        return not any(node.role in stage.roles for node in living)

    def _has_judge(self, living: list[Node]) -> bool:
        """An evaluator is here, or still to come: of a run of seconds it may be the last node that is there.

        One that was in an earlier start of the run says nothing of this one's.
        """
        has_supervisor = any(node.role == "supervisor" for node in living)
        judges = [node for node in self._roster if node.role == "evaluator"]
        evaluators = [node for node in judges if not (node.has_left and node.state == "away")]
        return any(not node.has_left for node in evaluators) or (has_supervisor and not evaluators)

    def _stop_if_ending(self, node: Node, *, is_new: bool) -> list[Outgoing]:
        """A node that comes back is told when its turn has come; an actor or learner that comes new need not begin.

        But a replay node's ring is needed to the end, whichever process has it, and an evaluator for the last weights.
        """
        is_ending = self.phase in ("stopping", "done") and node.role != "supervisor"
        has_no_work = is_new and node.role in ("actor", "learner")
        if not is_ending or node.peer is None or not (has_no_work or node.role in self._stopped_roles):
            return []
        return [(node.peer, self._stop_message)]

    @property
    def _stop_message(self) -> Stop:
        """A run that was interrupted, or has failed, may be resumed."""
        return Stop(reason=self.stop_reason, is_final=not self.was_interrupted and self.error is None)

    @property
    def awaits_final_evaluation(self) -> bool:
        """The learner has left, and the evaluator is to judge the last version."""
        return self.phase == "stopping" and self._end is not None and self._end.stage is FINAL_EVALUATION

    # Figures

    def wall_s(self, now: float) -> float:
        """Seconds that the run has taken, earlier starts included."""
        return self._wall_before_s + now - self._started_at

    def rows(self) -> RowCounts:
        """What became of the actors' rows; final once the run is over."""
        replays = [node for node in self._roster if node.role == "replay"]
        is_told = all(node.has_left and node.state == "ended" for node in replays)
        return self.tally.books.counts(is_final=self.phase == "done" and not is_told)

    def memory(self, now: float) -> RunMemory:
        """What the next hub of this run must know."""
        error = None if self.error is None else list(self.error)
        stop = {"reason": self.stop_reason, "interrupted": self.was_interrupted, "error": error}
        return RunMemory(
            run_id=self.run_id,
            weights_endpoint=self._weights_endpoint,
            started_at=self._started_at,
            generation=self._groups.generation,
            group=self._groups.members,
            spec=None if self._spec is None else self._spec.model_dump(mode="json"),
            nodes=tuple(node.to_json() for node in self._roster.workers()),
            wall_s=self.wall_s(now),
            wall_before_s=self._wall_before_s,
            time_to_target_s=self.time_to_target_s,
            first_step_s=self.first_step_s,
            phase=self.phase,
            stop=stop if self.phase in ("stopping", "done") else None,
            **self.tally.to_memory(),
        )

    def figures(self) -> dict[str, float]:
        """Name -> value (see parl_mq.metrics); what is unknown is absent."""
        figures = self.tally.figures(self.rows())
        plain_first = sorted(figures.items(), key=lambda item: "{" in item[0])  # of these a node can send no others
        return dict(plain_first[:MAX_FIGURES])

    def node_figures(self, now: float) -> list[NodeFigures]:
        """What each node that is here, silent or away, has told last, and how it is."""
        return [
            NodeFigures(node.name, node.role, {**node.counters, **node.health_figures(now)})
            for node in self._roster.workers()
            if not node.has_left
        ]

    def info(self) -> dict[str, str]:
        """The run in words, for those who look at its figures."""
        config = self._config
        return {
            "run_id": self.run_id,
            "preset": config.preset,
            "env_id": config.environment.id,
            "algorithm": config.algorithm.name,
            "seed": str(config.seed),
        }

    @property
    def _has_updated(self) -> bool:
        return any(node.role == "learner" and node.state == "updating" for node in self._roster)

    def _tell_run_state(self) -> list[Outgoing]:
        return [(node.peer, self.run_state(node.peer)) for node in self._roster.living() if node.peer is not None]

    # Keys

    @property
    def names(self) -> list[str]:
        """Of all nodes that there have been."""
        return [node.name for node in self._roster]

    def replay_peers(self) -> list[PeerId]:
        """Routes of the replay nodes, which guard sockets of their own."""
        return [node.peer for node in self._roster.living() if node.role == "replay" and node.peer is not None]

    def expel(self, is_out: Callable[[PeerId], bool], now: float) -> list[Outgoing]:
        """Nodes whose keys are not allowed any more have left, whatever they still say."""
        told: list[Outgoing] = []
        for node in [node for node in self._roster.living() if node.peer is not None and is_out(node.peer)]:
            told += self._lose(node, "may not take part any more: its key was revoked")
        return [*told, *self._move_on(now)]


def _other_columns(node: Node, offer: SpecOffer, spec: SpecOffer) -> HelloRefused:
    differing = sorted(
        {str(row[0]) for row in [*offer.columns, *spec.columns] if (row in offer.columns) != (row in spec.columns)}
    )
    what = f"its columns {', '.join(differing)} differ" if differing else "the bounds of its spaces differ"
    reason = f"{node.hello.name} has another environment or algorithm than this run: {what}"
    return HelloRefused(reason=reason[:1000], exit_code=EXIT_CONFIG)
