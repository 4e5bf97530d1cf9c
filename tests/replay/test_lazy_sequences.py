"""Many short random sequences on a tiny table: what is lazy must not be visible."""

from __future__ import annotations

import numpy as np
import pytest

from parl_mq.replay.keys import positions_of
from parl_mq.replay.table import Table, TableSettings
from tests.marks import slow

from .fragments import SPEC, counter_fragment
from .reference import ReferenceTable


@pytest.mark.parametrize("num_sequences", [1_000, slow(10_000)])
def test_the_leaves_of_random_sequences_equal_an_eager_reference_after_each_flush(num_sequences: int) -> None:
    rng = np.random.default_rng(2)
    chosen = TableSettings("test", capacity=4, alpha=1.0, eps=0.0)
    for _ in range(num_sequences):
        table, reference = Table(chosen, SPEC, directory=None, rng=rng), ReferenceTable(chosen, SPEC)
        keys: dict[int, np.uint64] = {}
        for step in range(int(rng.integers(4, 16))):
            match rng.choice(["insert", "update", "update", "sample", "flush"]):
                case "update" if keys:
                    targets = rng.choice(list(keys), int(rng.integers(1, 4)))
                    magnitudes = rng.integers(0, 10, len(targets)).astype(np.float64)
                    table.update_priorities(np.array([keys[one] for one in targets.tolist()]), magnitudes)
                    for target, magnitude in zip(targets.tolist(), magnitudes.tolist(), strict=True):
                        reference.update(target, magnitude)
                case "sample" if reference.leaves:
                    drawn = table.draw(2)
                    assert all(int(position) in reference.leaves for position in positions_of(drawn.keys))
                case "flush":
                    assert_equal(table, reference)
                case _:
                    fragment = counter_fragment(100 * step, 1)
                    keys.update(zip(reference.insert(fragment), table.insert(fragment), strict=True))
        assert_equal(table, reference)
        table.close()


def assert_equal(table: Table, reference: ReferenceTable) -> None:
    assert table.total_priority == sum(reference.leaves.values())
    (ring,) = table._rings
    expected = {position % ring.rows.num_rows: value for position, value in reference.leaves.items() if value > 0}
    assert {slot: value for slot, value in enumerate(ring.tree.leaves) if value > 0} == expected
    assert table.counts.stale == reference.num_stale
