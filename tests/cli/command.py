"""Runs the command line in this process."""

from __future__ import annotations

import sys

import pytest

from parl_mq.cli import main


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """The exit code of `parl-mq` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["parl-mq", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0
