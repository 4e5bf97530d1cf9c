"""What happened to a run between two looks at it, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from parl_mq.observe.words import faults_in_words, in_one_line
from parl_mq.wire.messages import NodeReport, RunStatus


def events_between(before: RunStatus, after: RunStatus) -> list[str]:
    """Nodes that came, went, or were started again; what broke; phases; evaluations. The run's own come first."""
    return [*_of_run(before, after), *_of_nodes(before, after)]


def failure_in_words(failure: Mapping[str, Any]) -> str:
    """A row of failures.jsonl in one line."""
    after = "" if failure["restart"] is None else f"; restarted ({failure['restart']})"
    return f"{failure['node']} {failure['how']}{after}"


def _of_run(before: RunStatus, after: RunStatus) -> Iterator[str]:
    if after.phase != before.phase:
        reason = f": {after.stop_reason}" if after.stop_reason else ""
        yield f"the run is {after.phase}{reason}"
    if after.error is not None and after.error != before.error:
        yield f"the run has failed: {in_one_line(after.error)}"
    old, new = before.figures.get("eval_return"), after.figures.get("eval_return")
    if new is not None and new != old:
        best = " (the best so far)" if new >= after.figures.get("best_eval_return", new) else ""
        yield f"evaluation {new:,.4g}{best}"
    if (lost := after.figures.get("lost_updates_total", 0.0) - before.figures.get("lost_updates_total", 0.0)) > 0:
        yield f"{lost:,.0f} updates went with a learner that had not saved them"


def _of_nodes(before: RunStatus, after: RunStatus) -> Iterator[str]:
    known = {node.name: node for node in before.nodes}
    for node in after.nodes:
        if (what := _of_node(known.get(node.name), node)) is not None:
            yield f"{node.name} {what}"
        faults = _faults(node) - _faults(known.get(node.name))
        if faults > 0:
            yield f"{node.name}: its {faults_in_words(faults)}; its log says why"


def _faults(node: NodeReport | None) -> float:
    return 0.0 if node is None else node.figures.get("environment_faults_total", 0.0)


def _of_node(before: NodeReport | None, after: NodeReport) -> str | None:
    if before is None:
        return f"has joined from {after.host}"
    if after.starts > before.starts:
        return f"was started again (process {after.starts})"
    if after.health == before.health:
        return None
    return {
        "healthy": "is well again",
        "silent": "gives no sign of life",
        "away": "has not been heard of since the hub's own start",
        "left": "has left in order",
        "failed": "has failed",
    }[after.health]
