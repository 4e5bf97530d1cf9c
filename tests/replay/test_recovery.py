"""A ring whose process was killed between any two stores, or whose files were damaged."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

from parl_mq.errors import MemoryRefused, RingRefused, exit_code_of
from parl_mq.replay import ring_files
from parl_mq.replay._commits import NUM_SENDERS, PLANS_AT, RECORDS_AT, SENDERS_AT
from parl_mq.replay.limiter import NUM_WORDS, RatioLimiter
from parl_mq.replay.mapping import HEADER_BYTES
from parl_mq.replay.ring import Ring
from parl_mq.replay.senders import SenderMark
from parl_mq.replay.table import Table, TableSettings
from parl_mq.spec import TableSpec

from . import inserting
from .fragments import SPEC, counter_fragment, joined

LENGTHS: Final = (1, 3, 2, 4, 1, 9)
"""Live rows of the messages in turn; the last does not fit into the ring at once."""
SETTINGS: Final = TableSettings("test", 8, alpha=1.0, eps=0.0, fragment_length=2)


def open_table(directory: Path, settings: TableSettings = SETTINGS, spec: TableSpec = SPEC, **more: Any) -> Table:
    return Table(settings, spec, directory=directory, rng=np.random.default_rng(0), **more)


def live_rows(table: Table) -> dict[int, tuple[float, float]]:
    """What each live row shows, and its priority, by key."""
    found = {}
    for ring in table._rings:
        with ring.lock:
            contents = ring.contents()
        columns = {name: np.concatenate(pieces) for name, pieces in contents.columns.items()}
        flags, leaves = np.concatenate(contents.headers["flags"]), np.concatenate(contents.leaves)
        for index in np.flatnonzero(flags & 1):
            shown = float(columns["obs"][index, 0])
            assert columns["action"][index] == shown
            assert columns["reward"][index] == shown % 1000 + 1
            found[int(ring.prefix + contents.tail + index)] = (shown, float(leaves[index]))
    return found


def message(number: int) -> Any:
    """Message `number`: fragments whose rows show 100 x number and what follows, with priorities above 0."""
    length = LENGTHS[number % len(LENGTHS)]
    pieces = [counter_fragment(100 * number + 10 * i, n, priorities=np.arange(1, n + 1)) for i, n in split(length)]
    return joined(*pieces)


def split(length: int) -> list[tuple[int, int]]:
    return list(enumerate([2] * (length // 2) + [1] * (length % 2)))


def mark(number: int) -> SenderMark:
    return SenderMark("actor-0", 7, number, 10 * number, 100 * number)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder where writing durably costs nothing."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


class Recorder:
    """Passes calls on to a part of a ring, and keeps the segment's bytes after each that may write."""

    def __init__(self, part: Any, name: str, images: list[tuple[str, npt.NDArray[np.uint8]]], ring: Ring) -> None:
        self._part, self._name, self._images, self._ring = part, name, images, ring

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._part, name)
        if not callable(value):
            return value

        def call(*args: Any) -> Any:
            result = value(*args)
            self._images.append((f"{self._name}.{name}", bytes_of(self._ring)))
            return result

        return call


def bytes_of(ring: Ring) -> npt.NDArray[np.uint8]:
    return np.frombuffer(ring._segment._map, np.uint8).copy()


ORDERED: Final = {
    "log.commit": [(RECORDS_AT, PLANS_AT), (SENDERS_AT, HEADER_BYTES), (96, 104), (64, 96)],
    "log.reserve": [(PLANS_AT, SENDERS_AT), (64, 96)],
}
"""Bytes of the head that a call writes one stretch after the other; what else it writes comes at any time."""


def cuts(
    name: str, before: npt.NDArray[np.uint8], after: npt.NDArray[np.uint8], rng: np.random.Generator
) -> Iterator[npt.NDArray[np.uint8]]:
    """Images of a process that was killed within a call: some of the words that it changes are changed already."""
    words = before.view(np.uint64).copy()
    new = after.view(np.uint64)
    changed = np.flatnonzero(words != new)
    stretches = [changed[(changed * 8 >= start) & (changed * 8 < stop)] for start, stop in ORDERED.get(name, [])]
    others = np.setdiff1d(changed, np.concatenate([changed[:0], *stretches]))
    for stretch in (*stretches, others) if stretches else (others,):
        for _ in range(2 if len(stretch) > 1 else 0):
            some = words.copy()
            chosen = stretch[rng.random(len(stretch)) < rng.random()]
            some[chosen] = new[chosen]
            some[others] = np.where(rng.random(len(others)) < 0.5, new[others], some[others])
            yield some.view(np.uint8)
        words[stretch] = new[stretch]
        yield words.copy().view(np.uint8)


