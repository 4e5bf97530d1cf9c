"""A service manager of its own for a test: `systemd --user` in a process and mount namespace, which ends all with it.

`python -m tests.process.user_manager SCENARIO FOLDER` is the namespace's first process. It starts the manager, plays
one of the scenarios below and prints what came of it as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from parl_mq.services.run_directory import RunDirectory
from tests.process.running import poll_until

MANAGERS: Final = (Path("/usr/lib/systemd/systemd"), Path("/lib/systemd/systemd"))
NAMESPACE: Final = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
SETTINGS: Final = (
    "actor.num_envs=8", "replay.learning_starts=200", "replay.fragment_length=8", "algorithm.batch_size=32",
    "learner.checkpoint_every_s=1", "stop.max_seconds=3600", "evaluation.every_updates=200",
)  # fmt: skip
DOCUMENT: Final = Path(__file__).parents[2] / "docs/deploy.md"
UNITS: Final = {
    "hub": "parl-mq-hub.service",
    "replay": "parl-mq-replay@0.service",
    "learner": "parl-mq-learner@0.service",
    "actor": "parl-mq-actor@0.service",
    "evaluator": "parl-mq-evaluator.service",
}
WATCHDOG_S: Final = 8
"""Of units that are to hang: the usual one would make a test long, and a shorter one ends nodes that only starve."""
LIMIT_S: Final = 400.0


class Services:
    """The services of one run, under the namespace's own manager.

    Attributes:
        directory: of the run.
        units: folder of the unit files.
    """

    def __init__(self, home: Path) -> None:
        self.directory = RunDirectory(home / ".local/state/parl-mq/run")
        self.units = home / ".config/systemd/user"
        self._logs = home.parent

    def install(self, *settings: str, hang: Collection[str] = ()) -> None:
        """Writes the units, with a watchdog for the impatient on the roles that are to hang."""
        flags = [word for text in (*SETTINGS, *settings) for word in ("--set", text)]
        command(
            sys.executable,
            "-P",
            "-m",
            "parl_mq",
            "services",
            "install",
            "cartpole-dqn",
            "--user",
            "--name",
            "run",
            *flags,
        )
        for role, unit in UNITS.items():
            name, watchdog = unit.replace("@0", "@"), f"WatchdogSec={WATCHDOG_S}\n" if role in hang else ""
            folder = self.units / f"{name}.d"
            folder.mkdir(exist_ok=True)
            limits = f"{watchdog}TimeoutAbortSec=2\nRestartSec=0.2\n"
            (folder / "test.conf").write_text(f"[Service]\n{limits}StandardError=append:{self._logs}/%N.log\n")
        systemctl("daemon-reload")

    def figure(self, name: str) -> float:
        """The newest value of a figure of the run; 0 where there is none."""
        path = self.directory.path / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        return next((row[name] for row in reversed(rows) if name in row), 0.0)

    def wait_for_more_updates(self) -> None:
        """Until the run has learned from more batches than now."""
        before = self.figure("updates_total")
        poll_until(lambda: self.figure("updates_total") > before or None, LIMIT_S)

    def main_pid(self, role: str) -> int:
        """Process of a role's service; 0 while there is none."""
        return int(systemctl("show", "--property=MainPID", "--value", UNITS[role]))

    def wait_until(self, state: str) -> None:
        """Until every role's service is in this state."""
        poll_until(lambda: set(self.states().values()) == {state} or None, LIMIT_S)

    def states(self) -> dict[str, str]:
        """How each role's service is."""
        return {role: systemctl("show", "--property=ActiveState", "--value", unit) for role, unit in UNITS.items()}

    def strike(self, **roles: signal.Signals) -> None:
        """Sends signals to services at once, and waits until other processes do their work, and the run goes on."""
        old = {role: self.main_pid(role) for role in roles}
        for role, number in roles.items():
            os.kill(old[role], number)
        poll_until(lambda: all(self._is_replaced(role, pid) for role, pid in old.items()) or None, LIMIT_S)
        self.wait_for_more_updates()

    def _is_replaced(self, role: str, pid: int) -> bool:
        return self.main_pid(role) not in (0, pid) and self.states()[role] == "active"

    def stop(self) -> float:
        """Stops all; seconds that it took."""
        began = time.monotonic()
        systemctl("stop", "parl-mq.target", "parl-mq-*.service")
        return time.monotonic() - began


