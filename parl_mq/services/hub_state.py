"""What the hub knows and decides: who is here, what is settled, how far the run is, when and how it ends.

Pure and synchronous: each method takes the time, changes state and returns the messages to send.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final, assert_never

from parl_mq.config.models import RunConfig
from parl_mq.errors import EXIT_CONFIG, EXIT_TEMPORARY, WireError
from parl_mq.net.channel import PeerId
from parl_mq.services.run_memory import RunMemory
from parl_mq.spec import TableSpec, WeightsVersion
from parl_mq.wire.messages import (
    MAIN_TABLE,
    PROTOCOL_VERSION,
    EpisodesFinished,
    EvaluationFinished,
    Goodbye,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    HelloRefused,
    Message,
    OpenTable,
    Role,
    RunProgress,
    RunState,
    SayHello,
    SpecOffer,
    Stop,
    StopRequest,
    TableOpened,
    TableRefused,
    Welcome,
)

HEARTBEAT_S: Final = 0.5
RECENT_EPISODES: Final = 100
"""Exploring episodes whose mean return is shown."""
RATE_WINDOW_S: Final = 5.0

_SENDERS: Final[Mapping[type[Message], frozenset[Role]]] = {
    SpecOffer: frozenset({"supervisor", "actor", "evaluator"}),
    TableOpened: frozenset({"replay"}),
    TableRefused: frozenset({"replay"}),
    EpisodesFinished: frozenset({"actor"}),
    EvaluationFinished: frozenset({"evaluator"}),
    StopRequest: frozenset({"supervisor"}),
}
"""Who may send what; everything else anybody may."""

Outgoing = tuple[PeerId, Message]


@dataclass(frozen=True, slots=True)
class _Stage:
    """One step of the run's end: these roles are told to stop, and must have left before the next step.

    The stage without roles is the final evaluation: it is over when the newest weights have been judged.
    """

    roles: frozenset[Role]
    deadline_s: float


_FINAL_EVALUATION: Final = _Stage(frozenset(), 60.0)
_IN_ORDER: Final = (
    _Stage(frozenset({"actor"}), 5.0),
    _Stage(frozenset({"learner"}), 6.0),
    _FINAL_EVALUATION,
    _Stage(frozenset({"evaluator"}), 3.0),
    _Stage(frozenset({"replay"}), 3.0),
)
_AT_ONCE: Final = (  # everything must be gone within 10 s
    _Stage(frozenset({"actor", "evaluator"}), 2.5),
    _Stage(frozenset({"learner"}), 2.5),
    _Stage(frozenset({"replay"}), 2.0),
)


@dataclass(slots=True)
class Node:
    """One node of the run, as its messages describe it."""

    peer: PeerId
    hello: Hello
    index: int
    state: str = "starting"
    waiting_for: str | None = None
    counters: dict[str, float] = field(default_factory=dict)
    has_left: bool = False
    has_table: bool = False

    @property
    def role(self) -> Role:
        """The node's role."""
        return self.hello.role


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One finished evaluation on the run's axes."""

    report: EvaluationFinished
    mean_return: float
    env_steps: int
    wall_s: float
    reaches_target: bool
    is_best: bool


