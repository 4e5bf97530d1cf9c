"""Replays of other libraries, each used in the fastest way that its documentation shows; torch on one thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from parl_mq.bench.peers import Peer
from parl_mq.bench.replay_users import ALPHA, BETA, EPS, Call, ReplayUser
from parl_mq.bench.workloads import Steps, Workload

NUM_ENVS: Final = 64
"""Environments that step together where only such a step can be added at once."""

Magnitudes = npt.NDArray[np.float64]


class CpprbReplay:
    """cpprb 11.

    Its PrioritizedReplayBuffer; `add` of many rows at once. Vectors with `next_obs` as a column of its own, which is
    faster than `next_of`; frames with both `next_of` and `stack_compress`, which is faster than whole stacks.
    """

    draws: Literal["prioritized"] = "prioritized"
    slowness = 1

    def __init__(self, workload: Workload) -> None:
        from cpprb import PrioritizedReplayBuffer

        self._has_stacks = workload.stack > 1
        obs: dict[str, Any] = {
            "shape": (*workload.obs_shape, workload.stack) if self._has_stacks else workload.obs_shape
        }
        obs["dtype"] = np.dtype(workload.obs_dtype)
        columns: dict[str, Any] = {
            "obs": obs,
            "act": {"shape": workload.action_shape or 1, "dtype": np.dtype(workload.action_dtype)},
            "rew": {},
            "done": {"dtype": np.bool_},
        }
        options = {"next_of": "obs", "stack_compress": "obs"} if self._has_stacks else {}
        if not self._has_stacks:
            columns["next_obs"] = obs
        self._buffer = PrioritizedReplayBuffer(workload.num_rows, columns, alpha=ALPHA, eps=EPS, **options)

    def writes(self, steps: Steps) -> Mapping[str, Call]:
        """See ReplayUser."""
        observations = steps.observations(frames_last=True)
        columns = {
            "obs": observations[:-1],
            "act": steps.action,
            "rew": steps.reward,
            "next_obs": observations[1:],
            "done": steps.nothing_ends,
        }
        if len(steps) == 1:
            columns = {name: column[0] for name, column in columns.items()}

        def add() -> None:
            self._buffer.add(**columns)
            if self._has_stacks:  # else the next block's first stacks would be made of this one's frames
                self._buffer.on_episode_end()

        return {"add": add}

    def sample(self, batch_size: int) -> Any:
        """See ReplayUser."""
        return self._buffer.sample(batch_size, beta=BETA)

    def update(self, batch: Any, magnitudes: Magnitudes) -> Call:
        """See ReplayUser."""
        return lambda: self._buffer.update_priorities(batch["indexes"], magnitudes)

    def close(self) -> None:
        """See ReplayUser."""


class TianshouReplay:
    """Tianshou 2.

    Its PrioritizedReplayBuffer; blocks of rows by `update` from another buffer, 3 to 7 times as fast as steps of many
    environments into a PrioritizedVectorReplayBuffer. Frames are kept once (`save_only_last_obs`, `ignore_obs_next`).
    """

    draws: Literal["prioritized"] = "prioritized"
    slowness = 1

    def __init__(self, workload: Workload) -> None:
        from tianshou.data import PrioritizedReplayBuffer

        once = workload.stack > 1
        self._buffer = PrioritizedReplayBuffer(
            workload.num_rows,
            alpha=ALPHA,
            beta=BETA,
            stack_num=workload.stack,
            ignore_obs_next=once,
            save_only_last_obs=once,
        )

    def writes(self, steps: Steps) -> Mapping[str, Call]:
        """See ReplayUser."""
        from tianshou.data import Batch, ReplayBuffer

        newest = steps.frames[steps.stack - 1 :]
        ends = steps.nothing_ends
        if len(steps) == 1:
            one = Batch(
                obs=newest[0],
                act=steps.action[0],
                rew=float(steps.reward[0]),
                terminated=False,
                truncated=False,
                obs_next=newest[1],
                info={},
            )
            return {"add": lambda: self._buffer.add(one)}
        block = ReplayBuffer.from_data(
            obs=newest[:-1],
            act=steps.action,
            rew=steps.reward,
            terminated=ends,
            truncated=ends,
            done=ends,
            obs_next=newest[1:],
        )
        if steps.stack > 1:
            block._meta.pop("obs_next")  # `ignore_obs_next` stands in the way of `from_data` alone
        return {"update": lambda: self._buffer.update(block)}

    def sample(self, batch_size: int) -> Any:
        """See ReplayUser."""
        return self._buffer.sample(batch_size)

    def update(self, batch: Any, magnitudes: Magnitudes) -> Call:
        """See ReplayUser."""
        _, indices = batch
        return lambda: self._buffer.update_weight(indices, magnitudes)

    def close(self) -> None:
        """See ReplayUser."""


class TorchrlReplay:
    """TorchRL 0.14.

    A ReplayBuffer with a PrioritizedSampler over a LazyTensorStorage: twice as fast as the ready-made
    TensorDictPrioritizedReplayBuffer. Every stack of frames is stored whole. Its sum tree is of float32.
    """

    draws: Literal["prioritized"] = "prioritized"
    slowness = 1

    def __init__(self, workload: Workload) -> None:
        import torch
        from torchrl.data import LazyTensorStorage, ReplayBuffer
        from torchrl.data.replay_buffers.samplers import PrioritizedSampler

        torch.set_num_threads(1)
        size = workload.num_rows
        self._buffer = ReplayBuffer(
            storage=LazyTensorStorage(size),
            sampler=PrioritizedSampler(size, alpha=ALPHA, beta=BETA, eps=EPS),
            batch_size=1,
        )

    def writes(self, steps: Steps) -> Mapping[str, Call]:
        """See ReplayUser."""
        import torch
        from tensordict import TensorDict

        observations = torch.from_numpy(steps.observations())
        ends = torch.from_numpy(steps.nothing_ends)
        block = TensorDict(
            {
                "observation": observations[:-1],
                "action": torch.from_numpy(steps.action),
                "next": {
                    "observation": observations[1:],
                    "reward": torch.from_numpy(steps.reward),
                    "terminated": ends,
                    "truncated": ends,
                },
            },
            batch_size=[len(steps)],
        )
        if len(steps) == 1:
            one = block[0]
            return {"add": lambda: self._buffer.add(one)}
        return {"extend": lambda: self._buffer.extend(block)}

    def sample(self, batch_size: int) -> Any:
        """See ReplayUser."""
        return self._buffer.sample(batch_size, return_info=True)

    def update(self, batch: Any, magnitudes: Magnitudes) -> Call:
        """See ReplayUser."""
        import torch

        _, info = batch
        priorities = torch.from_numpy(magnitudes.astype(np.float32))
        return lambda: self._buffer.update_priority(info["index"], priorities)

    def close(self) -> None:
        """See ReplayUser."""


class RllibReplay:
    """Ray RLlib 2.

    Its PrioritizedReplayBuffer of single time steps, the one whose batches are arrays (that of episodes gives a list of
    one object for each row).
    """

    draws: Literal["prioritized"] = "prioritized"
    slowness = 16

    def __init__(self, workload: Workload) -> None:
        from ray.rllib.utils.replay_buffers import PrioritizedReplayBuffer

        self._buffer = PrioritizedReplayBuffer(capacity=workload.num_rows, storage_unit="timesteps", alpha=ALPHA)

    def writes(self, steps: Steps) -> Mapping[str, Call]:
        """See ReplayUser."""
        from ray.rllib.policy.sample_batch import SampleBatch

        observations, ends = steps.observations(), steps.nothing_ends
        batch = SampleBatch(
            obs=observations[:-1],
            actions=steps.action,
            rewards=steps.reward,
            new_obs=observations[1:],
            terminateds=ends,
            truncateds=ends,
        )
        return {"add": lambda: self._buffer.add(batch.copy())}  # it keeps what it is given

    def sample(self, batch_size: int) -> Any:
        """See ReplayUser."""
        return self._buffer.sample(batch_size, beta=BETA)

    def update(self, batch: Any, magnitudes: Magnitudes) -> Call:
        """See ReplayUser."""
        indices = batch["batch_indexes"]
        return lambda: self._buffer.update_priorities(indices, magnitudes)

    def close(self) -> None:
        """See ReplayUser."""


class Sb3Replay:
    """Stable-Baselines3 2, which draws uniformly: its ReplayBuffer over 64 environments, whose steps come together.

    Stacks of frames are stored whole, but observation and next observation only once (`optimize_memory_usage`).
    """

    draws: Literal["uniform"] = "uniform"
    slowness = 1

    def __init__(self, workload: Workload) -> None:
        import torch

        torch.set_num_threads(1)
        self._workload = workload
        self._buffer = self._make(workload.num_rows, NUM_ENVS)

    def _make(self, num_rows: int, num_envs: int) -> Any:
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer

        workload = self._workload
        whole = np.dtype(workload.obs_dtype).kind == "u"
        return ReplayBuffer(
            num_rows,
            Box(
                0 if whole else -np.inf, 255 if whole else np.inf, workload.stacked_shape, np.dtype(workload.obs_dtype)
            ),
            Box(-1, 1, workload.action_shape, np.float32) if workload.action_shape else Discrete(4),
            device="cpu",
            n_envs=num_envs,
            optimize_memory_usage=workload.stack > 1,
            handle_timeout_termination=False,
        )

    def writes(self, steps: Steps) -> Mapping[str, Call]:
        """Steps of 64 environments at once, or of one."""
        observations, num_envs = steps.observations(), min(len(steps), NUM_ENVS)
        buffer = self._buffer if num_envs == NUM_ENVS else self._make(1024, num_envs)
        infos: list[dict[str, Any]] = [{}] * num_envs
        moments = [slice(first, first + num_envs) for first in range(0, len(steps), num_envs)]
        columns = [
            (observations[:-1][m], observations[1:][m], steps.action[m], steps.reward[m], steps.nothing_ends[m])
            for m in moments
        ]

        def add() -> None:
            for moment in columns:
                buffer.add(*moment, infos)

        return {"add": add}

    def sample(self, batch_size: int) -> Any:
        """See ReplayUser."""
        return self._buffer.sample(batch_size)

    def update(self, batch: Any, magnitudes: Magnitudes) -> None:
        """It has no priorities."""

    def close(self) -> None:
        """See ReplayUser."""


MakeReplay = Callable[[Workload], ReplayUser]

PEERS: Final[Mapping[str, Peer[MakeReplay]]] = MappingProxyType(
    {
        "cpprb": Peer("cpprb", "cpprb", CpprbReplay),
        "torchrl": Peer("torchrl", "torchrl._torchrl", TorchrlReplay),
        "tianshou": Peer("tianshou", "tianshou.data", TianshouReplay),
        "sb3": Peer("stable-baselines3", "stable_baselines3.common.buffers", Sb3Replay),
        "rllib": Peer("ray[rllib]", "ray.rllib.utils.replay_buffers", RllibReplay),
    }
)
