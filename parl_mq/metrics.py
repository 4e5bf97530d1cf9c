"""Every metric of a run: its name, unit and meaning. What nodes report, files hold and people see uses these names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

Group = Literal["run", "node", "actor", "replay", "learner", "eval"]
"""What a metric is about; its figures stand together in what people look at."""
OF_THE_HUB: Final = ("run", "eval")
"""Groups whose figures the hub alone knows."""

PRIORITY_EDGES: Final = tuple(10.0 ** (half / 2) for half in range(-6, 5))
"""Of the histogram of priorities: from 0.001 to 100, two a decade."""

_LABELLED: Final = re.compile(r'([a-z0-9_]+)(?:\{([a-z_]+)="([^"{}]*)"\})?')


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: unique; a counter's ends in `_total`.
        unit: of the value; `1` for a plain number.
        kind: a counter only grows while its process lives, and is summed over nodes; a gauge is a value of the moment.
        group: what it is about.
        help: what it says, for people.
        label: name of the label that tells its figures apart; None: there is one figure.
    """

    name: str
    unit: str
    kind: Literal["counter", "gauge"]
    group: Group
    help: str
    label: str | None = None


def _counters(group: Group, *rows: tuple[str, str, str]) -> tuple[Metric, ...]:
    return tuple(Metric(name, unit, "counter", group, text) for name, unit, text in rows)


def _gauges(group: Group, *rows: tuple[str, str, str]) -> tuple[Metric, ...]:
    return tuple(Metric(name, unit, "gauge", group, text) for name, unit, text in rows)


METRICS: Final = (
    *_counters(
        "run",
        ("episodes_total", "episodes", "episodes that the actors finished"),
        ("evaluations_total", "evaluations", "evaluations of the greedy policy that have ended"),
        ("lost_updates_total", "updates", "gradient steps lost with learners that had not saved them"),
        ("failed_writes_total", "writes", "files of the run directory that could not be written"),
    ),
    *_gauges(
        "run",
        ("run_seconds", "s", "time since the run began, earlier starts included"),
        ("train_return", "1", "mean return of the last episodes of the exploring policy"),
        ("env_steps_per_s", "steps/s", "environment steps a second, over the last seconds"),
        ("inserted_rows_per_s", "rows/s", "live rows inserted a second, over the last seconds"),
        ("drawn_rows_per_s", "rows/s", "rows drawn a second, over the last seconds"),
        ("updates_per_s", "updates/s", "gradient steps a second, over the last seconds"),
        ("stored_rows", "rows", "live rows of the actors that went into rings which are there; less where one is lost"),
        ("unwritten_rows", "rows", "rows of metrics.jsonl that wait until the run directory can be written again"),
    ),
    *_gauges(
        "eval",
        ("eval_return", "1", "mean return of the newest evaluation of the greedy policy"),
        ("best_eval_return", "1", "the best such mean so far"),
    ),
    *_gauges(
        "node",
        ("node_up", "1", "1 while heartbeats come, 0 while a node is silent or away; one that has left has no figures"),
        ("node_starts", "processes", "processes of this name so far"),
        ("node_silent_seconds", "s", "time since the last heartbeat"),
        ("node_waits_seconds", "s", "time for which the node has been waiting for another one; 0 while it works"),
        ("rss_bytes", "bytes", "resident memory of the processes, the ring's shared memory included"),
        ("rss_anon_bytes", "bytes", "resident memory that is the processes' own, without files and shared memory"),
    ),
    *_counters(
        "node",
        ("cpu_seconds_total", "s", "processor time of the processes"),
        (
            "waiting_seconds_total",
            "s",
            "time in which the work loop had nothing to do until another node did something",
        ),
        ("reconnects_total", "connections", "connections of the node that broke and came back"),
        ("dropped_messages_total", "messages", "messages that a hub or replay node could not use"),
        (
            "cut_connections_total",
            "connections",
            "connections that a hub or replay node closed because of such messages, or as nobody read at the other end",
        ),
    ),
    *_counters(
        "actor",
        ("env_steps_total", "steps", "environment steps taken by the actors"),
        ("environment_faults_total", "faults", "times that an actor's environments broke"),
        ("acting_seconds_total", "s", "time in environments and policy; the rest went into waiting and sending"),
        ("sent_rows_total", "rows", "live rows sent by the actors: acknowledged, given up or under way"),
        ("acknowledged_rows_total", "rows", "live rows that a replay node acknowledged"),
        ("abandoned_rows_total", "rows", "live rows given up because no acknowledgement came"),
        ("lost_rows_total", "rows", "live rows acknowledged by a replay ring that is gone"),
    ),
    *_gauges(
        "actor",
        ("credit_rows", "rows", "live rows that the actor may send now"),
        ("unacknowledged_rows", "rows", "live rows sent and not acknowledged yet"),
        ("policy_lag", "updates", "updates between the newest weights and those that act; of a run, the mean"),
        ("weights_generation", "1", "generation of the weights that act: groups of learners so far"),
        ("weights_version", "1", "counter of the weights in use, within their generation"),
        ("weights_updates", "updates", "updates in the weights that act"),
    ),
    *_counters(
        "replay",
        ("inserted_rows_total", "rows", "live rows that the replay nodes accepted"),
        ("evicted_rows_total", "rows", "live rows that went to make room"),
        ("drawn_rows_total", "rows", "rows drawn for the learners"),
        ("redrawn_rows_total", "rows", "rows drawn again because they were overwritten while they were copied"),
        ("applied_updates_total", "updates", "priorities applied"),
        ("stale_updates_total", "updates", "priorities that came for rows already overwritten"),
        ("refused_updates_total", "updates", "priorities refused: NaN, infinite or negative"),
        ("refused_messages_total", "messages", "inserts and updates that a replay node refused and said why"),
        ("duplicate_messages_total", "messages", "inserts that came twice, after a reconnect, and were stored once"),
    ),
    *_gauges(
        "replay",
        ("replay_live_rows", "rows", "rows that can be drawn"),
        ("replay_fill", "1", "share of the buffer size that is filled"),
        ("samples_per_insert", "1", "rows drawn for each live row inserted, since the first draw"),
        ("samples_per_insert_target", "1", "what the limiter holds that ratio at"),
        ("sampled_age_rows", "rows", "live rows that came after a drawn one, mean over one of the last draws"),
        ("sampled_age_rows_max", "rows", "the same of the oldest row in that draw"),
        ("replay_effective_rows", "rows", "(sum p)^2 / sum p^2: so many rows of one priority would be drawn as evenly"),
    ),
    Metric("replay_priority_rows", "rows", "gauge", "replay", "rows with a priority up to `le`, from a sample", "le"),
    *_counters(
        "learner",
        ("updates_total", "updates", "gradient steps of the learner"),
        ("skipped_updates_total", "updates", "updates skipped because the loss was not finite"),
        ("torn_rows_total", "rows", "drawn rows overwritten before the learner had read them; left out"),
        ("learner_wait_seconds_total", "s", "time in which the learner had no batch to learn from"),
        ("learner_limiter_wait_seconds_total", "s", "the part of that for which samples_per_insert held its request"),
        ("learner_stage_seconds_total", "s", "time in which batches were made ready for the trainer"),
        ("learner_update_seconds_total", "s", "time in the trainer's updates, copies to the device included"),
        ("learner_publish_seconds_total", "s", "time in which weights were packed for publication"),
        ("learner_checkpoint_seconds_total", "s", "time in which checkpoints were written"),
        ("failed_checkpoints_total", "checkpoints", "checkpoints that could not be written"),
    ),
    *_gauges(
        "learner",
        ("learner_wait_fraction", "1", "share of its time that the learner had no batch to learn from"),
        ("learner_limiter_wait_fraction", "1", "the part of that for which samples_per_insert held its request"),
        (
            "learner_group_wait_fraction",
            "1",
            "share of its time in averaging gradients, with waiting for other learners",
        ),
        ("learner_group", "1", "generation of the group of learners that a learner is in"),
        ("loss", "1", "mean loss of the last updates"),
        ("q_mean", "1", "mean value of the actions taken, over the last updates"),
        ("q_max", "1", "largest such value of a batch, averaged over the last updates"),
        ("td_mean", "1", "mean |TD error| over the last updates"),
        ("grad_norm", "1", "Euclidean norm of the gradient before clipping, averaged over the last updates"),
        ("actor_loss", "1", "mean loss of the policy, over the last updates"),
        ("entropy", "nats", "mean entropy of the policy's actions, over the last updates"),
        ("temperature", "1", "weight of the entropy beside the reward, over the last updates"),
    ),
)

