"""Takes a training batch to the device.

Shape letters: B batch, F features of an observation, A elements of an action.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parl_mq.algorithms.base import TrainingBatch
from parl_mq.model.encoder import ObservationEncoder


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch on the device; valid until the next one is staged.

    Attributes:
        features: [2B, F] float32: the observations, then the next observations, so that one pass does for both.
        action: [B, A], as the algorithm computes with it: indices from 0, or units.
        scalars: [3, B] float32: reward, discount and weight.
        noise: [S * B, A] float32, as many sets of it as the algorithm draws for each row; none of them is 0 rows.
    """

    features: torch.Tensor
    action: torch.Tensor
    scalars: torch.Tensor
    noise: torch.Tensor

    def like_on(self, device: torch.device) -> StagedBatch:
        """Memory for the same on another device."""
        return StagedBatch(*(torch.empty_like(part, device=device, pin_memory=False) for part in self._parts))

    def copy_from(self, other: StagedBatch) -> None:
        """Takes over another one's content; the host goes on before the copies are made where its memory is pinned."""
        for own, given in zip(self._parts, other._parts, strict=True):
            own.copy_(given, non_blocking=True)

    @property
    def _parts(self) -> tuple[torch.Tensor, ...]:
        return self.features, self.action, self.scalars, self.noise

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.action)


Program = Callable[[StagedBatch], torch.Tensor]
"""An algorithm's arithmetic for one batch: leaves gradients in place, and gives one vector of the rows' figures."""


class Staging:
    """Host memory that batches are written into, pinned where the device is a GPU, and their place on the device.

    The memory is used again by each batch, on both sides: whoever reads a staged batch must be done with it, on the
    device too, before the next. So copies need not wait for what the device still has to do for the batch before, such
    as its optimizer's step: they go by a stream of their own. Copying once also means that the batch's arrays may be
    read-only.
    """

    def __init__(
        self,
        encoder: ObservationEncoder,
        device: torch.device,
        *,
        action_size: int = 1,
        action_dtype: torch.dtype = torch.int64,
        num_noises: int = 0,
        is_apart: bool | None = None,
    ) -> None:
        """Makes the memory.

        Args:
            encoder: of the observations.
            device: where batches are wanted.
            action_size: A.
            action_dtype: of the actions.
            num_noises: S.
            is_apart: the device has memory of its own; None: it has unless it is the CPU.
        """
        self._encoder = encoder
        self._device = device
        self._streams: Any = torch.get_device_module(device) if is_apart or device.type != "cpu" else None
        self._side: Any = None if self._streams is None else self._streams.Stream(device)
        self._action_size, self._action_dtype, self._num_noises = action_size, action_dtype, num_noises
        self._allocate(batch_size=0)

    def stage(
        self,
        batch: TrainingBatch,
        action: npt.NDArray[np.int64] | npt.NDArray[np.float32],
        draw_noise: Callable[[int], npt.NDArray[np.float32]] | None = None,
    ) -> StagedBatch:
        """The batch on the device.

        Args:
            batch: from the replay.
            action: [B] or [B, A], in the place of the batch's own.
            draw_noise: B -> [S * B, A]; asked once all else of the batch is known to be right.

        Raises:
            ValueError: an observation has another shape, or a value outside of its space.
        """
        if (batch_size := len(batch.reward)) != self._on_host.batch_size:
            self._allocate(batch_size)
        self._encoder.encode(batch.obs, out=self._obs)
        self._encoder.encode(batch.next_obs, out=self._next_obs)
        self._action[:] = action.reshape(batch_size, -1)
        self._reward[:], self._discount[:], self._weight[:] = batch.reward, batch.discount, batch.weight
        if draw_noise is not None:
            self._noise[:] = draw_noise(batch_size)
        return self._on_host if self._on_device is None else self._copied(self._on_device)

    def _copied(self, on_device: StagedBatch) -> StagedBatch:
        """What is computed from now on waits for the copies, on the device."""
        with self._streams.stream(self._side):
            on_device.copy_from(self._on_host)
        self._streams.current_stream(self._device).wait_stream(self._side)
        return on_device

    def _allocate(self, batch_size: int) -> None:
        is_pinned = self._device.type == "cuda"
        features = torch.empty(2 * batch_size, self._encoder.num_features, pin_memory=is_pinned)
        action = torch.empty(batch_size, self._action_size, dtype=self._action_dtype, pin_memory=is_pinned)
        scalars = torch.empty(3, batch_size, pin_memory=is_pinned)
        noise = torch.empty(self._num_noises * batch_size, self._action_size, pin_memory=is_pinned)
        self._on_host = StagedBatch(features, action, scalars, noise)
        self._on_device = None
        if self._streams is not None:
            self._on_device = self._on_host.like_on(self._device)
            self._side.wait_stream(self._streams.current_stream(self._device))  # which may still use that memory
        self._obs, self._next_obs = features.numpy()[:batch_size], features.numpy()[batch_size:]
        self._action, self._noise = action.numpy(), noise.numpy()
        self._reward, self._discount, self._weight = scalars.numpy()
