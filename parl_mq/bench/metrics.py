"""`parl-mq bench metrics`: what it costs that a run's figures are written for TensorBoard, served, and read."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from parl_mq.bench.profiling import Watch
from parl_mq.bench.report import BenchReport, Result, describe_machine
from parl_mq.bench.saturation import result
from parl_mq.bench.tables import OWN
from parl_mq.bench.watched_run import Observed, changed
from parl_mq.config.loader import load_config
from parl_mq.observe.statistics import bootstrap_band, interquartile_mean

PRESET: Final = "cartpole-dqn"
SCRAPE_S: Final = 1.0
"""Between two readings of the page: more often than anybody's Prometheus reads."""
BOOTSTRAP_SEED: Final = 0
MEASURES: Final[tuple[tuple[str, str, Callable[[Observed], float]], ...]] = (
    ("updates", "updates/s", lambda seen: seen.updates_per_s),
    ("learner's processor time", "us/update", lambda seen: seen.cores_of("learner") / seen.updates_per_s * 1e6),
)

Tell = Callable[[str], object]


def run(num_pairs: int, watching: Watch, tell: Tell = lambda _: None) -> BenchReport:
    """Watches runs with and without metrics in turn, each pair in the other order than the one before.

    Args:
        num_pairs: >= 2.
        watching: runs settings and watches them.
        tell: hears what is being done.

    Raises:
        NodeFailed: a process ended by itself.
    """
    pairs: list[dict[str, Observed]] = []
    for number in range(num_pairs):
        tell(f"pair {number + 1} of {num_pairs}")
        order = ("with", "without") if number % 2 == 0 else ("without", "with")
        pairs.append({metrics: _watch(watching, is_on=metrics == "with") for metrics in order})
    return BenchReport("metrics", describe_machine(), tuple(_results(pairs)))


def _watch(watching: Watch, *, is_on: bool) -> Observed:
    config, port = load_config(PRESET, environ={}), _free_port() if is_on else None
    names = ["learner-0", *(f"actor-{index}" for index in range(config.actor.num_actors))]
    with _read_now_and_then(port):
        return watching(changed(config, {"node.tensorboard": is_on, "node.metrics_port": port}), names)


def _results(pairs: list[dict[str, Observed]]) -> Iterator[Result]:
    for measure, unit, figure in MEASURES:
        for metrics in ("with", "without"):
            yield result(measure, unit, {"metrics": metrics}, [figure(pair[metrics]) for pair in pairs])
        ratios = np.array([100 * figure(pair["with"]) / figure(pair["without"]) for pair in pairs])
        band = bootstrap_band([ratios[:, None]], np.random.default_rng(BOOTSTRAP_SEED))
        middle, low, high = float(interquartile_mean(ratios)), band.low.item(), band.high.item()
        over = f"{measure} with over without: interquartile mean, 95 % band"
        yield Result(over, OWN, "%", {"pairs": len(pairs)}, middle, low, high)


@contextmanager
def _read_now_and_then(port: int | None) -> Iterator[None]:
    """Reads the page at this port every SCRAPE_S while the block is open, as soon as it is there."""
    address, is_over = f"http://127.0.0.1:{port}/metrics", threading.Event()

    def read() -> None:
        while not is_over.wait(SCRAPE_S):
            with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=1) as page:
                page.read()

    reader = threading.Thread(target=read, daemon=True)
    if port is not None:
        reader.start()
    try:
        yield
    finally:
        is_over.set()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
