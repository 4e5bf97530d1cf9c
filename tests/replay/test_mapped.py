"""A table read through its files: what the reader sees is what the owner would have sent."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_mq.replay.keys import key_prefix
from parl_mq.replay.mapped import MappedTable
from parl_mq.replay.mapping import HEADER_BYTES
from parl_mq.replay.refusals import KeysRefused, NotMapped, TableEmpty
from parl_mq.replay.table import Table, TableSettings
from parl_mq.spec import TableSpec

from .fragments import SPEC, counter_fragment

BATCH = 64


def make_table(directory: Path, *, spec: TableSpec = SPEC, seed: int = 0, **settings: Any) -> Table:
    chosen = TableSettings(**{"name": "main", "capacity": 100, "gamma": 0.9, **settings})
    return Table(chosen, spec, directory=directory, rng=np.random.default_rng(seed))


def mapped(table: Table, directory: Path, **changed: Any) -> MappedTable:
    return MappedTable(
        changed.pop("settings", table.settings),
        changed.pop("spec", table.spec),
        directory=directory,
        ring_id=changed.pop("ring_id", table.ring_id),
    )


def fill(table: Table, num_fragments: int, length: int = 5) -> None:
    """Random fragments, whatever the columns are; more than the ring holds in the end."""
    rng = np.random.default_rng(1)
    context = table.settings.frame_stack - 1
    for index in range(num_fragments):
        starts = bool(rng.integers(2))
        one = counter_fragment(
            1000 * index, length, num_context=0 if starts else context, starts_episode=starts, terminated=index % 3 == 0
        )
        columns = {
            column.name: one.columns[column.name]
            if column.name in ("action", "reward", "terminated", "truncated")
            else rng.integers(0, 255, (len(one.columns["reward"]), *column.shape)).astype(column.dtype)
            for column in table.spec.columns
        }
        table.insert(type(one)(columns, *[getattr(one, name) for name in one.__slots__[1:]]))


DICT_SPEC = TableSpec.of(
    {
        "obs/camera": ((4, 3), "uint8"),
        "obs/speed": ((2,), "float32"),
        "action": ((), "int64"),
        "noise": ((3,), "float64"),
    }
)


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        (SPEC, {}),
        (SPEC, {"n_step": 3, "fragment_length": 5}),
        (SPEC, {"num_shards": 3, "n_step": 2, "fragment_length": 5}),
        (SPEC, {"frame_stack": 4, "n_step": 3, "fragment_length": 5}),
        (DICT_SPEC, {"num_shards": 2, "fragment_length": 5}),
        (DICT_SPEC, {"frame_stack": 3, "fragment_length": 5, "table_index": 7}),
    ],
    ids=["plain", "n-step", "shards", "stacks", "dict", "dict stacks of another table"],
)
def test_the_mapped_rows_are_those_of_the_draw_to_the_byte(
    tmp_path: Path, spec: TableSpec, settings: dict[str, Any]
) -> None:
    table = make_table(tmp_path, spec=spec, **settings)
    reader = mapped(table, tmp_path)
    fill(table, 60)
    for _ in range(3):
        draw = table.draw(BATCH)
        out = reader.arrays(BATCH)
        assert len(reader.gather(draw.keys, out)) == 0
        assert list(out) == list(draw.columns)
        for name, column in draw.columns.items():
            assert (out[name].dtype, out[name].shape) == (column.dtype, column.shape)
            assert out[name].tobytes() == column.tobytes()
    reader.close()
    table.close()


@pytest.mark.parametrize("num_shards", [1, 3])
def test_drawing_keys_alone_draws_as_a_whole_draw_does(tmp_path: Path, num_shards: int) -> None:
    whole, keys_alone = (make_table(tmp_path / name, num_shards=num_shards) for name in "ab")
    for table in (whole, keys_alone):
        fill(table, 30)
    for _ in range(3):
        expected, draw = whole.draw(BATCH), keys_alone.draw_keys(BATCH)
        np.testing.assert_array_equal(draw.keys, expected.keys, strict=True)
        np.testing.assert_array_equal(draw.probabilities, expected.probabilities, strict=True)
        assert (draw.num_live, draw.total, draw.columns) == (expected.num_live, expected.total, {})
    assert keys_alone.counts == whole.counts


def test_keys_are_drawn_into_given_arrays_which_must_fit(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    fill(table, 3)
    out = {"keys": np.zeros(4, np.uint64), "probabilities": np.zeros(4)}
    assert table.draw_keys(4, out).keys is out["keys"]
    assert out["probabilities"].all()
    with pytest.raises(ValueError, match=r"out\['keys'\] is uint64 \(4,\): it must be uint64 \(5,\)"):
        table.draw_keys(5, out)
    with pytest.raises(ValueError, match="no array 'probabilities'"):
        table.draw_keys(4, {"keys": out["keys"]})
    with pytest.raises(ValueError, match="batch_size is 0"):
        table.draw_keys(0)


def test_no_keys_are_drawn_from_an_empty_table(tmp_path: Path) -> None:
    with pytest.raises(TableEmpty):
        make_table(tmp_path).draw_keys(1)


def test_rows_overwritten_since_the_draw_are_named_and_replaced_by_a_whole_one(tmp_path: Path) -> None:
    table = make_table(tmp_path, capacity=20, fragment_length=5)
    reader = mapped(table, tmp_path)
    for first in range(0, 4000, 1000):
        table.insert(counter_fragment(first, 5))
    draw = table.draw(BATCH)
    table.insert(counter_fragment(9000, 5))
    out = reader.arrays(BATCH)
    torn = reader.gather(draw.keys, out)
    was_first = draw.columns["obs"][:, 0] < 1000
    assert was_first.any()
    np.testing.assert_array_equal(torn, np.flatnonzero(was_first))
    whole = int(np.flatnonzero(~was_first)[0])
    for name, column in draw.columns.items():
        np.testing.assert_array_equal(out[name][~was_first], column[~was_first])
        np.testing.assert_array_equal(out[name][was_first], np.repeat(column[whole][None], was_first.sum(), axis=0))


def test_where_all_rows_are_torn_all_are_named(tmp_path: Path) -> None:
    table = make_table(tmp_path, capacity=5, fragment_length=5)
    reader = mapped(table, tmp_path)
    table.insert(counter_fragment(0, 5))
    keys = table.draw_keys(8).keys
    table.insert(counter_fragment(1000, 5))
    assert reader.gather(keys, reader.arrays(8)).tolist() == list(range(8))


@pytest.mark.parametrize(
    "key", [key_prefix(0, 1), key_prefix(1, 0), 2**64 - 1, 2**48 - 1, 30], ids=["shard", "table", "last", "far", "next"]
)
def test_a_key_that_no_row_ever_had_is_refused_before_anything_is_read(tmp_path: Path, key: int) -> None:
    table = make_table(tmp_path)
    fill(table, 5)
    with pytest.raises(KeysRefused):
        mapped(table, tmp_path).gather(np.array([0, key], np.uint64), mapped(table, tmp_path).arrays(2))


@pytest.mark.parametrize(
    "keys", [None, [1], np.zeros(2, np.int64), np.zeros(2, ">u8"), np.zeros((2, 1), np.uint64)], ids=repr
)
def test_what_is_no_row_of_keys_is_refused(tmp_path: Path, keys: Any) -> None:
    table = make_table(tmp_path)
    fill(table, 1)
    with pytest.raises(KeysRefused, match="must be uint64"):
        mapped(table, tmp_path).gather(keys, mapped(table, tmp_path).arrays(2))


class TestWhatIsNotMapped:
    @pytest.fixture
    def table(self, tmp_path: Path) -> Table:
        return make_table(tmp_path, num_shards=2)

    @pytest.mark.parametrize("shard", [0, 1])
    def test_a_missing_shard(self, table: Table, tmp_path: Path, shard: int) -> None:
        (tmp_path / f"main.00{shard}.ring").unlink()
        with pytest.raises(NotMapped, match="No such file"):
            mapped(table, tmp_path)

    def test_a_ring_of_another_id(self, table: Table, tmp_path: Path) -> None:
        with pytest.raises(NotMapped, match="'ring_id'"):
            mapped(table, tmp_path, ring_id="0" * 16)

    def test_a_file_cut_short(self, table: Table, tmp_path: Path) -> None:
        path = tmp_path / "main.001.ring"
        os.truncate(path, path.stat().st_size - mmap.PAGESIZE)
        with pytest.raises(NotMapped, match="bytes instead of"):
            mapped(table, tmp_path)

    @pytest.mark.parametrize("content", [b"", b"PARLRING", bytes(10)])
    def test_a_file_too_short_for_a_head(self, table: Table, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "main.000.ring").write_bytes(content)
        with pytest.raises(NotMapped, match="bytes instead of"):
            mapped(table, tmp_path)

    @pytest.mark.parametrize(("offset", "reason"), [(0, "'magic'"), (8, "'version'")])
    def test_another_format(self, table: Table, tmp_path: Path, offset: int, reason: str) -> None:
        with (tmp_path / "main.000.ring").open("r+b") as file:
            file.seek(offset)
            file.write(b"\xff")
        with pytest.raises(NotMapped, match=reason):
            mapped(table, tmp_path)

    def test_other_columns_of_the_same_size(self, table: Table, tmp_path: Path) -> None:
        other = TableSpec.of({"obs": ((3,), "int32"), "action": ((), "int64")})
        with pytest.raises(NotMapped, match="'digest'"):
            mapped(table, tmp_path, spec=other)

    def test_a_link(self, table: Table, tmp_path: Path) -> None:
        path = tmp_path / "main.000.ring"
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(NotMapped, match="symbolic links"):
            mapped(table, tmp_path)

    @pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
    def test_something_that_is_no_file(self, table: Table, tmp_path: Path, make: Any) -> None:
        path = tmp_path / "main.000.ring"
        path.unlink()
        make(path)
        with pytest.raises(NotMapped):
            mapped(table, tmp_path)

    def test_a_file_of_somebody_else(self, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(NotMapped, match="of this user"):
            mapped(table, tmp_path)


def test_a_removed_ring_can_be_read_until_the_reader_closes_and_takes_no_memory_then(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    fill(table, 5)
    draw = table.draw(BATCH)
    reader = mapped(table, tmp_path)
    out = reader.arrays(BATCH)
    table.close(remove=True)
    reader.gather(draw.keys, out)
    np.testing.assert_array_equal(out["obs"], draw.columns["obs"])
    assert f"{tmp_path}/" in Path("/proc/self/maps").read_text()
    reader.close()
    assert f"{tmp_path}/" not in Path("/proc/self/maps").read_text()


def test_the_reader_cannot_write(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    (segment,) = mapped(table, tmp_path)._segments.values()
    with pytest.raises(ValueError, match="another process's"):
        segment._rows.restart(0, 0, 0)
    with pytest.raises(ValueError, match="another process's"):
        segment._rows.unfinished()
    assert not np.frombuffer(segment._map, np.uint8)[HEADER_BYTES:].flags.writeable