def recorded_insert(table: Table, number: int) -> list[tuple[str, npt.NDArray[np.uint8]]]:
    """The images of one insert, each with the call that led to it."""
    (ring,) = table._rings
    images = [("start", bytes_of(ring))]
    log = ring._log
    ring._log = Recorder(log, "log", images, ring)
    ring.shard.observer = lambda step: images.append((step, bytes_of(ring)))
    try:
        table.insert(message(number), sender=mark(number))
    finally:
        ring._log, ring.shard.observer = log, None
    return images


def test_a_kill_at_any_moment_of_an_insert_loses_nothing_acknowledged_and_doubles_nothing(in_memory: Path) -> None:
    rng = np.random.default_rng(0)
    table = open_table(in_memory / "ring")
    num_cuts, names, outcomes = 0, set(), {"before": 0, "after": 0}
    for number in range(16):
        before = live_rows(table)
        images = recorded_insert(table, number)
        after = live_rows(table)
        for (_, old), (name, new) in pairwise(images):
            names.add(name)
            for image in cuts(name, old, new, rng):
                num_cuts += 1
                outcomes[check_cut(in_memory, image, number, before, after)] += 1
    table.close()
    assert {"log.reserve", "log.commit", "log.publish", "zero", "evict", "scatter", "write_leaves"} <= names
    assert num_cuts > 300
    assert min(outcomes.values()) > 30


def check_cut(
    in_memory: Path, image: npt.NDArray[np.uint8], number: int, before: dict[int, Any], after: dict[int, Any]
) -> str:
    copy = copy_of(in_memory / "ring", in_memory / "copy", image)
    table = open_table(copy)
    assert table.is_reopened
    found, stored = live_rows(table), table.sender("actor-0")
    is_stored = stored == mark(number)
    if is_stored:
        assert found == after
    else:
        assert stored == (mark(number - 1) if number else None)
        oldest = min(found, default=2**63)
        assert found == {key: row for key, row in before.items() if key >= oldest}
        assert found.keys() >= before.keys() & after.keys()
    check_books(table)
    newest_key = max([*before, *after]) if is_stored else max(before, default=0)
    if not is_stored:
        table.insert(message(number), sender=mark(number))
    assert {row for row in after.values() if row[0] >= 100 * number} <= set(live_rows(table).values())
    table.insert(message(number + 1), sender=mark(number + 1))
    rows = live_rows(table)
    assert len({shown for shown, _ in rows.values()}) == len(rows)
    assert max(rows) > newest_key
    assert rows.items() <= {**before, **after, **rows}.items()
    check_books(table)
    table.close(remove=False)
    again = open_table(copy)
    assert live_rows(again) == rows
    assert again.sender("actor-0") == mark(number + 1)
    again.close()
    return "after" if is_stored else "before"


def check_books(table: Table) -> None:
    rows = live_rows(table)
    assert table.num_live == len(rows) == table.counts.inserted - table.counts.evicted
    assert table.total_priority == pytest.approx(sum(leaf for _, leaf in rows.values()))
    (ring,) = table._rings
    assert (ring.tree.leaves > 0).sum() == len(rows)
    if rows:
        assert set(table.draw(20).keys.tolist()) <= rows.keys()


def copy_of(source: Path, target: Path, image: npt.NDArray[np.uint8] | None = None) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    if image is not None:
        (target / "test.000.ring").write_bytes(image.tobytes())
    return target