def command(*words: str) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S)
    if done.returncode != 0:
        raise AssertionError(f"{words} ended with code {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def systemctl(*arguments: str) -> str:
    """What `systemctl --user` prints."""
    return command("systemctl", "--user", "--no-pager", *arguments)


def nodes() -> list[str]:
    """Command lines of the nodes that live."""
    lines = (" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
    return [line for line in lines if "-m parl_mq" in line]


def short(services: Services) -> dict[str, Any]:
    """The services train, outlive a node that is killed and one that hangs, and stop.

    The two that start without torch were chosen: this test is part of every run.
    """
    services.install("stop.at_target=false", hang=["hub"])
    systemctl("start", "parl-mq.target")
    services.wait_for_more_updates()
    services.strike(replay=signal.SIGKILL, hub=signal.SIGSTOP)
    services.wait_until("active")
    states = services.states()
    duration_s = services.stop()
    return {
        "states": states,
        "stop_s": duration_s,
        "left": nodes(),
        "rows": (services.directory.read_summary() or {})["rows"],
    }


def whole(services: Services) -> dict[str, Any]:
    """Every role is killed and stopped in turn; then the run is trained to its target."""
    services.install("stop.at_target=false", hang=UNITS)
    systemctl("start", "parl-mq.target")
    services.wait_for_more_updates()
    for number in (signal.SIGKILL, signal.SIGSTOP):
        for role in UNITS:
            services.strike(**{role: number})
            print(f"{role} is back after {number.name}", file=sys.stderr, flush=True)
    services.wait_until("active")
    restarts = {role: int(systemctl("show", "--property=NRestarts", "--value", unit)) for role, unit in UNITS.items()}
    states = services.states()
    duration_s = services.stop()
    left = nodes()
    services.install("stop.at_target=true", "algorithm.batch_size=32")
    systemctl("start", "parl-mq.target")
    services.wait_until("inactive")
    systemctl("restart", "parl-mq.target")  # as the next start of the machine does: nothing is begun again
    return {
        "states": states,
        "restarts": restarts,
        "stop_s": duration_s,
        "left": left,
        "at_the_end": services.states(),
        "summary": services.directory.read_summary(),
    }


def document(services: Services) -> dict[str, Any]:
    """The commands of docs/deploy.md for services of a user."""
    text = DOCUMENT.read_text()
    block = text.partition("<!-- user services -->\n```bash\n")[2].partition("```")[0]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shown = [command("env", f"PATH={path}", "bash", "-euc", line) for line in block.splitlines()]
    return {"shown": shown, "left": nodes(), "units": [path.name for path in services.units.rglob("parl-mq*")]}


SCENARIOS: Final[dict[str, Callable[[Services], dict[str, Any]]]] = {
    "document": document,
    "short": short,
    "whole": whole,
}


@contextmanager
def manager(folder: Path) -> Iterator[Path]:
    """Runs `systemd --user` while the block is open; gives its user's home."""
    for place in ("/run", "/dev/shm"):
        command("mount", "-t", "tmpfs", "tmpfs", place)
    home, runtime = folder / "home", Path("/run/user") / str(os.getuid())
    for path in (home / ".config", runtime, Path("/run/systemd/system")):  # without the last one it refuses to start
        path.mkdir(parents=True)
    os.environ.update(HOME=str(home), XDG_RUNTIME_DIR=str(runtime), XDG_CONFIG_HOME=str(home / ".config"))
    os.environ.pop("DBUS_SESSION_BUS_ADDRESS", None)
    program = next(path for path in MANAGERS if path.exists())
    with (folder / "manager.log").open("wb") as log:
        process = subprocess.Popen(
            [program, "--user", "--log-target=console", "--log-level=info"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            poll_until(lambda: (runtime / "systemd/private").exists() or None, LIMIT_S)
            yield home
        finally:
            process.kill()
            process.wait()


def main(scenario: str, folder: Path) -> None:
    """Plays a scenario and prints what came of it."""
    with manager(folder) as home:
        print(json.dumps(SCENARIOS[scenario](Services(home))))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
