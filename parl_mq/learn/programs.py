"""Faster programs of an algorithm's arithmetic: compiled by torch, and recorded on a GPU.

An update of small networks is dozens of short kernels, and starting them takes a GPU's host longer than running them.
Recorded once (a CUDA graph), they are started by one call.
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


def make_programs(trainer: Trainer, config: LearnerConfig, device: torch.device) -> None:
    """Lets the trainer compute by the programs that are asked for, if any.

    Raises:
        ConfigError: the trainer has no method `compile`, or recordings are wanted of a device that makes none.
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
        compilers.append(("cuda_graphs", Recorded))
    for setting, compiler in compilers:
        if not isinstance(trainer, CompilableTrainer):
            raise ConfigError(
                f"learner.{setting}: this algorithm's trainer, {type(trainer).__name__}, has no method `compile` "
                "(docs/own-algorithm.md)"
            )
        trainer.compile(compiler)


class Recorded:
    """A function whose kernels are recorded at the first call and run again, on the same memory, at later ones.

    Its result lies in the same memory at each call. Called with another object it is recorded anew.

    Args:
        function: of a batch on the GPU; see CompilableTrainer.compile.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._recorded_of: Any = None
        self._graph: Any = None
        self._result: Any = None

    def __call__(self, staged: Any) -> Any:
        """What the function gives for it."""
        if staged is not self._recorded_of:
            self._record(staged)
        self._graph.replay()
        return self._result

    def _record(self, staged: Any) -> None:
        self._recorded_of = self._graph = self._result = None  # frees the memory of the recording before
        cuda: Any = torch.cuda
        stream, side = cuda.current_stream(), cuda.Stream()
        side.wait_stream(stream)
        with cuda.stream(side):
            for _ in range(WARM_UPS):
                self._function(staged)
        stream.wait_stream(side)
        self._graph = cuda.CUDAGraph()
        with cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._result = self._function(staged)
        self._recorded_of = staged
