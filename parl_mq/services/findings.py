"""What a check found, part by part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "fault"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one part of a check found.

    Attributes:
        about: the part.
        verdict: `note`: odd, but it works; `fault`: what was asked for cannot work.
        what: for people.
    """

    about: str
    verdict: Verdict
    what: str
