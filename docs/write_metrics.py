"""Writes docs/metrics.md, the reference of all metrics: `python docs/write_metrics.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from parl_mq.metrics import table

PATH: Final = Path(__file__).with_name("metrics.md")

HEAD: Final = """\
# Metrics

Written by `python docs/write_metrics.py` from the registry, `parl_mq/metrics.py`.

Every node counts for itself and tells the hub twice a second. From there the figures go to several places:

- `metrics.jsonl` in the run directory is the record that everything else can be made from: each second a row `figures`
  of the whole run, every ten seconds a row `nodes` with each node's, and a row for each `evaluation`.
- `tensorboard/` beside it holds the run's figures as TensorBoard events, under `group/name`, against environment steps.
  `node.tensorboard = false` leaves them out.
- `http://127.0.0.1:PORT/metrics` is a page for Prometheus with each node's figures, where `node.metrics_port` is set.
- Weights & Biases gets the run's figures where `node.wandb_project` is set and `pip install -e '.[wandb]'` was done.
  With `WANDB_MODE=offline` they stay on this machine. If it has begun no run there within 15 s, the hub ends with
  code 69.

These settings are the hub's; `train` starts it with those of its own command line:

```bash
parl-mq train cartpole-dqn --run-dir runs/watched --set node.metrics_port=0
```

With port 0 the hub takes any free one; `metrics.address` in the run directory says which while it runs. The page is
served on this machine alone unless `node.metrics_host` names another of its addresses; everybody who reaches that can
read it. It can be read only. On the page every name begins with `parl_mq_`, and labels say which `node` of which `role`
a figure is of. What nodes tell stands under them alone, so that `sum(parl_mq_env_steps_total)` counts nothing twice;
what only the hub knows, the groups `run` and `eval` below, stands under `node="hub"`. A node that has left is not on
the page, and one that is started again counts from 0, as Prometheus expects.

In `figures` of `metrics.jsonl` a counter is the sum over all processes that the run has had, but for those of the hub's
own process, which begin at 0 with it. Of gauges, those of the first learner and of the first replay node stand there;
`replay_live_rows` and memory are sums, `replay_fill` and the actors' `policy_lag` are means. The actors' other gauges
stand in the rows `nodes` alone.

Some of the questions that they answer:

- Who holds up whom? `learner_wait_fraction`, and its `learner_limiter_wait_fraction`; `waiting_seconds_total` and
  `credit_rows` of the actors.
- Does the learner see new data? `samples_per_insert` beside `samples_per_insert_target`; `sampled_age_rows` beside
  `replay_live_rows`.
- Do the actors act with new weights? `policy_lag` of each.
- Are priorities of use? `replay_effective_rows` beside `replay_live_rows`: if they are near each other, the draws are
  nearly uniform; if the first is near 0, a few rows are drawn again and again.
- Where does the learner's time go? The growth of `learner_wait_seconds_total`, and of those for `stage`, `update`,
  `publish` and `checkpoint`.
- Does memory grow? `rss_anon_bytes` of each node: the ring lies in shared memory, which does not count there.

**Long runs.** When `metrics.jsonl` has reached 8 MiB, its rows go into `metrics.000001.jsonl` and so on, of the figures
one row for each half minute, and every evaluation; whatever reads a run reads all of them. A log that has reached
16 MiB is set aside as `NAME.log.1`, and the one before goes.

**A full disk** ends no run, nor does a run directory that has become read-only. `train` says which file could not be
written; the run goes on, rows of `metrics.jsonl` wait in memory (2,000 of them, half an hour; then the oldest figures
go), checkpoints are tried again when the next one is due, and older ones stay. Once there is room, what waits is
written, and `train` says so. Only the beginning of a run and its end need a directory that can be written: without one
`train` ends with code 74, and a hub on its own waits at the end until it can write the summary.

**Their cost.** `parl-mq bench metrics` trains with TensorBoard and a page that is read once a second, and without
either, in turn, and prints how many updates a second that leaves, in per cent, and how much processor time the learner
takes for an update, each as the mean of the middle half of all pairs with its 95 % band.

"""


def markdown() -> str:
    """The reference as Markdown."""
    return HEAD + table()


if __name__ == "__main__":
    PATH.write_text(markdown(), encoding="utf-8")