_BY_NAME: Final = {metric.name: metric for metric in METRICS}


def metric_of(name: str) -> Metric:
    """The metric of this name, or of a figure's key.

    Raises:
        KeyError: there is none.
    """
    return _BY_NAME[name.partition("{")[0]]


def is_known(name: str) -> bool:
    """Whether there is a metric of this name, or for a figure of this key; whatever a peer may have sent."""
    found = _LABELLED.fullmatch(name)
    metric = None if found is None else _BY_NAME.get(found[1])
    return found is not None and metric is not None and found[2] in (None, metric.label)


def known_figures(figures: Mapping[str, float]) -> dict[str, float]:
    """Those figures of which there is a metric; a peer may have sent others."""
    return {name: value for name, value in figures.items() if is_known(name)}


def labelled(name: str, **label: str) -> str:
    """The key of a figure of a metric that has several: `name{label="value"}`."""
    ((key, value),) = label.items()
    return f'{name}{{{key}="{value}"}}'


def parted(key: str) -> tuple[str, dict[str, str]]:
    """Name and label in a figure's key; the label is empty where it has none.

    Raises:
        ValueError: it is no key.
    """
    found = _LABELLED.fullmatch(key)
    if found is None:
        raise ValueError(f"{key!r} is no name of a figure")
    return found[1], {} if found[2] is None else {found[2]: found[3]}


def table(metrics: Iterable[Metric] = METRICS) -> str:
    """All metrics as Markdown, one table for each group."""
    groups: dict[str, list[Metric]] = {}
    for metric in metrics:
        groups.setdefault(metric.group, []).append(metric)
    parts = []
    for group, members in groups.items():
        rows = [f"| `{_shown(metric)}` | {metric.kind} | {metric.unit} | {_cell(metric.help)} |" for metric in members]
        parts.append("\n".join([f"## {group}\n", "| name | kind | unit | meaning |", "|---|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _shown(metric: Metric) -> str:
    return metric.name if metric.label is None else f"{metric.name}{{{metric.label}}}"
