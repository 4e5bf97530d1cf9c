from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parl_mq.replay.layout import HEADER_DTYPE, HEADER_NAME, RowLayout
from parl_mq.spec import DTYPES, Column, TableSpec

columns = st.tuples(st.lists(st.integers(1, 5), max_size=3).map(tuple), st.sampled_from(sorted(DTYPES)))


@given(obs=columns, action=columns, extras=st.lists(columns, max_size=4))
def test_columns_are_aligned_and_do_not_overlap(obs: tuple, action: tuple, extras: list) -> None:
    layout = RowLayout(TableSpec.of({"obs": obs, "action": action, **{f"x{i}": one for i, one in enumerate(extras)}}))
    taken = np.zeros(layout.stride, int)
    taken[: HEADER_DTYPE.itemsize] += 1
    for name, offset in layout.offsets.items():
        column = layout.spec[name]
        assert offset % np.dtype(column.dtype).itemsize == 0
        taken[offset : offset + column.num_bytes] += 1
    assert taken.max() == 1
    assert layout.stride % 8 == 0


def test_a_record_ends_at_a_cache_line_where_that_costs_little() -> None:
    def stride(size: int) -> int:
        return RowLayout(TableSpec.of({"obs": ((size,), "uint8"), "action": ((), "uint8")})).stride

    assert stride(84 * 84) == 7104  # 32 bytes in front
    assert stride(10) == 40


def test_records_show_their_columns_as_arrays() -> None:
    layout = RowLayout(TableSpec.of({"obs": ((3,), "float32"), "action": ((), "int64")}))
    memory = np.zeros(4 * layout.stride, np.uint8)
    records = layout.records(memory)
    records["action"][2] = -5
    at = 2 * layout.stride + layout.offsets["action"]
    assert memory[at : at + 8].view(np.int64)[0] == -5
    assert records[HEADER_NAME].dtype == HEADER_DTYPE


@pytest.mark.parametrize("wrong", [Column("reward", (), "float64"), Column("terminated", (1,), "bool")])
def test_step_columns_have_fixed_dtypes(wrong: Column) -> None:
    good = TableSpec.of({"obs": ((), "float32"), "action": ((), "int64")})
    spec = TableSpec(tuple(wrong if column.name == wrong.name else column for column in good.columns))
    with pytest.raises(ValueError, match=f"column '{wrong.name}' is {wrong.dtype}"):
        RowLayout(spec)
