"""Programs that are compiled or recorded learn what the trainer would learn without them."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from parl_mq.algorithms.base import CompilableTrainer, TrainingBatch
from parl_mq.algorithms.registry import load_algorithm
from parl_mq.config.models import LearnerConfig
from parl_mq.errors import ConfigError
from parl_mq.learn.programs import MAX_RECORDINGS, Recorded, make_programs
from tests.algorithms.batches import CPU
from tests.algorithms.cases import CASES, batches_of, settings_of, trainer_of
from tests.marks import slow

GPU = torch.device("cuda")
READS_A_VALUE = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.lift_fresh.default)


def _varied(case: str, num_batches: int, **size: int) -> list[TrainingBatch]:
    """Batches whose importance weights have another largest one each, as priorities give them."""
    batches = batches_of(case, num_batches, **size)
    return [replace(batch, weight_peak=0.3 + 0.01 * number) for number, batch in enumerate(batches)]


def _learn_the_same(case: str, other: Any, batches: list[TrainingBatch], tolerance: float = 1e-4) -> None:
    plain = trainer_of(case)
    for batch in batches:
        expected, outcome = plain.update(batch), other.update(batch)
        assert outcome.figures == pytest.approx(expected.figures, rel=1e-3, abs=1e-5)
    ours, theirs = plain.state()[0], other.state()[0]
    for name in ours:
        torch.testing.assert_close(theirs[name], ours[name], rtol=tolerance, atol=tolerance / 100, msg=name)


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Makes torch.compile hand what it has traced to this backend, from a clean start."""
    compile_by_torch = torch.compile

    def use(backend: Any) -> None:
        monkeypatch.setattr(
            torch, "compile", lambda function, **how: compile_by_torch(function, backend=backend, **how)
        )

    torch.compiler.reset()
    yield use
    torch.compiler.reset()


