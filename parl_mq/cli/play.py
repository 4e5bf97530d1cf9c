"""`parl-mq play`: greedy episodes of a run's policy, as figures, as a film, or in a window."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from parl_mq.cli import options
from parl_mq.errors import UsageError
from parl_mq.services.early_start import ONE_THREAD

if TYPE_CHECKING:
    from parl_mq.services.playing import Performance

DISPLAYS: Final = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")


def play(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run's directory.")],
    episodes: Annotated[
        int | None,
        typer.Option(min=1, help="How many; else as many as the run's evaluations have, or 1 that is filmed or shown."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the environments; else as in the run's evaluations.")
    ] = None,
    checkpoint: Annotated[Literal["best", "newest"], typer.Option(help="Whose weights play.")] = "best",
    video: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Film them; a .gif, or an .mp4 (extra `video`).")
    ] = None,
    render: Annotated[bool, typer.Option("--render", help="Show them in a window.")] = False,
    as_json: options.Json = False,
) -> None:
    """Let a run's policy play, without exploration.

    With the same episodes and seed it repeats the run's own evaluation exactly.
    """
    import sys

    _check_picture_options(video, render)
    os.environ.update(ONE_THREAD)  # read when numpy is loaded

    from parl_mq.services import playing

    chosen = playing.choose(run_dir, checkpoint)
    for error in chosen.damaged:
        print(f"parl-mq: passed over: {error}", file=sys.stderr)
    seed = chosen.config.evaluation.seed if seed is None else seed
    if video is not None:
        performance = playing.film(chosen, video, num_episodes=episodes or 1, seed=seed)
    elif render:
        performance = playing.show(chosen, num_episodes=episodes or 1, seed=seed)
    else:
        num_episodes = episodes or chosen.config.evaluation.num_episodes
        performance = playing.play(chosen, num_episodes=num_episodes, seed=seed)
    print(json.dumps(performance.to_json()) if as_json else in_words(performance))


def in_words(performance: Performance) -> str:
    """What people read: where the policy is from, and how it did."""
    returns, lengths = performance.evaluation.returns, performance.evaluation.lengths
    lines = {
        "policy": f"{performance.checkpoint.resolve()}, {performance.updates:,} updates",
        "episodes": f"{len(returns):,}, seed {performance.seed}",
        "return": f"{returns.mean():.4g} on average, {returns.min():.4g} to {returns.max():.4g}",
        "length": f"{lengths.mean():.4g} steps on average, {lengths.min():,} to {lengths.max():,}",
        "film": "" if performance.film is None else str(performance.film),
    }
    return "\n".join(f"{name:9} {words}" for name, words in lines.items() if words)


def _check_picture_options(video: Path | None, render: bool) -> None:
    """What cannot be shown here is said before anything heavy is loaded."""
    if video is not None and render:
        raise UsageError("--video and --render exclude each other: an environment draws itself in one way")
    if video is not None:
        from parl_mq.observe.film import check_film

        check_film(video)
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # else pygame looks for a display, and complains of none
    if render and not any(os.environ.get(name) for name in DISPLAYS):
        raise UsageError(
            "--render: there is no display here (neither DISPLAY nor WAYLAND_DISPLAY is set); "
            "film the episodes with --video play.gif instead"
        )
