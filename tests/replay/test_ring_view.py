"""Looking at a ring through its files, and moving it in a snapshot, while its owner goes on."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count as numbers
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_mq.errors import RingRefused, SnapshotError
from parl_mq.replay.inspection import inspect_ring
from parl_mq.replay.mapping import HEADER_BYTES, TAIL
from parl_mq.replay.ring_view import RingView
from parl_mq.replay.senders import SenderMark
from parl_mq.replay.table import Table, TableSettings

from . import inserting
from .fragments import SPEC, counter_fragment

SETTINGS = TableSettings("test", 20, alpha=0.5, fragment_length=2, num_shards=2)


def open_table(directory: Path, settings: TableSettings = SETTINGS, **more: Any) -> Table:
    return Table(settings, SPEC, directory=directory, rng=np.random.default_rng(0), **more)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    """A ring in use that has turned over."""
    table = open_table(tmp_path / "ring", labels={"run_id": "r"})
    for number in range(15):
        fragment = counter_fragment(10 * number, 2, priorities=[number, number + 0.5])
        table.insert(fragment, sender=SenderMark(f"actor-{number % 3}", 1, number, 2 * number, 8))
    table.words[:2] = 5, 6
    table.draw(50)
    yield table
    table.close()


def everything(table: Table) -> dict[str, Any]:
    """All that a table is, but for its random streams."""
    rings = []
    for ring in table._rings:
        arrays = ring.contents().named_arrays()
        named = {name: np.concatenate(pieces).tolist() for name, pieces in arrays.items()}
        rings.append((ring.rows.tail, ring.rows.committed, named, ring.account()))
    counts = table.counts
    books = counts.inserted, counts.evicted, table.num_live, table.max_magnitude, table.total_priority
    return {"rings": rings, "books": books, "words": table.words.tolist()}


class TestInspection:
    def test_the_figures_are_those_of_the_rows(self, table: Table, tmp_path: Path) -> None:
        leaves = [np.concatenate(ring.contents().leaves) for ring in table._rings]
        live = [each[each > 0] for each in leaves]
        ages = np.concatenate([np.arange(len(each))[::-1] for each in live])
        priorities = np.concatenate(live)
        with RingView(tmp_path / "ring", "test") as view:
            assert view.description.labels == {"run_id": "r"}
            figures = inspect_ring(view, num_top=3)
        assert (figures.capacity, figures.num_live, figures.fill) == (20, len(priorities), len(priorities) / 20)
        assert (figures.num_inserted, figures.num_evicted) == (30, 30 - len(priorities))
        assert figures.num_senders == 3
        assert figures.max_magnitude == 14.5
        assert figures.total_priority == pytest.approx(priorities.sum())
        assert figures.effective_rows == pytest.approx(priorities.sum() ** 2 / (priorities**2).sum())
        assert figures.oldest == ages.max()
        assert figures.mean_age == pytest.approx(ages.mean())
        assert figures.mean_drawn_age == pytest.approx(np.average(ages, weights=priorities))
        order = np.argsort(priorities)[::-1][:3]
        assert [row.priority for row in figures.top] == priorities[order].tolist()
        assert [row.age for row in figures.top] == ages[order].tolist()
        drawn = table.draw(2000)
        chances = dict(zip(drawn.keys.tolist(), drawn.probabilities.tolist(), strict=True))
        rewards = dict(zip(drawn.keys.tolist(), drawn.columns["reward"].tolist(), strict=True))
        for row in figures.top:
            assert chances[row.key] == pytest.approx(row.probability)
            assert rewards[row.key] == row.reward

    def test_every_row_is_in_the_histogram(self, table: Table, tmp_path: Path) -> None:
        with RingView(tmp_path / "ring", "test") as view:
            histogram = inspect_ring(view).histogram
        leaves = np.concatenate([np.concatenate(ring.contents().leaves) for ring in table._rings])
        positive = leaves[leaves > 0]
        assert (histogram.edges[0], histogram.edges[-1]) == (positive.min(), positive.max())
        assert sum(histogram.counts) + histogram.num_zero == table.num_live
        for low, high, count in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False):
            is_last = high == histogram.edges[-1]
            assert count == ((positive >= low) & ((positive < high) | (is_last & (positive == high)))).sum()

    @pytest.mark.parametrize(
        ("priorities", "edges", "counts", "num_zero"), [([], (), (), 0), ([0], (), (), 1), ([4], (4, 4), (1,), 0)]
    )
    def test_few_rows_have_a_histogram_too(
        self, tmp_path: Path, priorities: list[float], edges: Any, counts: Any, num_zero: int
    ) -> None:
        table = open_table(tmp_path, TableSettings("test", 8, alpha=1.0, eps=0.0))
        for priority in priorities:
            table.insert(counter_fragment(0, 1, priorities=[priority]))
        with RingView(tmp_path, "test") as view:
            figures = inspect_ring(view)
        assert (figures.histogram.edges, figures.histogram.counts) == (edges, counts)
        assert figures.histogram.num_zero == num_zero
        assert figures.effective_rows == len(priorities)
        table.close()

    def test_rows_that_go_while_they_are_read_are_left_out(self, table: Table, tmp_path: Path) -> None:
        with RingView(tmp_path / "ring", "test") as view:
            before = view.shards()
            assert [shard.oldest for shard in before] == [shard.contents.tail for shard in before]
            for number in range(4):
                table.insert(counter_fragment(1000 + number, 2))
            tails = [ring.rows.tail for ring in table._rings]
            assert [shard.oldest for shard in before] == tails
            for number in range(40):
                table.insert(counter_fragment(1000 + number, 2))
            assert [shard.oldest for shard in before] == [shard.contents.end for shard in before]

    def test_looking_changes_nothing(self, table: Table, tmp_path: Path) -> None:
        before = {path.name: path.read_bytes() for path in (tmp_path / "ring").iterdir()}
        with RingView(tmp_path / "ring", "test") as view:
            inspect_ring(view)
            view.save(tmp_path / "snapshot", {})
            with pytest.raises(ValueError, match="read-only"):
                view.shards()[0].contents.leaves[0][:] = 0
        assert {path.name: path.read_bytes() for path in (tmp_path / "ring").iterdir()} == before

    def test_a_tail_that_nothing_has_planned_is_refused_and_no_row_passed_over(
        self, table: Table, tmp_path: Path
    ) -> None:
        shutil.copytree(tmp_path / "ring", tmp_path / "killed")
        table.close()
        path = tmp_path / "killed" / "test.000.ring"
        head = np.memmap(path, np.int64, mode="r+", shape=(HEADER_BYTES // 8,))
        head[8 + TAIL] += 1
        head.flush()
        with RingView(tmp_path / "killed", "test") as view, pytest.raises(RingRefused, match="'tail' of its head"):
            inspect_ring(view)

    def test_a_closed_ring_whose_head_has_changed_is_refused_by_the_field(self, table: Table, tmp_path: Path) -> None:
        table.close(remove=False)
        head = np.memmap(tmp_path / "ring" / "test.001.ring", np.int64, mode="r+", shape=(HEADER_BYTES // 8,))
        head[24] += 1
        head.flush()
        with pytest.raises(RingRefused, match=r"test.001.ring: field 'words' of its head is \[1, .* and was \[0, "):
            RingView(tmp_path / "ring", "test")

    def test_the_description_has_the_settings_that_the_ring_was_opened_with_last(self, tmp_path: Path) -> None:
        open_table(tmp_path).close(remove=False)
        table = open_table(tmp_path, replace(SETTINGS, gamma=0.5))
        with RingView(tmp_path, "test") as view:
            assert view.description.settings.gamma == 0.5
        table.close()

    def test_a_pipe_in_the_place_of_a_segment_is_refused_and_not_waited_for(self, table: Table, tmp_path: Path) -> None:
        table.close(remove=False)
        path = tmp_path / "ring" / "test.001.ring"
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(RingRefused, match="0 bytes instead of"):
            RingView(tmp_path / "ring", "test")

    def test_where_no_ring_is_it_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(RingRefused, match=f"no ring of table test lies in {tmp_path}"):
            RingView(tmp_path, "test")


class TestSnapshots:
    def test_a_snapshot_of_a_ring_in_use_becomes_the_same_table(self, table: Table, tmp_path: Path) -> None:
        with RingView(tmp_path / "ring", "test") as view:
            assert view.save(tmp_path / "snapshot", {"more": 1}) == 0
        copy, metadata = Table.load(tmp_path / "snapshot", directory=tmp_path / "copy")
        assert metadata == {"more": 1}
        assert everything(copy) == everything(table)
        for name in ("actor-0", "actor-1", "actor-2"):
            assert copy.sender(name) == table.sender(name)
        copy.insert(counter_fragment(5000, 2))
        copy.close(remove=False)
        again = open_table(tmp_path / "copy")
        assert 5000 in again.draw(500).columns["obs"][:, 0]
        again.close()

    def test_a_saved_table_keeps_its_senders_and_words(self, table: Table, tmp_path: Path) -> None:
        table.save(tmp_path / "snapshot", {})
        copy, _ = Table.load(tmp_path / "snapshot")
        assert everything(copy) == everything(table)
        np.testing.assert_array_equal(copy.draw(64).keys, table.draw(64).keys)
        copy.close()

    def test_a_ring_whose_process_was_killed_can_be_saved(self, tmp_path: Path) -> None:
        from .test_recovery import bytes_of, copy_of

        settings = TableSettings("test", 8, fragment_length=2)
        table = open_table(tmp_path / "ring", settings)
        for number in range(6):
            table.insert(counter_fragment(10 * number, 2), sender=SenderMark("a", 1, number, 0, 0))
        (ring,) = table._rings
        part = ring.rows.plan(table.take(counter_fragment(90, 2)), None, ring.capacity)
        ring._log.reserve(part.end, part.tail)
        ring._zero(part.old_tail, part.tail)
        killed = copy_of(tmp_path / "ring", tmp_path / "killed", bytes_of(ring))
        table.close()
        with RingView(killed, "test") as view:
            view.save(tmp_path / "snapshot", {})
        saved, _ = Table.load(tmp_path / "snapshot")
        reopened = open_table(killed, settings)
        assert saved.num_live == reopened.num_live == 6
        assert saved.sender("a") == reopened.sender("a") == ("a", 1, 5, 0, 0)
        assert set(saved.draw(200).keys) == set(reopened.draw(200).keys)
        reopened.close()

    def test_a_snapshot_taken_under_load_holds_whole_rows(self, tmp_path: Path) -> None:
        table = inserting.open_table(tmp_path / "ring", 40_000)
        allowed, sequences = threading.Semaphore(0), numbers()

        def insert() -> None:
            sequence = next(sequences)
            rows = inserting.LENGTH * (sequence + 1)
            table.insert(inserting.fragment(0, sequence), sender=SenderMark("sender-0", 1, sequence, rows, 0))

        def insert_what_is_allowed() -> None:
            while allowed.acquire() and not is_over.is_set():
                insert()

        while table.counts.evicted == 0:
            insert()
        is_over = threading.Event()
        thread = threading.Thread(target=insert_what_is_allowed)
        thread.start()
        try:
            for round_ in range(5):
                allowed.release(10_000 // inserting.LENGTH)  # a quarter of the ring at most goes during a copy
                with RingView(tmp_path / "ring", "test") as view:
                    view.save(tmp_path / "snapshot", {})
                copy, _ = Table.load(tmp_path / "snapshot")
                shards = [list(shard[0]) for shard in inserting.stored_rows(copy)]
                for rows in shards:  # messages are dealt to the two shards in turn
                    stored = range(rows[0][0], rows[-1][0] + 1, 2)
                    assert rows == [(s, row) for s in stored for row in range(inserting.LENGTH)], round_
                assert sum(map(len, shards)) == copy.num_live
                assert copy.sender("sender-0") is not None
                copy.close()
        finally:
            is_over.set()
            allowed.release()
            thread.join()
            table.close()

    def test_a_directory_that_holds_a_ring_is_left_alone(self, table: Table, tmp_path: Path) -> None:
        table.save(tmp_path / "snapshot", {})
        other = open_table(tmp_path / "other")
        other.insert(counter_fragment(7, 2))
        with pytest.raises(RingRefused, match="another process"):
            Table.load(tmp_path / "snapshot", directory=tmp_path / "other")
        other.close(remove=False)
        with pytest.raises(RingRefused, match="holds a ring; give --fresh to replace it"):
            Table.load(tmp_path / "snapshot", directory=tmp_path / "other")
        reopened = open_table(tmp_path / "other")
        assert reopened.num_live == 2
        reopened.close(remove=False)
        replaced, _ = Table.load(tmp_path / "snapshot", directory=tmp_path / "other", fresh=True)
        assert everything(replaced) == everything(table)
        replaced.close()

    def test_a_damaged_snapshot_replaces_nothing(self, table: Table, tmp_path: Path) -> None:
        table.save(tmp_path / "snapshot", {})
        raw = bytearray((tmp_path / "snapshot").read_bytes())
        raw[-5] ^= 1
        (tmp_path / "snapshot").write_bytes(raw)
        other = open_table(tmp_path / "other")
        other.insert(counter_fragment(7, 2))
        other.close(remove=False)
        with pytest.raises(SnapshotError, match="is damaged"):
            Table.load(tmp_path / "snapshot", directory=tmp_path / "other", fresh=True)
        with pytest.raises(SnapshotError, match="is damaged"):
            Table.load(tmp_path / "snapshot", directory=tmp_path / "new")
        assert not (tmp_path / "new").exists() or not any((tmp_path / "new").iterdir())
        reopened = open_table(tmp_path / "other")
        assert reopened.num_live == 2
        reopened.close()
