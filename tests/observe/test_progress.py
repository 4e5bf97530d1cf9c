"""The views of a run: live and in lines."""

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from parl_mq.config.loader import load_config
from parl_mq.config.models import RunConfig
from parl_mq.observe.progress import LINE_EVERY_S, LineView, LiveView, headline, in_sentences, progress_view, render
from parl_mq.wire.messages import RunProgress

FIGURES = {
    "env_steps_total": 120_000.0,
    "env_steps_per_s": 41_234.0,
    "updates_total": 1_234.0,
    "updates_per_s": 900.0,
    "eval_return": 213.44,
    "train_return": 120.2,
    "replay_live_rows": 25_000.0,
    "samples_per_insert": 8.01,
    "learner_wait_fraction": 0.04,
    "policy_lag": 33.0,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def config() -> RunConfig:
    overrides = ["replay.buffer_size=50_000", "replay.samples_per_insert=8"]
    return load_config("cartpole-dqn", overrides=overrides, environ={})


def _progress(phase: str = "training", num_actors: int = 1, waits: str | None = None) -> RunProgress:
    actors = [(f"actor-{index}", "stepping", None) for index in range(num_actors)]
    return RunProgress(phase=phase, nodes=[*actors, ("learner-0", "waiting", waits)], figures=FIGURES)


def _drawn(progress: RunProgress, config: RunConfig, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as captured:
        console.print(render(progress, config, 12.0))
    return captured.get()


def _lines(config: RunConfig, use: Callable[[LineView, Clock], None]) -> list[str]:
    stream, clock = io.StringIO(), Clock()
    with progress_view(config, stream, clock) as view:
        assert isinstance(view, LineView)
        use(view, clock)
    return stream.getvalue().splitlines()


def test_terminal_gets_the_live_view(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(progress_view(config, Terminal(), Clock()), LiveView)
    assert isinstance(progress_view(config, io.StringIO(), Clock()), LineView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(progress_view(config, Terminal(), Clock()), LineView)


def test_colour_that_is_forced_makes_no_terminal(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(progress_view(config, io.StringIO(), Clock()), LineView)


def test_live_view_gives_the_terminal_back(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with progress_view(config, terminal, Clock()) as view:
        view(_progress())
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert "actor-0" in terminal.getvalue()
    assert terminal.getvalue().rfind(shown) > terminal.getvalue().rfind(hidden) >= 0


def test_line_says_what_is_reached_and_wanted(config: RunConfig) -> None:
    (line,) = _lines(config, lambda view, clock: view(_progress()))
    for words in ["training", "120,000 (41,234/s)", "1,234 (900/s)", "213.4 (target 475)", "8.01 (wanted 8)"]:
        assert words in line
    assert "25,000 of 50,000 rows (50%)" in line
    assert "\x1b" not in line


def test_line_says_who_waits_for_what(config: RunConfig) -> None:
    (line,) = _lines(config, lambda view, clock: view(_progress(waits="replay 0/1000")))
    assert line.endswith("learner-0 waits for replay 0/1000")


def test_lines_of_a_phase_keep_their_distance(config: RunConfig) -> None:
    def use(view: LineView, clock: Clock) -> None:
        for elapsed_s in (0.0, 0.5, LINE_EVERY_S - 0.1, LINE_EVERY_S, LINE_EVERY_S + 0.5):
            clock.now = 100.0 + elapsed_s
            view(_progress())

    assert [line.split(" s ")[0].strip() for line in _lines(config, use)] == ["0.0", "5.0"]


def test_new_phase_is_told_at_once(config: RunConfig) -> None:
    def use(view: LineView, clock: Clock) -> None:
        view(_progress("filling"))
        view(_progress("training"))

    assert len(_lines(config, use)) == 2


def test_nodes_that_wait_for_the_same_share_a_sentence() -> None:
    waiting = {"actor-0": "the learner", "evaluator-0": "weights", "actor-1": "the learner"}
    assert in_sentences(waiting) == ["actor-0, actor-1 wait for the learner", "evaluator-0 waits for weights"]


def test_line_without_figures_is_the_waits_alone(config: RunConfig) -> None:
    waiting = RunProgress(phase="starting", nodes=[("replay-0", "waiting", "the spec")], figures={})
    (line,) = _lines(config, lambda view, clock: view(waiting))
    assert line.strip() == "0.0 s starting: replay-0 waits for the spec"


def test_unknown_figures_are_left_out(config: RunConfig) -> None:
    assert headline(RunProgress(phase="starting", nodes=[], figures={}), config) == []
    assert "nan" not in _drawn(RunProgress(phase="starting", nodes=[], figures={}), config)


def test_picture_fits_80_columns(config: RunConfig) -> None:
    drawn = _drawn(_progress(num_actors=3, waits="replay-0: 12/1000 rows " * 6), config)
    assert all(len(line) <= 80 for line in drawn.splitlines())
    for words in ["213.4 (target 475)", "8.01 (wanted 8)", "actor-2", "stepping", "learner-0"]:
        assert words in drawn


def test_node_that_waits_is_shown_among_many(config: RunConfig) -> None:
    drawn = _drawn(_progress(num_actors=500, waits="replay 0/1000"), config)
    assert len(drawn.splitlines()) < 24
    assert "replay 0/1000" in drawn
    assert "and 489 more" in drawn


def test_nodes_keep_their_places_and_long_names_leave_room(config: RunConfig) -> None:
    long = "guest.a-machine-with-a-name-of-many-parts.example.org:17"
    nodes = [("actor-0", "stepping", None), (long, "waiting", "the replay node to take more rows")]
    drawn = _drawn(RunProgress(phase="training", nodes=nodes, figures={}), config).splitlines()
    assert drawn[-3].startswith("guest")
    assert any("the replay node to take more rows" in line for line in drawn)


def test_words_of_a_node_are_no_markup(config: RunConfig) -> None:
    strange = "[bold]x[/nothing]"
    assert strange in _drawn(_progress(waits=strange), config)
    assert strange in _lines(config, lambda view, clock: view(_progress(waits=strange)))[0]
