"""What a service of a booted container does: it starts the system services, looks at them, and writes what it found.

`python -m tests.process.in_container RESULT` runs as root where systemd is the first process.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Final

from tests.process.running import poll_until
from tests.process.user_manager import UNITS

LIMIT_S: Final = 400.0
RUN: Final = Path("/var/lib/parl-mq/run")
UNIT_FILES: Final = Path("/etc/systemd/system")
METRICS: Final = RUN / "metrics.jsonl"


def systemctl(*arguments: str) -> str:
    """What systemctl prints."""
    done = subprocess.run(["systemctl", "--no-pager", *arguments], capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        raise AssertionError(f"systemctl {arguments}: {done.stderr}")
    return done.stdout.strip()


def main_pid(role: str) -> int:
    """Process of a role's service; 0 while there is none."""
    return int(systemctl("show", "--property=MainPID", "--value", UNITS[role]))


def updates() -> float:
    """Those of the run so far."""
    lines = METRICS.read_text().splitlines() if METRICS.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return next((row["updates_total"] for row in reversed(rows) if "updates_total" in row), 0.0)


def states() -> dict[str, str]:
    """How each role's service is."""
    return {role: systemctl("show", "--property=ActiveState", "--value", UNITS[role]) for role in UNITS}


def shut_off(role: str) -> dict[str, str]:
    """What the kernel says of a service's process."""
    pid = main_pid(role)
    told = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    user = pwd.getpwuid(os.stat(f"/proc/{pid}").st_uid).pw_name
    return {"user": user, "no_new_privileges": told["NoNewPrivs"], "seccomp": told["Seccomp"], "caps": told["CapBnd"]}


def strike(role: str, number: signal.Signals) -> None:
    """Sends a signal to a service, and waits until another process does its work."""
    old, before = main_pid(role), updates()
    os.kill(old, number)
    poll_until(lambda: main_pid(role) not in (0, old) or None, LIMIT_S)
    poll_until(lambda: updates() > before or None, LIMIT_S)


def listen(role: str, address: str) -> None:
    """Lets a service listen at a second address, by a drop-in as docs/deploy.md has it."""
    unit = UNITS[role].replace("@0", "@")
    line = next(line for line in systemctl("cat", unit).splitlines() if line.startswith("ExecStart="))
    text = f"[Service]\nIPAddressDeny=\nExecStart=\n{line} --bind tcp://{address}\n"
    (UNIT_FILES / f"{unit}.d" / "override.conf").write_text(text)


def look() -> dict[str, Any]:
    """Starts the services, ends some, and says what was seen."""
    subprocess.run(["systemd-sysusers"], check=True)
    systemctl("start", "parl-mq.target")
    poll_until(lambda: updates() > 0 or None, LIMIT_S)
    found: dict[str, Any] = {
        "services": {role: shut_off(role) for role in UNITS},
        "run_mode": oct(RUN.parent.stat().st_mode & 0o777),
        "rings": [path.name for path in Path("/dev/shm").glob("parl-mq-*/*")],
    }
    strike("replay", signal.SIGKILL)
    strike("hub", signal.SIGSTOP)
    found["states"] = states()
    listen("hub", "127.0.0.1:29700")
    listen("replay", "127.0.0.1:2971%i")
    systemctl("daemon-reload")
    systemctl("restart", "parl-mq.target")  # returns once every node has said that it is ready, or has failed
    found["listening"] = states()
    found["attachment"] = json.loads((RUN / "attach.json").read_text())["hub"]
    found["keys"] = sorted(path.name for path in (RUN / "keys").iterdir())
    began = time.monotonic()
    systemctl("stop", "parl-mq.target", "parl-mq-*.service")
    found["stop_s"] = time.monotonic() - began
    pids = [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids if Path(f"/proc/{pid}/cmdline").exists()]
    found["left"] = [line.decode() for line in lines if b"\0-m\0parl_mq\0" in line]
    return found


if __name__ == "__main__":
    result = Path(sys.argv[1])
    try:
        result.write_text(json.dumps(look()))
    except BaseException:
        journal = subprocess.run(["journalctl", "--no-pager", "-n", "200"], capture_output=True, text=True).stdout
        result.write_text(json.dumps({"error": traceback.format_exc(), "journal": journal}))
    finally:
        subprocess.run(["systemctl", "exit", "0"])
