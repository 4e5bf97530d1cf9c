"""`parl-mq status`: how a run is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parl_mq.cli import options


def status(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run's directory.")],
    as_json: options.Json = False,
) -> None:
    """Show how a run is: which nodes are well, who waits for whom, what became of the rows, who has failed.

    A running run is asked; of one that has ended, or does not answer, the last known state is shown.
    """
    import json
    import sys

    from parl_mq.observe.run_table import result_console
    from parl_mq.observe.status_view import print_status
    from parl_mq.services.status import picture_of

    picture = picture_of(run_dir)
    if as_json:
        print(json.dumps(picture.to_json(), allow_nan=False))
    elif picture.status is None:
        print(picture.age_in_words(), file=sys.stderr)
    else:
        note = picture.age_in_words() or "the hub says this"
        print_status(picture.status, picture.failures, result_console(sys.stdout), note=note)
