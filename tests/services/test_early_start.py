"""What a run has before it is known which run it is, and the zygote that is taken from it."""

import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys

import psutil
import pytest

from parl_mq.errors import EXIT_INTERNAL, EXIT_USAGE
from parl_mq.services import early_start
from parl_mq.services import zygote as zygote_module
from parl_mq.services.early_start import EarlyStart
from parl_mq.services.nursery import Nursery
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.zygote import Zygote


def nursery(early, logs):
    return Nursery("light", early, logs, at_first_s=60.0, on_fork=lambda pid: None)


def replay_request(*arguments):
    return {"role": "replay", "name": "replay-0", "arguments": list(arguments)}


def test_what_nobody_has_taken_ends_with_it():
    before = set(psutil.Process().children())
    with EarlyStart() as early:
        watching = os.dup(early.lifeline.fd)
        [zygote] = set(psutil.Process().children()) - before
        assert zygote.is_running()
    assert not zygote.is_running()
    assert os.read(watching, 1) == b""
    os.close(watching)
    early.close()  # again: nothing


def test_a_zygote_ends_with_its_starter_while_it_is_still_importing(tmp_path):
    (tmp_path / "torch.py").write_text("import time; time.sleep(60)")
    script = (
        "import os; from parl_mq.services.early_start import EarlyStart;"
        "print(EarlyStart()._zygotes['torch'].process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, check=False)
    assert ended.returncode == -9
    with contextlib.suppress(psutil.NoSuchProcess):
        zygote = psutil.Process(int(ended.stdout))
        try:
            zygote.wait(timeout=20)
        except psutil.TimeoutExpired:
            zygote.kill()
            raise


async def test_a_zygote_that_fails_says_why_in_its_log(monkeypatch, tmp_path):
    monkeypatch.setattr(early_start, "ZYGOTE_MODULE", "parl_mq.nothing")
    log = tmp_path / "zygote.log"
    with EarlyStart() as early:
        zygote = await Zygote.take_over(early.take_zygote("torch"), log)
        assert await zygote.process.wait() == 1
        with pytest.raises(ConnectionError):
            await zygote.fork({}, tmp_path / "actor-0.log")
        await zygote.close()
    assert "No module named parl_mq.nothing" in log.read_text()


async def test_that_a_zygote_has_ended_is_known_where_its_last_words_cannot_be_written(monkeypatch, tmp_path):
    def full(log):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(early_start, "ZYGOTE_MODULE", "parl_mq.nothing")
    monkeypatch.setattr(zygote_module, "open_log", full)
    with EarlyStart() as early:
        zygote = await Zygote.take_over(early.take_zygote("torch"), tmp_path / "zygote.log")
        assert await asyncio.wait_for(zygote.process.wait(), 10) == 1
        await zygote.close()


async def test_a_node_for_which_there_is_no_process_fails_and_its_zygote_goes_on(tmp_path):
    with EarlyStart() as early:
        nodes = nursery(early, tmp_path)
        zygote = await nodes.start()
        await (await nodes.fork(replay_request())).process.wait()
        pid = zygote.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        child = await nodes.fork(replay_request())
        assert await child.process.wait() == EXIT_INTERNAL
        assert "no process could be made for this node: Too many open files" in child.last_words()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        child = await nodes.fork(replay_request())
        assert await child.process.wait() == EXIT_USAGE
        assert psutil.Process(pid).children() == []
        zygote.send_signal(9)
        await zygote.process.wait()
        await nodes.close()


async def test_a_forked_node_says_what_it_has_to_say_in_its_own_log_and_ends_with_its_own_code(tmp_path):
    with EarlyStart() as early:
        nodes = nursery(early, tmp_path)
        zygote = await nodes.start()
        child = await nodes.fork(replay_request("--hub", "ipc:///tmp/nowhere"))
        assert child.process.pid != zygote.process.pid
        assert await child.process.wait() == EXIT_USAGE
        assert "a replay node needs --bind" in child.last_words()
        assert zygote.last_words().endswith("nothing was written")
        zygote.send_signal(9)
        await zygote.process.wait()
        await nodes.close()


async def test_a_node_waits_for_the_next_zygote_where_one_has_died(tmp_path):
    with EarlyStart() as early:
        nodes = nursery(early, tmp_path)
        first = await nodes.start()
        first.send_signal(9)
        await first.process.wait()
        nodes.note_end()
        second = await nodes.start()
        child = await nodes.fork(replay_request())
        assert psutil.Process(child.process.pid).ppid() == second.process.pid
        await child.process.wait()
        second.send_signal(9)
        await second.process.wait()
        await nodes.close()


@pytest.mark.parametrize("said", [None, "/somewhere/else"])
async def test_what_a_node_starts_finds_the_module_path_of_the_caller(monkeypatch, tmp_path, said):
    if said is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", said)
    monkeypatch.setattr(early_start, "_module_path", lambda: os.pathsep.join([str(tmp_path), *sys.path]))
    (tmp_path / "showing.py").write_text(
        "import json, os\nfrom parl_mq.config.models import AlgorithmConfig\n"
        "print(json.dumps(os.environ.get('PYTHONPATH')), flush=True)"
    )
    with EarlyStart() as early:
        nodes = nursery(early, tmp_path)
        zygote = await nodes.start()
        hub = ["--bind", "ipc:///tmp/nowhere", "--config", "cartpole-dqn", "--run-dir", str(tmp_path / "run")]
        child = await nodes.fork(
            {"role": "hub", "name": "hub", "arguments": [*hub, "--set", "algorithm.name=showing:NOTHING"]}
        )
        await child.process.wait()
        assert json.loads(child.last_words().splitlines()[1]) == said
        zygote.send_signal(9)
        await zygote.process.wait()
        await nodes.close()


async def test_a_zygote_and_its_children_hold_a_lock_that_they_are_given(tmp_path):
    directory = RunDirectory(tmp_path)
    with EarlyStart() as early, directory.held():
        nodes = Nursery("light", early, tmp_path, at_first_s=60.0, on_fork=lambda pid: None, lock_fd=directory.lock_fd)
        zygote = await nodes.start()
        await (await nodes.fork(replay_request())).process.wait()
        folder = f"/proc/{zygote.process.pid}/fd"
        places = [os.readlink(f"{folder}/{number}") for number in os.listdir(folder)]
        assert places.count(str(tmp_path)) == 1
        zygote.send_signal(9)
        await zygote.process.wait()
        await nodes.close()
