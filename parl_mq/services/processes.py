"""Processes of nodes as their supervisor sees them: signalled, and what they said before they ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from parl_mq.services.zygote import ChildProcess, Zygote
from parl_mq.wire.messages import Role

LOG_TAIL_LINES: Final = 12
TRACEBACK_LINES: Final = 40
MAX_LOG_READ: Final = 256 * 1024
_TRACEBACK: Final = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+.*$", re.MULTILINE)


@dataclass(slots=True, eq=False)
class Child:
    """A node's process.

    Attributes:
        started_at: monotonic time, s.
        log_start: bytes of the log that earlier processes wrote.
        zygote: that it was forked by; None for a zygote.
        hung_s: it was killed because it had given no sign of life for so long; None where it was not.
    """

    name: str
    role: Role
    process: ChildProcess
    log: Path
    started_at: float = 0.0
    log_start: int = 0
    zygote: Zygote | None = None
    hung_s: float | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.returncode is None

    @property
    def is_zygote(self) -> bool:
        """Whether it forks others."""
        return self.role == "supervisor"

    @property
    def fell_with_zygote(self) -> bool:
        """Whether it was the zygote that died, and this process with it."""
        return self.zygote is not None and self.zygote.process.returncode is not None

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal, if it still lives."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def how_it_ended(self) -> str:
        """In a few words."""
        code = self.process.returncode
        if self.hung_s is not None:
            return f"gave no sign of life for {self.hung_s:.0f} s and was killed"
        return f"ended with code {code}" if code is None or code >= 0 else f"died (signal {-code})"

    def end_in_words(self) -> str:
        """How it ended, with the end of what it wrote."""
        return f"{self.name} {self.how_it_ended()}; {self.last_words()}"

    def last_words(self) -> str:
        """The end of its log."""
        lines = self._written().splitlines()
        told = "".join(f"\n  {line}" for line in lines[-LOG_TAIL_LINES:])
        return f"the end of {self.log}:{told or ' nothing was written'}"

    def cause(self) -> str:
        """The first traceback that it wrote, else its last lines; empty where it wrote nothing."""
        written = self._written()
        found = _TRACEBACK.search(written)
        lines = found[0].splitlines()[-TRACEBACK_LINES:] if found else written.splitlines()[-LOG_TAIL_LINES:]
        return "\n".join(lines)

    def _written(self) -> str:
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = self.log_start if size >= self.log_start else 0  # it has been emptied since
            file.seek(max(start, size - MAX_LOG_READ))
            return file.read().decode(errors="replace")


def size_of(log: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    return log.stat().st_size if log.exists() else 0
