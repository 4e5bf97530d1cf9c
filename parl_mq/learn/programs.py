"""Faster programs of an algorithm's arithmetic: compiled by torch, and recorded on a GPU.

The gradients of small networks are dozens of short kernels, and starting them takes a GPU's host longer than running
them. Recorded once (a CUDA graph), they are started by one call. Averages over learners, norms and optimizers' steps
are a few more, which follow one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

from parl_mq.algorithms.base import CompilableTrainer, Compiler, Trainer
from parl_mq.config.models import LearnerConfig
from parl_mq.errors import ConfigError

WARM_UPS: Final = 3
"""Calls before a recording: in the first ones libraries choose their kernels, and a compiler compiles."""
MAX_RECORDINGS: Final = 8
"""Of one function; batches are of one size, or of two."""


def make_programs(trainer: Trainer, config: LearnerConfig, device: torch.device) -> None:
    """Lets the trainer compute by the programs that are asked for, if any.

    Raises:
        ConfigError: the trainer has no method `compile_with`, or recordings are wanted of a device that makes none.
    """
    compilers: list[tuple[str, Compiler]] = []
    if config.compile:
        compilers.append(("compile", partial(torch.compile, dynamic=False)))
    if config.cuda_graphs:
        if device.type != "cuda":
            raise ConfigError(
                f"learner.cuda_graphs: this learner computes on {device}, and only a GPU records; leave it out, or set "
                "node.device to a GPU"
            )
        compilers.append(("cuda_graphs", partial(Recorded, device=device)))
    for setting, compiler in compilers:
        if not isinstance(trainer, CompilableTrainer):
            raise ConfigError(
                f"learner.{setting}: this algorithm's trainer, {type(trainer).__name__}, has no method `compile_with` "
                "(docs/own-algorithm.md)"
            )
        trainer.compile_with(compiler)


class Recorded:
    """A function whose kernels are recorded at the first call and run again, on the same memory, at later ones.

    Called with another object it is recorded anew.

    Args:
        function: of a staged batch; see CompilableTrainer.compile_with.
        device: the GPU.
    """

    def __init__(self, function: Callable[[Any], Any], *, device: torch.device) -> None:
        self._function = function
        self._device = device
        self._cuda: Any = torch.cuda
        self._stream: Any = self._cuda.Stream(device)
        self._num_recordings = 0
        self._recorded_of: Any = None
        self._graph: Any = None
        self._result: Any = None

    def __call__(self, staged: Any) -> Any:
        """What the function gives for it, in memory that the next call uses again.

        Raises:
            ConfigError: there is another object at each call.
        """
        if staged is not self._recorded_of:
            self._record(staged)
        self._graph.replay()
        return self._result

    def _record(self, staged: Any) -> None:
        self._num_recordings += 1
        if self._num_recordings > MAX_RECORDINGS:
            raise ConfigError(
                "learner.cuda_graphs: the algorithm's trainer computes from another object at each update, and so each "
                "would have to be recorded (docs/own-algorithm.md); leave it out"
            )
        self._recorded_of = self._graph = self._result = None  # frees the memory of the recording before
        with self._cuda.device(self._device):
            waiting = self._cuda.current_stream()
            self._stream.wait_stream(waiting)
            with self._cuda.stream(self._stream):
                for _ in range(WARM_UPS):
                    self._function(staged)
            waiting.wait_stream(self._stream)
            self._graph = self._cuda.CUDAGraph()
            with self._cuda.graph(self._graph, stream=self._stream, capture_error_mode="thread_local"):
                self._result = self._function(staged)
        self._recorded_of = staged
