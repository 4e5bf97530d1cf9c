"""The order in which a run ends: role by role, each with a time limit; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from parl_mq.wire.messages import Role


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the run's end: these roles are told to stop, and must have left before the next step.

    The stage without roles is the final evaluation: it is over when the newest weights have been judged.
    """

    roles: frozenset[Role]
    deadline_s: float


FINAL_EVALUATION: Final = Stage(frozenset(), 60.0)
_IN_ORDER: Final = (
    Stage(frozenset({"actor"}), 5.0),
    Stage(frozenset({"learner"}), 6.0),
    FINAL_EVALUATION,
    Stage(frozenset({"evaluator"}), 3.0),
    Stage(frozenset({"replay"}), 3.0),
)
_AT_ONCE: Final = (  # everything must be gone within 10 s
    Stage(frozenset({"actor", "evaluator"}), 2.5),
    Stage(frozenset({"learner"}), 2.5),
    Stage(frozenset({"replay"}), 2.0),
)


class EndSequence:
    """The stages of one end, one after the other.

    Attributes:
        is_decided: an evaluation has ended the run; one that was under way beside it says nothing of the result.
    """

    def __init__(self, now: float, *, interrupted: bool, final_evaluation: bool) -> None:
        """Begins with the first stage.

        Args:
            now: the time, s.
            interrupted: everybody has little time, and nothing is evaluated any more.
            final_evaluation: the evaluator judges the last weights before it stops.
        """
        self.is_decided = not interrupted and not final_evaluation
        stages = _AT_ONCE if interrupted else _IN_ORDER
        self._stages = [stage for stage in stages if final_evaluation or stage is not FINAL_EVALUATION]
        self._deadline = now + self._stages[0].deadline_s

    @property
    def stage(self) -> Stage | None:
        """The present stage; None when all are over."""
        return self._stages[0] if self._stages else None

    def is_overdue(self, now: float) -> bool:
        """Whether the present stage has had its time."""
        return now >= self._deadline

    def next(self, now: float) -> Stage | None:
        """Begins the next stage and returns it; None when there is none."""
        self._stages.pop(0)
        if self._stages:
            self._deadline = now + self._stages[0].deadline_s
        return self.stage