def test_a_kill_while_a_ring_is_repaired_does_no_harm(in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every image of the repair of an interrupted insert leads to the same rows."""
    rng = np.random.default_rng(1)
    table = open_table(in_memory / "ring")
    for number in range(8):
        table.insert(message(number), sender=mark(number))
    images = recorded_insert(table, 8)
    left = copy_of(in_memory / "ring", in_memory / "left")
    table.close()
    (copied,) = [image for name, image in images if name == "scatter"][:1]
    evicted = next(image for name, image in images if name == "evict")
    for start in (copied, evicted):
        wanted = opened_rows(copy_of(left, in_memory / "copy", start))
        steps: list[tuple[str, npt.NDArray[np.uint8]]] = [("start", start)]
        part = Ring._go_on

        def go_on(ring: Ring, steps: Any = steps, part: Any = part) -> None:
            steps.append(("repair", bytes_of(ring)))
            parts = ring._log, ring.rows, ring.shard
            ring._log, ring.rows, ring.shard = (
                Recorder(one, name, steps, ring) for one, name in zip(parts, ("log", "rows", "shard"), strict=True)
            )
            part(ring)
            ring._log, ring.rows, ring.shard = parts

        with monkeypatch.context() as patched:
            patched.setattr(Ring, "_go_on", go_on)
            assert opened_rows(copy_of(left, in_memory / "copy", start)) == wanted
        assert {"log.reserve", "rows.bury", "log.commit"} <= {name for name, _ in steps}
        for (_, old), (name, new) in pairwise(steps):
            for image in cuts(name, old, new, rng):
                assert opened_rows(copy_of(left, in_memory / "copy", image)) == wanted


def opened_rows(directory: Path) -> tuple[dict[int, Any], SenderMark | None]:
    table = open_table(directory)
    result = live_rows(table), table.sender("actor-0")
    check_books(table)
    table.close()
    return result


class TestReopening:
    def test_everything_goes_on(self, tmp_path: Path) -> None:
        settings = TableSettings("test", 12, alpha=0.5, fragment_length=2, num_shards=2)
        table = open_table(tmp_path, settings, labels={"run_id": "r"})
        for number in range(9):
            table.insert(message(number % 5), sender=mark(number))
        drawn = table.draw(8)
        table.update_priorities(drawn.keys, np.full(8, 50.0))
        table.words[:2] = 3, 4
        table.insert(message(0), sender=mark(9))
        expected = live_rows(table), table.counts, table.max_magnitude, table.total_priority, table.ring_id
        table.close(remove=False)
        again = open_table(tmp_path, settings)
        assert again.is_reopened
        found = live_rows(again), again.counts, again.max_magnitude, again.total_priority, again.ring_id
        assert found == expected
        assert again.max_magnitude == 50.0
        assert again.words.tolist()[:3] == [3, 4, 0]
        assert again.sender("actor-0") == mark(9)
        assert again.update_priorities(drawn.keys[:1], np.array([1.0])).applied == 1
        keys = again.insert(message(1))
        assert not set(keys.tolist()) & set(expected[0])
        again.close()

    def test_a_table_without_rows_is_reopened_too(self, tmp_path: Path) -> None:
        open_table(tmp_path).close(remove=False)
        table = open_table(tmp_path)
        assert table.is_reopened
        assert table.num_live == 0
        assert table.sender("actor-0") is None
        table.close()

    def test_a_sender_goes_on_by_epoch_and_sequence_over_all_shards(self, tmp_path: Path) -> None:
        table = open_table(tmp_path, TableSettings("test", 40, num_shards=3, fragment_length=2))
        for sequence in range(7):
            table.insert(message(0), sender=SenderMark("a", 1, sequence, sequence, 0))
        assert table.sender("a") == ("a", 1, 6, 6, 0)
        table.insert(message(0), sender=SenderMark("a", 2, 0, 5, 6))
        assert table.sender("a") == ("a", 2, 0, 5, 6)
        table.remember(SenderMark("a", 2, 1, 5, 6))
        table.remember(SenderMark("b" * 500, 1, 0, 0, 0))
        table.close(remove=False)
        again = open_table(tmp_path, TableSettings("test", 40, num_shards=3, fragment_length=2))
        assert again.sender("a") == ("a", 2, 1, 5, 6)
        assert again.sender("b" * 500) == ("b" * 500, 1, 0, 0, 0)
        again.close()

    def test_of_many_senders_the_longest_idle_is_forgotten(self, tmp_path: Path) -> None:
        table = open_table(tmp_path)
        for number in range(NUM_SENDERS):
            table.remember(SenderMark(f"actor-{number}", 1, number, 0, 0))
        table.remember(SenderMark("actor-0", 1, 5000, 0, 0))
        table.remember(SenderMark("newcomer", 1, 0, 0, 0))
        for one in (table, None):
            opened = one or open_table(tmp_path)
            assert opened.sender("actor-1") is None
            assert opened.sender("actor-0") == ("actor-0", 1, 5000, 0, 0)
            assert opened.sender("actor-2") == ("actor-2", 1, 2, 0, 0)
            assert opened.sender("newcomer") == ("newcomer", 1, 0, 0, 0)
            opened.close(remove=one is None)

    def test_what_an_interrupted_insert_left_is_finished_before_a_close(self, tmp_path: Path) -> None:
        table = open_table(tmp_path)
        for number in range(5):
            table.insert(message(number), sender=mark(number))
        (ring,) = table._rings
        part = ring.rows.plan(table.take(message(1)), None, ring.capacity)
        ring._log.reserve(part.end, part.tail)
        kept = {key: row for key, row in live_rows(table).items() if key >= part.tail}
        table.close(remove=False)
        again = open_table(tmp_path)
        assert live_rows(again) == kept
        again.close()

    @pytest.mark.parametrize("gamma", [0.5, 1.0])
    def test_what_shapes_no_row_may_change(self, tmp_path: Path, gamma: float) -> None:
        open_table(tmp_path).close(remove=False)
        open_table(tmp_path, TableSettings("test", 8, alpha=1.0, eps=0.0, fragment_length=2, gamma=gamma)).close()


def full_ring(directory: Path, num_messages: int = 9) -> Path:
    table = open_table(directory)
    for number in range(num_messages):
        table.insert(message(number % 5), sender=mark(number))
    table.close(remove=False)
    return directory


def refused(directory: Path, match: str, settings: TableSettings = SETTINGS, spec: TableSpec = SPEC) -> None:
    """A refusal names the file and the way out, has exit code 78, and leaves the files as they are."""
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(RingRefused, match=match) as caught:
        open_table(directory, settings, spec)
    assert str(directory) in str(caught.value)
    assert "--fresh" in str(caught.value)
    assert exit_code_of(caught.value) == 78
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    fresh = open_table(directory, settings, spec, fresh=True)
    assert fresh.num_live == 0
    fresh.insert(message(0)) if spec is SPEC else None
    fresh.close()


def flip(path: Path, byte: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(byte)
        old = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([old ^ (1 << bit)]))


UNUSED: Final = range(160, 192)
"""Bytes of the head that nothing is kept in."""


def used_ring(directory: Path, *, is_killed: bool) -> Path:
    """A ring of which every field of the head says something."""
    table = open_table(directory)
    for number in range(5):
        table.insert(message(number), sender=mark(number))
        table.update_priorities(table.draw(4).keys, np.ones(4))
    limits = limiter_of(table)
    limits.note_drawn(20)
    limits.note_inserted(len(table.insert(message(1), sender=mark(5))))
    table.update_priorities(table.draw(2).keys, np.array([5.0, 5.0]))  # above the maximum of the newest commit
    killed = copy_of(directory, directory.with_name("killed")) if is_killed else directory
    table.close(remove=is_killed)
    return killed


def limiter_of(table: Table) -> RatioLimiter:
    limits = RatioLimiter(2.0, 40.0, 1, words=table.words[:NUM_WORDS])
    limits.catch_up(table.counts.inserted)
    return limits


def everything(directory: Path) -> tuple[Any, Any]:
    """What no damage to a head may change, and what may begin anew."""
    table = open_table(directory)
    limits, counts = limiter_of(table), table.counts
    lasting = live_rows(table), table.sender("actor-0"), counts.inserted, counts.evicted, limits.counts.arrived
    found = lasting, (table.max_magnitude, counts, limits.counts)
    table.close()
    return found


class TestDamage:
    @pytest.mark.parametrize(
        ("byte", "field"),
        [
            (0, "magic"),
            (8, "version"),
            (12, "stride"),
            (16, "num_rows"),
            (24, "ring_id"),
            (40, "digest"),
            (56, "arity"),
            (60, "shard"),
            (72, "reserved"),
            (96, "newest"),
            (104, "max_magnitude"),
            (112, "counts"),
            (192, "words"),
        ],
    )
    def test_each_field_of_the_head_is_checked(self, tmp_path: Path, byte: int, field: str) -> None:
        full_ring(tmp_path)
        flip(tmp_path / "test.000.ring", byte, 1)
        refused(tmp_path, f"test.000.ring: .*{field}")

    @pytest.mark.parametrize("start", range(0, RECORDS_AT, 8))
    def test_no_bit_of_the_head_of_a_closed_ring_changes_unnoticed(self, in_memory: Path, start: int) -> None:
        ring = used_ring(in_memory / "ring", is_killed=False)
        wanted = everything(copy_of(ring, in_memory / "copy"))
        for byte in range(start, start + 8):
            copy = copy_of(ring, in_memory / "copy")
            flip(copy / "test.000.ring", byte, byte % 8)
            if byte in UNUSED:
                assert everything(copy) == wanted
            else:
                with pytest.raises(RingRefused, match=r"test.000.ring: field '\w+' of its head is"):
                    open_table(copy)

    @pytest.mark.parametrize("start", range(0, RECORDS_AT, 8))
    def test_a_bit_of_the_head_of_a_killed_ring_that_has_changed_is_named_or_does_no_harm(
        self, in_memory: Path, caplog: pytest.LogCaptureFixture, start: int
    ) -> None:
        ring = used_ring(in_memory / "ring", is_killed=True)
        rows, wanted = everything(copy_of(ring, in_memory / "copy"))
        caplog.set_level("INFO")
        for byte in range(start, start + 8):
            copy = copy_of(ring, in_memory / "copy")
            flip(copy / "test.000.ring", byte, byte % 8)
            caplog.clear()
            with contextlib.suppress(RingRefused):
                found_rows, found = everything(copy)
                assert found_rows == rows
                assert found == wanted or re.search("damaged, or w|samples_per_insert was", caplog.text), byte

    def test_a_maximum_that_is_damaged_falls_to_that_of_the_newest_commit(
        self, in_memory: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        ring = used_ring(in_memory / "ring", is_killed=True)
        flip(ring / "test.000.ring", 111, 3)
        table = open_table(ring)
        assert table.max_magnitude == 2.0
        assert "field 'max_magnitude' of its head is damaged" in caplog.text
        table.update_priorities(table.draw(1).keys, np.array([7.0]))
        table.close(remove=False)
        again = open_table(ring)
        assert again.max_magnitude == 7.0
        again.close()

    @pytest.mark.parametrize("bit", range(0, 1024, 37))
    def test_a_flipped_bit_in_the_newest_commit_record_is_told_from_a_kill(self, tmp_path: Path, bit: int) -> None:
        full_ring(tmp_path)
        flip(tmp_path / "test.000.ring", newest_record(tmp_path) + bit // 8, bit % 8)
        refused(tmp_path, r"the record of commit \d+, its newest, is damaged")

    def test_the_older_commit_record_is_not_needed(self, tmp_path: Path) -> None:
        full_ring(tmp_path)
        newest = newest_record(tmp_path)
        flip(tmp_path / "test.000.ring", 2 * RECORDS_AT + 128 - newest + 20)
        table = open_table(tmp_path)
        assert table.num_live > 0
        table.close()

    def test_both_commit_records_may_not_be_damaged(self, tmp_path: Path) -> None:
        full_ring(tmp_path)
        for record in (RECORDS_AT, RECORDS_AT + 128):
            flip(tmp_path / "test.000.ring", record + 8)
        refused(tmp_path, "both of its commit records are damaged")

    def test_a_senders_entry_is_checked(self, tmp_path: Path) -> None:
        table = open_table(tmp_path)
        for name in ("a", "b"):
            table.remember(SenderMark(name, 1, 5, 0, 0))
        table.close(remove=False)
        flip(tmp_path / "test.000.ring", SENDERS_AT + 24)
        refused(tmp_path, "entry 0 of its table of senders")

    def test_the_newest_senders_entry_is_written_again(self, tmp_path: Path) -> None:
        table = open_table(tmp_path / "ring")
        table.insert(message(0), sender=mark(0))
        killed = copy_of(tmp_path / "ring", tmp_path / "killed")
        table.close()
        for byte in (0, 16, 24, 48, 56):
            flip(killed / "test.000.ring", SENDERS_AT + byte)
        again = open_table(killed)
        assert again.sender("actor-0") == mark(0)
        again.close()

    @pytest.mark.parametrize("byte", [0, 4, 8, 12, 14])
    def test_the_headers_of_rows_are_checked(self, tmp_path: Path, byte: int) -> None:
        full_ring(tmp_path)
        table = open_table(tmp_path)
        (ring,) = table._rings
        offset = table.settings.segment_shape(0, SPEC).leaves_bytes + HEADER_BYTES
        row = offset + (ring.rows.committed - 1) % ring.rows.num_rows * ring._segment.shape.layout.stride
        table.close(remove=False)
        flip(tmp_path / "test.000.ring", row + byte)
        refused(tmp_path, "headers of its rows from position")

    @pytest.mark.parametrize("value", [np.nan, -1.0, np.inf])
    def test_the_priorities_of_rows_are_checked(self, tmp_path: Path, value: float) -> None:
        full_ring(tmp_path)
        with (tmp_path / "test.000.ring").open("r+b") as file:
            leaves = np.frombuffer(file.read(), np.float64, count=16, offset=HEADER_BYTES)
            file.seek(HEADER_BYTES + 8 * int(np.flatnonzero(leaves > 0)[0]))
            file.write(np.float64(value).tobytes())
        refused(tmp_path, "the priority of its row")

    def test_a_priority_of_a_dead_row_is_refused(self, tmp_path: Path) -> None:
        table = open_table(tmp_path)
        table.insert(message(0))
        table.close(remove=False)
        with (tmp_path / "test.000.ring").open("r+b") as file:
            file.seek(HEADER_BYTES + 8)
            file.write(np.float64(1.0).tobytes())
        refused(tmp_path, "headers of its rows from position 0")

    @pytest.mark.parametrize("value", [np.nan, -1.0, np.inf])
    def test_a_running_maximum_that_is_none_is_refused(self, tmp_path: Path, value: float) -> None:
        full_ring(tmp_path)
        with (tmp_path / "test.000.ring").open("r+b") as file:
            file.seek(104)
            file.write(np.float64(value).tobytes())
        refused(tmp_path, "max_magnitude")

    @pytest.mark.parametrize("size", [0, 100, HEADER_BYTES, -1])
    def test_a_file_that_was_cut_short_is_refused(self, tmp_path: Path, size: int) -> None:
        full_ring(tmp_path)
        path = tmp_path / "test.000.ring"
        os.truncate(path, size if size >= 0 else path.stat().st_size + size)
        refused(tmp_path, r"test.000.ring: it has [\d,]+ bytes instead of")

    def test_a_missing_segment_is_refused(self, tmp_path: Path) -> None:
        full_ring(tmp_path)
        (tmp_path / "test.000.ring").unlink()
        refused(tmp_path, "test.000.ring: it cannot be opened: No such file")

    def test_another_rings_segment_is_refused(self, tmp_path: Path) -> None:
        one, other = full_ring(tmp_path / "one"), full_ring(tmp_path / "other")
        shutil.copy(one / "test.000.ring", other / "test.000.ring")
        refused(other, "'ring_id'")

    def test_a_missing_description_beside_rows_is_refused(self, tmp_path: Path) -> None:
        full_ring(tmp_path)
        (tmp_path / "test.json").unlink()
        refused(tmp_path, "test.json: it is missing beside test.000.ring")

    @pytest.mark.parametrize("text", ["", "{}", "[1]", "no", '{"ring": "{}", "crc32": 1}', '{"ring": 3, "crc32": 1}'])
    def test_a_damaged_description_is_refused(self, tmp_path: Path, text: str) -> None:
        full_ring(tmp_path)
        (tmp_path / "test.json").write_text(text)
        refused(tmp_path, "test.json: ")

    def test_a_changed_description_is_refused(self, tmp_path: Path) -> None:
        full_ring(tmp_path)
        path = tmp_path / "test.json"
        path.write_text(path.read_text().replace("fragment_length", "fragment_lengtH"))
        refused(tmp_path, "test.json: its checksum is wrong")

    def test_another_versions_ring_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(ring_files, "FORMAT_VERSION", 77)
            full_ring(tmp_path)
        refused(tmp_path, "field 'version' is 77, this program reads 2")

    @pytest.mark.parametrize(
        ("changed", "what"),
        [
            ({"capacity": 9}, "capacity = 8, this one has 9"),
            ({"alpha": 0.5}, "alpha = 1.0, this one has 0.5"),
            ({"kind": "uniform"}, "kind = 'prioritized', this one has 'uniform'"),
            ({"n_step": 2}, "n_step = 1"),
            ({"frame_stack": 2}, "frame_stack = 1"),
            ({"num_shards": 2}, "num_shards = 1"),
            ({"arity": 4}, "arity = 8"),
            ({"table_index": 1}, "table_index = 0"),
        ],
    )
    def test_a_ring_of_other_settings_is_refused(self, tmp_path: Path, changed: dict[str, Any], what: str) -> None:
        full_ring(tmp_path)
        values = {"capacity": 8, "alpha": 1.0, "eps": 0.0, "fragment_length": 2, **changed}
        refused(tmp_path, what, TableSettings("test", **values))

    def test_a_ring_of_other_columns_is_refused(self, tmp_path: Path) -> None:
        full_ring(tmp_path)
        spec = TableSpec.of({"obs": ((4,), "float32"), "action": ((), "int64")})
        refused(tmp_path, r"its columns are .*obs float32 \(3,\).*this table has .*obs float32 \(4,\)", spec=spec)


def newest_record(directory: Path) -> int:
    raw = (directory / "test.000.ring").read_bytes()
    first, second = (int.from_bytes(raw[at : at + 8], "little") for at in (RECORDS_AT, RECORDS_AT + 128))
    return RECORDS_AT if first > second else RECORDS_AT + 128


class TestPlaces:
    def test_a_ring_has_one_user_at_a_time(self, tmp_path: Path) -> None:
        table = open_table(tmp_path)
        for fresh in (False, True):
            with pytest.raises(RingRefused, match=f"{tmp_path}: another process has this ring open"):
                open_table(tmp_path, fresh=fresh)
        table.insert(message(0))
        table.close(remove=False)
        again = open_table(tmp_path)
        assert again.num_live == 1
        again.close()

    def test_a_place_that_is_no_directory_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(RingRefused, match="file: it cannot hold a ring: "):
            open_table(tmp_path / "file")
        with pytest.raises(RingRefused, match="below: it cannot hold a ring: Not a directory"):
            open_table(tmp_path / "file" / "below")

    @pytest.mark.parametrize("has_ring", [False, True])
    def test_a_read_only_place_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ring: bool
    ) -> None:
        if has_ring:
            full_ring(tmp_path)
        monkeypatch.setattr(os, "open", only_reading(os.open))
        with pytest.raises(RingRefused, match=f"{tmp_path}.*Read-only file system"):
            open_table(tmp_path)

    def test_a_full_disk_is_refused_and_nothing_is_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(MemoryRefused, match=r"test.000.ring: No space left"):
            open_table(tmp_path / "ring")
        assert list(tmp_path.iterdir()) == []

    def test_a_file_with_holes_is_filled_or_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        table = open_table(tmp_path / "ring", TableSettings("test", 20_000))
        table.insert(counter_fragment(0, 1))
        table.close(remove=False)
        path = tmp_path / "ring" / "test.000.ring"
        subprocess.run(["fallocate", "--dig-holes", path], check=True)
        if path.stat().st_blocks * 512 >= path.stat().st_size:
            pytest.skip("files have no holes here")
        again = open_table(tmp_path / "ring", TableSettings("test", 20_000))
        assert path.stat().st_blocks * 512 >= path.stat().st_size
        again.close()


def only_reading(open_file: Callable[..., int]) -> Callable[..., int]:
    """os.open on a file system that is mounted read-only."""

    def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(30, "Read-only file system")
        return open_file(path, flags, *args, **kwargs)

    return opened


class TestReboot:
    @pytest.fixture
    def reboot(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
        return lambda: monkeypatch.setattr(ring_files, "boot_id", lambda: "another start of the machine")

    def test_a_ring_that_was_closed_survives_it(self, tmp_path: Path, reboot: Callable[[], None]) -> None:
        full_ring(tmp_path)
        rows = json.loads(json.loads((tmp_path / "test.json").read_text())["ring"])
        assert rows["is_closed"]
        reboot()
        table = open_table(tmp_path)
        assert table.num_live > 0
        assert not ring_files.RingDescription.read(tmp_path / "test.json").is_closed
        table.close()

    def test_a_ring_that_was_open_is_refused_after_it(self, tmp_path: Path, reboot: Callable[[], None]) -> None:
        full_ring(tmp_path / "ring")
        table = open_table(tmp_path / "ring")
        copy_of(tmp_path / "ring", tmp_path / "copy")
        table.close()
        same_boot = copy_of(tmp_path / "copy", tmp_path / "killed")
        open_table(same_boot).close()
        reboot()
        refused(tmp_path / "copy", "the machine went down while this ring was open")

    def test_a_refused_ring_stays_closed(self, tmp_path: Path, reboot: Callable[[], None]) -> None:
        full_ring(tmp_path)
        with pytest.raises(RingRefused):
            open_table(tmp_path, TableSettings("test", 9, alpha=1.0, eps=0.0, fragment_length=2))
        reboot()
        open_table(tmp_path).close()


class TestKills:
    """A real process is killed again and again; senders send again what was not acknowledged."""

    @pytest.mark.parametrize("capacity", [400, 100_000])
    def test_a_few_kills(self, tmp_path: Path, capacity: int) -> None:
        kill_and_check(tmp_path, capacity, num_rounds=4, seed=0)

    @pytest.mark.slow
    @pytest.mark.parametrize("capacity", [400, 100_000])
    def test_fifty_kills(self, tmp_path: Path, capacity: int) -> None:
        kill_and_check(tmp_path, capacity, num_rounds=50, seed=1)


def kill_and_check(tmp_path: Path, capacity: int, *, num_rounds: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    acknowledged = [-1] * inserting.NUM_SENDERS
    for _ in range(num_rounds):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.replay.inserting", str(tmp_path / "ring"), str(capacity)],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the process has ended by itself"
        time.sleep(rng.random() * 0.2)  # the moment of the kill is chance
        process.kill()
        lines = [line, *process.stdout.read().splitlines(keepends=True)]
        process.stdout.close()
        process.wait()
        for text in lines:
            if text.endswith(b"\n"):
                sender, sequence = map(int, text.split())
                assert sequence == acknowledged[sender] + 1 or sequence <= acknowledged[sender] + 2
                acknowledged[sender] = sequence
        table = inserting.open_table(tmp_path / "ring", capacity)
        check_stored(table, inserting.stored_rows(table), acknowledged)
        table.close(remove=False)
    assert min(acknowledged) > 20


def check_stored(table: Table, by_shard: list[dict[int, list[tuple[int, int]]]], acknowledged: list[int]) -> None:
    """What is acknowledged is stored, once and whole, but for the oldest of each shard, which may have been evicted."""
    num_inserted = 0
    for sender, last in enumerate(acknowledged):
        stored = table.sender(inserting.name(sender))
        assert stored is not None
        assert stored.sequence in (last, last + 1)
        assert stored.rows == inserting.LENGTH * (stored.sequence + 1)
        found = [rows[sender] for rows in by_shard]
        first_kept = max((min(rows)[0] for rows in found if rows), default=0) if table.counts.evicted else 0
        everything = sorted(row for rows in found for row in rows)
        kept = [row for row in everything if row[0] >= first_kept]
        assert kept == [(s, row) for s in range(first_kept, stored.sequence + 1) for row in range(inserting.LENGTH)]
        assert len(set(everything)) == len(everything)
        num_inserted += stored.rows
    assert table.counts.inserted == num_inserted


class Killed(Exception):
    """Nothing after it happens."""


@pytest.mark.parametrize("num_removed", [0, 1, 2, 3])
def test_a_kill_while_a_ring_is_removed_leaves_all_of_it_or_nothing(
    in_memory: Path, monkeypatch: pytest.MonkeyPatch, num_removed: int
) -> None:
    settings = replace(SETTINGS, num_shards=2)
    table = open_table(in_memory, settings)
    for number in range(4):
        table.insert(message(number))
    rows = live_rows(table)
    removed: list[Path] = []
    unlink = Path.unlink

    def unlink_until_killed(path: Path, missing_ok: bool = False) -> None:
        if len(removed) == num_removed:
            raise Killed
        removed.append(path)
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink_until_killed)
        with contextlib.suppress(Killed):
            table.close()
    assert len(removed) == num_removed
    table = open_table(in_memory, settings)
    assert live_rows(table) == (rows if num_removed == 0 else {})
    table.close()


@pytest.mark.parametrize("remove", [False, True])
def test_a_ring_that_cannot_be_closed_or_removed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remove: bool
) -> None:
    table = open_table(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "unlink" if remove else "replace", full)
    with pytest.raises(RingRefused, match=f"{tmp_path}: its ring cannot be .*: No space left on device"):
        table.close(remove=remove)
