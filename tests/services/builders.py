"""What the tests of the services share: settings, a table's spec, fragments, snapshots, and waiting with patience."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import numpy as np

from parl_mq.config.loader import load_config
from parl_mq.config.models import RunConfig
from parl_mq.fragments import FragmentBatch
from parl_mq.model.snapshot import WeightsSnapshot
from parl_mq.spec import TableSpec, WeightsVersion
from parl_mq.wire.codec import Decoder
from parl_mq.wire.messages import PROTOCOL_VERSION, Attach, Hello, SpecOffer

T = TypeVar("T")

PATIENCE_S = 20.0
SPEC = TableSpec.of({"obs": ((4,), "float32"), "action": ((), "int64")})
OTHER_SPEC = TableSpec.of({"obs": ((5,), "float32"), "action": ((), "int64")})


def small_config(*overrides: str) -> RunConfig:
    """A run whose limiter is easy to reckon with: batches of 8, 10 rows before the first draw, 2 draws a row."""
    settings = [
        "algorithm.batch_size=8",
        "algorithm.n_step=1",
        "actor.num_envs=1",
        "replay.buffer_size=100",
        "replay.learning_starts=10",
        "replay.samples_per_insert=2",
        "replay.fragment_length=4",
        "learner.prefetch=2",
    ]
    return load_config("cartpole-dqn", overrides=[*settings, *overrides], environ={})


def hello(role: str, name: str | None = None, *, epoch: int = 1, **fields: Any) -> Hello:
    """The first message of a node."""
    return Hello(
        protocol=fields.pop("protocol", PROTOCOL_VERSION),
        role=role,  # type: ignore[arg-type]
        name=name or f"{role}-0",
        epoch=epoch,
        pid=1,
        host="here",
        **fields,
    )


def spec_offer(spec: TableSpec = SPEC) -> SpecOffer:
    """What a node that has built the environment says."""
    columns, spaces = spec.to_wire()
    return SpecOffer(columns=columns, spaces=spaces, digest=spec.digest)


def attach(role: str = "actor", name: str | None = None, *, epoch: int = 1, **fields: Any) -> Attach:
    """What a client says first to a replay node."""
    return Attach(
        **{
            "protocol": PROTOCOL_VERSION,
            "run_id": "run",
            "role": role,
            "name": name or f"{role}-0",
            "epoch": epoch,
            "table": "main",
            "digest": SPEC.digest,
            **fields,
        }
    )


def fragments(num_live: int, *, first: int = 0) -> FragmentBatch:
    """One fragment; its rewards count up from `first`."""
    num_rows = num_live + 1
    numbers = np.arange(first, first + num_rows)
    return FragmentBatch(
        columns={
            "obs": np.repeat(numbers[:, None], 4, axis=1).astype(np.float32),
            "action": numbers % 2,
            "reward": numbers.astype(np.float32),
            "terminated": np.zeros(num_rows, bool),
            "truncated": np.zeros(num_rows, bool),
        },
        lengths=np.array([num_live], np.int32),
        num_context=np.zeros(1, np.int32),
        num_overlap=np.zeros(1, np.int32),
        starts_episode=np.ones(1, bool),
        priorities=None,
        versions=np.zeros((1, 2), np.uint32),
    )


def snapshot(generation: int, counter: int, *, updates: int | None = None, num_bytes: int = 100) -> WeightsSnapshot:
    """A version of the weights, of random bytes that are its own."""
    rng = np.random.default_rng([generation, counter])
    payload = rng.integers(0, 256, num_bytes, np.uint8).tobytes()
    return WeightsSnapshot.of(WeightsVersion(generation, counter), counter if updates is None else updates, payload)


def decoded(replies: list[tuple[bytes, list[Any]]], union: Any) -> list[tuple[bytes, Any, dict[str, Any]]]:
    """Replies as (peer, message, arrays)."""
    decode = Decoder(union)
    return [(peer, *decode([memoryview(frame) for frame in frames])) for peer, frames in replies]


async def soon(awaitable: Awaitable[T]) -> T:
    """Fails the test instead of hanging it."""
    return await asyncio.wait_for(awaitable, PATIENCE_S)


async def until(condition: Callable[[], object]) -> None:
    """Lets the other tasks run until the condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - tasks of the test itself bring it about
            await asyncio.sleep(0)
