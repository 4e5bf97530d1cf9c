"""`parl-mq bench tree`: the sum tree alone, on each kernel and beside the trees of other libraries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from parl_mq.bench.peers import open_peers, versions
from parl_mq.bench.report import BenchReport, Contender, Params, Result, describe_machine, time_interleaved
from parl_mq.bench.tables import OWN
from parl_mq.bench.tree_peers import CHUNK_ITEMS, PEERS, Float64s, TreeUser
from parl_mq.replay._sum_tree import SumTree, available_kernels
from parl_mq.replay.memory import available_memory

LEAVES: Final = (2**17, 2**20, 2**23)
BATCHES: Final = (32, 256, 1024)
STANDARD: Final = (2**20, 256)  # the size of the budgets, and the only one of a quick run
STUDY_ARITIES: Final = (2, 4, 8, 16, 32, 64)
STUDY_LEAVES: Final = (10**4, 10**5, 10**6, 10**7, 10**8)
STUDY_BYTES: Final = 100
"""Memory that a leaf takes in the values and in the trees of all arities together."""
STUDY_BATCHES: Final = (32, 128, 512)
QUICK_STUDY: Final = ((10**4, 10**6), (128,))

ROUNDS: Final = 11
QUICK_ROUNDS: Final = 5


@dataclass(frozen=True, slots=True)
class _System:
    name: str
    params: Params
    tree: TreeUser
    chunk_items: int = CHUNK_ITEMS


def run(against: Sequence[str] = (), *, quick: bool = False) -> BenchReport:
    """Nanoseconds an item of a draw, and of an update with the refresh of what it changes.

    `update` is all that a library's prioritized sampler does to its trees, `update, sum tree alone` the part that all
    have in common. parl_mq's keeps nothing but the sum tree, so that both are the same work there.

    Args:
        against: peers to measure beside, of "tianshou", "torchrl", "cpprb" and "rllib".
        quick: one size and few rounds: a second, without peers.

    Raises:
        UsageError: a peer is unknown.
        ConfigError: a peer is not installed.
    """
    peers = open_peers(against, PEERS)
    rounds = QUICK_ROUNDS if quick else ROUNDS
    results: list[Result] = []
    for leaves in STANDARD[:1] if quick else LEAVES:
        values = _values(leaves)
        systems = [_own(values, arity=8, kernel=kernel) for kernel in available_kernels()]
        systems += [
            _System(name, {}, peer.make(values), peer.chunk_items)
            for name, peer in peers.items()
            if leaves <= peer.most_leaves
        ]
        for batch in STANDARD[1:] if quick else BATCHES:
            results += _measure(systems, leaves, batch, rounds)
    return BenchReport("tree", {**describe_machine(), **versions(against, PEERS)}, tuple(results))


def study_arity(
    arities: Sequence[int] = STUDY_ARITIES,
    sizes: Sequence[int] = STUDY_LEAVES,
    batches: Sequence[int] = STUDY_BATCHES,
    *,
    quick: bool = False,
) -> BenchReport:
    """The same on the fastest kernel for every arity K, number of leaves and batch: which K is best where.

    Args:
        arities: K.
        sizes: numbers of leaves; those whose trees would not fit into this machine's memory are left out.
        batches: items of a draw or an update.
        quick: two sizes, one batch and few rounds instead.
    """
    if quick:
        sizes, batches = QUICK_STUDY
    rounds = QUICK_ROUNDS if quick else ROUNDS
    results: list[Result] = []
    for leaves in sizes:
        if (there_is := available_memory()) is not None and leaves * STUDY_BYTES > there_is:
            continue
        systems = [_own(_values(leaves), arity=arity, kernel=available_kernels()[0]) for arity in arities]
        for batch in batches:
            results += _measure(systems, leaves, batch, rounds)
    return BenchReport("arity", describe_machine(), tuple(results))


def _values(leaves: int) -> Float64s:
    return np.random.default_rng(leaves).exponential(size=leaves)


def _own(values: Float64s, *, arity: int, kernel: str) -> _System:
    tree = SumTree(len(values), arity=arity, kernel=kernel)
    tree.write(0, values)

    return _System(OWN, {"arity": arity, "kernel": kernel}, TreeUser(tree.draw, tree.update, tree.update))


def _measure(systems: Sequence[_System], leaves: int, batch: int, rounds: int) -> list[Result]:
    """Draws of all systems, then updates, each system on the same batches; those of the sums beside peers alone."""
    rng = np.random.default_rng([leaves, batch])
    num_batches = CHUNK_ITEMS // batch
    draws = [(rng.random(batch),) for _ in range(num_batches)]
    updates = [(rng.integers(0, leaves, batch), rng.exponential(size=batch)) for _ in range(num_batches)]
    size = {"leaves": leaves, "batch": batch}
    own = [system for system in systems if system.name == OWN]
    sums = [(system, system.tree.update_sums) for system in systems if system.tree.update_sums is not None]
    return [
        *_time("draw", [(system, system.tree.draw) for system in systems], draws, size, rounds),
        *_time("update", [(system, system.tree.update) for system in systems], updates, size, rounds),
        *(_time("update, sum tree alone", sums, updates, size, rounds) if len(systems) > len(own) else []),
    ]


def _time(
    measure: str,
    operations: Sequence[tuple[_System, Callable[..., object]]],
    batches: Sequence[tuple[Any, ...]],
    size: Params,
    rounds: int,
) -> list[Result]:
    batch = int(size["batch"])
    contenders = [
        Contender(
            measure=measure,
            system=system.name,
            params={**size, **system.params},
            chunk=partial(_each, operation, batches[: system.chunk_items // batch]),
            items=system.chunk_items // batch * batch,
        )
        for system, operation in operations
    ]
    return time_interleaved(contenders, rounds, time.process_time)


def _each(operation: Callable[..., object], batches: Iterable[tuple[Any, ...]]) -> None:
    for arguments in batches:
        operation(*arguments)
