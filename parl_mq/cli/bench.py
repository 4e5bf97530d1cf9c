"""`parl-mq bench`: this package measures itself, beside others that are installed."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parl_mq.cli import options


class PeerKind(StrEnum):
    """As parl_mq.bench.train_peer.Kind, for the command line."""

    EQUAL = "equal"
    BEST = "best"


if TYPE_CHECKING:
    from parl_mq.bench.report import BenchReport

Against = Annotated[
    list[str] | None, typer.Option("--against", metavar="PEER", help="A library to measure beside. Repeatable.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer sizes, less rows and less rounds: seconds.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it too; a .png, .svg or .pdf.")]


def tree(
    against: Against = None,
    quick: Quick = False,
    study: Annotated[bool, typer.Option("--study", help="Every K from 2 to 64 instead, without peers.")] = False,
    plot: Plot = None,
    as_json: options.Json = False,
) -> None:
    """Measure the sum tree alone: draws and updates, on every kernel.

    Peers: tianshou, torchrl, cpprb, rllib.
    """
    from parl_mq.bench.tree import run, study_arity
    from parl_mq.errors import UsageError

    if study and against:
        raise UsageError("--study has no peers; leave --against away")
    _show(lambda: study_arity(quick=quick) if study else run(against or (), quick=quick), plot, as_json)


def replay(
    against: Against = None,
    quick: Quick = False,
    plot: Plot = None,
    as_json: options.Json = False,
) -> None:
    """Measure whole replays: samples with weights, priority updates, inserts and memory.

    Peers: cpprb, torchrl, tianshou, sb3, rllib. A full run fills a million rows in each; with all it takes some 10 GiB.
    """
    from parl_mq.bench.replay import run

    _show(lambda: run(against or (), quick=quick, tell=_tell), plot, as_json)


def service(
    against: Against = None,
    quick: Quick = False,
    curve: Annotated[bool, typer.Option("--curve", help="What encryption costs over tcp, instead.")] = False,
    as_json: options.Json = False,
) -> None:
    """Measure a replay node over real sockets: items a second that clients in other processes draw and insert.

    Peer: ray, with the same table in an actor. A full run takes some ten minutes and 1.5 GiB of shared memory.
    """
    from parl_mq.bench.service import run
    from parl_mq.errors import UsageError

    if curve and against:
        raise UsageError("--curve has no peers; leave --against away")
    _show(lambda: run(against or (), quick=quick, curve=curve, tell=_tell), None, as_json)


def scale(
    quick: Quick = False,
    plot: Plot = None,
    as_json: options.Json = False,
) -> None:
    """Measure how training grows with its actors, and where one replay node saturates.

    Whole runs with environments that wait and with some that compute; then a replay node that synthetic clients drive.
    """
    from parl_mq.bench.scale import run

    _show(lambda: run(quick=quick, tell=_tell), plot, as_json)


def metrics(
    pairs: Annotated[int, typer.Option("--pairs", min=2, help="Runs with and without, one after the other.")] = 20,
    seconds: Annotated[float, typer.Option("--seconds", min=1.0, help="That each run is watched.")] = 10.0,
    as_json: options.Json = False,
) -> None:
    """Measure what metrics cost: short runs with TensorBoard and a page that is read, beside runs without either."""
    from parl_mq.bench.metrics import run
    from parl_mq.bench.profiling import Watching

    _show(lambda: run(pairs, Watching(seconds), _tell), None, as_json)


def train(
    source: options.Source,
    settings: options.Settings = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=100, metavar="N", help="Seeds 1 to N.")] = 5,
    directory: Annotated[
        Path | None, typer.Option("--directory", metavar="DIR", help="Where the runs lie; else runs/bench/PRESET.")
    ] = None,
    against: Against = None,
    peer_settings: Annotated[
        PeerKind,
        typer.Option("--settings", help="What peers train with: the preset's settings, or their own published ones."),
    ] = PeerKind.EQUAL,
    peer_seconds: Annotated[
        float, typer.Option("--peer-seconds", min=1.0, help="A peer's run ends after so many seconds.")
    ] = 900.0,
    plot: Plot = None,
    as_json: options.Json = False,
) -> None:
    """Train with several seeds, one after another, and say what they came to.

    What has ended is not run again: the same command goes on where it was cut off, also after Ctrl-C or SIGTERM.
    Peers: sb3, tianshou, rllib, torchrl.
    """
    import signal
    import sys

    from parl_mq.bench.train import TrainBench, run
    from parl_mq.errors import EXIT_INTERRUPTED, EXIT_OK
    from parl_mq.observe.plots import check_format
    from parl_mq.observe.run_table import print_runs, result_console

    if plot is not None:
        check_format(plot)
    bench = TrainBench(
        source,
        tuple(settings or ()),
        num_seeds=seeds,
        directory=directory,
        peers=tuple(against or ()),
        kind=peer_settings.value,
        peer_seconds=peer_seconds,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_OK))  # the run under way is ended in order too
    try:
        outcome = run(bench, _tell, plot)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    print_runs(outcome.compared, result_console(sys.stderr))
    _tell(f"drawn: {outcome.picture}")
    _show(lambda: outcome.report, None, as_json)


def _show(measure: Callable[[], BenchReport], plot: Path | None, as_json: bool) -> None:
    from rich.console import Console

    from parl_mq.bench.plots import write_scaling, write_study, write_systems
    from parl_mq.bench.tables import print_report
    from parl_mq.observe.plots import check_format

    if plot is not None:
        check_format(plot)
    report = measure()
    print_report(report, Console(stderr=True, highlight=False))
    if plot is not None:
        {"arity": write_study, "scale": write_scaling}.get(report.bench, write_systems)(report, plot)
    if as_json:
        print(report.to_json())


def _tell(text: str) -> None:
    import sys

    print(text, file=sys.stderr, flush=True)
