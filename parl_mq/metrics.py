"""Every metric of a run: its name, unit and meaning. What nodes report, files hold and people see uses these names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: unique; a counter's ends in `_total`.
        unit: of the value; `1` for a plain number.
        kind: a counter only grows while its process lives, and is summed over nodes; a gauge is a value of the moment.
        help: what it says, for people.
    """

    name: str
    unit: str
    kind: Literal["counter", "gauge"]
    help: str


METRICS: Final = (
    Metric("env_steps_total", "steps", "counter", "environment steps taken by the actors"),
    Metric("episodes_total", "episodes", "counter", "episodes that the actors finished"),
    Metric("environment_faults_total", "faults", "counter", "times that an actor's environments broke"),
    Metric("sent_rows_total", "rows", "counter", "live rows sent by the actors: acknowledged, given up or under way"),
    Metric("acknowledged_rows_total", "rows", "counter", "live rows that a replay node acknowledged"),
    Metric("abandoned_rows_total", "rows", "counter", "live rows given up because no acknowledgement came"),
    Metric("stored_rows_total", "rows", "counter", "live rows of the actors that the replay nodes account for"),
    Metric("lost_rows_total", "rows", "counter", "live rows acknowledged by a replay ring that is gone"),
    Metric("inserted_rows_total", "rows", "counter", "live rows that the replay nodes accepted"),
    Metric("drawn_rows_total", "rows", "counter", "rows drawn for the learners"),
    Metric("torn_rows_total", "rows", "counter", "drawn rows overwritten before the learner had read them; left out"),
    Metric("stale_updates_total", "updates", "counter", "priorities that came for rows already overwritten"),
    Metric("refused_updates_total", "updates", "counter", "priorities refused: NaN, infinite or negative"),
    Metric("updates_total", "updates", "counter", "gradient steps of the learner"),
    Metric("lost_updates_total", "updates", "counter", "gradient steps lost with learners that had not saved them"),
    Metric("skipped_updates_total", "updates", "counter", "updates skipped because the loss was not finite"),
    Metric("dropped_messages_total", "messages", "counter", "messages that a hub or replay node could not use"),
    Metric("cpu_seconds_total", "s", "counter", "processor time of the processes"),
    Metric("loss", "1", "gauge", "mean loss of the last updates"),
    Metric("q_mean", "1", "gauge", "mean value of the actions taken, over the last updates"),
    Metric("q_max", "1", "gauge", "largest such value of a batch, averaged over the last updates"),
    Metric("td_mean", "1", "gauge", "mean |TD error| over the last updates"),
    Metric("grad_norm", "1", "gauge", "Euclidean norm of the gradient before clipping, averaged over the last updates"),
    Metric("actor_loss", "1", "gauge", "mean loss of the policy, over the last updates"),
    Metric("entropy", "nats", "gauge", "mean entropy of the policy's actions, over the last updates"),
    Metric("temperature", "1", "gauge", "weight of the entropy beside the reward, over the last updates"),
    Metric("replay_live_rows", "rows", "gauge", "rows that can be drawn"),
    Metric("replay_fill", "1", "gauge", "share of the buffer size that is filled"),
    Metric("samples_per_insert", "1", "gauge", "rows drawn for each live row inserted, since the first draw"),
    Metric("eval_return", "1", "gauge", "mean return of the newest evaluation of the greedy policy"),
    Metric("best_eval_return", "1", "gauge", "the best such mean so far"),
    Metric("train_return", "1", "gauge", "mean return of the last episodes of the exploring policy"),
    Metric("env_steps_per_s", "steps/s", "gauge", "environment steps a second, over the last seconds"),
    Metric("updates_per_s", "updates/s", "gauge", "gradient steps a second, over the last seconds"),
    Metric("learner_wait_fraction", "1", "gauge", "share of its time that the learner had no batch to learn from"),
    Metric(
        "learner_limiter_wait_fraction",
        "1",
        "gauge",
        "the part of that in which its request was held because samples_per_insert was reached",
    ),
    Metric("policy_lag", "updates", "gauge", "updates between the newest weights and those that acted"),
    Metric("weights_version", "1", "gauge", "counter of the weights in use, within the learner's generation"),
    Metric("rss_bytes", "bytes", "gauge", "resident memory of the processes"),
)

_BY_NAME: Final = {metric.name: metric for metric in METRICS}


def metric_of(name: str) -> Metric:
    """The metric of this name.

    Raises:
        KeyError: there is none.
    """
    return _BY_NAME[name]


def is_known(name: str) -> bool:
    """Whether there is a metric of this name."""
    return name in _BY_NAME
