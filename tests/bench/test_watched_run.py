"""When a run has been watched for long enough, and what is made of what was seen."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from parl_mq.bench.processes import Usage, usage_of_family
from parl_mq.bench.watched_run import OTHERS, START_S, WARM_S, Watcher, changed, restricted_to, watch
from parl_mq.config.loader import load_config
from parl_mq.errors import ConfigError, UsageError
from parl_mq.wire.messages import RunProgress


class Run:
    """A run whose actor steps 100 times a second on half a core, and tells of it every half second."""

    def __init__(self):
        self.now = 1000.0
        self.begins_at = 1002.0

    def clock(self):
        return self.now

    def progress(self):
        worked_s = max(self.now - self.begins_at, 0.0)
        told = 100.0 * (worked_s - worked_s % 0.5)
        return RunProgress(
            phase="training",
            nodes=[("actor-0", "stepping", None), ("learner-0", "waiting", "new rows")],
            figures={"env_steps_total": told, "inserted_rows_total": told},
            pulses={"actor-0": (11, 0.1, int(told)), "learner-0": (12, 0.1, 0)},
        )

    def usage(self):
        elapsed = self.now - 1000.0
        others = [Usage(1, 0.1, 0.1, 0.0), Usage(2, 0.2, 0.15, 0.0)]
        return [Usage(11, 0.5 * elapsed, 0.4 * elapsed, 0.25 * elapsed), Usage(12, 0.0, 0.0, 0.0), *others]


def watched(run, names, seconds):
    watcher = Watcher(names, seconds, run.clock, run.usage)
    while not watcher.note(run.progress()):
        run.now += 0.25
    return watcher


def test_the_watch_begins_when_the_named_nodes_have_worked_and_lasts_as_long_as_asked():
    run = Run()
    seen = watched(run, ["actor-0"], seconds=5.0).observed
    assert seen.seconds == pytest.approx(5.0, abs=0.3)
    assert run.now == pytest.approx(run.begins_at + 0.5 + WARM_S + 5.0, abs=0.3)


def test_rates_and_shares_are_those_of_the_run():
    seen = watched(Run(), ["actor-0"], seconds=10.0).observed
    assert seen.env_steps_per_s == pytest.approx(100.0, rel=0.03)
    assert seen.updates_per_s == pytest.approx(0.0, abs=1e-6)
    assert seen.cores["actor-0"] == pytest.approx(0.5)
    assert seen.cores_of("actor") == pytest.approx(0.5)
    assert seen.busy_of("actor") == pytest.approx(0.4)
    assert seen.delayed_of("actor") == pytest.approx(0.25)
    assert seen.cores.keys() == {"actor-0", "learner-0", OTHERS}


def test_nothing_is_noted_after_the_end():
    run = Run()
    watcher = watched(run, ["actor-0"], seconds=2.0)
    before = watcher.observed
    run.now += 100
    assert watcher.note(run.progress())
    assert watcher.observed == before


def test_a_run_in_which_a_named_node_never_works_is_given_up_with_what_it_waits_for():
    run = Run()
    watcher = watched(run, ["actor-0", "learner-0"], seconds=2.0)
    assert run.now == pytest.approx(1000.0 + START_S, abs=0.5)
    assert watcher.observed is None
    assert "learner-0: new rows" in watcher.state


def test_settings_can_be_changed_and_what_does_not_fit_is_said():
    config = load_config("cartpole-dqn", environ={})
    other = changed(config, {"actor.num_actors": 3, "stop.target_return": None})
    assert (other.actor.num_actors, other.stop.target_return) == (3, None)
    assert other.algorithm == config.algorithm
    with pytest.raises(ConfigError, match=r"replay\.buffer_size: 10 is smaller"):
        changed(config, {"replay.buffer_size": 10})


def test_cores_are_given_back():
    before = os.sched_getaffinity(0)
    with restricted_to(1):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before
    refusal = f"--cores {len(before) + 1}: this process may use {len(before)}"
    with pytest.raises(UsageError, match=refusal), restricted_to(len(before) + 1):
        pass


def test_the_kernels_account_of_this_process_and_its_children_is_read():
    script = "import sys; print(sum(range(3_000_000)), flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        usage = {each.pid: each for each in usage_of_family(os.getpid())}
        child.stdin.close()
    assert {os.getpid(), child.pid} <= usage.keys()
    assert usage[child.pid].cpu_s >= usage[child.pid].busy_s > 0
    assert usage[child.pid].delayed_s >= 0


@pytest.mark.timeout(150)
def test_a_real_run_is_watched_and_nothing_of_it_is_left():
    with tempfile.TemporaryDirectory(prefix="pmq-", dir="/tmp") as folder:  # short: socket paths have 107 bytes
        (Path(folder) / "rings").mkdir()
        local = [f"node.ring_directory={folder}/rings", f"node.runtime_directory={folder}", "stop.max_steps=1"]
        config = load_config("cartpole-dqn", overrides=local, environ={})
        seen = watch(config, names=["actor-0", "learner-0"], seconds=1.0)
        assert [path.name for path in Path(folder).rglob("*")] == ["rings"]
    assert seen.env_steps_per_s > 0
    assert seen.updates_per_s > 0
    assert {"actor-0", "learner-0", "replay-0", "evaluator-0", OTHERS} == seen.cores.keys()
    assert seen.cores_of("learner") > 0
