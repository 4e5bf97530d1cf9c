"""What a run has come to so far: its figures and its evaluations; pure."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from parl_mq.services.books import ACTOR_COUNTERS, RowBooks, RowCounts
from parl_mq.services.rates import Rates
from parl_mq.services.roster import Node, Roster
from parl_mq.services.run_memory import RunMemory
from parl_mq.wire.messages import EpisodesFinished, EvaluationFinished

RECENT_EPISODES: Final = 100
"""Exploring episodes whose mean return is shown."""
RATES: Final = {
    "env_steps_per_s": "env_steps_total",
    "inserted_rows_per_s": "inserted_rows_total",
    "drawn_rows_per_s": "drawn_rows_total",
    "updates_per_s": "updates_total",
}
"""Rate -> the counter that it is of."""
PER_PROCESS: Final = ("rss_bytes", "rss_anon_bytes")
"""Gauges of which a run's figure is the sum over its processes."""
SKIPPED: Final = "skipped_updates_total"
RECENTLY_JUDGED: Final = 64
"""Versions by which a report that comes a second time is known."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One finished evaluation on the run's axes."""

    report: EvaluationFinished
    mean_return: float
    env_steps: int
    wall_s: float
    reaches_target: bool
    is_best: bool


class Tally:
    """Sums over the nodes that are here and those that were.

    Attributes:
        best_eval_return: the best mean return of an evaluation; None before the first.
        eval_return: that of the newest one.
        num_evaluations: finished ones.
        books: of the actors' rows.
        num_updates: learner updates; a learner counts those of its checkpoint itself.
        num_lost_updates: those that went with learners which had not saved them.
    """

    def __init__(self, before: RunMemory, roster: Roster) -> None:
        """Goes on from what an earlier hub remembered."""
        self.num_evaluations = before.num_evaluations
        self.eval_return, self.best_eval_return = before.eval_return, before.best_eval_return
        self.books = RowBooks(before.books)
        self.num_updates, self.num_lost_updates = before.updates, before.lost_updates
        self._new_evaluations: list[Evaluation] = []
        self._roster = roster
        self._totals_of_gone = Counter(before.totals)
        self._num_skipped = float(self._totals_of_gone.pop(SKIPPED, 0))
        self._recent_returns: deque[float] = deque(before.recent_returns, maxlen=RECENT_EPISODES)
        self._num_episodes = before.num_episodes
        self._judged: deque[tuple[int, ...]] = deque(map(tuple, before.judged), maxlen=RECENTLY_JUDGED)
        self._rates = Rates()

    # What nodes say

    def note_counters(self, node: Node, *, leads: bool = True) -> None:
        """A node has told its counters; what updates a learner counts are the run's if it `leads` the others."""
        if node.role == "actor":
            self.books.note_actor(node.key, node.counters)
        if node.role == "learner" and leads and (updates := node.counters.get("updates_total")) is not None:
            self.num_lost_updates += max(0.0, self.num_updates - updates)
            self.num_updates = updates
            self._num_skipped = node.counters.get(SKIPPED, self._num_skipped)

    def note_gone(self, node: Node, *, in_order: bool) -> None:
        """A process has ended; if not in order, it has not said what became of its last rows."""
        if node.role == "actor":
            self.books.end(node.key, in_order=in_order)

    def note_replaced(self, node: Node) -> None:
        """Another process has taken the name over: this one's totals are kept."""
        self._totals_of_gone.update(_totals_of(node))
        self.note_gone(node, in_order=False)

    def note_episodes(self, message: EpisodesFinished) -> None:
        """Exploring episodes have ended."""
        self._recent_returns.extend(message.returns)
        self._num_episodes += len(message.returns)

    def note_evaluation(self, report: EvaluationFinished, target: float | None, wall_s: float) -> Evaluation | None:
        """An evaluation has ended; None where that is known: it was said again after a reconnect."""
        if self.is_judged(report.version):
            return None
        mean, best = fmean(report.returns), self.best_eval_return
        evaluation = Evaluation(
            report=report,
            mean_return=mean,
            env_steps=int(self.sum("env_steps_total")),
            wall_s=wall_s,
            reaches_target=target is not None and mean >= target,
            is_best=best is None or mean >= best,
        )
        self._new_evaluations.append(evaluation)
        self.num_evaluations += 1
        self.eval_return, self.best_eval_return = mean, mean if best is None else max(mean, best)
        self._judged.append(tuple(report.version))
        return evaluation

    def note_time(self, now: float) -> None:
        """To be called a few times a second: rates are those between these moments."""
        self._rates.note(now, {rate: self.sum(counter) for rate, counter in RATES.items()})

    # What is known

    def is_judged(self, version: tuple[int, ...]) -> bool:
        """Whether this version of the weights was evaluated, lately."""
        return tuple(version) in self._judged

    def sum(self, name: str) -> float:
        """A counter over all nodes; updates are those that the learner has not lost, made or skipped."""
        if name == "updates_total":
            return self.num_updates
        if name == SKIPPED:
            return self._num_skipped
        return float(self._totals_of_gone[name] + sum(node.counters.get(name, 0.0) for node in self._roster))

    def take_evaluations(self) -> list[Evaluation]:
        """Those that have ended since the last call, oldest first."""
        taken, self._new_evaluations = self._new_evaluations, []
        return taken

    def figures(self, rows: RowCounts) -> dict[str, float]:
        """Name -> value (see parl_mq.metrics); what is unknown is absent."""
        figures = {name: self.sum(name) for name in self._total_names()}
        for node in self._roster.workers():
            gauges = {name: value for name, value in node.counters.items() if not name.endswith("_total")}
            if node.role in ("learner", "replay") and node.index == 0:
                figures.update({name: value for name, value in gauges.items() if name not in PER_PROCESS})
        figures.update(self._fill())
        figures["sent_rows_total"], figures["acknowledged_rows_total"] = float(rows.sent), float(rows.acknowledged)
        figures["abandoned_rows_total"], figures["stored_rows"] = float(rows.abandoned), float(rows.stored)
        figures["lost_rows_total"], figures["lost_updates_total"] = float(rows.lost), self.num_lost_updates
        for name in PER_PROCESS:
            figures[name] = sum(node.counters.get(name, 0.0) for node in self._roster.living())
        if lags := [node.counters["policy_lag"] for node in self._roster.living() if "policy_lag" in node.counters]:
            figures["policy_lag"] = fmean(lags)
        figures["updates_total"] = self.num_updates
        figures.update(self._rates.per_s)
        figures["episodes_total"] = float(self._num_episodes)
        figures["evaluations_total"] = float(self.num_evaluations)
        if self._recent_returns:
            figures["train_return"] = fmean(self._recent_returns)
        if self.eval_return is not None and self.best_eval_return is not None:
            figures["eval_return"], figures["best_eval_return"] = self.eval_return, self.best_eval_return
        return figures

    def _fill(self) -> dict[str, float]:
        """Live rows of all replay nodes, and the share of their tables that they take: all tables have one size."""
        names = {"replay_live_rows", "replay_fill"}
        nodes = [node.counters for node in self._roster if node.role == "replay" and names <= node.counters.keys()]
        if not nodes:
            return {}
        live, fill = (sum(each[name] for each in nodes) for name in ("replay_live_rows", "replay_fill"))
        return {"replay_live_rows": live, "replay_fill": fill / len(nodes)}

    def to_memory(self) -> dict[str, Any]:
        """The fields of RunMemory that this class goes on from."""
        return {
            "totals": {**self._totals_of_gone, SKIPPED: self._num_skipped},
            "books": self.books.to_json(),
            "updates": self.num_updates,
            "lost_updates": self.num_lost_updates,
            "num_episodes": self._num_episodes,
            "num_evaluations": self.num_evaluations,
            "judged": tuple(self._judged),
            "recent_returns": tuple(self._recent_returns),
            "eval_return": self.eval_return,
            "best_eval_return": self.best_eval_return,
        }

    def _total_names(self) -> set[str]:
        told = {name for node in self._roster.workers() for name in node.counters if name.endswith("_total")}
        return told | set(self._totals_of_gone)


def _totals_of(node: Node) -> dict[str, float]:
    """A node's totals that end with its process; the learner's updates go on in its checkpoint, rows in the books."""
    apart = ("updates_total", SKIPPED, *ACTOR_COUNTERS)
    return {name: value for name, value in node.counters.items() if name.endswith("_total") and name not in apart}
