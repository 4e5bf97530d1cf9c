"""Random sequences of operations on a table and on the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parl_mq.fragments import FragmentBatch
from parl_mq.replay.draws import split_frames
from parl_mq.replay.keys import positions_of
from parl_mq.replay.table import Table, TableSettings

from .fragments import SPEC, counter_fragment, joined
from .reference import ReferenceTable


@st.composite
def table_settings(draw: st.DrawFn) -> TableSettings:
    fragment_length = draw(st.integers(1, 6))
    return TableSettings(
        name="test",
        capacity=draw(st.integers(fragment_length, 40)),
        kind=draw(st.sampled_from(["prioritized", "prioritized", "uniform"])),
        alpha=draw(st.sampled_from([0.0, 0.6, 1.0])),
        eps=draw(st.sampled_from([0.0, 1e-6])),
        n_step=draw(st.integers(1, 4)),
        gamma=0.9,
        frame_stack=draw(st.integers(1, 3)),
        fragment_length=fragment_length,
        arity=draw(st.sampled_from([2, 8])),
        row_overhead=draw(st.sampled_from([None, 1.0])),
    )


def random_batch(draw: st.DrawFn | Any, chosen: TableSettings, first: int) -> FragmentBatch:
    fragments = []
    for _ in range(draw(st.integers(1, 2))):
        starts = draw(st.booleans())
        length = draw(st.integers(1, chosen.fragment_length))
        ends = draw(st.sampled_from([{}, {"terminated": True}, {"truncated": True}]))
        fragments.append(
            counter_fragment(
                first + 100 * len(fragments),
                length,
                num_context=0 if starts else chosen.frame_stack - 1,
                num_overlap=draw(st.integers(0, chosen.n_step - 1)),
                starts_episode=starts,
                **ends,
            )
        )
    batch = joined(*fragments)
    if draw(st.booleans()):
        magnitudes = draw(st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=batch.num_live, max_size=batch.num_live))
        batch = FragmentBatch(
            *[getattr(batch, name) for name in FragmentBatch.__slots__][:5], np.array(magnitudes), batch.versions
        )
    return batch


def assert_same(table: Table, reference: ReferenceTable, keys: dict[int, np.uint64]) -> None:
    leaves = reference.leaves
    assert table.num_live == len(leaves)
    assert table.counts.stale == reference.num_stale
    np.testing.assert_allclose(table.total_priority, sum(leaves.values()), rtol=1e-12)
    (ring,) = table._rings
    expected = {position % ring.rows.num_rows: value for position, value in leaves.items() if value > 0}
    stored = {slot: value for slot, value in enumerate(ring.tree.leaves.tolist()) if value > 0}
    assert stored == pytest.approx(expected, rel=1e-15, abs=0.0)  # a power may differ in its last bit
    assert {int(position) for position in positions_of(np.array(list(keys.values()), np.uint64))} == set(keys)


def assert_drawn_windows(table: Table, reference: ReferenceTable) -> None:
    draw = table.draw(16)
    leaves = reference.leaves
    total = sum(leaves.values())
    columns = dict(draw.columns)
    if reference.settings.frame_stack > 1:
        columns["obs"], columns["next_obs"] = split_frames(
            columns.pop("frames"), columns["num_steps"], reference.settings.frame_stack
        )
    for i, position in enumerate(positions_of(draw.keys)):
        expected_probability = leaves[int(position)] / total if total else 1 / len(leaves)
        assert draw.probabilities[i] == pytest.approx(expected_probability, rel=1e-12)
        assert draw.probabilities[i] > 0
        for name, expected in reference.window(int(position)).items():
            np.testing.assert_allclose(columns[name][i], expected, rtol=1e-6, err_msg=name)


@given(st.data())
@settings(max_examples=120, deadline=None, derandomize=True)
def test_any_sequence_of_operations_agrees_with_the_reference(data: st.DataObject) -> None:
    chosen = data.draw(table_settings())
    table = Table(chosen, SPEC, directory=None, rng=np.random.default_rng(0))
    reference = ReferenceTable(chosen, SPEC)
    keys: dict[int, np.uint64] = {}
    for step in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["insert", "insert", "update", "draw"])):
            case "insert":
                batch = random_batch(data.draw, chosen, 1000 * step)
                if batch.num_rows > reference.num_rows - chosen.usual_fragment_rows or batch.num_live > chosen.capacity:
                    continue  # stored in several parts, which the reference does not know
                keys.update(zip(reference.insert(batch), table.insert(batch), strict=True))
            case "update" if keys:
                targets = data.draw(st.lists(st.sampled_from(sorted(keys)), min_size=1, max_size=6))
                magnitudes = [data.draw(st.sampled_from([0.0, 0.25, 1.0, 7.0])) for _ in targets]
                table.update_priorities(np.array([keys[one] for one in targets]), np.array(magnitudes))
                for target, magnitude in zip(targets, magnitudes, strict=True):
                    reference.update(target, magnitude)
            case "draw" if reference.leaves:
                assert_drawn_windows(table, reference)
        assert_same(table, reference, keys)
    table.close()