@pytest.mark.parametrize("case", ["dqn", "td3", "sac", slow("sac-discrete"), slow("dqn dueling quantiles")])
def test_what_is_compiled_is_compiled_once_and_learns_the_same(case: str, compilers: Callable[[Any], None]) -> None:
    """As traced for a compiler; what the compiler makes of it takes minutes, and is looked at by a slow test."""
    num_graphs = 0

    def count(graph: Any, _inputs: Any) -> Any:
        nonlocal num_graphs
        num_graphs += 1
        return graph.forward

    compilers(count)
    trainer: Any = trainer_of(case)
    make_programs(trainer, LearnerConfig(compile=True), CPU)
    _learn_the_same(case, trainer, _varied(case, 12))  # torch gives up what it had to compile 8 times
    assert num_graphs == (2 if case == "td3" else 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize("case", ["dqn", "sac", "sac-discrete", "td3"])
def test_what_the_compiler_makes_learns_the_same(case: str, compilers: Callable[[Any], None]) -> None:
    compilers("inductor")
    trainer: Any = trainer_of(case)
    make_programs(trainer, LearnerConfig(compile=True), CPU)
    _learn_the_same(case, trainer, _varied(case, 4))


class _Graph(TorchDispatchMode):
    """What torch.cuda.CUDAGraph does, on the CPU: the same operations again, on the same memory and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert operation not in READS_A_VALUE, f"{operation} waits for the device"
        result = operation(*args, **(kwargs or {}))
        self._calls.append((operation, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for operation, args, kwargs, recorded in self._calls:
            result = operation(*args, **kwargs)
            for place, value in zip(_tensors(recorded), _tensors(result), strict=True):
                place.copy_(value)


def _tensors(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else [each for each in result if each is not None]


class _Stream:
    def __init__(self, _device: Any = None) -> None: ...

    def wait_stream(self, _other: Any) -> None: ...


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[_Graph]:
    """Stands in for a GPU's recordings; those that were made."""
    made: list[_Graph] = []

    @contextlib.contextmanager
    def record(graph: _Graph, **_how: Any) -> Iterator[None]:
        with graph:
            yield
        made.append(graph)

    nothing = contextlib.nullcontext
    stand_ins = {"Stream": _Stream, "current_stream": _Stream, "stream": nothing, "device": nothing}
    for name, stand_in in {**stand_ins, "CUDAGraph": _Graph, "graph": record}.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return made


@pytest.mark.parametrize("case", CASES)
def test_a_recording_run_again_learns_the_same(case: str, graphs: list[_Graph]) -> None:
    """Whatever changes between updates must lie in memory: a number would stay what it was when it was recorded."""
    trainer: Any = trainer_of(case)
    make_programs(trainer, LearnerConfig(cuda_graphs=True), GPU)
    _learn_the_same(case, trainer, _varied(case, 12), tolerance=1e-5)
    assert len(graphs) == (2 if case.startswith(("td3", "ddpg")) else 1)


def test_what_was_compiled_can_be_recorded(graphs: list[_Graph], compilers: Callable[[Any], None]) -> None:
    compilers("eager")
    trainer: Any = trainer_of("dqn")
    make_programs(trainer, LearnerConfig(compile=True, cuda_graphs=True), GPU)
    _learn_the_same("dqn", trainer, _varied("dqn", 4))
    assert len(graphs) == 1


@pytest.mark.parametrize("case", ["dqn", "sac", "td3 every update"])
def test_batches_of_another_size_are_recorded_anew(case: str, graphs: list[_Graph]) -> None:
    trainer: Any = trainer_of(case)
    make_programs(trainer, LearnerConfig(cuda_graphs=True), GPU)
    _learn_the_same(case, trainer, [*_varied(case, 3), *_varied(case, 3, size=10)], tolerance=1e-5)
    assert len(graphs) == 2 * (2 if case.startswith("td3") else 1)


@pytest.mark.parametrize("case", ["sac", "sac-discrete", "dqn", "td3"])
def test_a_recording_goes_on_from_a_state_that_is_loaded(case: str, graphs: list[_Graph]) -> None:
    trainer, later = trainer_of(case), trainer_of(case, seed=8)
    make_programs(trainer, LearnerConfig(cuda_graphs=True), GPU)
    batches = _varied(case, 6)
    for batch in batches:
        later.update(batch)
    trainer.update(batches[0])
    trainer.load_state(*later.state())
    for batch in batches:
        expected, outcome = later.update(batch), trainer.update(batch)
        assert outcome.figures == pytest.approx(expected.figures, rel=1e-3, abs=1e-5)
    assert graphs


@pytest.mark.parametrize(("setting", "device"), [("compile", CPU), ("cuda_graphs", GPU)])
def test_a_trainer_that_cannot_be_compiled_is_refused_where_that_is_asked_for(
    setting: str, device: torch.device
) -> None:
    class Plain:
        def update(self, batch: TrainingBatch) -> None: ...

    trainer: Any = Plain()
    assert not isinstance(trainer, CompilableTrainer)
    with pytest.raises(ConfigError, match=rf"learner\.{setting}: .*Plain, has no method `compile_with`"):
        make_programs(trainer, LearnerConfig(**{setting: True}), device)
    make_programs(trainer, LearnerConfig(), device)


def test_recordings_are_refused_where_no_gpu_computes() -> None:
    with pytest.raises(
        ConfigError, match=r"learner\.cuda_graphs: this learner computes on cpu, and only a GPU records"
    ):
        make_programs(trainer_of("dqn"), LearnerConfig(cuda_graphs=True), CPU)


def test_a_trainer_that_never_hands_over_the_same_batch_is_not_recorded_for_ever(graphs: list[_Graph]) -> None:
    program = Recorded(lambda staged: staged[0] + 1, device=GPU)
    for _ in range(MAX_RECORDINGS):
        program([torch.zeros(2)])
    with pytest.raises(ConfigError, match=r"learner\.cuda_graphs: .* computes from another object at each update"):
        program([torch.zeros(2)])
    assert len(graphs) == MAX_RECORDINGS


@pytest.mark.parametrize("case", CASES)
def test_what_is_handed_over_may_be_called_again_for_the_same_batch(case: str) -> None:
    trainer: Any = trainer_of(case)

    def twice(function: Any) -> Any:
        return lambda staged: (function(staged), function(staged))[1]

    trainer.compile_with(twice)
    _learn_the_same(case, trainer, _varied(case, 4), tolerance=1e-7)


class _OnDevice(TorchDispatchMode):
    """Refuses operations that touch any memory but the device's."""

    def __torch_dispatch__(self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, result)):
            if isinstance(value, torch.Tensor):
                assert value.device.type == "meta", f"{operation} touches memory of {value.device}"
        return result


@pytest.mark.parametrize("case", CASES)
def test_what_is_recorded_stays_on_the_device(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is one without memory: no value can be read there, and what comes from the host is seen."""
    nowhere = torch.device("meta")
    streams = SimpleNamespace(Stream=_Stream, current_stream=_Stream)
    monkeypatch.setattr(torch, "get_device_module", lambda _device: streams)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _type: False)
    name, config, spec = settings_of(case)
    trainer: Any = load_algorithm(name).make_trainer(config, spec, 3, CPU)
    handed_over: list[Any] = []

    def keep(function: Any) -> Any:
        handed_over.append(function)
        return function

    on_device: Any = load_algorithm(name).make_trainer(config, spec, 3, nowhere)
    on_device.compile_with(keep)
    batch = batches_of(case, 1)[0]
    actions = trainer._actions
    taken = actions.to_units(batch.action) if hasattr(actions, "to_units") else actions.to_indices(batch.action)
    staged = trainer._staging.stage(batch, taken).like_on(nowhere)
    with torch.inference_mode(), _OnDevice():
        for function in handed_over:
            assert function(staged).device == nowhere
