"""Shows what a check found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console

    from parl_mq.services.findings import Finding

MARKS: Final = {"ok": "", "note": "note: ", "fault": "fault: "}
STYLES: Final = {"ok": "", "note": "yellow", "fault": "bold red"}


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """One row for each; what is odd stands out, in words too."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for finding in findings:
        table.add_row(Text(finding.about, "dim"), Text(MARKS[finding.verdict] + finding.what, STYLES[finding.verdict]))
    console.print(table)
