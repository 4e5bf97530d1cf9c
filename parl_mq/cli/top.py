"""`parl-mq top`: a run while it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from parl_mq.config.models import RunConfig

ANY_HEIGHT: Final = 10_000
"""Lines of a picture that goes to a file or a pipe."""


def top(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run's directory.")],
    every_s: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two pictures.")] = 2.0,
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after this many pictures.")] = None,
) -> None:
    """Watch a run: its figures, nodes with health and rates, who waits for whom, what happened last.

    It ends with the run, also where all its processes have died, or with Ctrl-C. Where stdout is no terminal, each
    picture is printed as plain text.
    """
    import sys
    import time
    from itertools import count as numbers

    from parl_mq.observe.top_view import Watcher
    from parl_mq.services.status import picture_of

    picture = picture_of(run_dir)
    watcher = Watcher(_settings(run_dir / "config.toml"))
    with _screen() as (show, height):
        try:
            for number in numbers(1):
                if picture.status is not None:
                    watcher.see(picture.status, picture.failures)
                show(watcher.render(picture.age_in_words(), height=height()))
                if picture.has_ended or picture.is_dead or number == count:
                    break
                time.sleep(every_s)  # the period itself
                picture = picture_of(run_dir)
        except KeyboardInterrupt:
            sys.stdout.flush()


def _settings(path: Path) -> RunConfig:
    """A run's settings, of its algorithm those that all have: its module may not be found from here.

    Raises:
        RecordError: the file is damaged, or another version's.
    """
    import tomllib

    from parl_mq.config.models import AlgorithmConfig, RunConfig
    from parl_mq.errors import RecordError

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        shared = {name: value for name, value in values["algorithm"].items() if name in AlgorithmConfig.model_fields}
        return RunConfig.model_validate({**values, "algorithm": AlgorithmConfig(**shared)})
    except (OSError, ValueError, KeyError) as error:
        raise RecordError(f"{path} is damaged, or another version's: {error}") from error


@contextmanager
def _screen() -> Iterator[tuple[Callable[[RenderableType], None], Callable[[], int]]]:
    """Shows one picture after the other: on a terminal in place of the last, elsewhere below it.

    The last picture stays when the block ends.
    """
    import sys

    from rich.live import Live
    from rich.text import Text

    from parl_mq.observe.run_table import result_console
    from parl_mq.observe.top_view import WIDTH

    console = result_console(sys.stdout)
    if not console.is_terminal or console.is_dumb_terminal:
        console.width = max(WIDTH, console.width if console.width < ANY_HEIGHT else WIDTH)

        def show(picture: RenderableType) -> None:
            console.print(picture)
            console.print(Text(""))
            sys.stdout.flush()

        yield show, lambda: ANY_HEIGHT
        return
    with Live(console=console, auto_refresh=False, screen=False) as live:
        yield lambda picture: live.update(picture, refresh=True), lambda: console.height