class HubState:
    """All that the hub decides.

    Attributes:
        phase: `starting`, `filling`, `training`, `stopping` or `done`.
        evaluations: finished ones, oldest first.
        error: what made the run fail, with its exit code, or None.
    """

    def __init__(
        self, config: RunConfig, *, run_id: str, weights_endpoint: str, started_at: float, before: RunMemory
    ) -> None:
        self.phase = "starting"
        self.stop_reason = ""
        self.evaluations: list[Evaluation] = []
        self.error: tuple[str, int] | None = None
        self.was_interrupted = False
        self.time_to_target_s = before.time_to_target_s
        self.first_step_s: float | None = None
        self._config = config
        self._run_id = run_id
        self._weights_endpoint = weights_endpoint
        self._started_at = started_at
        self._before = before
        self._incarnation = before.incarnation + 1
        self._totals_of_gone = Counter(before.totals)
        self._nodes: dict[str, Node] = {}
        self._by_peer: dict[PeerId, Node] = {}
        self._spec: SpecOffer | None = None
        self._generation = before.generation
        self._recent_returns: deque[float] = deque(before.recent_returns, maxlen=RECENT_EPISODES)
        self._num_episodes = before.num_episodes
        self._rates = _Rates()
        self._stages: list[_Stage] = []
        self._stage_deadline = 0.0
        self._newest: WeightsVersion | None = None

    # Messages of the nodes

    def handle(self, peer: PeerId, message: Message, now: float) -> list[Outgoing]:
        """Takes one message of the control plane.

        Raises:
            WireError: a node of this role may not send it, or it contradicts itself. Nothing has changed.
        """
        if isinstance(message, Hello):
            return self._welcome(peer, message)
        node = self._by_peer.get(peer)
        if node is None:
            return [(peer, SayHello())]
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
                self._recent_returns.extend(known.returns)
                self._num_episodes += len(known.returns)
                return []
            case EvaluationFinished():
                return self._note_evaluation(known, now)
            case StopRequest():
                return self._end_on_request(known, now)
            case Goodbye():
                return self._note_goodbye(node, known, now)
            case _:
                assert_never(known)

    def _welcome(self, peer: PeerId, hello: Hello) -> list[Outgoing]:
        if refusal := self._why_not(hello):
            return [(peer, refusal)]
        node = self._node_of(peer, hello)
        welcome = Welcome(
            run_id=self._run_id,
            index=node.index,
            config=self._config.model_dump(mode="json", exclude={"node"}),
            generation=self._generation if hello.role == "learner" else 0,
            incarnation=self._incarnation,
            weights_endpoint=self._weights_endpoint,
            heartbeat_s=HEARTBEAT_S,
        )
        return [(peer, welcome), (peer, self._run_state()), *self._open_table(node), *self._stop_if_ending(node)]

    def _node_of(self, peer: PeerId, hello: Hello) -> Node:
        """The node's record; a new process of a known name takes over its index, and the old one's totals are kept."""
        known = self._nodes.get(hello.name)
        if known is not None:
            del self._by_peer[known.peer]
        if known is not None and known.hello.epoch == hello.epoch:
            known.peer, known.hello = peer, hello
            self._by_peer[peer] = known
            return known
        if known is not None:
            self._totals_of_gone.update(_totals_of(known))
        if hello.role == "learner":
            self._generation += 1
        node = Node(peer, hello, self._free_index(hello) if known is None else known.index)
        self._nodes[hello.name] = self._by_peer[peer] = node
        return node

    def _why_not(self, hello: Hello) -> HelloRefused | None:
        if hello.protocol != PROTOCOL_VERSION:
            reason = f"{hello.name} speaks protocol {hello.protocol}, this run speaks {PROTOCOL_VERSION}"
            return HelloRefused(reason=f"{reason}; install the same version on both machines", exit_code=EXIT_CONFIG)
        if hello.run_id not in (None, self._run_id):
            reason = f"{hello.name} belongs to run {hello.run_id}, this is run {self._run_id}"
            return HelloRefused(reason=reason, exit_code=EXIT_CONFIG)
        known = self._nodes.get(hello.name)
        if known is not None and known.role != hello.role:
            reason = f"the name {hello.name} belongs to a node that joined as {known.role}; take another with --name"
            return HelloRefused(reason=reason, exit_code=EXIT_CONFIG)
        if known is not None and known.hello.epoch > hello.epoch:
            return HelloRefused(reason=f"a newer {hello.name} has joined the run", exit_code=EXIT_TEMPORARY)
        return None

    def _free_index(self, hello: Hello) -> int:
        """The number at the end of the name where it is free, else the smallest free one."""
        taken = {node.index for node in self._nodes.values() if node.role == hello.role}
        number = re.search(r"(\d+)$", hello.name)
        if number is not None and int(number[1]) not in taken and int(number[1]) < 10_000:
            return int(number[1])
        return next(index for index in range(len(taken) + 1) if index not in taken)

    def _settle_spec(self, node: Node, offer: SpecOffer) -> list[Outgoing]:
        if self._spec is not None:
            return [] if offer.digest == self._spec.digest else [(node.peer, _other_columns(node, offer, self._spec))]
        try:
            digest = TableSpec.from_wire(offer.columns, offer.spaces).digest
        except ValueError as error:
            raise WireError(f"{node.hello.name} offers columns of which no table can be made: {error}") from error
        if digest != offer.digest:
            raise WireError(f"{node.hello.name} offers columns whose digest is {digest}, not {offer.digest}")
        self._spec = offer
        replays = [node for node in self._living() if node.role == "replay"]
        return [out for node in replays for out in self._open_table(node)] + self._tell_all(self._run_state())

    def _open_table(self, node: Node) -> list[Outgoing]:
        if node.role != "replay" or self._spec is None:
            return []
        return [
            (
                node.peer,
                OpenTable(
                    table=MAIN_TABLE, columns=self._spec.columns, spaces=self._spec.spaces, digest=self._spec.digest
                ),
            )
        ]

    def _note_open_table(self, node: Node) -> list[Outgoing]:
        node.has_table = True
        return self._tell_all(self._run_state())

    def _run_state(self) -> RunState:
        replays = sorted(
            (node for node in self._living() if node.role == "replay" and node.has_table), key=lambda node: node.index
        )
        return RunState(
            columns=None if self._spec is None else self._spec.columns,
            spaces={} if self._spec is None else self._spec.spaces,
            digest=None if self._spec is None else self._spec.digest,
            replay_endpoints=[node.hello.data_endpoint or "" for node in replays],
        )

    def _note_heartbeat(self, node: Node, beat: Heartbeat, now: float) -> list[Outgoing]:
        node.state, node.waiting_for, node.counters = beat.state, beat.waiting_for, beat.counters
        if self.first_step_s is None and beat.counters.get("env_steps_total", 0) > 0:
            self.first_step_s = now - self._started_at
        return [(node.peer, HeartbeatSeen(sequence=beat.sequence)), *self._advance(now)]

    def _end_on_request(self, request: StopRequest, now: float) -> list[Outgoing]:
        for name in request.lost:
            if name in self._nodes:
                self._nodes[name].has_left = True
        if request.error_code is not None:
            return self.fail(request.reason, request.error_code, now)
        return self.stop(request.reason, now, interrupted=request.interrupted)

    def _note_goodbye(self, node: Node, goodbye: Goodbye, now: float) -> list[Outgoing]:
        """A node that ended of an error may come back; whether the run can go on without it, its supervisor says."""
        node.has_left = True
        node.counters = goodbye.counters
        node.state, node.waiting_for = "gone" if goodbye.error is None else "failed", None
        return self._move_on(now)

    def _note_evaluation(self, report: EvaluationFinished, now: float) -> list[Outgoing]:
        mean, target = fmean(report.returns), self._config.stop.target_return
        best = self.best_eval_return
        evaluation = Evaluation(
            report=report,
            mean_return=mean,
            env_steps=int(self._sum("env_steps_total")),
            wall_s=self.wall_s(now),
            reaches_target=target is not None and mean >= target,
            is_best=best is None or mean >= best,
        )
        self.evaluations.append(evaluation)
        if self.phase == "stopping":
            return self._move_on(now)
        if not evaluation.reaches_target:
            return []
        if self.time_to_target_s is None:
            self.time_to_target_s = evaluation.wall_s
        if self._config.stop.at_target:
            return self.stop(f"the target return {target:g} is reached", now, final_evaluation=False)
        return []

    # The run's course

    def tick(self, now: float) -> list[Outgoing]:
        """To be called a few times a second: limits in time, deadlines of the stop sequence, progress."""
        self._rates.note(now, self._sum("env_steps_total"), self.num_updates)
        seconds = self._config.stop.max_seconds
        outgoing: list[Outgoing] = []
        if seconds is not None and now - self._started_at >= seconds:
            outgoing += self.stop(f"{seconds:g} s are over", now)
        if self.phase == "stopping":
            outgoing += self._move_on(now)
        return outgoing + self.progress()

    def progress(self) -> list[Outgoing]:
        """The figures for every supervisor."""
        message = RunProgress(
            phase=self.phase,
            nodes=[(node.hello.name, node.state, node.waiting_for) for node in self._workers()],
            figures=self.figures(),
            reached=self.time_to_target_s is not None,
            error=None if self.error is None else self.error[0],
        )
        return [(node.peer, message) for node in self._living() if node.role == "supervisor"]

    def _advance(self, now: float) -> list[Outgoing]:
        steps = self._sum("env_steps_total")
        if self.phase == "starting" and steps > 0:
            self.phase = "filling"
        if self.phase == "filling" and self._has_updated:
            self.phase = "training"
        limit = self._config.stop.max_steps
        if limit is not None and steps >= limit:
            return self.stop(f"{limit} environment steps are done", now)
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
        stages = _AT_ONCE if interrupted else _IN_ORDER
        self._stages = [stage for stage in stages if final_evaluation or stage is not _FINAL_EVALUATION]
        return self._begin_stage(now)

    def note_weights(self, newest: WeightsVersion) -> None:
        """A version has arrived whole."""
        self._newest = newest

    def _begin_stage(self, now: float) -> list[Outgoing]:
        stage = self._stages[0]
        self._stage_deadline = now + stage.deadline_s
        stops: list[Outgoing] = [
            (node.peer, Stop(reason=self.stop_reason)) for node in self._living() if node.role in stage.roles
        ]
        return [*stops, *self._move_on(now)]

    def _move_on(self, now: float) -> list[Outgoing]:
        """Begins the next stage if this one is over or overdue."""
        if self.phase != "stopping" or not (now >= self._stage_deadline or self._is_over(self._stages[0])):
            return []
        self._stages.pop(0)
        if self._stages:
            return self._begin_stage(now)
        self.phase = "done"
        return self.progress()

    def _is_over(self, stage: _Stage) -> bool:
        if stage is _FINAL_EVALUATION:
            has_judge = any(node.role == "evaluator" for node in self._living())
            return not has_judge or self._newest is None or self._is_judged(self._newest)
        return not any(node.role in stage.roles for node in self._living())

    def _is_judged(self, version: WeightsVersion) -> bool:
        return any(tuple(evaluation.report.version) == tuple(version) for evaluation in self.evaluations[-1:])

    def _stop_if_ending(self, node: Node) -> list[Outgoing]:
        is_ending = self.phase in ("stopping", "done") and node.role != "supervisor"
        return [(node.peer, Stop(reason=self.stop_reason))] if is_ending else []

    @property
    def awaits_final_evaluation(self) -> bool:
        """The learner has left, and the evaluator is to judge the last version."""
        return self.phase == "stopping" and self._stages[0] is _FINAL_EVALUATION

    # Figures

    def wall_s(self, now: float) -> float:
        """Seconds that the run has taken, earlier starts included."""
        return self._before.wall_s + now - self._started_at

    @property
    def num_updates(self) -> float:
        """Learner updates; a learner counts those of its checkpoint itself."""
        told = [node.counters["updates_total"] for node in self._nodes.values() if "updates_total" in node.counters]
        return max(told, default=self._before.updates)

    @property
    def num_evaluations(self) -> int:
        """Finished evaluations."""
        return self._before.num_evaluations + len(self.evaluations)

    @property
    def eval_return(self) -> float | None:
        """Mean return of the last evaluation."""
        return self.evaluations[-1].mean_return if self.evaluations else self._before.eval_return

    @property
    def best_eval_return(self) -> float | None:
        """The best mean return of an evaluation."""
        means = [evaluation.mean_return for evaluation in self.evaluations]
        if self._before.best_eval_return is not None:
            means.append(self._before.best_eval_return)
        return max(means, default=None)

    def memory(self, now: float) -> RunMemory:
        """What the next start of this run must know."""
        totals = Counter(self._totals_of_gone)
        for node in self._nodes.values():
            totals.update(_totals_of(node))
        return RunMemory(
            incarnation=self._incarnation,
            generation=self._generation,
            totals=dict(totals),
            updates=self.num_updates,
            num_episodes=self._num_episodes,
            num_evaluations=self.num_evaluations,
            recent_returns=tuple(self._recent_returns),
            eval_return=self.eval_return,
            best_eval_return=self.best_eval_return,
            wall_s=self.wall_s(now),
            time_to_target_s=self.time_to_target_s,
        )

    def figures(self) -> dict[str, float]:
        """Name -> value (see parl_mq.metrics); what is unknown is absent."""
        figures = {name: self._sum(name) for name in self._total_names()}
        for node in self._workers():
            gauges = {name: value for name, value in node.counters.items() if not name.endswith("_total")}
            if node.role in ("learner", "replay") and node.index == 0:
                figures.update({name: value for name, value in gauges.items() if name != "rss_bytes"})
        figures["rss_bytes"] = self._sum("rss_bytes")
        figures["updates_total"] = self.num_updates
        figures["env_steps_per_s"], figures["updates_per_s"] = self._rates.per_s
        figures["episodes_total"] = float(self._num_episodes)
        if self._recent_returns:
            figures["train_return"] = fmean(self._recent_returns)
        if self.eval_return is not None and self.best_eval_return is not None:
            figures["eval_return"], figures["best_eval_return"] = self.eval_return, self.best_eval_return
        return figures

    @property
    def _has_updated(self) -> bool:
        return any(node.role == "learner" and node.state == "updating" for node in self._nodes.values())

    def _total_names(self) -> set[str]:
        living = {name for node in self._workers() for name in node.counters if name.endswith("_total")}
        return living | set(self._totals_of_gone)

    def _sum(self, name: str) -> float:
        """Over the nodes that are here and those that were."""
        return self._totals_of_gone[name] + sum(node.counters.get(name, 0.0) for node in self._nodes.values())

    def _workers(self) -> Iterable[Node]:
        return [node for node in self._nodes.values() if node.role != "supervisor"]

    def _living(self) -> Iterable[Node]:
        return [node for node in self._nodes.values() if not node.has_left]

    def _tell_all(self, message: Message) -> list[Outgoing]:
        return [(node.peer, message) for node in self._living()]


