"""Fragments as arrays and back; each thing that can be wrong with them is refused by name."""

from dataclasses import replace

import numpy as np
import pytest

from parl_mq.errors import WireError
from parl_mq.spec import Space, TableSpec
from parl_mq.wire.codec import Decoder, encode
from parl_mq.wire.fragments import arrays_of, fragment_batch_of
from parl_mq.wire.messages import InsertFragments, ToReplay
from tests.wire.examples import SPEC, fragments


def sent(batch):
    """The arrays as they come out at the other end."""
    return Decoder(ToReplay)(encode(InsertFragments(sequence=0, table="main"), arrays_of(batch)))[1]


def changed(name, index, value):
    arrays = {key: array.copy() for key, array in arrays_of(fragments()).items()}
    arrays[name][index] = value
    return arrays


@pytest.mark.parametrize("with_priorities", [True, False])
def test_fragments_come_back_as_they_were(with_priorities):
    batch = fragments(with_priorities)
    received = fragment_batch_of(sent(batch), SPEC)
    assert received.columns.keys() == batch.columns.keys()
    for name, column in batch.columns.items():
        np.testing.assert_array_equal(received.columns[name], column, strict=True)
    for name in ("lengths", "num_context", "num_overlap", "starts_episode", "versions", "priorities"):
        np.testing.assert_array_equal(getattr(received, name), getattr(batch, name))


def test_a_columns_may_have_the_name_of_what_describes_fragments():
    spec = TableSpec.of({"obs": ((), "int8"), "action": ((), "int8"), "lengths": ((), "int8")})
    columns = {column.name: np.zeros(7, column.dtype) for column in spec.columns}
    received = fragment_batch_of(sent(replace(fragments(), columns=columns)), spec)
    assert received.lengths.tolist() == [2, 1]
    assert received.columns["lengths"].tolist() == [0] * 7


@pytest.mark.parametrize("name", sorted(arrays_of(fragments(with_priorities=False))))
def test_each_missing_array_is_named(name):
    arrays = arrays_of(fragments())
    del arrays[name]
    with pytest.raises(WireError, match=f"field {name}: missing"):
        fragment_batch_of(arrays, SPEC)


def test_foreign_array_is_named():
    with pytest.raises(WireError, match="field 'other'"):
        fragment_batch_of({**arrays_of(fragments()), "other": np.zeros(7)}, SPEC)


def test_observation_of_another_dtype_is_refused_with_field_got_and_expected():
    arrays = {**arrays_of(fragments()), "obs": np.zeros((7, 2, 3))}
    with pytest.raises(WireError, match=r"field obs: got float64 \(7, 2, 3\), expected uint8 \(R, 2, 3\)"):
        fragment_batch_of(arrays, SPEC)


@pytest.mark.parametrize(
    ("name", "index", "value", "said"),
    [
        ("fragment.lengths", 0, 0, "fragment.lengths: 0 at fragment 0, expected at least 1"),
        ("fragment.lengths", 1, -1, "fragment.lengths: -1 at fragment 1"),
        ("fragment.num_context", 1, -1, "fragment.num_context: -1 at fragment 1, expected at least 0"),
        ("fragment.num_overlap", 0, -2, "fragment.num_overlap: -2 at fragment 0"),
        ("fragment.lengths", 0, 3, "the fragments have 8 rows, the columns 7"),
        ("fragment.num_context", 0, 2**31 - 1, "the fragments have 2147483653 rows, the columns 7"),
        ("fragment.priorities", 1, np.nan, "fragment.priorities: nan at live row 1"),
        ("fragment.priorities", 2, np.inf, "fragment.priorities: inf at live row 2"),
        ("fragment.priorities", 0, -1e-300, "fragment.priorities: -1e-300 at live row 0"),
        ("terminated", 0, True, "terminated: set at row 0, which is not the last step"),
        ("terminated", 2, True, "terminated: set at row 2, which is not the last step"),
        ("truncated", 1, True, "truncated: set at row 1, which is not the last step"),
    ],
)
def test_contradiction_is_refused_with_its_field(name, index, value, said):
    with pytest.raises(WireError, match=said):
        fragment_batch_of(changed(name, index, value), SPEC)


@pytest.mark.parametrize("row", [3, 4, 5, 6])
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_last_steps_may_end_an_episode_and_closing_rows_are_not_read(name, row):
    assert fragment_batch_of(changed(name, row, True), SPEC).columns[name][row]


def test_priorities_must_be_as_many_as_live_rows():
    arrays = {**arrays_of(fragments()), "fragment.priorities": np.zeros(4)}
    with pytest.raises(WireError, match="priorities: 4 for 3 live rows"):
        fragment_batch_of(arrays, SPEC)


def test_no_fragment_at_all_is_refused():
    empty = {name: array[:0] for name, array in arrays_of(fragments()).items()}
    with pytest.raises(WireError, match="no fragment"):
        fragment_batch_of(empty, SPEC)


@pytest.mark.parametrize("name", ["reward", "noise"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_on_demand(name, value):
    bad = changed(name, 2, value)
    assert fragment_batch_of(bad, SPEC)
    with pytest.raises(WireError, match=f"field {name}: row 2 is not finite"):
        fragment_batch_of(bad, SPEC, must_be_sound=True)


def test_large_finite_numbers_pass():
    assert fragment_batch_of(changed("noise", 2, 3e38), SPEC, must_be_sound=True)


def test_of_closing_rows_observations_alone_are_read():
    assert fragment_batch_of(changed("reward", 4, np.nan), SPEC, must_be_sound=True)
    spec = TableSpec.of({"obs": ((2, 3), "float32"), "action": ((), "int64"), "noise": ((2,), "float32")})
    arrays = arrays_of(fragments())
    arrays["obs"] = arrays["obs"].astype(np.float32)
    assert fragment_batch_of(arrays, spec, must_be_sound=True)
    arrays["obs"][4, 1, 2] = np.nan
    with pytest.raises(WireError, match="field obs: row 4 is not finite"):
        fragment_batch_of(arrays, spec, must_be_sound=True)


@pytest.mark.parametrize("value", [-1, 7])
def test_values_beyond_a_space_that_counts_them_are_refused_on_demand(value):
    spec = TableSpec(SPEC.columns, {"action": Space("Discrete", (0.0,), (6.0,))})
    assert fragment_batch_of(changed("action", 2, value), spec)
    assert fragment_batch_of(changed("action", 4, value), spec, must_be_sound=True)  # of a closing row
    with pytest.raises(WireError, match="field action: row 2 is not from 0 to 6"):
        fragment_batch_of(changed("action", 2, value), spec, must_be_sound=True)
