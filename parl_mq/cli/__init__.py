"""The command parl-mq. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from parl_mq.cli.streams import let_readers_leave, open_standard_streams
from parl_mq.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, ParlError, exit_code_of
from parl_mq.observe import elapsed  # noqa: F401  # it looks at the clock when it is loaded
from parl_mq.services.early_start import EarlyStart

RARELY: Final = 100_000
"""New objects between two looks for garbage: most are of modules, and stay; by default the looks take a tenth of a
start.
"""


def main() -> NoReturn:
    """Runs the command line and ends the process with a documented exit code."""
    early: EarlyStart | None = None
    try:
        gc.set_threshold(RARELY)
        open_standard_streams()
        let_readers_leave()
        with contextlib.suppress(FileNotFoundError):  # the folder may have been removed
            _look_in(os.getcwd())
        early = EarlyStart() if _trains(sys.argv[1:]) else None  # torch is imported while this process gets ready
        from parl_mq.cli.app import app

        app(prog_name="parl-mq", obj=early)
    except ParlError as error:
        _tell(str(error))
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt:  # before typer takes it
        _tell("interrupted")
        sys.exit(EXIT_INTERRUPTED)
    except SystemExit as ended:
        if ended.__context__ is not None and isinstance(
            ended.__context__.__cause__, KeyboardInterrupt
        ):  # typer took it
            _tell("interrupted")
        raise
    except Exception as error:  # here the process ends
        import traceback

        traceback.print_exception(error)
        _tell("this is a defect in parl_mq; please report it with the lines above")
        sys.exit(EXIT_INTERNAL)
    finally:
        if early is not None:
            early.close()
    sys.exit()


def _look_in(folder: str) -> None:
    """What `module:NAME` in settings says may stand there; what is installed comes first."""
    if folder not in sys.path:
        sys.path.append(folder)


def _trains(words: Sequence[str]) -> bool:
    return words[:1] == ["train"] and "--help" not in words


def _tell(text: str) -> None:
    """One message, each of its lines marked as ours."""
    print("\n".join(f"parl-mq: {line}" for line in text.splitlines()), file=sys.stderr)