def _other_columns(node: Node, offer: SpecOffer, spec: SpecOffer) -> HelloRefused:
    differing = sorted(
        {str(row[0]) for row in [*offer.columns, *spec.columns] if (row in offer.columns) != (row in spec.columns)}
    )
    what = f"its columns {', '.join(differing)} differ" if differing else "the bounds of its spaces differ"
    reason = f"{node.hello.name} has another environment or algorithm than this run: {what}"
    return HelloRefused(reason=reason[:1000], exit_code=EXIT_CONFIG)


def _totals_of(node: Node) -> dict[str, float]:
    """A node's totals that end with its process; the learner's updates go on in its checkpoint."""
    return {name: value for name, value in node.counters.items() if name.endswith("_total") and name != "updates_total"}


class _Rates:
    """Rates of two counters over the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float, float]] = deque()

    def note(self, now: float, first: float, second: float) -> None:
        self._samples.append((now, first, second))
        while len(self._samples) > 2 and self._samples[0][0] < now - RATE_WINDOW_S:
            self._samples.popleft()

    @property
    def per_s(self) -> tuple[float, float]:
        if len(self._samples) < 2:
            return 0.0, 0.0
        (start, *before), (end, *after) = self._samples[0], self._samples[-1]
        elapsed = max(end - start, 1e-9)
        return (after[0] - before[0]) / elapsed, (after[1] - before[1]) / elapsed
